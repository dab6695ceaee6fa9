//! The words and numbers of an eviction: by which rule a pod was told to leave. For whom it goes the caller says.

use muster_core::explain::Bound;
use muster_core::outcome::Why;
use muster_core::units::Resource;
use serde_json::{Value, json};

use crate::names::Names;
use crate::report::{amount, in_seconds, merged};
use crate::report_amount::{bare, full};
use crate::sentences::{resource_name, visible};
use crate::unhelped::seconds;

/// The code of a rule for machines. Stable: it never changes its meaning.
#[must_use]
pub const fn code(why: &Why) -> &'static str {
    match why {
        Why::AboveShare(_) => "above-share",
        Why::AboveQuota(_) => "above-quota",
        Why::LowerPriority { .. } => "lower-priority",
        Why::Moves => "moves",
        Why::Stale { .. } => "stale-gang",
        Why::NoRule => "no-rule",
    }
}

/// The rule in one sentence with names and numbers.
#[must_use]
pub fn sentence(why: &Why, names: &Names) -> String {
    let held = |Bound { queue, resource, bound, held, .. }: Bound, of: &str| {
        let above = bare(resource, held.saturating_sub(bound));
        format!("Queue {} held {}, {above} above {of} of {}", names.queues[queue], full(resource, held), bare(resource, bound))
    };
    let text = match *why {
        Why::AboveShare(bound) => format!("{}.", held(bound, "its share")),
        Why::AboveQuota(bound) => {
            format!("{}, and the queue that asks stays within its own.", held(bound, "its quota"))
        }
        Why::LowerPriority { victim, asker } => {
            format!("Its priority is {victim}, that of the gang that asks, in the same queue, is {asker}.")
        }
        Why::Moves => "It is not lost: it gets another place.".to_owned(),
        Why::Stale { since, grace } => {
            format!("Its gang has been below its minimum for {}; it may be for {}.", seconds(since), seconds(grace))
        }
        Why::NoRule => "Plugin proportion is off: no rule protects queues.".to_owned(),
    };
    visible(&text).into_owned()
}

/// The rule in a few words, for a column of a table: of a queue's share or quota, how much it held of how much. Where a pod
/// moves to is said by the caller.
#[must_use]
pub fn brief(why: &Why) -> String {
    let over = |Bound { resource, bound, held, .. }: Bound| {
        let unit = match resource {
            Resource::Gpu => "GPUs",
            Resource::Cpu => "cores",
            Resource::Memory => "memory",
        };
        format!("{} of {} {unit}", bare(resource, held), bare(resource, bound))
    };
    match *why {
        Why::AboveShare(bound) => format!("share: {}", over(bound)),
        Why::AboveQuota(bound) => format!("quota: {}", over(bound)),
        Why::LowerPriority { victim, asker } => format!("priority {victim} < {asker}"),
        Why::Moves => "moves".to_owned(),
        Why::Stale { since, .. } => format!("stale for {}", seconds(since)),
        Why::NoRule => "no rule".to_owned(),
    }
}

/// The rule as a JSON object: `code`, `sentence`, and the numbers of its kind.
#[must_use]
pub fn rule(why: &Why, names: &Names) -> Value {
    let bound = |Bound { queue, resource, bound, held, asked }: Bound| {
        json!({
            "queue": names.queues[queue],
            "resource": resource_name(resource),
            "bound": amount(resource, bound),
            "held": amount(resource, held),
            "asked": amount(resource, asked),
        })
    };
    let numbers = match *why {
        Why::AboveShare(of) | Why::AboveQuota(of) => bound(of),
        Why::LowerPriority { victim, asker } => json!({"priority": victim, "askerPriority": asker}),
        Why::Stale { since, grace } => json!({"staleSeconds": in_seconds(since), "graceSeconds": in_seconds(grace)}),
        Why::Moves | Why::NoRule => json!({}),
    };
    merged(json!({"code": code(why), "sentence": sentence(why, names)}), numbers)
}
