//! `muster run`: options, logs, signals. What runs is in the controller.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use muster_api::duration::parse_nanoseconds;
use muster_api::manifests::Role;
use muster_controller::client;
use muster_controller::run::{self, BindMode, Brake, Options, Reservation, Stop, Stopper};
use tokio::signal::unix::{SignalKind, signal};

use crate::fault::Fault;

pub(crate) const EXAMPLES: &str = "\
Examples:
  muster run                                    all roles, on the cluster of your kubeconfig
  muster run --observe                          decide and report, write nothing
  muster run --roles scheduler,binder --leader-elect
  kubectl patch schedulingshard default --type merge \\
      -p '{\"spec\":{\"args\":{\"pause-evictions\":\"true\"}}}'

KAI's scheduler flags are accepted; those without effect here are ignored. Each shard can
have its own value in spec.args: pause-evictions, max-evictions, max-evictions-per-minute,
max-evictions-per-queue and KAI's flags, the first four while it runs.";

/// How pods without shared GPUs are bound.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// In one write, by the scheduler
    Direct,
    /// Through a BindRequest, by the binder, as KAI does
    Bindrequest,
}

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one switch for each option")]
pub(crate) struct Run {
    /// What this process does
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', default_values_t = Role::ALL)]
    roles: Vec<Role>,
    /// Kubeconfig; default: $KUBECONFIG, ~/.kube/config, else the pod's service account
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Decide and report, write nothing: beside a running KAI
    #[arg(long)]
    observe: bool,
    /// Write though a scheduler of KAI's for the same pods seems to be there
    #[arg(long)]
    beside_kai: bool,
    /// Pods with this schedulerName are ours
    #[arg(long, value_name = "NAME", default_value = "kai-scheduler")]
    scheduler_name: String,
    /// Namespace of the leases
    #[arg(long, value_name = "NAME", env = "NAMESPACE", default_value = "muster")]
    namespace: String,
    /// Take leases: several processes may run, one of them works
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    leader_elect: bool,
    /// Only this SchedulingShard; default: all, a thread each
    #[arg(long, value_name = "NAME")]
    shard: Option<String>,
    /// The longest time between two cycles
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    schedule_period: Duration,
    /// A cycle begins once nothing has changed for this long
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = duration)]
    quiet: Duration,
    /// … or something has for this long
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = duration)]
    most_unquiet: Duration,
    /// How pods without shared GPUs are bound
    #[arg(long, value_enum, default_value_t = Mode::Direct)]
    bind_mode: Mode,
    /// Evict nobody
    #[arg(long)]
    pause_evictions: bool,
    /// The eviction brake: at most N pods in a cycle; -1: no bound
    #[arg(long, value_name = "N", default_value = "256", allow_negative_numbers = true, value_parser = bound)]
    max_evictions: Bound,
    /// … in any 60 seconds
    #[arg(long, value_name = "N", default_value = "1024", allow_negative_numbers = true, value_parser = bound)]
    max_evictions_per_minute: Bound,
    /// … from one leaf queue in a cycle
    #[arg(long, value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = bound)]
    max_evictions_per_queue: Bound,
    /// Append a JSON object for each eviction to this file; what cannot be recorded is not done
    #[arg(long, value_name = "FILE")]
    eviction_journal: Option<PathBuf>,
    /// Evict through the Eviction API, and take nobody whom a PodDisruptionBudget keeps
    #[arg(long)]
    eviction_api: bool,
    /// Folder for the rows of a cycle that breaks off with a bug of ours; default: that of temporary files
    #[arg(long, value_name = "FOLDER")]
    dump_folder: Option<PathBuf>,
    /// Write the condition DisruptionTarget before a pod is deleted (KAI's name for it)
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    update_pod_eviction_condition: bool,
    /// Label of workloads that names their queue
    #[arg(long, value_name = "KEY", default_value = "kai.scheduler/queue")]
    queue_label_key: String,
    /// Label of node pools
    #[arg(long, value_name = "KEY", default_value = "kai.scheduler/node-pool")]
    nodepool_label_key: String,
    /// First part of the names of metrics
    #[arg(long, value_name = "NAME", default_value = "kai")]
    metrics_namespace: String,
    /// Where /metrics is served; :8080 is that port on all interfaces
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = address)]
    listen_address: SocketAddr,
    /// Where /healthz and /readyz are served
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8082", value_parser = address)]
    health_address: SocketAddr,
    /// Where /explain, /get-snapshot and /get-job-order are served; beyond loopback a token is asked for
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", value_parser = address)]
    inspect_address: SocketAddr,
    /// Serve /debug/pprof/profile?seconds=N beside them, for `go tool pprof` (KAI's name for it)
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    enable_profiler: bool,
    /// Port of /explain, /get-snapshot and /get-job-order on loopback (KAI's name for it)
    #[arg(long, value_name = "PORT", conflicts_with = "inspect_address")]
    plugin_server_port: Option<u16>,
    /// Namespace of the pods that stand for shared GPUs
    #[arg(long, value_name = "NAME", default_value = "kai-resource-reservation")]
    resource_reservation_namespace: String,
    /// Their service account
    #[arg(long, value_name = "NAME", default_value = "kai-resource-reservation")]
    resource_reservation_service_account: String,
    /// Their label app
    #[arg(long, value_name = "NAME", default_value = "kai-resource-reservation")]
    resource_reservation_app_label: String,
    /// Their image
    #[arg(long, value_name = "IMAGE", default_value = "registry/local/kai-scheduler/resource-reservation")]
    resource_reservation_pod_image: String,
    /// Seconds until one must have said which GPU it has
    #[arg(long, value_name = "SECONDS", default_value_t = 40)]
    resource_reservation_allocation_timeout: u64,
    /// Their runtime class
    #[arg(long, value_name = "NAME", default_value = "")]
    runtime_class_name: String,
    /// Logs as JSON
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    log_json: bool,
    /// What is logged
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: tracing::Level,
    #[command(flatten)]
    ignored: Ignored,
}

