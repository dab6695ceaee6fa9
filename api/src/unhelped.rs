//! The words of [`Unhelped`]: why an action evicted or moved nobody for a gang that waits. Pure, like [`crate::sentences`], which
//! is the only one to call it.

use muster_core::config::Action;
use muster_core::explain::{Bound, Unhelped};
use muster_core::index::{GangIdx, QueueIdx};
use muster_core::units::{Resource, UNLIMITED};

use crate::report_amount::{bare, count, full};
use crate::sentences::{Facts, Naming, none_or};

/// `reclaim-above-fair-share` and so on: an action and why it did not help.
macro_rules! by_action {
    ($action:expr, $why:literal) => {
        match $action {
            Action::Allocate => concat!("allocate-", $why),
            Action::Consolidation => concat!("consolidation-", $why),
            Action::Reclaim => concat!("reclaim-", $why),
            Action::Preempt => concat!("preempt-", $why),
            Action::StaleGangEviction => concat!("stalegangeviction-", $why),
        }
    };
}

/// The stable code.
pub(crate) const fn code(action: Action, why: &Unhelped) -> &'static str {
    match why {
        Unhelped::SwitchedOff => by_action!(action, "switched-off"),
        Unhelped::Delayed { .. } => by_action!(action, "delayed"),
        Unhelped::NotPreemptible => by_action!(action, "not-preemptible"),
        Unhelped::AboveShare(_) => by_action!(action, "above-fair-share"),
        Unhelped::AboveQuota(_) => by_action!(action, "above-quota"),
        Unhelped::OverLimit(_) => by_action!(action, "over-limit"),
        Unhelped::BeyondQueueDepth { .. } => by_action!(action, "beyond-queue-depth"),
        Unhelped::Nobody => by_action!(action, "nobody"),
        Unhelped::Protected { .. } => by_action!(action, "protected"),
        Unhelped::Kept { .. } => by_action!(action, "disruption-budget"),
        Unhelped::KeepsShare(_) => by_action!(action, "others-within-share"),
        Unhelped::Saturated { .. } => by_action!(action, "saturated"),
        Unhelped::TooLittle { .. } => by_action!(action, "too-little"),
        Unhelped::TooLittleFree { .. } => by_action!(action, "too-little-free"),
        Unhelped::NoArrangement { .. } => by_action!(action, "no-arrangement"),
        Unhelped::GivenUp { .. } => by_action!(action, "given-up"),
        Unhelped::Brake { .. } => by_action!(action, "brake"),
    }
}

/// How much a reason tells beside those of other actions, more first: what a setting or a rule forbids before what the cluster
/// does not have, and that before what this action never does.
pub(crate) const fn rank(why: &Unhelped) -> u8 {
    match why {
        Unhelped::Brake { .. } => 0,
        Unhelped::GivenUp { .. } => 1,
        Unhelped::Delayed { .. } => 2,
        Unhelped::BeyondQueueDepth { .. } => 3,
        Unhelped::OverLimit(_) => 4,
        Unhelped::AboveQuota(_) => 5,
        Unhelped::Saturated { .. } => 6,
        Unhelped::AboveShare(_) => 7,
        Unhelped::KeepsShare(_) => 8,
        Unhelped::NoArrangement { .. } => 9,
        Unhelped::Protected { .. } => 10,
        Unhelped::Kept { .. } => 11,
        Unhelped::TooLittle { .. } => 12,
        Unhelped::TooLittleFree { .. } => 13,
        Unhelped::NotPreemptible => 14,
        Unhelped::Nobody => 15,
        Unhelped::SwitchedOff => 16,
    }
}

/// One sentence, the action first. Unnamed it has neither the gang's queue nor its numbers, so that gangs of many queues group.
pub(crate) fn say(action: Action, why: &Unhelped, gang: GangIdx, facts: Facts<'_>, naming: Naming) -> String {
    let text = match naming {
        Naming::Named => named(action, why, gang, facts),
        Naming::Unnamed => unnamed(action, why),
    };
    format!("{}: {text}.", capital(action))
}

const fn capital(action: Action) -> &'static str {
    match action {
        Action::Allocate => "Allocate",
        Action::Consolidation => "Consolidation",
        Action::Reclaim => "Reclaim",
        Action::Preempt => "Preempt",
        Action::StaleGangEviction => "Stale gang eviction",
    }
}

