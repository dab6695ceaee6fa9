//! The command line: every option with its help and examples. Nothing is computed here.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;
use muster_api::manifests::Role;
use muster_testkit::generate::Mix;

const EXIT_CODES: &str = "\
Exit codes:
  0  done; gangs that stay pending are no error
  1  output cannot be written, --verify found a broken invariant, or this processor cannot run this build
  2  the input or the command line is wrong; nothing was printed on standard output";

const EXAMPLES: &str = "\
Examples:
  muster demo                                   plan a generated cluster of 10,000 GPUs
  muster plan snapshot.zip                      what would one cycle decide?
  kubectl get nodes,pods,queues,podgroups -A -o yaml | muster plan -
  muster explain snapshot.zip ml/train          why does this gang wait?
  muster generate --nodes 100 | muster plan -";

/// A GPU scheduler for Kubernetes: plans, explains and generates clusters offline.
#[derive(Parser, Debug)]
#[command(name = "muster", version = version(), after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
#[command(max_term_width = 100)]
#[command(arg_required_else_help = true, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// `0.1.0 (vectors: avx2)`.
const fn version() -> &'static str {
    match crate::cpu::level().as_bytes() {
        b"avx2" => concat!(env!("CARGO_PKG_VERSION"), " (vectors: avx2)"),
        b"sse2" => concat!(env!("CARGO_PKG_VERSION"), " (vectors: sse2)"),
        b"neon" => concat!(env!("CARGO_PKG_VERSION"), " (vectors: neon)"),
        b"simd128" => concat!(env!("CARGO_PKG_VERSION"), " (vectors: simd128)"),
        _ => concat!(env!("CARGO_PKG_VERSION"), " (vectors: none)"),
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run one scheduling cycle on a snapshot and print what it decides
    #[command(after_help = format!("{PLAN_EXAMPLES}\n\n{EXIT_CODES}"))]
    Plan(Plan),
    /// Plan, then say for one gang, or for all that wait, why it waits and what would help
    #[command(after_help = format!("{EXPLAIN_EXAMPLES}\n\n{EXIT_CODES}"))]
    Explain(Explain),
    /// Write a seeded cluster with running and pending work as a snapshot
    #[command(after_help = format!("{GENERATE_EXAMPLES}\n\n{EXIT_CODES}"))]
    Generate(Generate),
    /// Turn a published trace into a snapshot
    #[command(subcommand_required = true, arg_required_else_help = true)]
    #[command(after_help = format!("{IMPORT_EXAMPLE}\n\n{EXIT_CODES}"))]
    Import {
        #[command(subcommand)]
        source: Import,
    },
    /// Generate a cluster in memory, plan one cycle, and show the result with the time of each stage
    #[command(after_help = format!("{DEMO_EXAMPLES}\n\n{EXIT_CODES}"))]
    Demo(Demo),
    /// Print the CustomResourceDefinitions (KAI's, field for field) as YAML
    #[command(after_help = format!("{CRDS_EXAMPLES}\n\n{EXIT_CODES}"))]
    Crds,
    /// Print what an installation consists of as YAML: namespaces, CRDs, priority classes, rights, deployment
    #[command(after_help = format!("{MANIFESTS_EXAMPLES}\n\n{EXIT_CODES}"))]
    Manifests(Manifests),
    /// Schedule the pods of a cluster: decide, bind, evict, report
    #[cfg(feature = "controller")]
    #[command(after_help = crate::run::EXAMPLES)]
    Run(Box<crate::run::Run>),
    /// Print completions for a shell
    #[command(after_help = format!("{COMPLETION_EXAMPLES}\n\n{EXIT_CODES}"))]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

const PLAN_EXAMPLES: &str = "\
Examples:
  muster plan snapshot.zip
  muster plan snapshot.json.gz --actions allocate --output json
  kubectl get nodes,pods,queues,podgroups -A -o yaml | muster plan -
  muster plan manifests/ --lenient --all
  muster plan snapshot.zip --max-evictions 100 --max-evictions-per-queue 20

Input: a KAI snapshot (.json, .json.gz, .zip with snapshot.json), a file or folder of
Kubernetes manifests (YAML or JSON), or - for either on standard input.";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  muster explain snapshot.zip
  muster explain snapshot.zip ml/train
  muster explain snapshot.zip ml/train -o json";

const GENERATE_EXAMPLES: &str = "\
Examples:
  muster generate -o cluster.zip
  muster generate --nodes 12500 --pending 100000 --seed 7 -o large.zip
  muster generate --nodes 10 --mix gangs=1 --fill 0 | muster plan -

The same options and seed give the same file on every machine. The format is that of
the file's name: .zip, .json.gz, or plain JSON.";

const IMPORT_EXAMPLE: &str = "\
Examples:
  muster import openb --nodes nodes.csv --pods pods.csv -o openb.zip
  muster import openb --help                    the columns, and what becomes of them";

const IMPORT_EXAMPLES: &str = "\
Examples:
  muster import openb --nodes openb_node_list_gpu_node.csv \\
      --pods openb_pod_list_default.csv --seed 42 -o openb.zip
  muster import openb --nodes nodes.csv --pods pods.csv --tune 1.3 | muster plan -

Every pod becomes a pending gang of its own in queue openb (parent cluster, no bounds).
  gpu_spec A|B   required node affinity: label muster.dev/gpu-model in (A, B)
  gpu_milli      below 1000: annotation gpu-fraction; 1000: whole GPUs
  qos            PriorityClass guaranteed, ls, burstable or be. All have value 50, so that
                 pods are served as they arrive, which is how FGD measures; with
                 --rank-by-qos the values are 90, 75, 60 and 50. Below 100: every pod may
                 be evicted.
Arrival is the order of the file, or shuffled by --seed; pods are created a second apart.";

const DEMO_EXAMPLES: &str = "\
Examples:
  muster demo
  muster demo --nodes 12500 --seed 7";

const CRDS_EXAMPLES: &str = "\
Examples:
  muster crds | kubectl apply --server-side -f -";

const MANIFESTS_EXAMPLES: &str = "\
Examples:
  muster manifests | kubectl apply -f -
  muster manifests --roles scheduler,binder     only these parts, with only their rights
  muster manifests --defaults | kubectl apply -f -

A scheduler that finds no queue at all makes the default ones (default-parent-queue,
default-queue) and the default shard; --defaults prints these instead of the installation,
for whoever keeps all objects in files. They need the CRDs to be there.";

const COMPLETION_EXAMPLES: &str = "\
Examples:
  muster completions bash > /etc/bash_completion.d/muster
  muster completions zsh > ~/.zfunc/_muster";

/// Which victims are taken.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Victims {
    /// In KAI's order.
    InOrder,
    /// Those that cost least.
    Fewest,
}

