//! The input of a cycle as rows of plain data. `api` makes them from Kubernetes objects, tests make them by hand.
//!
//! # Order is meaning
//! The position of a row is the last tie-break of every order, and must not depend on the order in which objects arrived:
//!
//! | rows | sorted by |
//! |---|---|
//! | nodes | name |
//! | queues | creation, name |
//! | gangs | creation, name, namespace |
//! | sub-groups | gang, then name (a parent may come before or after its members) |
//! | pods | gang (pods without gang last), creation, uid |
//! | GPU groups | name |
//!
//! Rows hold indices, never names; whoever made them keeps the names.

use crate::config::Config;
use crate::index::{ClassIdx, Col, DimIdx, GangIdx, GroupIdx, KeyIdx, LabelIdx, NodeIdx, PodIdx, QueueIdx, Span};
use crate::index::{SubgroupIdx, TaintIdx};
use crate::units::Amounts;

/// One cluster at one instant.
#[derive(Clone, PartialEq, Debug)]
pub struct Snapshot {
    /// Settings of the cycle.
    pub config: Config,
    /// The resources beside cpu, memory, GPUs and pods that any node offers or any class asks for.
    pub dims: Col<DimIdx, ExtraDim>,
    /// Nodes of this shard.
    pub nodes: Col<NodeIdx, NodeRow>,
    /// Which nodes carry a label; only labels whose key some class refers to.
    pub labels: Col<LabelIdx, LabelRow>,
    /// For each label key that some class refers to: its labels.
    pub keys: Col<KeyIdx, Vec<LabelIdx>>,
    /// Distinct NoSchedule/NoExecute taints: the nodes that have them.
    pub taints: Col<TaintIdx, Vec<NodeIdx>>,
    /// Request classes.
    pub classes: Col<ClassIdx, ClassRow>,
    /// Queues of this shard whose ancestors all exist. Acyclic.
    pub queues: Col<QueueIdx, QueueRow>,
    /// Pod groups of this shard.
    pub gangs: Col<GangIdx, GangRow>,
    /// Members of all gangs' trees; those of one gang are consecutive.
    pub subgroups: Col<SubgroupIdx, SubgroupRow>,
    /// All pods that are in a gang or hold resources of a node.
    pub pods: Col<PodIdx, PodRow>,
    /// Shared GPUs in use, each with its node.
    pub groups: Col<GroupIdx, NodeIdx>,
    /// What [`PodRow::groups`] points into.
    pub pod_groups: Vec<GroupIdx>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            config: Config::kai_default(),
            dims: Col::new(),
            nodes: Col::new(),
            labels: Col::new(),
            keys: Col::new(),
            taints: Col::new(),
            classes: Col::new(),
            queues: Col::new(),
            gangs: Col::new(),
            subgroups: Col::new(),
            pods: Col::new(),
            groups: Col::new(),
            pod_groups: Vec::new(),
        }
    }
}

/// A resource beside the four that have columns of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExtraDim {
    /// GPUs of queue quota that one piece stands for: g for `nvidia.com/mig-<g>g.<m>gb`, else 0 (semantics.md §2.3).
    pub mig_gpus: u32,
}

/// How a node's cards are cut into MIG instances (label `nvidia.com/mig.strategy` on MIG-enabled nodes).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mig {
    /// Not MIG-enabled.
    #[default]
    Off,
    /// Instances are offered as `nvidia.com/gpu`.
    Single,
    /// Instances are offered as `nvidia.com/mig-*`.
    Mixed,
    /// MIG-enabled, strategy unknown: takes regular and MIG requests.
    Unknown,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeRow {
    /// Allocatable millicores.
    pub cpu: i64,
    /// Allocatable bytes.
    pub memory: i64,
    /// Allocatable whole GPUs (`nvidia.com/gpu` + `amd.com/gpu`).
    pub gpus: i64,
    /// Allocatable pods.
    pub pods: i64,
    /// Allocatable amounts of other resources, > 0, by ascending dimension, each dimension once.
    pub extra: Vec<(DimIdx, i64)>,
    /// GPUs that the spread score divides by: label `nvidia.com/gpu.count`, else `gpus`.
    pub gpu_count: i64,
    /// MiB of one card (label `nvidia.com/gpu.memory`), > 0; `None`: unknown.
    pub card_mib: Option<i64>,
    /// MIG.
    pub mig: Mig,
    /// Schedulable, Ready, and under no pressure (semantics.md §3.1).
    pub ready: bool,
    /// Has the gpu-worker label.
    pub gpu_worker: bool,
    /// Has the cpu-worker label.
    pub cpu_worker: bool,
}