/// Flags of KAI's scheduler and binder that have no effect here: their settings are a shard's, or there is nothing to set.
#[derive(Args, Debug)]
struct Ignored {
    #[arg(long, hide = true)]
    scheduler_conf: Option<String>,
    #[arg(long, hide = true)]
    partition_label_value: Option<String>,
    #[arg(long, hide = true)]
    qps: Option<String>,
    #[arg(long, hide = true)]
    burst: Option<String>,
    #[arg(long, hide = true)]
    v: Option<String>,
    #[arg(long, hide = true)]
    feature_gates: Option<String>,
    #[arg(long, hide = true)]
    log_flush_frequency: Option<String>,
    #[arg(long, hide = true)]
    num_of_status_recording_workers: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1)]
    detailed_fit_errors: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1)]
    use_scheduling_signatures: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1)]
    schedule_csi_storage: Option<Option<String>>,
    #[arg(long, hide = true)]
    profiler_port: Option<String>,
    #[arg(long, hide = true)]
    pyroscope_address: Option<String>,
}

/// A bound on pods; `None`: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound(Option<u32>);

fn bound(text: &str) -> Result<Bound, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(Bound(None)),
        Ok(n) if u32::try_from(n).is_ok() => Ok(Bound(u32::try_from(n).ok())),
        _ => Err("expected -1 (no bound) or a number of pods".to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = parse_nanoseconds(text, false).map_err(|expected| format!("expected {expected}"))?;
    u64::try_from(nanoseconds)
        .ok()
        .filter(|&n| n > 0)
        .map(Duration::from_nanos)
        .ok_or_else(|| "expected a time above 0".to_owned())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    run::address(text).map_err(|error| error.to_string())
}

/// Runs until a signal says otherwise.
pub(crate) fn run(args: Run) -> Result<(), Fault> {
    start_logs(&args);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 4))
        .enable_all()
        .build()
        .map_err(|error| Fault::failed(format!("cannot start a runtime: {error}")))?;
    let ended = runtime.block_on(async {
        let (stopper, stop) = Stop::new();
        tokio::spawn(await_signals(stopper));
        let config = client::config(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
        run::run(config, options(args), stop).await
    });
    // What still waits for an answer is abandoned.
    runtime.shutdown_timeout(Duration::from_millis(500));
    ended.map_err(|error| Fault::failed(format!("{error:#}")))
}

fn start_logs(args: &Run) {
    let logs = tracing_subscriber::fmt().with_max_level(args.log_level).with_writer(std::io::stderr);
    if args.log_json {
        logs.json().init();
    } else {
        logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
    }
}

/// The first signal ends everything in good order, the second at once.
async fn await_signals(stopper: Stopper) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        tracing::error!("signals cannot be caught");
        return std::future::pending().await;
    };
    for first in [true, false] {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if first {
            stopper.stop();
        } else {
            std::process::exit(130);
        }
    }
}

fn options(args: Run) -> Options {
    let inspect_address = args.plugin_server_port.map_or(args.inspect_address, |port| SocketAddr::from(([127, 0, 0, 1], port)));
    let host = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "muster".to_owned());
    Options {
        roles: args.roles,
        scheduler_name: args.scheduler_name,
        namespace: args.namespace,
        identity: Options::identity_on(&host),
        leader_elect: args.leader_elect,
        observe: args.observe,
        beside_kai: args.beside_kai,
        pause_evictions: args.pause_evictions,
        schedule_period: args.schedule_period,
        quiet: args.quiet,
        most_unquiet: args.most_unquiet,
        bind_mode: if args.bind_mode == Mode::Direct { BindMode::Direct } else { BindMode::BindRequest },
        brake: Brake {
            cycle: args.max_evictions.0,
            minute: args.max_evictions_per_minute.0,
            queue: args.max_evictions_per_queue.0,
        },
        journal: args.eviction_journal,
        dumps: args.dump_folder.unwrap_or_else(std::env::temp_dir),
        disruption_target: args.update_pod_eviction_condition,
        eviction_api: args.eviction_api,
        shard: args.shard,
        queue_label_key: args.queue_label_key,
        node_pool_label_key: args.nodepool_label_key,
        metrics_namespace: args.metrics_namespace,
        metrics_address: args.listen_address,
        health_address: args.health_address,
        profiler: args.enable_profiler,
        inspect_address,
        reservation: Reservation {
            namespace: args.resource_reservation_namespace,
            service_account: args.resource_reservation_service_account,
            app_label: args.resource_reservation_app_label,
            image: args.resource_reservation_pod_image,
            patience: Duration::from_secs(args.resource_reservation_allocation_timeout),
            runtime_class: args.runtime_class_name,
        },
    }
}