/// What `plan` and `explain` read.
#[derive(ClapArgs, Debug)]
pub(crate) struct Input {
    /// Snapshot, manifests or folder; `-` for standard input
    pub(crate) snapshot: PathBuf,
    /// The clock of the cycle (RFC 3339); default: the snapshot's own `now`, else the wall clock
    #[arg(long, allow_negative_numbers = true, value_name = "TIME")]
    pub(crate) now: Option<Timestamp>,
    /// Actions to run, in this order, in place of the configured ones
    #[arg(long, value_name = "A,B,…", value_delimiter = ',')]
    pub(crate) actions: Option<Vec<String>>,
    /// The eviction brake: at most N pods told to leave in the cycle, moved ones included; a gang that
    /// needs more gets none of them. Default: the snapshot's schedulerParams.muster.maxEvictions, else no bound
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) max_evictions: Option<u32>,
    /// The same for the pods of each leaf queue (schedulerParams.muster.maxEvictionsPerQueue)
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) max_evictions_per_queue: Option<u32>,
    /// Which of those who may be evicted are: `in-order` as KAI does (queue most over its share, lowest priority,
    /// youngest), `fewest` by lowest priority, least GPU time lost, fewest pods (schedulerParams.muster.victims)
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) victims: Option<Victims>,
    /// Leave out bad objects and plan the rest, instead of refusing the input
    #[arg(long)]
    pub(crate) lenient: bool,
    /// Threads to use; default: as many as there are processors
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Recompute every ledger after the cycle and fail if one is wrong (slower)
    #[arg(long)]
    pub(crate) verify: bool,
}

/// How results are printed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// For people, 80 columns
    Table,
    /// For machines
    Json,
}

/// Which queue tables are printed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resources {
    /// GPUs only
    Gpu,
    /// GPUs, CPU and memory
    All,
}

#[derive(ClapArgs, Debug)]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) input: Input,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    /// Show every gang and queue, not only the first
    #[arg(long)]
    pub(crate) all: bool,
    /// Which resources of the queues to show
    #[arg(long, value_enum, default_value_t = Resources::Gpu)]
    pub(crate) resources: Resources,
}