fn named(action: Action, why: &Unhelped, gang: GangIdx, facts: Facts<'_>) -> String {
    match *why {
        Unhelped::Delayed { left } => {
            format!("nobody goes for it while its preemption delay lasts, {} more", seconds(left))
        }
        Unhelped::AboveShare(bound) => would_hold(&bound, "", "fair share", gang, facts),
        Unhelped::AboveQuota(bound) => would_hold(&bound, " of work that may not be evicted", "quota", gang, facts),
        Unhelped::OverLimit(Bound { queue, resource, bound, held, asked }) => format!(
            "queue {} may hold {} (limit); it holds {} and the gang asks for {}, and too little of that may go",
            on_path(queue, gang, facts),
            full(resource, bound),
            bare(resource, held),
            bare(resource, asked)
        ),
        Unhelped::BeyondQueueDepth { depth } => {
            let gangs = if depth == 1 { "gang" } else { "gangs" };
            let depth = count(depth.into());
            format!("{depth} {gangs} of its queue came before it, as many as queueDepthPerAction lets a cycle try")
        }
        Unhelped::KeepsShare(Bound { queue, resource, bound, held, .. }) => format!(
            "no queue beside its own holds more than it may count on; queue {} comes nearest, with {} of {}",
            facts.names.queues[queue],
            bare(resource, held),
            full(resource, bound)
        ),
        Unhelped::Saturated { ours, theirs } => saturated(&ours, &theirs, gang, facts),
        Unhelped::TooLittle { pods, most } => {
            let find = if most == 1 { "finds" } else { "find" };
            let (most, pods) = (none_or(most).to_lowercase(), count(pods.into()));
            format!("if everybody went who may go, {most} of {pods} pods of one kind {find} a node")
        }
        Unhelped::TooLittleFree { asked, free } => format!(
            "moving work frees nothing: {} are free on all nodes together and the gang asks for {}",
            full(Resource::Gpu, free),
            bare(Resource::Gpu, asked)
        ),
        Unhelped::NoArrangement { tries } => {
            format!("{} ({})", unnamed(action, why), counted(tries, "try", "tries"))
        }
        Unhelped::GivenUp { tries } => format!("the search was given up after {}", counted(tries, "try", "tries")),
        Unhelped::Brake { queue, max, so_far, needed } => {
            let of =
                queue.map_or("in a cycle".to_owned(), |queue| format!("from queue {} in a cycle", facts.names.queues[queue]));
            let max = counted(max, "pod", "pods");
            let (so_far, needed) = (count(so_far.into()), count(needed.into()));
            format!("the eviction brake lets at most {max} go {of}; {so_far} went before and this takes {needed} more")
        }
        Unhelped::Protected { gangs } => {
            format!("{} could go, but min runtime protects", counted(gangs, "gang", "gangs"))
        }
        Unhelped::Kept { gangs } => {
            format!("{} could go, but PodDisruptionBudgets let no more pods go", counted(gangs, "gang", "gangs"))
        }
        Unhelped::NotPreemptible | Unhelped::Nobody | Unhelped::SwitchedOff => unnamed(action, why),
    }
}

fn unnamed(action: Action, why: &Unhelped) -> String {
    match why {
        Unhelped::SwitchedOff => match action {
            Action::Consolidation => "no work is moved: no scenario plugin is on, or maxNumberConsolidationPreemptees is 0",
            _ => "nobody is evicted: no scenario plugin (sg-nodelocalgreedy, sg-multinodegang) is on",
        },
        Unhelped::Delayed { .. } => "nobody goes for it while its preemption delay lasts",
        Unhelped::NotPreemptible => "work is moved only for gangs that may be evicted, and this one may not",
        Unhelped::AboveShare(_) => "its queue would hold more than its fair share",
        Unhelped::AboveQuota(_) => "its queue would hold more work that may not be evicted than its quota",
        Unhelped::OverLimit(_) => "a queue above it, or its own, would exceed its limit, and too little of that may go",
        Unhelped::BeyondQueueDepth { .. } => {
            "others of its queue came before it, as many as queueDepthPerAction lets a cycle try"
        }
        Unhelped::Nobody => match action {
            Action::Preempt => "nobody of a lower priority runs in its queue who may be evicted",
            Action::Reclaim => "nobody runs in other queues who may be evicted",
            Action::Allocate | Action::Consolidation | Action::StaleGangEviction => "nobody runs who may be moved",
        },
        Unhelped::Protected { .. } => "who could go is protected by a minimum runtime",
        Unhelped::Kept { .. } => "who could go is kept by a PodDisruptionBudget",
        Unhelped::KeepsShare(_) => "no queue beside its own holds more than it may count on",
        Unhelped::Saturated { .. } => "its queue would be served beyond its fair share, and no less than those beside it",
        Unhelped::TooLittle { .. } => "if everybody went who may go, too few pods find a node",
        Unhelped::TooLittleFree { .. } => "moving work frees nothing: too few GPUs are free on all nodes together",
        Unhelped::NoArrangement { .. } => match action {
            Action::Consolidation => "moving those who may move does not make it start",
            _ => "taking those who may go now, in their order, does not make it start within the rules",
        },
        Unhelped::GivenUp { .. } => "the search was given up",
        Unhelped::Brake { .. } => "the eviction brake holds",
    }
    .to_owned()
}

/// `queue team-a would hold 12 GPUs, 4 above its fair share of 8`.
fn would_hold(bound: &Bound, of_what: &str, kind: &str, gang: GangIdx, facts: Facts<'_>) -> String {
    let &Bound { queue, resource, bound: most, held, asked } = bound;
    let (total, above) = (full(resource, held.saturating_add(asked)), bare(resource, bound.excess()));
    format!(
        "queue {} would hold {total}{of_what}, {above} above its {kind} of {}",
        on_path(queue, gang, facts),
        bare(resource, most)
    )
}

