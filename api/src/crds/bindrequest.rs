//! BindRequest, `scheduling.run.ai/v1alpha2` (wire-contract.md §1.3): the scheduler's wish, the binder's work.

use k8s_openapi::api::resource::v1 as dra;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ResourceList, required_resource_list};

/// Bind this pod to that node.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "scheduling.run.ai",
    version = "v1alpha2",
    kind = "BindRequest",
    plural = "bindrequests",
    namespaced,
    status = "BindRequestStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A request to bind a pod to a node"
)]
#[serde(rename_all = "camelCase")]
pub struct BindRequestSpec {
    /// The pod, in the namespace of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// The node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected_node: Option<String>,
    /// `Regular`, `Fraction` or `MigInstance`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received_resource_type: Option<String>,
    /// How many devices, and how much of each.
    #[serde(rename = "receivedGPU", skip_serializing_if = "Option::is_none")]
    pub received_gpu: Option<ReceivedGpu>,
    /// Ids of the shared GPUs.
    #[serde(rename = "selectedGPUGroups", skip_serializing_if = "Option::is_none")]
    pub selected_gpu_groups: Option<Vec<String>>,
    /// Allocations of the pod's claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_allocations: Option<Vec<ResourceClaimAllocation>>,
    /// Devices for extended resources that a DeviceClass backs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended_resource_claim_allocation: Option<ExtendedResourceClaimAllocation>,
    /// NUMA zones the pod is expected on.
    #[serde(rename = "predictedNUMAZones", skip_serializing_if = "Option::is_none")]
    pub predicted_numa_zones: Option<Vec<PredictedNumaZone>>,
    /// How often the binder may try; absent: once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_limit: Option<i32>,
}

/// What a pod is given of GPUs.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct ReceivedGpu {
    /// Devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// Share of each, with two decimals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portion: Option<String>,
}

/// The allocation of one claim.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct ResourceClaimAllocation {
    /// `spec.resourceClaims[].name` of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What `status.allocation` of the claim becomes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<dra::AllocationResult>,
}

/// Devices for extended resources, to be put into a claim of their own.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtendedResourceClaimAllocation {
    /// The allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<dra::AllocationResult>,
    /// `spec.devices.requests` of the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_requests: Option<Vec<dra::DeviceRequest>>,
    /// Which request serves which container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_mappings: Option<Vec<ContainerMapping>>,
}

/// Which request serves which resource of which container.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerMapping {
    /// Container.
    pub container_name: String,
    /// Request of the claim.
    pub request_name: String,
    /// Extended resource.
    pub resource_name: String,
}

/// Amounts expected on one NUMA zone.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct PredictedNumaZone {
    /// Zone.
    pub zone: String,
    /// Amounts.
    #[schemars(schema_with = "required_resource_list")]
    pub amount: ResourceList,
}

/// Written by the binder.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BindRequestStatus {
    /// Empty, `Succeeded` or `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How often it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_attempts: Option<i32>,
}