#[derive(ClapArgs, Debug)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) input: Input,
    /// The gang; the namespace may be left out where the name is unique. Default: all that wait
    #[arg(value_name = "NAMESPACE/PODGROUP")]
    pub(crate) gang: Option<String>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
}

#[derive(ClapArgs, Debug)]
pub(crate) struct Generate {
    /// Nodes
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 1250)]
    pub(crate) nodes: u32,
    /// GPUs of each node
    #[arg(long, allow_negative_numbers = true, value_name = "G", default_value_t = 8)]
    pub(crate) gpus: u32,
    /// Racks; default: one for 16 nodes. Eight racks are a block
    #[arg(long, allow_negative_numbers = true, value_name = "R")]
    pub(crate) racks: Option<u32>,
    /// Leaf queues; every fourth has a limit
    #[arg(long, allow_negative_numbers = true, value_name = "Q", default_value_t = 32)]
    pub(crate) queues: u32,
    /// Levels of the queue tree
    #[arg(long, allow_negative_numbers = true, value_name = "D", default_value_t = 2)]
    pub(crate) depth: u32,
    /// Kinds of work, as shares of the pods
    #[arg(long, value_name = "KIND=WEIGHT,…", default_value_t = Mix::default())]
    pub(crate) mix: Mix,
    /// Share of the GPUs that running work holds
    #[arg(long, allow_negative_numbers = true, value_name = "SHARE", default_value_t = 0.8)]
    pub(crate) fill: f64,
    /// Pods that wait
    #[arg(long, allow_negative_numbers = true, value_name = "P", default_value_t = 1000)]
    pub(crate) pending: u32,
    /// Share of the nodes that are cordoned
    #[arg(long, allow_negative_numbers = true, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) cordoned: f64,
    /// Where all draws come from
    #[arg(long, allow_negative_numbers = true, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// `config.actions` of the snapshot
    #[arg(long, value_name = "A,B,…", default_value = muster_testkit::generate::objects::DEFAULT_ACTIONS)]
    pub(crate) actions: String,
    /// Where to write; `-` for standard output, which is the default when it is not a terminal
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Import {
    /// Alibaba's GPU cluster trace of 2023 (openb), as published for FGD
    #[command(after_help = format!("{IMPORT_EXAMPLES}\n\n{EXIT_CODES}"))]
    Openb(Openb),
}

#[derive(ClapArgs, Debug)]
pub(crate) struct Openb {
    /// Node list (columns sn, cpu_milli, memory_mib, gpu, model)
    #[arg(long, value_name = "CSV")]
    pub(crate) nodes: PathBuf,
    /// Pod list (columns name, cpu_milli, memory_mib, num_gpu, gpu_milli and, if there, gpu_spec, qos)
    #[arg(long, value_name = "CSV")]
    pub(crate) pods: PathBuf,
    /// Shuffle the arrival of the pods; default: the order of the file
    #[arg(long, allow_negative_numbers = true, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Append randomly drawn copies of pods until they ask for this share of all GPUs
    #[arg(long, allow_negative_numbers = true, value_name = "RATIO")]
    pub(crate) tune: Option<f64>,
    /// Give the PriorityClasses different values: better classes are served first, not earlier pods
    #[arg(long)]
    pub(crate) rank_by_qos: bool,
    /// Where to write; `-` for standard output, which is the default when it is not a terminal
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(ClapArgs, Debug)]
pub(crate) struct Manifests {
    /// Namespace of the deployment
    #[arg(long, value_name = "NAME", default_value = "muster")]
    pub(crate) namespace: String,
    /// Image of the deployment
    #[arg(long, value_name = "IMAGE", default_value = concat!("muster:", env!("CARGO_PKG_VERSION")))]
    pub(crate) image: String,
    /// What the deployment does; it gets the rights that these need, and no others
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', default_values_t = Role::ALL)]
    pub(crate) roles: Vec<Role>,
    /// Print the default queues and the default shard instead
    #[arg(long, conflicts_with_all = ["namespace", "image", "roles"])]
    pub(crate) defaults: bool,
}

#[derive(ClapArgs, Debug)]
pub(crate) struct Demo {
    /// Nodes of 8 GPUs each
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 1250)]
    pub(crate) nodes: u32,
    /// Where all draws come from
    #[arg(long, allow_negative_numbers = true, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Threads to use; default: as many as there are processors
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}
