//! Config, `kai.scheduler/v1` (wire-contract.md §1.6): what the operator installs. Defaults are applied in memory by the operator
//! and never written back, so every field is optional here.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, PodSecurityContext, ResourceRequirements, SecurityContext, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::shard::PluginConfig;

macro_rules! wire_struct {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $($(#[$doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<$type>,)*
        }
    };
}

/// Settings of a whole installation. The operator heeds the one called `kai-config`.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1",
    kind = "Config",
    plural = "configs",
    status = "ConfigStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Settings of an installation"
)]
#[serde(rename_all = "camelCase")]
pub struct ConfigSpec {
    /// Where everything is installed; `kai-scheduler` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// For all components.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global: Option<GlobalConfig>,
    /// The binder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binder: Option<BinderConfig>,
    /// The schedulers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerConfig>,
    /// The admission webhooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionConfig>,
    /// The queue controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_controller: Option<QueueControllerConfig>,
    /// The podgroup controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_group_controller: Option<PodGroupControllerConfig>,
    /// The pod grouper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_grouper: Option<PodGrouperConfig>,
    /// The node scale adjuster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_scale_adjuster: Option<NodeScaleAdjusterConfig>,
    /// The exporter of NUMA placements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_placement_exporter: Option<NumaPlacementExporterConfig>,
    /// Prometheus, for historical usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusConfig>,
}

/// Written by the operator.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct ConfigStatus {
    /// `Reconciling`, `Deployed`, `Available`, `DependenciesFulfilled`, `Ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

wire_struct! {
    /// For all components.
    GlobalConfig {
        /// VerticalPodAutoscaler of every component.
        vpa: Vpa,
        /// Whether this is OpenShift; then no security contexts are set.
        openshift: bool,
        /// Affinity of all pods.
        affinity: Affinity,
        /// Pods of one component must, rather than should, be apart.
        require_default_pod_anti_affinity_term: bool,
        /// Security context of all containers.
        security_context: SecurityContext,
        /// Deprecated, see `additionalImagePullSecrets`.
        images_pull_secret: String,
        /// Names of pull secrets.
        additional_image_pull_secrets: Vec<String>,
        /// Node selector of all pods.
        node_selector: BTreeMap<String, String>,
        /// Tolerations of all pods.
        tolerations: Vec<Toleration>,
        /// Tolerations of daemon sets.
        daemonsets_tolerations: Vec<Toleration>,
        /// PriorityClass of all pods.
        priority_class_name: String,
        /// Replicas of every component.
        replica_count: i32,
        /// Label that names a workload's queue; `kai.scheduler/queue` if absent.
        queue_label_key: String,
        /// Name of the scheduler; `kai-scheduler` if absent.
        scheduler_name: String,
        /// Label that names the node pool; `kai.scheduler/node-pool` if absent.
        node_pool_label_key: String,
        /// Namespaces whose pods are heeded.
        namespace_label_selector: BTreeMap<String, String>,
        /// Pods that are heeded.
        pod_label_selector: BTreeMap<String, String>,
        /// Log in JSON.
        json_log: bool,
    }
}

wire_struct! {
    /// What every component has.
    Service {
        /// On or off; on if absent.
        enabled: bool,
        /// Image.
        image: Image,
        /// Requests and limits.
        resources: ResourceRequirements,
        /// Client rate.
        k8s_client_config: K8sClientConfig,
        /// Affinity of its pods.
        affinity: Affinity,
        /// Disruption budget.
        pod_disruption_budget: PodDisruptionBudget,
    }
}

wire_struct! {
    /// `<repository>/<name>:<tag>`.
    Image {
        /// Repository.
        repository: String,
        /// Name.
        name: String,
        /// Tag.
        tag: String,
        /// `IfNotPresent` if absent.
        pull_policy: String,
    }
}

wire_struct! {
    /// Requests to the API server per second.
    K8sClientConfig {
        /// Sustained; 20 if absent.
        qps: i32,
        /// At once; 100 if absent.
        burst: i32,
    }
}

wire_struct! {
    /// Disruption budget of a component.
    PodDisruptionBudget {
        /// Off if absent.
        enabled: bool,
        /// 1 if absent.
        max_unavailable: IntOrString,
    }
}

wire_struct! {
    /// VerticalPodAutoscaler of a component.
    Vpa {
        /// Off if absent.
        enabled: bool,
        /// How it acts.
        update_policy: VpaUpdatePolicy,
        /// Bounds per container.
        resource_policy: VpaResourcePolicy,
    }
}

wire_struct! {
    /// How a VerticalPodAutoscaler acts.
    VpaUpdatePolicy {
        /// `InPlaceOrRecreate` if absent.
        update_mode: VpaUpdateMode,
        /// Replicas below which nothing is evicted.
        min_replicas: i32,
    }
}

