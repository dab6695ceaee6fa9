//! Reasons and amounts for machines: stable codes, names in place of indices, numbers with their unit.
//!
//! | resource | unit |
//! |---|---|
//! | gpu | devices, with fractions |
//! | cpu | millicores |
//! | memory | bytes |

use muster_core::explain::{Bound, Nearest, Reason, Refusal, Scarce, Shortage, Tally, Unhelped};
use muster_core::index::GangIdx;
use muster_core::units::{Amounts, MICRO_PER_GPU, Resource, UNLIMITED};
use serde_json::{Map, Value, json};

use crate::sentences::{Facts, advice, code, resource_name, scarce_name, sentence};
use crate::unhelped;

/// A reason as a JSON object: `code`, `sentence`, `advice` (if there is any), and the numbers of its kind.
#[must_use]
pub fn reason(reason: &Reason, gang: GangIdx, facts: Facts<'_>) -> Value {
    let mut object = Map::new();
    object.insert("code".into(), code(reason).into());
    object.insert("sentence".into(), sentence(reason, gang, facts).into());
    if let Some(advice) = advice(reason, gang, facts) {
        object.insert("advice".into(), advice.into());
    }
    if let Value::Object(numbers) = numbers(reason, gang, facts) {
        object.extend(numbers);
    }
    Value::Object(object)
}

fn numbers(reason: &Reason, gang: GangIdx, facts: Facts<'_>) -> Value {
    let names = facts.names;
    match *reason {
        Reason::NoQueue(_) => json!({"queue": names.gang_queues[gang]}),
        Reason::QueueNotLeaf(queue) => json!({"queue": names.queues[queue]}),
        Reason::BackedOff | Reason::OneStep => json!({}),
        Reason::NotHelped { action, why } => merged(json!({"action": action.name()}), unhelped_numbers(&why, facts)),
        Reason::ActionNotRun(action) => json!({"action": action.name()}),
        Reason::BeyondQueueDepth { queue, depth } => json!({"queue": names.queues[queue], "depth": depth}),
        Reason::TooFewPods { subgroup, present, gated, min } => {
            json!({"subGroup": names.subgroups[subgroup], "present": present, "gated": gated, "min": min})
        }
        Reason::TooFewMembers { set, ready, required } => {
            json!({"subGroup": set.map(|set| &names.subgroups[set]), "ready": ready, "required": required})
        }
        Reason::Gated { pods } | Reason::UnknownSubgroup { pods } | Reason::TakenBack { pods } => json!({"pods": pods}),
        Reason::OverLimit(bound) | Reason::OverQuota(bound) => bound_numbers(&bound, facts),
        Reason::Blocked { pod, .. } => {
            let class = facts.snapshot.pods[pod].class;
            json!({"pod": names.pods[pod].name, "configMaps": names.classes[class].missing_config_maps})
        }
        Reason::TooLarge { pod, short } => merged(json!({"pod": names.pods[pod].name}), shortage(&short, facts)),
        Reason::NoNode { pod, placed, members, refusals, nearest } => json!({
            "pod": names.pods[pod].name,
            "placed": placed,
            "members": members,
            "refusals": refusals_object(&refusals),
            "nearest": nearest.map(|Nearest { node, short, scarce }| {
                merged(json!({"node": names.nodes[node], "scarce": scarce}), shortage(&short, facts))
            }),
        }),
    }
}

