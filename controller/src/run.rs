//! Starts the roles, and ends them; what each of them is given.
//!
//! A role is `pub async fn run(context: Context) -> Result<()>`. It runs while this process leads for it, and has to be ready
//! to be started again. It returns soon after [`Context::stop`] says so, with its writes finished or abandoned; and asks
//! [`Context::lead`] right before each write.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use muster_api::manifests::Role;
use tokio::sync::watch;

use crate::discovery::Server;
use crate::lease::Lead;
use crate::metrics::Metrics;

/// A write that has not been answered after this counts as failed, whether it was carried out or not. Shorter than what is
/// left of a lease when writing ends (`lease`).
pub const WRITE_PATIENCE: Duration = Duration::from_secs(4);

/// How pods without shared GPUs are bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BindMode {
    /// One write: `pods/binding`.
    #[default]
    Direct,
    /// Through a BindRequest, as KAI does with all pods.
    BindRequest,
}

/// What may be evicted at most; `None`: no bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Brake {
    /// In one cycle.
    pub cycle: Option<u32>,
    /// In any 60 seconds.
    pub minute: Option<u32>,
    /// From one leaf queue in one cycle.
    pub queue: Option<u32>,
}

impl Default for Brake {
    /// A wrong setting costs at most this much before somebody can look.
    fn default() -> Self {
        Self { cycle: Some(256), minute: Some(1024), queue: Some(128) }
    }
}

/// What an operator can set. Defaults are KAI's where KAI has the option (wire-contract.md §4.7, §7.1).
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one switch for each option")]
pub struct Options {
    /// What this process does.
    pub roles: Vec<Role>,
    /// Pods with this `schedulerName` are ours.
    pub scheduler_name: String,
    /// Where leases are.
    pub namespace: String,
    /// Name of this process in leases.
    pub identity: String,
    /// Take leases, since several processes may run.
    pub leader_elect: bool,
    /// Decide and report, write nothing.
    pub observe: bool,
    /// Write though KAI's scheduler seems to be active.
    pub beside_kai: bool,
    /// Do not evict.
    pub pause_evictions: bool,
    /// The longest time between two cycles.
    pub schedule_period: Duration,
    /// A cycle begins when nothing has changed for this long …
    pub quiet: Duration,
    /// … or something has for this long.
    pub most_unquiet: Duration,
    /// How plain pods are bound.
    pub bind_mode: BindMode,
    /// Bounds on evictions.
    pub brake: Brake,
    /// File that every eviction is appended to, one JSON object a line.
    pub journal: Option<PathBuf>,
    /// Write the condition `DisruptionTarget` before a pod is deleted.
    pub disruption_target: bool,
    /// Evict through the Eviction API, so that PodDisruptionBudgets are kept.
    pub eviction_api: bool,
    /// Only this shard; `None`: all of them.
    pub shard: Option<String>,
    /// Label key of queues on workloads.
    pub queue_label_key: String,
    /// Label key of node pools.
    pub node_pool_label_key: String,
    /// First part of the names of metrics.
    pub metrics_namespace: String,
    /// Where `/metrics` is served.
    pub metrics_address: SocketAddr,
    /// Where `/healthz` and `/readyz` are served.
    pub health_address: SocketAddr,
    /// Where `/explain`, `/get-snapshot` and `/get-job-order` are served: on loopback without a token.
    pub inspect_address: SocketAddr,
    /// For the binder.
    pub reservation: Reservation,
}

/// Settings of the pods that stand for shared GPUs (wire-contract.md §3.5, §4.7).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// Their namespace.
    pub namespace: String,
    /// Their service account.
    pub service_account: String,
    /// Their label `app`.
    pub app_label: String,
    /// Their image.
    pub image: String,
    /// How long one may take until it says which GPU it has.
    pub patience: Duration,
    /// Their runtime class; empty: none.
    pub runtime_class: String,
}

impl Default for Reservation {
    fn default() -> Self {
        let name = "kai-resource-reservation".to_owned();
        Self {
            namespace: name.clone(),
            service_account: name.clone(),
            app_label: name,
            image: "registry/local/kai-scheduler/resource-reservation".to_owned(),
            patience: Duration::from_secs(40),
            runtime_class: String::new(),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Self {
            roles: Role::ALL.to_vec(),
            scheduler_name: "kai-scheduler".to_owned(),
            namespace: "muster".to_owned(),
            identity: format!("muster_{}", std::process::id()),
            leader_elect: false,
            observe: false,
            beside_kai: false,
            pause_evictions: false,
            schedule_period: Duration::from_secs(1),
            quiet: Duration::from_millis(20),
            most_unquiet: Duration::from_millis(50),
            bind_mode: BindMode::Direct,
            brake: Brake::default(),
            journal: None,
            disruption_target: false,
            eviction_api: false,
            shard: None,
            queue_label_key: "kai.scheduler/queue".to_owned(),
            node_pool_label_key: "kai.scheduler/node-pool".to_owned(),
            metrics_namespace: "kai".to_owned(),
            metrics_address: loopback(8080),
            health_address: loopback(8082),
            inspect_address: loopback(8081),
            reservation: Reservation::default(),
        }
    }
}

/// Says when to end. Copies say the same.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// Ends what listens to its [`Stop`]; so does dropping it.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

impl Stop {
    /// A pair.
    #[must_use]
    pub fn new() -> (Stopper, Self) {
        let (sender, receiver) = watch::channel(false);
        (Stopper(sender), Self(receiver))
    }

    /// Returns once it is time to end.
    pub async fn stopped(&self) {
        // An error means that the stopper is gone.
        let _ = self.0.clone().wait_for(|stopped| *stopped).await;
    }

    /// Whether it is time to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

impl Stopper {
    /// It is time to end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// What a role is given.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What it is and serves.
    pub server: Arc<Server>,
    /// Settings.
    pub options: Arc<Options>,
    /// When to end.
    pub stop: Stop,
    /// Whether to write: to be asked right before each write.
    pub lead: Lead,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}