fn saturated(ours: &Bound, theirs: &Bound, gang: GangIdx, facts: Facts<'_>) -> String {
    let multiplier = facts.snapshot.config.victims.saturation_multiplier;
    let times = if multiplier > 1.0 { format!(" (saturation multiplier {multiplier})") } else { String::new() };
    let served = |bound: &Bound| {
        let Bound { resource, bound: share, held, asked, .. } = *bound;
        let all = held.saturating_add(asked);
        match percent(bound) {
            Some(percent) => format!("to {percent} % of its fair share, {} of {}", bare(resource, all), full(resource, share)),
            None if share == UNLIMITED => "to none of its fair share, which is unlimited".to_owned(),
            None => format!("with {}, though its fair share is 0", full(resource, all)),
        }
    };
    format!(
        "queue {} would be served {}, queue {} beside it {}{times}: who is served less gives nothing",
        on_path(ours.queue, gang, facts),
        served(ours),
        facts.names.queues[theirs.queue],
        served(theirs)
    )
}

/// What is held and asked for against the bound, in percent, rounded down; `None` without a bound, or with one of 0.
pub(crate) fn percent(bound: &Bound) -> Option<i64> {
    if bound.bound == UNLIMITED || bound.bound <= 0 {
        return None;
    }
    let all = i128::from(bound.held) + i128::from(bound.asked);
    i64::try_from(all * 100 / i128::from(bound.bound)).ok()
}

/// The name of a queue on the gang's path, and which one it is above.
fn on_path(queue: QueueIdx, gang: GangIdx, facts: Facts<'_>) -> String {
    let names = &facts.names.queues;
    match facts.snapshot.gangs[gang].queue {
        Ok(own) if own != queue => format!("{}, above {},", names[queue], names[own]),
        _ => names[queue].clone(),
    }
}

/// What to do; `None`: nothing but to wait.
pub(crate) fn advise(why: &Unhelped, facts: Facts<'_>) -> Option<String> {
    let queues = &facts.names.queues;
    let excess = |bound: &Bound| full(bound.resource, bound.excess());
    Some(match why {
        Unhelped::Delayed { .. } => "Wait, or lower spec.preemptionDelay.".to_owned(),
        Unhelped::NotPreemptible => "Let the gang be evicted (preemptible).".to_owned(),
        Unhelped::AboveShare(bound) | Unhelped::Saturated { ours: bound, .. } => {
            let queue = &queues[bound.queue];
            format!("Raise the quota or over-quota weight of queue {queue}, or end {} of its work.", excess(bound))
        }
        Unhelped::AboveQuota(bound) => {
            let queue = &queues[bound.queue];
            format!("Raise the quota of queue {queue} by {}, or let the gang be evicted (preemptible).", excess(bound))
        }
        Unhelped::OverLimit(bound) => {
            let queue = &queues[bound.queue];
            format!("Raise the limit of queue {queue} by {}, or end as much of its work.", excess(bound))
        }
        Unhelped::KeepsShare(bound) => {
            let queue = &queues[bound.queue];
            format!("Wait until work ends, or lower what queue {queue} may count on (quota, over-quota weight).")
        }
        Unhelped::TooLittle { pods, most } => {
            let missing = count(pods.saturating_sub(*most).into());
            format!("Add nodes that {missing} more of its pods fit on, or end work that may not be evicted there.")
        }
        Unhelped::TooLittleFree { asked, free } => {
            format!("Free {}, on whichever nodes.", full(Resource::Gpu, asked.saturating_sub(*free)))
        }
        Unhelped::Protected { .. } => "Wait until their minimum runtimes are over.".to_owned(),
        Unhelped::Kept { .. } => "Wait until more of their pods are ready, or let the budgets allow more disruptions.".to_owned(),
        Unhelped::NoArrangement { .. } => "Wait until minimum runtimes are over, or free resources on nodes that fit.".to_owned(),
        Unhelped::GivenUp { .. } => "Report this with the snapshot: no search should take so long.".to_owned(),
        Unhelped::Brake { queue, max, so_far, needed } => {
            let option = if queue.is_some() { "--max-evictions-per-queue" } else { "--max-evictions" };
            let wait = if needed <= max { "Wait for the next cycle, or raise" } else { "Raise" };
            format!("{wait} the brake ({option} {} or more).", so_far.saturating_add(*needed))
        }
        Unhelped::BeyondQueueDepth { .. } | Unhelped::Nobody | Unhelped::SwitchedOff => return None,
    })
}

fn counted(number: u32, one: &str, many: &str) -> String {
    format!("{} {}", count(number.into()), if number == 1 { one } else { many })
}

/// Nanoseconds as people read them, rounded up to seconds.
pub(crate) fn seconds(nanoseconds: i64) -> String {
    let seconds = nanoseconds.max(0).div_euclid(1_000_000_000) + i64::from(nanoseconds.max(0) % 1_000_000_000 > 0);
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60).replace(" 0 s", ""),
        _ => format!("{} h {} min", count(seconds / 3600), seconds % 3600 / 60).replace(" 0 min", ""),
    }
}
