//! PodGroup, `scheduling.run.ai/v2alpha2` (wire-contract.md §1.2).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::de::IntoDeserializer as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::{ResourceList, resource_list};

/// Pods that are scheduled together.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "scheduling.run.ai",
    version = "v2alpha2",
    kind = "PodGroup",
    plural = "podgroups",
    shortname = "pg",
    namespaced,
    status = "PodGroupStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A group of pods that are scheduled together"
)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupSpec {
    /// Pods that must be placed together; 0: no gang. 1 if absent and there are no sub-groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_member: Option<i32>,
    /// Top-level sub-groups that must be placed together; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_sub_group: Option<i32>,
    /// The leaf queue it is served in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Name of a PriorityClass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Whether others may evict it. Absent: preemptible if its priority is below 100.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "empty_is_absent")]
    pub preemptibility: Option<Preemptibility>,
    /// Where its pods must or should be near each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
    /// A forest of sub-groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_groups: Option<Vec<SubGroup>>,
    /// Write `PodScheduled=False` on pending pods; true if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark_unschedulable: Option<bool>,
    /// Anything but -1: not tried again in a node pool where it was unschedulable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling_backoff: Option<i32>,
    /// How long it must have been pending before it may evict others, a duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_delay: Option<String>,
    /// How long it may stay below its minimum, a duration; negative: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness_grace_period: Option<String>,
}

/// Whether a gang may be evicted for others.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preemptibility {
    /// It may.
    Preemptible,
    /// It may not.
    NonPreemptible,
}

/// Go writes an unset string as an empty one.
fn empty_is_absent<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Preemptibility>, D::Error> {
    match Option::<String>::deserialize(from)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => Preemptibility::deserialize(text.into_deserializer()).map(Some),
    }
}

/// Nearness, in levels of a Topology: node label keys or aliases.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyConstraint {
    /// Name of the Topology.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// All pods inside one domain of this level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_topology_level: Option<String>,
    /// If possible, inside one domain of this level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_topology_level: Option<String>,
}

/// A member of the tree: a pod set, or a set of members if others name it as parent.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubGroup {
    /// Unique in the group.
    #[schemars(length(min = 1), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Of a leaf: pods that must be placed together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_member: Option<i32>,
    /// Of an inner member: children that must be satisfied; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_sub_group: Option<i32>,
    /// The member it belongs to; absent: the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub parent: Option<String>,
    /// Nearness of its own pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
}

/// Written by the scheduler (`schedulingConditions`) and the podgroup controller (`resourcesStatus`).
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupStatus {
    /// Reserved; nothing writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<PodGroupCondition>>,
    /// Why it could not be scheduled, per node pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling_conditions: Option<Vec<SchedulingCondition>>,
    /// What it holds and asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources_status: Option<ResourcesStatus>,
}

/// A condition of a pod group.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupCondition {
    /// Its type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// `True`, `False` or `Unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// A number that grows with each change.
    #[serde(rename = "transitionID", skip_serializing_if = "Option::is_none")]
    pub transition_id: Option<String>,
    /// When the status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// One word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Why a pod group could not be scheduled in a node pool.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingCondition {
    /// `UnschedulableOnNodePool`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// The node pool; `default` for nodes without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_pool: Option<String>,
    /// Deprecated, `Unschedulable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Deprecated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// All reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<UnschedulableReason>>,
    /// A decimal number that grows with each change.
    #[serde(rename = "transitionID", skip_serializing_if = "Option::is_none")]
    pub transition_id: Option<String>,
    /// When it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// `True`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

/// One reason.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnschedulableReason {
    /// One word, e.g. `OverLimit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<UnschedulableDetails>,
}

/// Numbers of a reason.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnschedulableDetails {
    /// The queue that stands in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_details: Option<QuotaDetails>,
}

/// A queue's numbers beside those of the pod group.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaDetails {
    /// Name of the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Held or waited for in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub queue_requested_resources: Option<ResourceList>,
    /// The queue's quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub queue_deserved_resources: Option<ResourceList>,
    /// Held without being preemptible.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub queue_allocated_non_preemptible_resources: Option<ResourceList>,
    /// Asked by the pod group.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub pod_group_requested_resources: Option<ResourceList>,
    /// Asked without being preemptible.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub pod_group_requested_non_preemptible_resources: Option<ResourceList>,
    /// Held by the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub queue_allocated_resources: Option<ResourceList>,
    /// The queue's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub queue_resource_limits: Option<ResourceList>,
}

/// What a pod group holds and asks for.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcesStatus {
    /// Held.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub allocated: Option<ResourceList>,
    /// Held without being preemptible.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub allocated_non_preemptible: Option<ResourceList>,
    /// Held or waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub requested: Option<ResourceList>,
}
