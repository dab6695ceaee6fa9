//! Queue, `scheduling.run.ai/v2` (wire-contract.md §1.1).

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ResourceList, resource_list};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// What a queue deserves, may hold, and where it stands.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "scheduling.run.ai",
    version = "v2",
    kind = "Queue",
    plural = "queues",
    status = "QueueStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A queue of workloads",
    printcolumn = r#"{"name":"Priority","type":"string","jsonPath":".spec.priority"}"#,
    printcolumn = r#"{"name":"Parent","type":"string","jsonPath":".spec.parentQueue"}"#,
    printcolumn = r#"{"name":"Children","type":"string","jsonPath":".status.childQueues"}"#,
    printcolumn = r#"{"name":"DisplayName","type":"string","jsonPath":".spec.displayName"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct QueueSpec {
    /// Replaces the name in messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The queue above; empty for a top-level one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_queue: Option<String>,
    /// Quota, limit and weight per resource. Absent: all zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<QueueResources>,
    /// Higher is served first; 100 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Minimum run time before a job of this queue may be preempted, a duration such as 30m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt_min_runtime: Option<String>,
    /// Minimum run time before resources of this queue may be reclaimed, a duration such as 30m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_min_runtime: Option<String>,
}

/// Bounds per resource.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct QueueResources {
    /// In devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<QueueResource>,
    /// In millicores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<QueueResource>,
    /// In megabytes, 10⁶ bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<QueueResource>,
}

/// Bounds on one resource. A missing number is 0; -1 is no bound.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueResource {
    /// What the queue deserves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<f64>,
    /// Its weight when more than quotas is divided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_quota_weight: Option<f64>,
    /// What it may hold at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

/// Written by the queue controller.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Reserved; nothing writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<QueueCondition>>,
    /// Names of the queues directly below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_queues: Option<Vec<String>>,
    /// Held by the queue and all below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub allocated: Option<ResourceList>,
    /// The part of it that may not be evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub allocated_non_preemptible: Option<ResourceList>,
    /// Held or waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_list")]
    pub requested: Option<ResourceList>,
}

/// A condition of a queue.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueCondition {
    /// `Orphan` or `OverQuota`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// When it was last looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
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
