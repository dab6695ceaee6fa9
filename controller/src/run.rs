//! Starts the roles, and ends them; what each of them is given.
//!
//! A role is `pub async fn run(context: Context) -> Result<()>`. It runs while this process leads for it, and has to be ready
//! to be started again. It returns soon after [`Context::stop`] says so, with its writes finished or abandoned; and asks
//! [`Context::lead`] right before each write.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::{Client, Config};
use muster_api::manifests::Role;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::connect;
use crate::discovery::{Server, discover};
use crate::lease::{self, Lead};
use crate::metrics::Metrics;
use crate::probe::Probe;
use crate::scheduler::{self, Running};
use crate::{binder, grouping, http, queue_status};

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
    /// Folder for the rows of cycles that break off.
    pub dumps: PathBuf,
    /// Write the condition `DisruptionTarget` before a pod is deleted.
    pub disruption_target: bool,
    /// Evict through the Eviction API, and take nobody whom a PodDisruptionBudget keeps.
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
    /// Serve `/debug/pprof/profile`, at the same address as the next.
    pub profiler: bool,
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

impl Options {
    /// A name in leases that no other process has (wire-contract.md §7.6).
    #[must_use]
    pub fn identity_on(host: &str) -> String {
        format!("{host}_{}", uuid::Uuid::new_v4())
    }
}

impl Default for Options {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Self {
            roles: Role::ALL.to_vec(),
            scheduler_name: "kai-scheduler".to_owned(),
            namespace: "muster".to_owned(),
            identity: Self::identity_on("muster"),
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
            dumps: std::env::temp_dir(),
            disruption_target: false,
            eviction_api: false,
            shard: None,
            queue_label_key: "kai.scheduler/queue".to_owned(),
            node_pool_label_key: "kai.scheduler/node-pool".to_owned(),
            metrics_namespace: "kai".to_owned(),
            metrics_address: loopback(8080),
            health_address: loopback(8082),
            profiler: false,
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
    /// The shards that run here, for whoever asks about them.
    pub running: Running,
}

/// How long roles have to end when they are told to.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Runs all roles that `options` name, until told to stop.
///
/// # Errors
/// If the API server cannot be reached or used, an address is taken, or a role cannot go on.
pub async fn run(config: Config, options: Options, stop: Stop) -> Result<()> {
    let server_url = config.cluster_url.to_string();
    let client = connect(config)?;
    let server = discover(&client).await.with_context(|| format!("the API server at {server_url}"))?;
    let roles: Vec<_> = options.roles.iter().map(|role| role.name()).collect();
    tracing::info!(%server, url = server_url, roles = roles.join(","), observe = options.observe, "starts");
    let metrics = Metrics::new(&options.metrics_namespace).context("option --metrics-namespace")?;
    let (stopper, own_stop) = Stop::new();
    let context = Context {
        client,
        server: Arc::new(server),
        options: Arc::new(options),
        stop: own_stop,
        lead: Lead::none(),
        metrics: Arc::new(metrics),
        running: Running::default(),
    };
    // Who waits for its turn is ready without shards; who need not wait is not, from the first question on.
    if context.options.roles.contains(&Role::Scheduler) && !waits_for_lead(&context.options) {
        context.running.begin();
    }
    let probe = Probe::default();
    let mut helpers = JoinSet::new();
    http::serve(&context, &probe, &mut helpers).await?;
    let mut roles = JoinSet::new();
    let (client, stopped) = (context.client.clone(), context.stop.clone());
    roles.spawn(async move { ("connection", probe.watch(&client, &stopped).await) });
    for &role in &context.options.roles {
        // All others do nothing but write.
        if !context.options.observe || role == Role::Scheduler {
            roles.spawn(start(context.clone(), role));
        }
    }
    let ended = tokio::select! {
        () = stop.stopped() => Ok(()),
        Some(ended) = roles.join_next() => match ended {
            Ok((role, Err(error))) => Err(error).with_context(|| format!("role {role}")),
            Ok((role, Ok(()))) => Err(anyhow::anyhow!("role {role} has ended by itself")),
            Err(error) => Err(error).context("a role broke off"),
        },
    };
    stopper.stop();
    tracing::info!("ends");
    let all = async { while roles.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_WORDS, all).await;
    ended
}

/// Who writes nothing needs no lease.
const fn waits_for_lead(options: &Options) -> bool {
    options.leader_elect && !options.observe
}

/// One role: while it leads, if there may be others.
async fn start(context: Context, role: Role) -> (&'static str, Result<()>) {
    let begin = move |context: Context| async move {
        match role {
            Role::Scheduler => scheduler::run(context).await,
            Role::PodGrouper => grouping::run(context).await,
            Role::Binder => binder::run(context).await,
            Role::PodGroupController => queue_status::run_groups(context).await,
            Role::QueueController => queue_status::run_queues(context).await,
        }
    };
    let ended = if waits_for_lead(&context.options) {
        let name = match role {
            // As KAI names it.
            Role::Scheduler => context.options.scheduler_name.clone(),
            other => format!("muster-{other}"),
        };
        lease::hold(context, &name, begin).await
    } else {
        begin(Context { lead: Lead::always(), ..context }).await
    };
    (role.name(), ended)
}

/// What text stands for an address: `:8080` is that port on all interfaces, as in Go.
///
/// # Errors
/// If it stands for none.
pub fn address(text: &str) -> Result<SocketAddr> {
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    match full.parse() {
        Ok(address) => Ok(address),
        Err(_) => bail!("{text:?}: expected an address with port, e.g. 127.0.0.1:8080 or :8080"),
    }
}
