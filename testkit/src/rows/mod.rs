//! Random snapshots for laws: drafts of plain numbers that are legal whatever they say, and rows made of them.
//!
//! A [`Draft`] refers to things by numbers that are taken modulo how many there are, so that a shrunk draft (fewer nodes, fewer
//! gangs, smaller numbers) is still a draft, and proptest finds small counter-examples. [`Draft::snapshot`] turns it into rows as
//! [`muster_core::snapshot`] wants them. Not known here: tables, or what a cycle does with the rows.

mod build;
mod rounds;
mod special;
mod strategy;

use std::fmt;

use muster_core::config::Config;
use muster_core::index::{ClassIdx, Idx, PodIdx};
use muster_core::snapshot::{ClassRow, GangTimes, NodeRow, PodStatus, QueueRow, Snapshot, TaskPriority};

pub use rounds::{ROUND, carried_out, next_round, next_round_without_promises};
pub use special::{contended_drafts, fragmented_drafts, plain_drafts, shared_drafts};
pub use strategy::drafts;

/// Resources beside cpu, memory, GPUs and pods: one that no queue counts, two kinds of MIG instances.
pub const MIG_GPUS: [u32; 3] = [0, 1, 3];
/// Labels of the first key (zones) and of the second (numbers).
pub const ZONES: usize = 3;
/// Values of the second label key.
pub const SIZES: [i64; 4] = [1, 2, 4, 8];
/// Different taints.
pub const TAINTS: usize = 2;

/// A cluster, as numbers.
#[derive(Clone)]
pub struct Draft {
    /// Settings.
    pub config: Config,
    /// At least one.
    pub nodes: Vec<NodeDraft>,
    /// At least one.
    pub queues: Vec<QueueDraft>,
    /// At least one. Node names in them count modulo the number of nodes.
    pub classes: Vec<ClassRow>,
    /// Pod groups.
    pub gangs: Vec<GangDraft>,
    /// Pods without gang.
    pub loose: Vec<PodDraft>,
}

impl fmt::Debug for Draft {
    /// One row a line: a counter-example is read by people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.config)?;
        self.nodes.iter().try_for_each(|node| writeln!(f, "{node:?}"))?;
        self.queues.iter().try_for_each(|queue| writeln!(f, "{queue:?}"))?;
        self.classes.iter().try_for_each(|class| writeln!(f, "{class:?}"))?;
        for gang in &self.gangs {
            let GangDraft { queue, priority, preemptible, backed_off, tree, class, pods, times } = gang;
            writeln!(f, "Gang in {queue:?}, {priority}, {preemptible}, {backed_off}, {tree:?}, class {class}, {times:?}")?;
            pods.iter().try_for_each(|pod| writeln!(f, "  {pod:?}"))?;
        }
        self.loose.iter().try_for_each(|pod| writeln!(f, "{pod:?}"))
    }
}

/// A node with its labels and taints.
#[derive(Clone, Debug)]
pub struct NodeDraft {
    /// What it offers.
    pub row: NodeRow,
    /// Its zone, if it has one.
    pub zone: Option<usize>,
    /// Its size (a position in [`SIZES`]), if it has one.
    pub size: Option<usize>,
    /// One bit a taint.
    pub taints: u8,
}

/// A queue: the parent is found by level.
#[derive(Clone, Debug)]
pub struct QueueDraft {
    /// All but the parent.
    pub row: QueueRow,
    /// 0: a root; else below some queue of the level above, if there is one.
    pub level: u8,
    /// Which of them.
    pub parent: usize,
}

/// A pod group.
#[derive(Clone, Debug)]
pub struct GangDraft {
    /// Which queue, or none.
    pub queue: QueuePick,
    /// Priority.
    pub priority: i32,
    /// May be evicted.
    pub preemptible: bool,
    /// Does not want to be tried.
    pub backed_off: bool,
    /// Its sub-groups.
    pub tree: TreeDraft,
    /// The class of pods that name none.
    pub class: usize,
    /// Its pods.
    pub pods: Vec<PodDraft>,
    /// When things happened to it.
    pub times: GangTimes,
}

/// Which queue a gang names.
#[derive(Clone, Copy, Debug)]
pub enum QueuePick {
    /// A leaf.
    Leaf(usize),
    /// Any queue.
    Any(usize),
    /// One that does not exist.
    Missing,
    /// One that has no ancestor.
    MissingAncestor,
}

/// Sub-groups: some leaves at the top, some sets of leaves.
#[derive(Clone, Debug)]
pub struct TreeDraft {
    /// Minimum of each leaf at the top.
    pub leaves: Vec<u32>,
    /// Sets of leaves: how many members must have their minimum, and the minima.
    pub sets: Vec<(u32, Vec<u32>)>,
    /// How many top-level members must have their minimum; 0: all.
    pub required: u32,
    /// Whether sets come before leaves by name.
    pub sets_first: bool,
}

/// A pod.
#[derive(Clone, Debug)]
pub struct PodDraft {
    /// Which leaf; `None`: one that the gang does not have.
    pub leaf: Option<usize>,
    /// Its class, if not the gang's.
    pub class: Option<usize>,
    /// What it does, as far as there is a node for it.
    pub status: PodStatus,
    /// Where to look for a node first; `None`: it is on a node of another shard.
    pub node: Option<usize>,
    /// Gets that node even if it is full.
    pub forced: bool,
    /// Which shared cards it joins.
    pub cards: usize,
    /// The node it would rather have.
    pub nominated: Option<usize>,
    /// Another scheduler's.
    pub foreign: bool,
    /// Stands for a shared card (pods without gang only).
    pub reservation: bool,
    /// kubeflow master.
    pub leader: bool,
    /// Ray head.
    pub ray_head: bool,
    /// Rank in its gang.
    pub task_priority: TaskPriority,
}

impl Draft {
    /// The same cluster with every node `times` times over: large enough that work is spread over threads.
    #[must_use]
    pub fn tiled(mut self, times: usize) -> Self {
        let nodes = self.nodes.clone();
        for _ in 1..times {
            self.nodes.extend_from_slice(&nodes);
        }
        self
    }
}

/// The same cluster with a request class for each pod: nothing that is remembered by class can be used twice.
#[must_use]
pub fn with_own_classes(rows: &Snapshot) -> Snapshot {
    let mut own = rows.clone();
    own.classes.clear();
    for pod in rows.pods.indices().collect::<Vec<PodIdx>>() {
        let class: ClassIdx = own.classes.push(rows.classes[rows.pods[pod].class].clone());
        own.pods[pod].class = class;
        assert_eq!(class.at(), pod.at(), "one class a pod");
    }
    own
}
