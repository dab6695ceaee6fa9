//! What pods hold and ask for, added up for the status of PodGroups and Queues (wire-contract.md §1.1, §1.2.1).
//!
//! Pure. Not copied from KAI: init containers, sidecars and overhead count as they do for the scheduler, a share counts once for
//! each device, and what a group holds without being preemptible is taken back when it turns preemptible.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource as wire;
use serde_json::{Map, Value, json};

use crate::crds::ResourceList;
use crate::crds::podgroup::{PodGroupSpec, Preemptibility, ResourcesStatus};
use crate::crds::queue::QueueStatus;
use crate::gpu::WHOLE;
use crate::problem::{Findings, Subject};
use crate::quantity::Quantity;
use crate::requests::effective;
use crate::sharing::RECEIVED_TYPE;

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const DEVICES: &str = "gpu-fraction-num-devices";
/// Key under which shares by memory are asked for.
const GPU_MEMORY: &str = "run.ai/gpu.memory";
const NODE_MEMORY: &str = "nvidia.com/gpu.memory";
/// Of classes that are not there (wire-contract.md §1.2).
const DEFAULT_PRIORITY: i32 = 50;
/// From here on work is not preemptible by itself.
const NON_PREEMPTIBLE_FROM: i32 = 100;

/// Amounts by resource.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Amounts(BTreeMap<String, Quantity>);

impl Amounts {
    fn add_one(&mut self, name: &str, amount: Quantity) {
        let sum = self.0.entry(name.to_owned()).or_default();
        *sum = sum.plus(amount);
    }

    /// Adds all of the other's.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            self.add_one(name, *amount);
        }
    }

    /// As objects have it. What is no quantity counts as nothing: a status is no place to complain about another.
    #[must_use]
    pub fn read(list: Option<&ResourceList>) -> Self {
        let read = |(name, wire::Quantity(text)): (&String, &wire::Quantity)| Some((name.clone(), text.parse().ok()?));
        Self(list.into_iter().flatten().filter_map(read).collect())
    }

    /// For an object.
    #[must_use]
    pub fn write(&self) -> ResourceList {
        self.0.iter().map(|(name, amount)| (name.clone(), wire::Quantity(amount.to_wire()))).collect()
    }
}

/// What a pod, or many, hold and ask for.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Usage {
    /// Held or waited for.
    pub requested: Amounts,
    /// Held.
    pub allocated: Amounts,
}

impl Usage {
    /// Adds the other's.
    pub fn add(&mut self, other: &Self) {
        self.requested.add(&other.requested);
        self.allocated.add(&other.allocated);
    }

    /// As a PodGroup's status has it.
    #[must_use]
    pub fn status(&self, preemptible: bool) -> ResourcesStatus {
        let kept = if preemptible { Amounts::default() } else { self.allocated.clone() };
        ResourcesStatus {
            requested: Some(self.requested.write()),
            allocated: Some(self.allocated.write()),
            allocated_non_preemptible: Some(kept.write()),
        }
    }
}

/// MiB of a GPU of the node, if it says so.
#[must_use]
pub fn gpu_mebibytes(node: &Node) -> Option<i64> {
    node.metadata.labels.as_ref()?.get(NODE_MEMORY)?.parse().ok().filter(|mebibytes| *mebibytes > 0)
}

/// Of one pod. `gpu_mebibytes`: of the cards of its node.
#[must_use]
pub fn of_pod(pod: &Pod, gpu_mebibytes: Option<i64>) -> Usage {
    let (Some(spec), status) = (&pod.spec, pod.status.as_ref()) else { return Usage::default() };
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    if !matches!(phase, "Pending" | "Running") {
        return Usage::default();
    }
    let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let placed = phase == "Running" || conditions.any(|c| c.type_ == "PodScheduled" && c.status == "True");
    let subject = Subject { kind: "Pod", namespace: "", name: "" };
    let listed = effective(subject, &mut spec.clone(), &mut Findings::default());
    let mut usage = Usage::default();
    for (name, amount) in listed.into_amounts().filter(|(_, amount)| !amount.is_zero()) {
        usage.requested.add_one(&name, amount);
    }
    if placed {
        usage.allocated = usage.requested.clone();
    }
    let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key).map(String::as_str);
    let devices: u32 = annotation(DEVICES).and_then(|text| text.parse().ok()).unwrap_or(1);
    let positive = |text: &str| text.parse::<Quantity>().ok().filter(|amount| !amount.is_negative() && !amount.is_zero());
    let received = placed && annotation(RECEIVED_TYPE) == Some("Fraction");
    if let Some(portion) = annotation(FRACTION).and_then(positive) {
        usage.requested.add_one(WHOLE[0], portion.times(devices));
        if received {
            usage.allocated.add_one(WHOLE[0], portion.times(devices));
        }
    } else if let Some(mebibytes) = annotation(MEMORY).and_then(positive) {
        usage.requested.add_one(GPU_MEMORY, mebibytes.times(devices));
        if let Some(portion) = gpu_mebibytes.filter(|_| received).and_then(|of| share(mebibytes, of)) {
            usage.allocated.add_one(WHOLE[0], portion.times(devices));
        }
    }
    usage
}

