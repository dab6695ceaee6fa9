//! Every reason a pod can be pending, as a code with its indices and numbers. `api` makes the sentences.

use crate::config::Action;
use crate::index::{DimIdx, NodeIdx, PodIdx, QueueIdx, SubgroupIdx};
use crate::snapshot::{Blocked, NoQueue};
use crate::units::Resource;

/// Why a gang waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// It has no queue to be served in.
    NoQueue(NoQueue),
    /// Its queue has queues below it; only leaf queues are served.
    QueueNotLeaf(QueueIdx),
    /// Its `schedulingBackoff` says not to try again.
    BackedOff,
    /// The action that would place it did not run in this cycle.
    ActionNotRun(Action),
    /// `queueDepthPerAction` gangs of its queue came before it.
    BeyondQueueDepth {
        /// Its queue.
        queue: QueueIdx,
        /// The bound.
        depth: u32,
    },
    /// A pod set has fewer pods than its minimum.
    TooFewPods {
        /// The pod set.
        subgroup: SubgroupIdx,
        /// Pods that run, wait or have succeeded.
        present: u32,
        /// Pods held back by a scheduling gate, not in `present`.
        gated: u32,
        /// The minimum.
        min: u32,
    },
    /// A set, or the gang itself, has fewer members that can form than it must have.
    TooFewMembers {
        /// The set; `None`: the gang itself.
        set: Option<SubgroupIdx>,
        /// Members that have the pods they need.
        ready: u32,
        /// How many must.
        required: u32,
    },
    /// Everything it waits for is held back by scheduling gates.
    Gated {
        /// How many pods.
        pods: u32,
    },
    /// Pods name a sub-group that the gang does not have.
    UnknownSubgroup {
        /// How many pods.
        pods: u32,
    },
    /// A queue on its path would exceed its limit.
    OverLimit(Bound),
    /// It may not be evicted, and a queue on its path would hold more such work than its quota.
    OverQuota(Bound),
    /// A pod can be placed nowhere, whatever the nodes have.
    Blocked {
        /// The pod.
        pod: PodIdx,
        /// Why.
        why: Blocked,
    },
    /// A pod asks for more than the largest node offers.
    TooLarge {
        /// The pod.
        pod: PodIdx,
        /// What.
        short: Shortage,
    },
    /// Pods were given a place in this cycle, and it was taken for others before anything started.
    TakenBack {
        /// How many.
        pods: u32,
    },
    /// It has what it must have and takes one step (a pod, or an optional member) in an action and cycle; it got one.
    OneStep,
    /// Nobody was evicted or moved for it either.
    NotHelped {
        /// By this action.
        action: Action,
        /// Why.
        why: Unhelped,
    },
    /// Pods found no node.
    NoNode {
        /// The first pod that found none.
        pod: PodIdx,
        /// How many members could be placed at once beside it.
        placed: u32,
        /// How many had to be.
        members: u32,
        /// The nodes, by the first test that each fails. Empty nodes lists happen: then all counts are 0.
        refusals: Tally,
        /// The node that came nearest, if some node failed for resources only.
        nearest: Option<Nearest>,
    },
}

/// Why an action evicted or moved nobody for a gang that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unhelped {
    /// The action is switched off: no generator of scenarios is on, or consolidation may move no job.
    SwitchedOff,
    /// Its preemption delay is not over.
    Delayed {
        /// Nanoseconds left.
        left: i64,
    },
    /// Work is moved only for gangs that may be evicted themselves.
    NotPreemptible,
    /// Its queue would hold more than its fair share (semantics.md §6.6.1).
    AboveShare(Bound),
    /// It may not be evicted itself, and its queue would hold more such work than its quota.
    AboveQuota(Bound),
    /// A queue on its path would exceed its limit, whoever goes who may go.
    OverLimit(Bound),
    /// `queueDepthPerAction` gangs of its queue came before it.
    BeyondQueueDepth {
        /// The bound.
        depth: u32,
    },
    /// Nobody runs whom the action may take for it.
    Nobody,
    /// Whoever could go is protected by its minimum runtime (semantics.md §9.6).
    Protected {
        /// How many gangs.
        gangs: u32,
    },
    /// Whoever could go is kept by a PodDisruptionBudget.
    Kept {
        /// How many gangs.
        gangs: u32,
    },
    /// No queue beside its own is above what it may count on; this one comes nearest (semantics.md §6.6.2, §6.6.3).
    KeepsShare(Bound),
    /// Its queue would be served beyond its share and at least as far as the one beside it, whatever is taken there (semantics.md
    /// §6.6.3). The bounds are the fair shares.
    Saturated {
        /// Its queue at that level.
        ours: Bound,
        /// The one beside it.
        theirs: Bound,
    },
    /// If everybody went who may, too few of its pods would find a node, each kind of pod counted by itself.
    TooLittle {
        /// How many pods of one kind it has to place at once.
        pods: u32,
        /// How many of them would find one.
        most: u32,
    },
    /// Moving frees nothing: fewer GPUs are free on all nodes together than are asked for. Micro-GPU.
    TooLittleFree {
        /// Asked for at once.
        asked: i64,
        /// Free.
        free: i64,
    },
    /// Everybody was tried in order; with nobody told to leave does it start within the rules.
    NoArrangement {
        /// Simulations.
        tries: u32,
    },
    /// The most simulations for one gang were made; see `VictimRules::simulations_max`.
    GivenUp {
        /// Simulations.
        tries: u32,
    },
    /// A solution was found, but it would exceed the eviction brake.
    Brake {
        /// The leaf queue that would lose too many; `None`: the cycle.
        queue: Option<QueueIdx>,
        /// Pods that may be evicted.
        max: u32,
        /// Pods that were already.
        so_far: u32,
        /// Pods that would have to.
        needed: u32,
    },
}