/// When a VerticalPodAutoscaler acts.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum VpaUpdateMode {
    /// Never.
    Off,
    /// When pods start.
    Initial,
    /// By recreating.
    Recreate,
    /// In place if possible.
    InPlaceOrRecreate,
    /// As it sees fit.
    Auto,
}

wire_struct! {
    /// Bounds per container.
    VpaResourcePolicy {
        /// One for each container.
        container_policies: Vec<VpaContainerPolicy>,
    }
}

wire_struct! {
    /// Bounds of one container.
    VpaContainerPolicy {
        /// `*` for all others.
        container_name: String,
        /// `Auto` or `Off`.
        mode: String,
        /// At least.
        min_allowed: super::ResourceList,
        /// At most.
        max_allowed: super::ResourceList,
        /// Resources that are controlled.
        controlled_resources: Vec<String>,
        /// `RequestsAndLimits` or `RequestsOnly`.
        controlled_values: String,
    }
}

wire_struct! {
    /// The binder.
    BinderConfig {
        /// What every component has.
        service: Service,
        /// Replicas.
        replicas: i32,
        /// Requests handled at once.
        max_concurrent_reconciles: i32,
        /// 120 if absent.
        volume_binding_timeout_seconds: i32,
        /// 8081 if absent.
        probe_port: i32,
        /// 8080 if absent.
        metrics_port: i32,
        /// Container Device Interface; detected if absent.
        cdi_enabled: bool,
        /// Plugins by name.
        plugins: BTreeMap<String, PluginConfig>,
        /// Pods that hold shared GPUs.
        resource_reservation: ResourceReservation,
        /// VerticalPodAutoscaler.
        vpa: Vpa,
    }
}

wire_struct! {
    /// Pods that hold shared GPUs.
    ResourceReservation {
        /// Image.
        image: Image,
        /// `kai-resource-reservation` if absent.
        namespace: String,
        /// `kai-resource-reservation` if absent.
        service_account_name: String,
        /// `kai-resource-reservation` if absent.
        app_label: String,
        /// Seconds until one must know its GPU; 40 if absent.
        allocation_timeout: i32,
        /// Runtime class.
        runtime_class_name: String,
        /// Requests and limits beside the GPU.
        pod_resources: ResourceRequirements,
        /// Security context of the pod.
        reservation_pod_security_context: PodSecurityContext,
        /// Security context of the container.
        reservation_container_security_context: SecurityContext,
    }
}

wire_struct! {
    /// The schedulers.
    SchedulerConfig {
        /// What every component has.
        service: Service,
        /// Garbage collection of a Go scheduler; 400 if absent.
        #[serde(rename = "GOGC")]
        gogc: i32,
        /// Service of the metrics.
        scheduler_service: SchedulerService,
        /// Replicas.
        replicas: i32,
        /// VerticalPodAutoscaler.
        vpa: Vpa,
    }
}

wire_struct! {
    /// A service with one port.
    SchedulerService {
        /// `ClusterIP` if absent.
        #[serde(rename = "type")]
        type_: String,
        /// 8080 if absent.
        port: i32,
        /// 8080 if absent.
        target_port: i32,
    }
}

wire_struct! {
    /// The admission webhooks.
    AdmissionConfig {
        /// What every component has.
        service: Service,
        /// Ports.
        webhook: AdmissionWebhook,
        /// Whether GPUs may be shared; no if absent.
        gpu_sharing: bool,
        /// Hide GPUs from containers that ask for none.
        block_nvidia_visible_devices: bool,
        /// Heed only namespaces with a queue label.
        queue_label_selector: bool,
        /// `validating-kai-admission` if absent.
        validating_webhook_configuration_name: String,
        /// `mutating-kai-admission` if absent.
        mutating_webhook_configuration_name: String,
        /// Deprecated.
        gpu_pod_runtime_class_name: String,
        /// Runtime class of pods that share a GPU; `nvidia` if absent.
        gpu_fraction_runtime_class_name: String,
        /// Replicas.
        replicas: i32,
        /// VerticalPodAutoscaler.
        vpa: Vpa,
    }
}

wire_struct! {
    /// Ports of the admission webhooks.
    AdmissionWebhook {
        /// 443 if absent.
        port: i32,
        /// 9443 if absent.
        target_port: i32,
        /// 8081 if absent.
        probe_port: i32,
        /// 8080 if absent.
        metrics_port: i32,
    }
}

wire_struct! {
    /// A named port of a service.
    NamedPort {
        /// Its name.
        name: String,
        /// Of the service.
        port: i32,
        /// Of the pod.
        target_port: i32,
    }
}

wire_struct! {
    /// Ports of a controller.
    ControllerService {
        /// 8080 if absent.
        metrics: NamedPort,
        /// 443 → 9443 if absent.
        webhook: NamedPort,
    }
}

wire_struct! {
    /// Webhooks of a controller.
    ControllerWebhooks {
        /// On if absent.
        enable_validation: bool,
        /// Prefix of the configuration's name.
        webhook_configuration_name_prefix: String,
    }
}