/// The part of a card, in thousandths rounded up.
fn share(mebibytes: Quantity, of: i64) -> Option<Quantity> {
    let milli = (mebibytes.ceil() * 1000).checked_add(i128::from(of) - 1)? / i128::from(of);
    format!("{milli}m").parse().ok()
}

/// Whether a group may be evicted for others: as it says, else by the value of its class.
#[must_use]
pub fn is_preemptible(spec: &PodGroupSpec, class_value: impl Fn(&str) -> Option<i32>, global_default: Option<i32>) -> bool {
    match spec.preemptibility {
        Some(said) => said == Preemptibility::Preemptible,
        None => {
            let class = spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
            let value = class.and_then(class_value).or(global_default).unwrap_or(DEFAULT_PRIORITY);
            value < NON_PREEMPTIBLE_FROM
        }
    }
}

/// Status of every queue: what its groups hold, and those of the queues below. `queues`: name and parent; `groups`: name of the
/// queue and what the group says of itself. Queues that are their own ancestors count what is theirs alone.
#[must_use]
pub fn roll_up<'a>(
    queues: &BTreeMap<String, Option<String>>,
    groups: impl IntoIterator<Item = (&'a str, &'a ResourcesStatus)>,
) -> BTreeMap<String, QueueStatus> {
    #[derive(Default)]
    struct Sums {
        requested: Amounts,
        allocated: Amounts,
        kept: Amounts,
        children: BTreeSet<String>,
    }

    let mut sums: BTreeMap<&str, Sums> = queues.keys().map(|name| (name.as_str(), Sums::default())).collect();
    let parent = |name: &str| queues.get(name)?.as_deref().filter(|parent| !parent.is_empty() && queues.contains_key(*parent));
    for (name, above) in queues {
        if let Some(sum) = above.as_deref().and_then(|above| sums.get_mut(above)) {
            sum.children.insert(name.clone());
        }
    }
    for (queue, status) in groups {
        let requested = Amounts::read(status.requested.as_ref());
        let allocated = Amounts::read(status.allocated.as_ref());
        let kept = Amounts::read(status.allocated_non_preemptible.as_ref());
        let (mut at, mut seen) = (Some(queue), BTreeSet::new());
        while let Some(name) = at.filter(|name| seen.insert(*name)) {
            let Some((name, sum)) = queues.get_key_value(name).and_then(|(name, _)| Some((name, sums.get_mut(name.as_str())?)))
            else {
                break;
            };
            sum.requested.add(&requested);
            sum.allocated.add(&allocated);
            sum.kept.add(&kept);
            at = parent(name);
        }
    }
    let status = |sum: Sums| QueueStatus {
        conditions: None,
        child_queues: Some(sum.children.into_iter().collect()),
        requested: Some(sum.requested.write()),
        allocated: Some(sum.allocated.write()),
        allocated_non_preemptible: Some(sum.kept.write()),
    };
    sums.into_iter().map(|(name, sum)| (name.to_owned(), status(sum))).collect()
}