/// The nodes that carry one (key, value) label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelRow {
    /// The value as an integer, for `Gt` and `Lt`.
    pub number: Option<i64>,
    /// Ascending.
    pub nodes: Vec<NodeIdx>,
}

/// What a pod asks of GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum GpuRequest {
    /// Nothing (or MIG instances, which are extra dimensions).
    #[default]
    None,
    /// This many whole GPUs, ≥ 1.
    Whole(u32),
    /// `portion` micro-GPU (1..=[`crate::units::MICRO_PER_GPU`]) of each of `devices` ≥ 1 cards.
    Fraction {
        /// Micro-GPU of each card.
        portion: i64,
        /// Cards.
        devices: u32,
    },
    /// `mib` > 0 of each of `devices` ≥ 1 cards.
    Memory {
        /// MiB of each card.
        mib: i64,
        /// Cards.
        devices: u32,
    },
}

/// One condition on a node's labels or name.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Requirement {
    /// Has one of these labels. Empty: no node does.
    In(Vec<LabelIdx>),
    /// Has none of these labels (nodes without the key pass).
    NotIn(Vec<LabelIdx>),
    /// Has the key; `None`: no node has it.
    Exists(Option<KeyIdx>),
    /// Lacks the key; `None`: every node does.
    DoesNotExist(Option<KeyIdx>),
    /// The key's value is an integer above this; `None`: no node has the key.
    Greater(Option<KeyIdx>, i64),
    /// The key's value is an integer below this.
    Less(Option<KeyIdx>, i64),
    /// Is one of these nodes (field `metadata.name`).
    NodeIn(Vec<NodeIdx>),
    /// Is none of these nodes.
    NodeNotIn(Vec<NodeIdx>),
}

/// Why a class can be placed nowhere, whatever the nodes have. Details are with whoever made the rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Blocked {
    /// A ConfigMap that the pod needs does not exist.
    MissingConfigMap,
    /// It needs resource claims (DRA), which are not considered yet; without them it could not start.
    ResourceClaims,
    /// MIG asked for by annotation; such pods are not placed (semantics.md §9.2).
    LegacyMig,
}

/// What pods of one class ask for, and where they may go.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct ClassRow {
    /// Millicores.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// GPUs.
    pub gpu: GpuRequest,
    /// Amounts of other resources, > 0, by ascending dimension, each dimension once.
    pub extra: Vec<(DimIdx, i64)>,
    /// `nodeSelector`: all must hold.
    pub selector: Vec<Requirement>,
    /// Required node affinity: some term must hold, each being a conjunction. `None`: no affinity. `Some` of an empty list,
    /// and an empty term, match no node.
    pub affinity: Option<Vec<Vec<Requirement>>>,
    /// The taints that are tolerated.
    pub tolerated: Vec<TaintIdx>,
    /// Set if no node can be right.
    pub blocked: Option<Blocked>,
}

/// A queue. Amounts: millicores, bytes, micro-GPU; [`crate::units::UNLIMITED`] for -1.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct QueueRow {
    /// The queue above.
    pub parent: Option<QueueIdx>,
    /// Higher is served first.
    pub priority: i32,
    /// What the queue deserves.
    pub quota: Amounts,
    /// What it may hold at most.
    pub limit: Amounts,
    /// Over-quota weight per resource (cpu, memory, gpu).
    pub weight: [f64; 3],
    /// Historical usage per resource as a share of the cluster, ≥ 0 (semantics.md §3.6).
    pub usage: [f64; 3],
    /// How long its gangs are not preempted after they started, in nanoseconds; `None`: the queue above says.
    pub preempt_min_runtime: Option<i64>,
    /// The same against reclaim.
    pub reclaim_min_runtime: Option<i64>,
}

