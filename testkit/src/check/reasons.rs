//! Every gang with pods that wait is listed with reasons, no other is, and what the reasons say is so.
//!
//! Reasons are written when a gang's turn fails, or against what `allocate` leaves; what is free can only have become less by
//! then. So an amount that a reason gives is held against the end of the cycle exactly where it was looked up at the end, and as
//! a bound elsewhere. Where other actions decided something since, amounts are not compared.

use muster_core::config::Action;
use muster_core::explain::{Bound, Nearest, Reason, Refusal, Scarce, Shortage, Tally};
use muster_core::index::{ClassIdx, DimIdx, GangIdx, Idx, NodeIdx, PodIdx, SubgroupIdx};
use muster_core::snapshot::{GpuRequest, PodStatus, SubgroupKind};
use muster_core::units::Amounts;

use super::gangs::{Counting, line, members, pods_of, ready_members};
use super::nodes::{CPU, FIRST_EXTRA, GPU, MEMORY, PODS, Used, asked, offered, used};
use super::places::refusal;
use super::queues::{held, path};
use super::{After, keeps};

pub(super) fn check(after: &After<'_>, wrong: &mut Vec<String>) {
    let kept = used(after, &after.pods, keeps);
    let mut listed = after.outcome.pending.iter();
    for gang in after.rows.gangs.indices() {
        let waiting = after.rows.gangs[gang]
            .pods
            .iter()
            .filter(|&pod| matches!(after.pods[pod].status, PodStatus::Pending | PodStatus::Gated) || lost_its_place(after, pod));
        let waiting = waiting.count();
        if waiting == 0 {
            continue;
        }
        let Some(pending) = listed.next().filter(|pending| pending.gang == gang) else {
            return wrong.push(format!("{gang:?}: {waiting} pods wait, but the list of those that wait lacks it"));
        };
        let reasons = after.outcome.reasons_of(pending);
        if pending.pods as usize != waiting || reasons.is_empty() {
            wrong.push(format!("{gang:?}: {waiting} pods wait, listed are {} with {reasons:?}", pending.pods));
        }
        for reason in reasons {
            if let Err(what) = is_so(after, &kept, gang, reason) {
                wrong.push(format!("{gang:?}: {reason:?}: {what}"));
            }
        }
    }
    if let Some(pending) = listed.next() {
        wrong.push(format!("{:?}: listed as waiting, but no pod of it waits, or it is listed twice", pending.gang));
    }
}

type Verdict = Result<(), String>;

fn must(good: bool, what: impl FnOnce() -> String) -> Verdict {
    if good { Ok(()) } else { Err(what()) }
}