/// What a merge patch has to say so that the fields of `wanted` are as they are there; `None`: nothing. Fields that `wanted`
/// does not have at all are others' and stay; inside one, what is missing goes. Absent and empty are the same.
#[must_use]
pub fn changes(live: &Value, wanted: &Value) -> Option<Value> {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    let mut patch = Map::new();
    for (field, wanted) in wanted.as_object()? {
        let now = &live[field];
        if now == wanted || (empty(now) && empty(wanted)) {
            continue;
        }
        let (Some(entries), Some(there)) = (wanted.as_object(), now.as_object()) else {
            patch.insert(field.clone(), wanted.clone());
            continue;
        };
        let mut entries: Map<_, _> =
            entries.iter().filter(|(key, value)| there.get(*key) != Some(value)).map(|(k, v)| (k.clone(), v.clone())).collect();
        let gone = there.keys().filter(|key| wanted.get(key.as_str()).is_none());
        entries.extend(gone.map(|key| (key.clone(), Value::Null)));
        patch.insert(field.clone(), json!(entries));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: Value, status: Value) -> Pod {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "2"}}});
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}});
        let spec = json!({"containers": [container], "initContainers": [sidecar]});
        serde_json::from_value(json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec, "status": status}))
            .expect("a pod")
    }

    fn shared(annotations: Value, status: Value) -> Pod {
        let mut pod = pod(annotations, status);
        let spec = pod.spec.as_mut().expect("a spec");
        spec.init_containers = None;
        spec.containers[0].resources = None;
        pod
    }

    fn lists(usage: &Usage) -> (Value, Value) {
        (json!(usage.requested.write()), json!(usage.allocated.write()))
    }

    #[test]
    fn pods_hold_what_they_ask_for_once_they_are_placed() {
        let whole = json!({"cpu": "750m", "memory": "1073741824", "nvidia.com/gpu": "2"});
        let scheduled = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]});
        for (status, requested, allocated) in [
            (json!({}), whole.clone(), json!({})),
            (json!({"phase": "Pending"}), whole.clone(), json!({})),
            (scheduled, whole.clone(), whole.clone()),
            (json!({"phase": "Running"}), whole.clone(), whole),
            (json!({"phase": "Succeeded"}), json!({}), json!({})),
            (json!({"phase": "Failed"}), json!({}), json!({})),
        ] {
            assert_eq!(lists(&of_pod(&pod(json!({}), status.clone()), None)), (requested, allocated), "{status}");
        }
    }

    #[test]
    fn shares_count_once_for_each_device() {
        let running = json!({"phase": "Running"});
        let half = json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "3", "received-resource-type": "Fraction"});
        let both = json!({"nvidia.com/gpu": "1500m"});
        assert_eq!(lists(&of_pod(&shared(half, running.clone()), None)), (both.clone(), both));
        let memory = json!({"gpu-memory": "1000", "received-resource-type": "Fraction"});
        let expected = (json!({"run.ai/gpu.memory": "1000"}), json!({"nvidia.com/gpu": "334m"}));
        assert_eq!(lists(&of_pod(&shared(memory, running.clone()), Some(3000))), expected);
        let not_received = json!({"gpu-fraction": "0.5"});
        assert_eq!(lists(&of_pod(&shared(not_received, running), None)).1, json!({}));
    }

    #[test]
    fn groups_are_preemptible_as_they_say_or_by_class() {
        let spec = |class: Option<&str>, said| PodGroupSpec {
            priority_class_name: class.map(str::to_owned),
            preemptibility: said,
            ..PodGroupSpec::default()
        };
        let value = |name: &str| (name == "build").then_some(100);
        assert!(!is_preemptible(&spec(Some("build"), None), value, None));
        assert!(is_preemptible(&spec(Some("build"), Some(Preemptibility::Preemptible)), value, None));
        assert!(is_preemptible(&spec(Some("unknown"), None), value, None));
        assert!(!is_preemptible(&spec(None, None), value, Some(1000)));
        let mut usage = Usage::default();
        usage.allocated.add_one("cpu", "1".parse().expect("a quantity"));
        assert_eq!(json!(usage.status(true).allocated_non_preemptible), json!({}));
        assert_eq!(json!(usage.status(false).allocated_non_preemptible), json!({"cpu": "1"}));
    }

    #[test]
    fn queues_hold_what_is_below_them() {
        let queue = |name: &str, parent: &str| (name.to_owned(), Some(parent.to_owned()).filter(|parent| !parent.is_empty()));
        let queues = BTreeMap::from([
            queue("root", ""),
            queue("a", "root"),
            queue("a1", "a"),
            queue("b", "root"),
            queue("circle", "ring"),
            queue("ring", "circle"),
            queue("orphan", "gone"),
        ]);
        let status = |text: &str| ResourcesStatus {
            requested: serde_json::from_value(json!({"nvidia.com/gpu": text})).expect("a list"),
            ..ResourcesStatus::default()
        };
        let (one, half) = (status("1"), status("500m"));
        let groups = [("a1", &one), ("a1", &half), ("b", &one), ("circle", &one), ("orphan", &half), ("nowhere", &one)];
        let statuses = roll_up(&queues, groups);
        let gpus = |queue: &str| json!(statuses[queue].requested)["nvidia.com/gpu"].as_str().unwrap_or("none").to_owned();
        let all = ["root", "a", "a1", "b", "circle", "ring", "orphan"].map(gpus);
        assert_eq!(all, ["2500m", "1500m", "1500m", "1", "1", "1", "500m"]);
        assert_eq!(statuses["root"].child_queues.as_deref(), Some(&["a".to_owned(), "b".to_owned()][..]));
    }

    #[test]
    fn only_what_differs_is_written() {
        let live = json!({"requested": {"cpu": "1", "memory": "5"}, "schedulingConditions": [1]});
        assert_eq!(changes(&live, &json!({"requested": {"cpu": "1", "memory": "5"}, "allocated": {}})), None);
        let wanted = json!({"requested": {"cpu": "2"}, "allocated": {"cpu": "1"}});
        let expected = json!({"requested": {"cpu": "2", "memory": null}, "allocated": {"cpu": "1"}});
        assert_eq!(changes(&live, &wanted), Some(expected));
        assert_eq!(changes(&json!({"childQueues": ["a"]}), &json!({"childQueues": []})), Some(json!({"childQueues": []})));
    }
}