fn unhelped_numbers(why: &Unhelped, facts: Facts<'_>) -> Value {
    let gpus = |micro| amount(Resource::Gpu, micro);
    match *why {
        Unhelped::Delayed { left } => json!({"leftSeconds": in_seconds(left)}),
        Unhelped::NotPreemptible | Unhelped::Nobody | Unhelped::SwitchedOff => json!({}),
        Unhelped::AboveShare(bound) | Unhelped::AboveQuota(bound) | Unhelped::OverLimit(bound) | Unhelped::KeepsShare(bound) => {
            bound_numbers(&bound, facts)
        }
        Unhelped::Protected { gangs } | Unhelped::Kept { gangs } => json!({"gangs": gangs}),
        Unhelped::BeyondQueueDepth { depth } => json!({"depth": depth}),
        Unhelped::Saturated { ours, theirs } => {
            let side = |bound: &Bound| merged(bound_numbers(bound, facts), json!({"percent": unhelped::percent(bound)}));
            let multiplier = facts.snapshot.config.victims.saturation_multiplier;
            json!({"ours": side(&ours), "theirs": side(&theirs), "saturationMultiplier": multiplier})
        }
        Unhelped::TooLittle { pods, most } => json!({"pods": pods, "most": most}),
        Unhelped::TooLittleFree { asked, free } => json!({"resource": "gpu", "asked": gpus(asked), "free": gpus(free)}),
        Unhelped::NoArrangement { tries } | Unhelped::GivenUp { tries } => json!({"tries": tries}),
        Unhelped::Brake { queue, max, so_far, needed } => json!({
            "queue": queue.map(|queue| &facts.names.queues[queue]),
            "max": max,
            "soFar": so_far,
            "needed": needed,
        }),
    }
}

fn bound_numbers(bound: &Bound, facts: Facts<'_>) -> Value {
    let &Bound { queue, resource, bound: most, held, asked } = bound;
    let number = |value| amount(resource, value);
    json!({
        "queue": facts.names.queues[queue],
        "resource": resource_name(resource),
        "bound": number(most),
        "held": number(held),
        "asked": number(asked),
        "excess": if most == UNLIMITED { Value::Null } else { number(bound.excess()) },
    })
}

/// Whole things as they are, other dimensions in their Kubernetes value.
fn shortage(short: &Shortage, facts: Facts<'_>) -> Value {
    let number = |value: i64| match short.what {
        Scarce::Extra(_) => ratio(value, 1000),
        Scarce::Cpu | Scarce::Memory | Scarce::Gpus | Scarce::CardMib | Scarce::Pods => value.into(),
    };
    json!({
        "resource": scarce_name(short.what, facts.names),
        "asked": number(short.asked),
        "free": number(short.free),
    })
}

fn refusals_object(refusals: &Tally) -> Value {
    refusals.entries().map(|(refusal, nodes)| (refusal_code(refusal).to_owned(), Value::from(nodes))).collect()
}

/// The stable name of a test that a node failed.
#[must_use]
pub const fn refusal_code(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NotReady => "notReady",
        Refusal::WorkerLabel => "workerLabel",
        Refusal::NodeKind => "nodeKind",
        Refusal::Taint => "taint",
        Refusal::Selector => "nodeSelector",
        Refusal::Affinity => "nodeAffinity",
        Refusal::Gpu => "gpu",
        Refusal::Cpu => "cpu",
        Refusal::Memory => "memory",
        Refusal::Extra => "otherResource",
        Refusal::Pods => "pods",
        Refusal::CardQuota => "gpuLargerThanQuota",
    }
}

/// `object` with the keys of `more`.
#[must_use]
pub fn merged(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// An amount of a queue's resource in the unit of this module; `null` for "no bound".
#[must_use]
pub fn amount(resource: Resource, value: i64) -> Value {
    match resource {
        _ if value == UNLIMITED => Value::Null,
        Resource::Gpu => ratio(value, MICRO_PER_GPU),
        Resource::Cpu | Resource::Memory => value.into(),
    }
}

/// All three amounts of a queue.
#[must_use]
pub fn amounts(values: Amounts) -> Value {
    Resource::ALL.iter().map(|&r| (resource_name(r).to_owned(), amount(r, values[r]))).collect()
}

/// Nanoseconds in seconds.
pub(crate) fn in_seconds(nanoseconds: i64) -> Value {
    ratio(nanoseconds, 1_000_000_000)
}

/// An integer where it is one, else the nearest number.
fn ratio(value: i64, unit: i64) -> Value {
    if value % unit == 0 { (value / unit).into() } else { (value as f64 / unit as f64).into() }
}