fn is_so(after: &After<'_>, kept: &[Used], gang: GangIdx, reason: &Reason) -> Verdict {
    let row = &after.rows.gangs[gang];
    match *reason {
        Reason::NoQueue(why) => must(row.queue == Err(why), || format!("its queue is {:?}", row.queue)),
        Reason::QueueNotLeaf(queue) => {
            let inner = after.rows.queues.iter().any(|row| row.parent == Some(queue));
            must(row.queue == Ok(queue) && inner, || "it is not in an inner queue".into())
        }
        Reason::BackedOff => must(row.backed_off, || "it did not back off".into()),
        Reason::ActionNotRun(action) => {
            must(action == Action::Allocate && !after.rows.config.actions.contains(&action), || "the action ran".into())
        }
        Reason::TakenBack { pods } => {
            let is = after.rows.gangs[gang].pods.iter().filter(|&pod| lost_its_place(after, pod)).count();
            must(is == pods as usize && is > 0, || format!("{is} pods lost the place that they got"))
        }
        Reason::OneStep => must(got_more_later(after, gang), || "no action but allocate gave it anything".into()),
        Reason::NotHelped { action, .. } => must(after.rows.config.actions.contains(&action), || "the action did not run".into()),
        Reason::BeyondQueueDepth { queue, depth } => {
            let so =
                row.queue == Ok(queue) && after.rows.config.depth[muster_core::config::Action::Allocate as usize] == Some(depth);
            must(so, || format!("the depth is {:?}", after.rows.config.depth[muster_core::config::Action::Allocate as usize]))
        }
        Reason::TooFewPods { subgroup, present, gated, min } => too_few_pods(after, subgroup, present, gated, min),
        Reason::TooFewMembers { set, ready, required } => {
            let is = ready_members(after, gang, set, Counting::Possible);
            let threshold = threshold(after, gang, set);
            must(is == ready && threshold == required && is < required, || format!("{is} of {threshold} can form"))
        }
        Reason::Gated { pods } => {
            let is = waiting(after, gang, |pod| after.pods[pod].status == PodStatus::Gated);
            must(is == pods && is > 0, || format!("{is} pods are gated"))
        }
        Reason::UnknownSubgroup { pods } => {
            let is = waiting(after, gang, |pod| after.rows.pods[pod].subgroup.is_none());
            must(is == pods && is > 0, || format!("{is} pods name a sub-group that is not there"))
        }
        Reason::OverLimit(bound) => over(after, gang, &bound, false),
        Reason::OverQuota(bound) => over(after, gang, &bound, true),
        Reason::Blocked { pod, why } => {
            waits_here(after, gang, pod)?;
            must(after.rows.classes[after.class(pod)].blocked == Some(why), || "it is not".into())
        }
        Reason::TooLarge { pod, short } => too_large(after, gang, pod, short),
        Reason::NoNode { pod, placed, members, refusals, nearest } => {
            waits_here(after, gang, pod)?;
            must(placed < members || members == 0 || after.goes_on(), || "all were placed".into())?;
            no_node(after, kept, pod, placed, refusals, nearest)
        }
    }
}

fn threshold(after: &After<'_>, gang: GangIdx, set: Option<SubgroupIdx>) -> u32 {
    match set.map(|set| after.rows.subgroups[set].kind) {
        Some(SubgroupKind::Set { required }) => required,
        Some(SubgroupKind::PodSet { min }) => min,
        None => after.rows.gangs[gang].required,
    }
}

/// Whether a pod was given a place in this cycle and told to leave it again: it never started, so it waits.
fn lost_its_place(after: &After<'_>, pod: PodIdx) -> bool {
    after.pods[pod].status == PodStatus::Releasing && after.rows.pods[pod].status == PodStatus::Pending
}

fn waiting(after: &After<'_>, gang: GangIdx, good: impl Fn(PodIdx) -> bool) -> u32 {
    let waits = |pod: &PodIdx| matches!(after.pods[*pod].status, PodStatus::Pending | PodStatus::Gated);
    let pods = after.rows.gangs[gang].pods.iter().filter(waits).filter(|&pod| good(pod));
    u32::try_from(pods.count()).expect("few pods")
}

/// Whether an action after `allocate` gave the gang something, or took it: its reasons speak of what was before.
fn got_more_later(after: &After<'_>, gang: GangIdx) -> bool {
    let mut decisions = after.outcome.decisions.iter();
    decisions.any(|d| d.action != Action::Allocate && after.rows.pods[d.pod].gang == Some(gang))
}

fn waits_here(after: &After<'_>, gang: GangIdx, pod: PodIdx) -> Verdict {
    let waits = after.pods[pod].status == PodStatus::Pending || got_more_later(after, gang);
    let so = after.rows.pods[pod].gang == Some(gang) && waits;
    must(so, || format!("{pod:?} is not a pod of it that waits"))
}

fn too_few_pods(after: &After<'_>, leaf: SubgroupIdx, present: u32, gated: u32, min: u32) -> Verdict {
    let is = pods_of(after, leaf, Counting::Possible);
    let pods = after.rows.pods.iter().filter(|row| row.subgroup == Some(leaf) && row.status == PodStatus::Gated);
    let (held_back, needs) = (pods.count(), after.rows.subgroups[leaf].kind);
    let so = present == is && gated as usize == held_back && needs == SubgroupKind::PodSet { min } && is < min;
    must(so, || format!("{is} pods and {held_back} gated ones, it is {needs:?}"))
}

