//! SchedulingShard, `kai.scheduler/v1` (wire-contract.md §1.5): one scheduler and the nodes it serves.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity;

/// A shard.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1",
    kind = "SchedulingShard",
    plural = "schedulingshards",
    status = "SchedulingShardStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "One scheduler and the nodes it serves"
)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingShardSpec {
    /// Further flags of the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<BTreeMap<String, String>>,
    /// Soft memory limit as a share of the container's limit; 0.9 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = true, "minimum" = 0))]
    pub go_mem_limit_ratio: Option<f64>,
    /// Soft memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub go_mem_limit: Option<Quantity>,
    /// Which nodes are preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement_strategy: Option<PlacementStrategy>,
    /// Node pool of this shard; empty: everything without a pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_label_value: Option<String>,
    /// Jobs that each action tries per queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth_per_action: Option<BTreeMap<String, i32>>,
    /// Default minimum run times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_runtime: Option<MinRuntime>,
    /// Weight of historical usage in fair share; 1 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k_value: Option<f64>,
    /// Where historical usage comes from.
    #[serde(rename = "usageDBConfig", skip_serializing_if = "Option::is_none")]
    pub usage_db_config: Option<UsageDbConfig>,
    /// Bounds on the time of victim searches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario_search_budgets: Option<ScenarioSearchBudgets>,
    /// Plugins by name, merged over the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugins: Option<BTreeMap<String, PluginConfig>>,
    /// Actions by name, merged over the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actions: Option<BTreeMap<String, ActionConfig>>,
}

/// `binpack` or `spread`, per kind of pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
pub struct PlacementStrategy {
    /// For pods that ask for GPUs; `binpack` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// For all others; `binpack` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
}

/// Default minimum run times, durations such as 30m.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MinRuntime {
    /// Before preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt_min_runtime: Option<String>,
    /// Before reclaim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_min_runtime: Option<String>,
}

/// Where historical usage comes from (wire-contract.md §7.5).
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageDbConfig {
    /// `prometheus`, `fake` or `fake-with-history`.
    pub client_type: String,
    /// Address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_string: Option<String>,
    /// Environment variable that holds the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_string_env_var: Option<String>,
    /// Windows and intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_params: Option<UsageParams>,
}

/// Windows and intervals of usage; durations.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageParams {
    /// After which usage counts half; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_life_period: Option<String>,
    /// How far back; a week if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_size: Option<String>,
    /// `sliding`, `tumbling` or `cron`; sliding if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_type: Option<String>,
    /// Start of tumbling windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tumbling_window_start_time: Option<Time>,
    /// Start of cron windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron_string: Option<String>,
    /// How often it is read; a minute if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fetch_interval: Option<String>,
    /// When it counts as stale; five minutes if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness_period: Option<String>,
    /// How long to wait for the first data; a minute if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_timeout: Option<String>,
    /// Metric names, time-outs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_params: Option<BTreeMap<String, String>>,
}

/// Bounds on the time of victim searches; durations, 0 for none.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScenarioSearchBudgets {
    /// By action or `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_action_search_duration: Option<BTreeMap<String, String>>,
    /// Per job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_job_search_duration: Option<String>,
    /// Per job, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_job_search_duration: Option<String>,
    /// By generator or `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_generator_search_duration: Option<BTreeMap<String, String>>,
}

/// A plugin's switch, place and arguments.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
pub struct PluginConfig {
    /// On or off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Higher comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Replaces the default arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<BTreeMap<String, String>>,
}

/// An action's switch and place.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
pub struct ActionConfig {
    /// On or off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Higher comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

/// Written by the operator.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct SchedulingShardStatus {
    /// `Reconciling`, `Deployed`, `Available`, `DependenciesFulfilled`, `Ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}