wire_struct! {
    /// The queue controller.
    QueueControllerConfig {
        /// What every component has.
        service: Service,
        /// Ports.
        controller_service: ControllerService,
        /// Webhooks.
        webhooks: ControllerWebhooks,
        /// First part of metric names.
        metrics_namespace: String,
        /// Queue labels that become metric labels, `k=v,k=v`.
        queue_label_to_metric_label: String,
        /// Their values where a queue has none, `k=v,k=v`.
        queue_label_to_default_metric_value: String,
        /// Replicas.
        replicas: i32,
        /// VerticalPodAutoscaler.
        vpa: Vpa,
    }
}

wire_struct! {
    /// The podgroup controller.
    PodGroupControllerConfig {
        /// What every component has.
        service: Service,
        /// Ports.
        controller_service: ControllerService,
        /// Webhooks.
        webhooks: ControllerWebhooks,
        /// Objects handled at once.
        max_concurrent_reconciles: i32,
        /// Replicas.
        replicas: i32,
        /// VerticalPodAutoscaler.
        vpa: Vpa,
    }
}

wire_struct! {
    /// The pod grouper.
    PodGrouperConfig {
        /// What every component has.
        service: Service,
        /// Flags.
        args: PodGrouperArgs,
        /// Client rate.
        k8s_client_config: K8sClientConfig,
        /// Objects handled at once.
        max_concurrent_reconciles: i32,
        /// Replicas.
        replicas: i32,
        /// VerticalPodAutoscaler.
        vpa: Vpa,
    }
}

wire_struct! {
    /// Flags of the pod grouper.
    PodGrouperArgs {
        /// One group per Knative revision.
        gang_schedule_knative: bool,
        /// Heed Karta objects for unknown kinds; yes if absent.
        generic_karta_fallback: bool,
        /// ConfigMap with default priorities by kind.
        default_priorities_config_map_name: String,
        /// Its namespace.
        default_priorities_config_map_namespace: String,
    }
}

wire_struct! {
    /// The node scale adjuster.
    NodeScaleAdjusterConfig {
        /// What every component has.
        service: Service,
        /// Flags.
        args: NodeScaleAdjusterArgs,
        /// VerticalPodAutoscaler.
        vpa: Vpa,
    }
}

wire_struct! {
    /// Flags of the node scale adjuster.
    NodeScaleAdjusterArgs {
        /// Image of scaling pods.
        scaling_pod_image: Image,
        /// `kai-scale-adjust` if absent.
        node_scale_namespace: String,
        /// `kai-scale-adjust` if absent.
        node_scale_service_account: String,
        /// Share of a GPU that a request in MiB counts as; 0.1 if absent.
        gpu_memory_to_fraction_ratio: f64,
    }
}

wire_struct! {
    /// The exporter of NUMA placements.
    NumaPlacementExporterConfig {
        /// What every component has; `enabled` absent: on if some shard uses plugin `numa`.
        service: Service,
        /// Which nodes.
        node_selector: BTreeMap<String, String>,
        /// Tolerations.
        tolerations: Vec<Toleration>,
        /// How often kubelet is asked, a duration.
        poll_interval: String,
        /// How often everything is written again, a duration.
        drift_resync_interval: String,
        /// Folder on the host.
        pod_resources_host_path: String,
        /// Socket in it.
        pod_resources_socket: String,
        /// `/sys` on the host.
        sysfs_host_path: String,
    }
}

wire_struct! {
    /// Prometheus.
    PrometheusConfig {
        /// Off if absent.
        enabled: bool,
        /// `prometheus` if absent.
        instance_name: String,
        /// `2w` if absent.
        retention_period: String,
        /// Unused.
        sample_interval: String,
        /// Keep data over restarts.
        enable_persistent_storage: bool,
        /// `50Gi` if absent.
        storage_size: String,
        /// `standard` if absent.
        storage_class_name: String,
        /// What is scraped, and how.
        service_monitor: ServiceMonitor,
        /// Use this one instead.
        external_prometheus_url: String,
        /// How it is probed.
        external_prometheus_health_probe: HealthProbe,
        /// Label of what is scraped.
        accounting_label_key: String,
        /// Its value.
        accounting_label_value: String,
    }
}

wire_struct! {
    /// How metrics are scraped.
    ServiceMonitor {
        /// On if absent.
        enabled: bool,
        /// `30s` if absent.
        interval: String,
        /// `10s` if absent.
        scrape_timeout: String,
        /// Token file.
        bearer_token_file: String,
    }
}

wire_struct! {
    /// How an external Prometheus is probed.
    HealthProbe {
        /// Seconds; 30 if absent.
        interval: i32,
        /// Seconds; 10 if absent.
        timeout: i32,
        /// 5 if absent.
        max_retries: i32,
    }
}