/// A bound is broken: recomputed from the rows.
fn over(after: &After<'_>, gang: GangIdx, bound: &Bound, quota: bool) -> Verdict {
    let (row, r) = (&after.rows.queues[bound.queue], bound.resource);
    must(path(after.rows, gang).contains(&bound.queue), || "the queue is not on its path".into())?;
    must(!quota || !after.rows.gangs[gang].preemptible, || "it may exceed quotas".into())?;
    let is = if quota { row.quota[r] } else { row.limit[r] };
    must(is == bound.bound, || format!("the bound is {is}"))?;
    must(bound.held + bound.asked > bound.bound && bound.asked > 0, || "the bound is kept".into())?;
    let held = held(after, &after.pods);
    let end = if quota { &held.non_preemptible } else { &held.allocated }[bound.queue][r];
    // Evictions give back what stood against it when it was its turn.
    must(bound.held <= end || after.goes_on(), || format!("only {end} are held when the cycle ends"))?;
    if got_more_later(after, gang) {
        return Ok(());
    }
    let Some(asks) = next_request(after, gang) else { return Ok(()) };
    must(bound.asked == asks[r], || format!("it asks for {}", asks[r]))
}

/// What a gang of one leaf would take next, by the largest card; `None` for a tree, whose next step depends on more.
fn next_request(after: &After<'_>, gang: GangIdx) -> Option<Amounts> {
    let [leaf] = members(after.rows, gang, None)[..] else { return None };
    let SubgroupKind::PodSet { min } = after.rows.subgroups[leaf].kind else { return None };
    let missing = min.saturating_sub(pods_of(after, leaf, Counting::Placed)).max(1);
    let waiting = line(after, leaf, |pod| after.pods[pod].status == PodStatus::Pending);
    let (_, largest) = after.card_range();
    let next = waiting.into_iter().take(missing as usize);
    // If a pod's charge depends on its card, a later pod of the gang may be the one that was too much.
    let pods: Vec<PodIdx> = next.collect();
    if pods.iter().any(|&pod| matches!(after.rows.classes[after.class(pod)].gpu, GpuRequest::Memory { .. })) {
        return None;
    }
    Some(pods.into_iter().fold(Amounts::ZERO, |sum, pod| sum + after.charge(after.class(pod), largest)))
}

fn too_large(after: &After<'_>, gang: GangIdx, pod: PodIdx, short: Shortage) -> Verdict {
    waits_here(after, gang, pod)?;
    let dim = dim(short.what).ok_or("parts of cards are never too large as such")?;
    let most = after.rows.nodes.indices().map(|node| offered(after, node)[dim]).max().unwrap_or(0);
    let asks = asked(after, pod)[dim];
    must(asks == short.asked && most == short.free && asks > most, || format!("asks for {asks}, the most is {most}"))
}

fn dim(what: Scarce) -> Option<usize> {
    match what {
        Scarce::Cpu => Some(CPU),
        Scarce::Memory => Some(MEMORY),
        Scarce::Gpus => Some(GPU),
        Scarce::CardMib => None,
        Scarce::Pods => Some(PODS),
        Scarce::Extra(dim) => Some(FIRST_EXTRA + dim.at()),
    }
}

