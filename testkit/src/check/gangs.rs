//! A gang is placed whole or not at all, starts whole or not at all, and takes its pods in order (semantics.md §4.3, §6.1, §7).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use muster_core::config::Action;
use muster_core::index::{GangIdx, PodIdx, QueueIdx, SubgroupIdx};
use muster_core::outcome::DecisionKind;
use muster_core::snapshot::{PodStatus, Snapshot, SubgroupKind, TaskPriority};

use super::places::{could_all_start, could_start};
use super::{After, active};

/// Which pods count for a minimum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Counting {
    /// Those that have a node or the promise of one.
    Placed,
    /// Those that have a node.
    Starting,
    /// Those that could be placed, too.
    Possible,
}

impl Counting {
    fn counts(self, status: PodStatus) -> bool {
        // A pod that succeeded needs no node any more and is not missing (users.md, 9).
        let counted = active(status) || status == PodStatus::Succeeded;
        match self {
            Self::Placed => counted,
            Self::Starting => counted && status != PodStatus::Pipelined,
            Self::Possible => counted || status == PodStatus::Pending,
        }
    }
}

/// How many of a leaf's pods count.
pub(super) fn pods_of(after: &After<'_>, leaf: SubgroupIdx, counting: Counting) -> u32 {
    let pods =
        after.pods.entries().filter(|(pod, at)| after.rows.pods[*pod].subgroup == Some(leaf) && counting.counts(at.status));
    u32::try_from(pods.count()).expect("few pods")
}

/// Direct members of a set, or of the gang itself.
pub(super) fn members(rows: &Snapshot, gang: GangIdx, of: Option<SubgroupIdx>) -> Vec<SubgroupIdx> {
    rows.gangs[gang].subgroups.iter().filter(|&member| rows.subgroups[member].parent == of).collect()
}

/// Whether a member (`None`: the gang itself) has its minimum.
pub(super) fn satisfied(after: &After<'_>, gang: GangIdx, of: Option<SubgroupIdx>, counting: Counting) -> bool {
    let required = match of.map(|member| after.rows.subgroups[member].kind) {
        Some(SubgroupKind::PodSet { min }) => return pods_of(after, of.expect("a leaf"), counting) >= min,
        Some(SubgroupKind::Set { required }) => required,
        None => after.rows.gangs[gang].required,
    };
    ready_members(after, gang, of, counting) >= required
}

/// How many members of a set, or of the gang itself, have their minimum.
pub(super) fn ready_members(after: &After<'_>, gang: GangIdx, of: Option<SubgroupIdx>, counting: Counting) -> u32 {
    let members = members(after.rows, gang, of);
    let good = members.into_iter().filter(|&member| satisfied(after, gang, Some(member), counting));
    u32::try_from(good.count()).expect("few members")
}

/// The pods of a leaf that wait, in the order of semantics.md §4.3.
pub(super) fn line(after: &After<'_>, leaf: SubgroupIdx, waits: impl Fn(PodIdx) -> bool) -> Vec<PodIdx> {
    let plugins = &after.rows.config.plugins;
    let rows = after.rows.pods.entries().filter(|(pod, row)| row.subgroup == Some(leaf) && waits(*pod));
    let mut line: Vec<PodIdx> = rows.map(|(pod, _)| pod).collect();
    line.sort_by_key(|&pod| {
        let row = &after.rows.pods[pod];
        let rank = match row.task_priority {
            _ if !plugins.task_order => (0, Reverse(0)),
            TaskPriority::Number(number) => (1, Reverse(number)),
            TaskPriority::Absent => (2, Reverse(0)),
            TaskPriority::Unparsable => (3, Reverse(0)),
        };
        (Reverse(plugins.kubeflow && row.leader), Reverse(plugins.ray && row.ray_head), rank, pod)
    });
    line
}

pub(super) fn check(after: &After<'_>, wrong: &mut Vec<String>) {
    for (gang, row) in after.rows.gangs.entries() {
        let mine = |pod: PodIdx| after.rows.pods[pod].gang == Some(gang);
        let decided: Vec<PodIdx> = after.placed().map(|(pod, _)| pod).filter(|&pod| mine(pod)).collect();
        if decided.is_empty() {
            continue;
        }
        match row.queue {
            Ok(queue) if after.rows.queues.iter().all(|row| row.parent != Some(queue)) => {}
            _ => wrong.push(format!("{gang:?}: placed without a leaf queue: {:?}", row.queue)),
        }
        if row.backed_off && decided.iter().any(|&pod| after.rows.pods[pod].status == PodStatus::Pending) {
            wrong.push(format!("{gang:?}: placed although it backed off"));
        }
        // A gang that lost pods is another matter, see `evictions`.
        let mut lost = after.outcome.decisions.iter().filter(|decision| decision.kind == DecisionKind::Evict);
        if !lost.any(|decision| mine(decision.pod)) {
            check_whole(after, gang, &decided, wrong);
            check_start(after, gang, wrong);
        }
        check_order(after, gang, wrong);
        check_promises(after, gang, &decided, wrong);
    }
    check_depth(after, wrong);
}