/// Why a gang has no queue to be served in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoQueue {
    /// The named queue does not exist in this shard (or none is named).
    Missing,
    /// The queue exists, but one above it does not.
    MissingAncestor,
}

/// A pod group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GangRow {
    /// Where it is accounted.
    pub queue: Result<QueueIdx, NoQueue>,
    /// Higher is served first.
    pub priority: i32,
    /// May be evicted for others; only then may its queue exceed quota.
    pub preemptible: bool,
    /// Its tree, all members, non-empty.
    pub subgroups: Span<SubgroupIdx>,
    /// How many of the top-level members must have their minimum.
    pub required: u32,
    /// Its pods.
    pub pods: Span<PodIdx>,
    /// Not tried until its owner asks again (`schedulingBackoff`), though its pods count.
    pub backed_off: bool,
    /// When things happened to it.
    pub times: GangTimes,
}

/// Instants are nanoseconds since 1970, durations nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GangTimes {
    /// When it was created.
    pub created: i64,
    /// When it last began to run.
    pub started: Option<i64>,
    /// When it was last evicted.
    pub evicted: Option<i64>,
    /// Since when it is below its minimum, as far as was seen.
    pub stale: Option<i64>,
    /// How long it waits before others are evicted for it.
    pub preemption_delay: i64,
    /// How long it may be below its minimum; negative: for ever; `None`: as configured.
    pub staleness_grace: Option<i64>,
}

/// A member of a gang's tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubgroupRow {
    /// The set it belongs to; `None`: the gang itself.
    pub parent: Option<SubgroupIdx>,
    /// Leaf or not.
    pub kind: SubgroupKind,
}

/// Leaf or inner member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubgroupKind {
    /// Holds pods.
    PodSet {
        /// Pods that must be placed together.
        min: u32,
    },
    /// Holds members.
    Set {
        /// Members that must have their minimum.
        required: u32,
    },
}

/// What a pod is doing (semantics.md §1.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PodStatus {
    /// Waits for a node.
    Pending,
    /// Waits for a scheduling gate to go.
    Gated,
    /// Was given a node in this cycle.
    Allocated,
    /// Was promised a node in this cycle, once what is leaving there is gone.
    Pipelined,
    /// Is being bound since an earlier cycle.
    Binding,
    /// Has a node, does not run yet.
    Bound,
    /// Runs.
    Running,
    /// Is leaving.
    Releasing,
    /// Should have left long ago; what it holds is not counted on.
    StuckInReleasing,
    /// Ended well.
    Succeeded,
    /// Anything else; holds nothing.
    Other,
}

/// A pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodRow {
    /// `None`: belongs to no pod group of this shard; it only holds resources.
    pub gang: Option<GangIdx>,
    /// The leaf it belongs to; `None` with a gang: the leaf it names does not exist, so it is never placed.
    pub subgroup: Option<SubgroupIdx>,
    /// What it asks for.
    pub class: ClassIdx,
    /// What it is doing.
    pub status: PodStatus,
    /// Where it is or goes; `None` for a node outside this shard too.
    pub node: Option<NodeIdx>,
    /// `status.nominatedNodeName`.
    pub nominated: Option<NodeIdx>,
    /// The shared GPUs it holds: a range of [`Snapshot::pod_groups`].
    pub groups: (u32, u32),
    /// Belongs to another scheduler and is none of our utility pods: what it holds is not ours to share (semantics.md §3.1).
    pub foreign: bool,
    /// Stands for a shared GPU; its GPU is accounted through the group (semantics.md §1.5).
    pub reservation: bool,
    /// May not be told to leave in this cycle, whoever asks: a PodDisruptionBudget lets nobody go. Its gang keeps its minimum.
    pub kept: bool,
    /// kubeflow master or launcher.
    pub leader: bool,
    /// Ray head.
    pub ray_head: bool,
    /// `kai.scheduler/task-priority`.
    pub task_priority: TaskPriority,
}

/// A pod's rank inside its gang; smaller is first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TaskPriority {
    /// Larger numbers first.
    Number(i64),
    /// After all numbers.
    #[default]
    Absent,
    /// Last.
    Unparsable,
}