/// Every node is counted once, at the first test that it fails; and the nearest one is the nearest.
fn no_node(after: &After<'_>, kept: &[Used], pod: PodIdx, placed: u32, refusals: Tally, nearest: Option<Nearest>) -> Verdict {
    let class = after.class(pod);
    let nodes = || after.rows.nodes.indices();
    let counted: u32 = refusals.0.iter().sum();
    must(counted as usize <= nodes().len(), || format!("{counted} refusals by {} nodes", nodes().len()))?;
    for test in &Refusal::ALL[..6] {
        let failing = nodes().filter(|&node| refusal(after.rows, class, node) == Some(*test)).count();
        let said = refusals.0[*test as usize] as usize;
        must(said == failing, || format!("{failing} nodes fail {test:?}, not {said}"))?;
    }
    let shared = after.mib(class, NodeIdx::new(0)).is_some();
    // A gang that lost its pods again was explained by what was left beside them, before others were evicted: nothing to
    // compare with here.
    if placed > 0 || after.goes_on() {
        return Ok(());
    }
    must(counted as usize == nodes().len(), || format!("{counted} refusals by {} nodes", nodes().len()))?;
    if shared {
        return Ok(());
    }
    let lacking = |node: NodeIdx| lacks(after, &kept[node.at()], pod, node);
    for (test, dims) in [(Refusal::Gpu, GPU), (Refusal::Cpu, CPU), (Refusal::Memory, MEMORY), (Refusal::Pods, PODS)] {
        let said = refusals.0[test as usize] as usize;
        let first =
            nodes().filter(|&node| refusal(after.rows, class, node).is_none() && first_test(&lacking(node)) == Some(dims));
        let failing = first.count();
        must(said == failing, || format!("{failing} nodes fail {test:?}, not {said}"))?;
    }
    let best = nearest_by_scan(after, class, lacking);
    must(nearest == best, || format!("the nearest is {best:?}"))
}

/// What a node lacks for a pod: dimension, asked, free.
fn lacks(after: &After<'_>, kept: &Used, pod: PodIdx, node: NodeIdx) -> Vec<(usize, i64, i64)> {
    let (offered, asked) = (offered(after, node), asked(after, pod));
    let free = |dim: usize| if offered[dim] == 0 { 0 } else { offered[dim] - kept.amounts[dim] };
    let all = asked.into_iter().enumerate().filter(|&(dim, need)| need > 0 && free(dim) < need);
    all.map(|(dim, need)| (dim, need, free(dim))).collect()
}

/// The test that is counted: GPU, cpu, memory, others, pods.
fn first_test(lacks: &[(usize, i64, i64)]) -> Option<usize> {
    let rank = |dim: usize| [GPU, CPU, MEMORY].iter().position(|&d| d == dim).unwrap_or(if dim == PODS { 4 } else { 3 });
    lacks.iter().map(|&(dim, ..)| dim).min_by_key(|&dim| rank(dim))
}

/// The fewest resources lacking, then the smallest missing share of the first one (GPUs before all others), then name.
fn nearest_by_scan(after: &After<'_>, class: ClassIdx, lacking: impl Fn(NodeIdx) -> Vec<(usize, i64, i64)>) -> Option<Nearest> {
    let open = after.rows.nodes.indices().filter(|&node| refusal(after.rows, class, node).is_none());
    let candidates = open.filter_map(|node| {
        let lacks = lacking(node);
        let &(dim, asked, free) = lacks.iter().find(|&&(dim, ..)| dim == GPU).or(lacks.first())?;
        let what = match dim {
            CPU => Scarce::Cpu,
            MEMORY => Scarce::Memory,
            GPU => Scarce::Gpus,
            PODS => Scarce::Pods,
            _ => Scarce::Extra(DimIdx::new(dim - FIRST_EXTRA)),
        };
        let scarce = u32::try_from(lacks.len()).expect("few resources");
        Some(Nearest { node, short: Shortage { what, asked, free }, scarce })
    });
    candidates.min_by(|a, b| {
        let missing = |n: &Nearest| i128::from(n.short.asked - n.short.free);
        // a.missing / a.asked < b.missing / b.asked, without dividing.
        let share = |a: &Nearest, b: &Nearest| missing(a) * i128::from(b.short.asked);
        a.scarce.cmp(&b.scarce).then_with(|| share(a, b).cmp(&share(b, a))).then(a.node.cmp(&b.node))
    })
}