/// No action serves more gangs of a queue than its depth; those that only move apart.
fn check_depth(after: &After<'_>, wrong: &mut Vec<String>) {
    for action in Action::DEFAULT {
        let Some(depth) = after.rows.config.depth[action as usize] else { continue };
        if after.rows.config.actions.iter().filter(|&&other| other == action).count() > 1 {
            continue;
        }
        let mut served: BTreeMap<QueueIdx, BTreeSet<GangIdx>> = BTreeMap::new();
        let placed = after.outcome.decisions.iter().filter(|d| d.action == action && d.kind != DecisionKind::Evict);
        for decision in placed.filter(|decision| after.rows.pods[decision.pod].status == PodStatus::Pending) {
            let lost = |other: &muster_core::outcome::Decision| {
                other.kind == DecisionKind::Evict && after.rows.pods[other.pod].gang == after.rows.pods[decision.pod].gang
            };
            let Some(gang) = after.rows.pods[decision.pod].gang else { continue };
            if let Some(queue) = after.rows.gangs[gang].queue.ok().filter(|_| !after.outcome.decisions.iter().any(lost)) {
                served.entry(queue).or_default().insert(gang);
            }
        }
        for (queue, gangs) in served {
            if gangs.len() > depth as usize {
                wrong.push(format!("{queue:?}: {} gangs were served by {action:?}, more than its depth", gangs.len()));
            }
        }
    }
}

/// The gang, every sub-group that got something, and every set above it, have their minimum.
fn check_whole(after: &After<'_>, gang: GangIdx, decided: &[PodIdx], wrong: &mut Vec<String>) {
    if !satisfied(after, gang, None, Counting::Placed) {
        wrong.push(format!("{gang:?}: placed, but not whole"));
    }
    for &pod in decided {
        let mut next = after.rows.pods[pod].subgroup;
        while let Some(member) = next {
            if !satisfied(after, gang, Some(member), Counting::Placed) {
                wrong.push(format!("{gang:?}: {member:?} got {pod:?}, but is below its minimum"));
            }
            next = after.rows.subgroups[member].parent;
        }
    }
}

/// No pod of a leaf waits while a later one was placed.
fn check_order(after: &After<'_>, gang: GangIdx, wrong: &mut Vec<String>) {
    for leaf in after.rows.gangs[gang].subgroups.iter() {
        let line = line(after, leaf, |pod| after.rows.pods[pod].status == PodStatus::Pending);
        let waits = |pod: &PodIdx| after.pods[*pod].status == PodStatus::Pending;
        let first = line.iter().position(waits).unwrap_or(line.len());
        if let Some(pod) = line[first..].iter().find(|pod| !waits(pod)) {
            wrong.push(format!("{gang:?}: {pod:?} was placed before {:?}, whose turn it was", line[first]));
        }
    }
}

/// A gang starts as a whole: pods that start now are enough by themselves, for it and for each of its leaves.
fn check_start(after: &After<'_>, gang: GangIdx, wrong: &mut Vec<String>) {
    let starts = |leaf: SubgroupIdx| has(after, leaf, DecisionKind::Bind);
    let mut leaves = after.rows.gangs[gang].subgroups.iter().filter(|&leaf| starts(leaf)).peekable();
    if leaves.peek().is_some() && !satisfied(after, gang, None, Counting::Starting) {
        wrong.push(format!("{gang:?}: some pods start now, but not enough for the gang"));
    }
    let enough = |leaf: SubgroupIdx| satisfied(after, gang, Some(leaf), Counting::Starting);
    if let Some(leaf) = leaves.find(|&leaf| has(after, leaf, DecisionKind::Pipeline) && !enough(leaf)) {
        wrong.push(format!("{gang:?}: some pods of {leaf:?} start now, but not enough for it"));
    }
}

/// Nobody waits for what is free, unless somebody of the same gang has to.
fn check_promises(after: &After<'_>, gang: GangIdx, decided: &[PodIdx], wrong: &mut Vec<String>) {
    // Whoever others have to leave for waits, whatever is free.
    let by_allocate = |pod: &PodIdx| after.last_action(*pod) == Some(Action::Allocate);
    let waits = |pod: &PodIdx| after.pods[*pod].status == PodStatus::Pipelined;
    let promised: Vec<PodIdx> = decided.iter().copied().filter(waits).filter(by_allocate).collect();
    let with_others = decided.iter().any(|pod| waits(pod) && !by_allocate(pod));
    if !promised.is_empty() && !with_others && could_all_start(after, &promised) {
        wrong.push(format!("{gang:?}: {promised:?} wait for what is free"));
    }
    // A leaf that was below its minimum when the cycle began may have held others back, even if it got there later.
    let began_below = |leaf: SubgroupIdx| match after.rows.subgroups[leaf].kind {
        SubgroupKind::PodSet { min } => {
            let rows = after.rows.pods.iter().filter(|row| row.subgroup == Some(leaf));
            rows.filter(|row| Counting::Starting.counts(row.status)).count() < min as usize
        }
        SubgroupKind::Set { .. } => false,
    };
    let mut leaves = after.rows.gangs[gang].subgroups.iter();
    if !leaves.any(|leaf| has(after, leaf, DecisionKind::Pipeline) && began_below(leaf)) {
        for pod in could_start(after, &promised) {
            wrong.push(format!("{gang:?}: {pod:?} waits for what is free"));
        }
    }
}

fn has(after: &After<'_>, leaf: SubgroupIdx, kind: DecisionKind) -> bool {
    let mut decisions = after.outcome.decisions.iter();
    decisions.any(|decision| decision.kind == kind && after.rows.pods[decision.pod].subgroup == Some(leaf))
}