/// A queue's bound and what stands against it. Amounts in the unit of the resource ([`crate::units`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The queue, at whatever level.
    pub queue: QueueIdx,
    /// The resource.
    pub resource: Resource,
    /// The limit or quota.
    pub bound: i64,
    /// What the queue holds (for a quota: what may not be evicted).
    pub held: i64,
    /// What the gang asks for at once.
    pub asked: i64,
}

impl Bound {
    /// How much is missing, > 0.
    #[must_use]
    pub const fn excess(&self) -> i64 {
        self.held.saturating_add(self.asked).saturating_sub(self.bound)
    }
}

/// Something a node has too little of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Scarce {
    /// Millicores.
    Cpu,
    /// Bytes.
    Memory,
    /// Whole GPUs.
    Gpus,
    /// MiB on enough cards at once.
    CardMib,
    /// Pod slots.
    Pods,
    /// Another resource, its value × 1000.
    Extra(DimIdx),
}

/// How much of what is asked, and how much there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// What.
    pub what: Scarce,
    /// Asked.
    pub asked: i64,
    /// There.
    pub free: i64,
}

/// The node that lacked least: the fewest scarce resources, then the smallest missing share of the first one, then name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nearest {
    /// The node.
    pub node: NodeIdx,
    /// What it lacks (the first in the order of [`Scarce`], GPUs and cards before everything else).
    pub short: Shortage,
    /// How many different resources it lacks.
    pub scarce: u32,
}

/// The tests of a node, in the order in which they are counted: a node is counted at the first one that it fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Refusal {
    /// Not ready, cordoned or under pressure.
    NotReady,
    /// Lacks the worker label that restricted scheduling asks for.
    WorkerLabel,
    /// The wrong kind of node for the GPU request (MIG or not, memory of its cards unknown).
    NodeKind,
    /// A taint is not tolerated.
    Taint,
    /// `nodeSelector`.
    Selector,
    /// Required node affinity.
    Affinity,
    /// Too few free GPUs, or too little memory on too few cards.
    Gpu,
    /// Too little cpu.
    Cpu,
    /// Too little memory.
    Memory,
    /// Too little of another resource.
    Extra,
    /// No pod slot.
    Pods,
    /// The card it would get is larger than what the queue may still hold (requests in MiB only).
    CardQuota,
}

impl Refusal {
    /// All tests, in order.
    pub const ALL: [Self; 12] = [
        Self::NotReady,
        Self::WorkerLabel,
        Self::NodeKind,
        Self::Taint,
        Self::Selector,
        Self::Affinity,
        Self::Gpu,
        Self::Cpu,
        Self::Memory,
        Self::Extra,
        Self::Pods,
        Self::CardQuota,
    ];
}

/// Number of nodes per [`Refusal`], in the order of [`Refusal::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally(pub [u32; Refusal::ALL.len()]);

impl Tally {
    /// Adds `nodes` to one test.
    pub fn add(&mut self, refusal: Refusal, nodes: u32) {
        self.0[refusal as usize] += nodes;
    }

    /// The tests that some node failed, with the number of nodes.
    pub fn entries(&self) -> impl Iterator<Item = (Refusal, u32)> + '_ {
        Refusal::ALL.into_iter().zip(self.0).filter(|&(_, nodes)| nodes > 0)
    }
}
