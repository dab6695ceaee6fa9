//! What a cycle decided, as plain data in the order of the decisions.

use crate::config::Action;
use crate::explain::{Bound, Reason};
use crate::index::{Col, GangIdx, GroupIdx, NodeIdx, PodIdx, QueueIdx};
use crate::units::Amounts;

/// What happens to a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DecisionKind {
    /// It starts on the node now.
    Bind,
    /// It gets the node once what is being released there is gone.
    Pipeline,
    /// It is told to leave the node.
    Evict,
}

/// One decision that stood. Its position in [`Outcome::decisions`] is the order in which it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// What happens.
    pub kind: DecisionKind,
    /// To which pod.
    pub pod: PodIdx,
    /// Where.
    pub node: NodeIdx,
    /// The shared GPUs it takes: a range of [`Outcome::groups`]; empty unless it shares GPUs. Groups at or beyond the
    /// snapshot's own are new.
    pub groups: (u32, u32),
    /// The action that decided.
    pub action: Action,
}

/// By which rule a pod was told to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Its queue, at the level where it parts from the asker's, held more than it may count on (semantics.md §6.6.3,
    /// MaintainFairShare). The bound is that share, what is held is without those taken before.
    AboveShare(Bound),
    /// The same with the queue's quota, the asker's queue staying within its own (GuaranteeDeservedQuota).
    AboveQuota(Bound),
    /// Its priority is lower and it is in the same queue (semantics.md §6.7).
    LowerPriority {
        /// Its priority.
        victim: i32,
        /// The asker's.
        asker: i32,
    },
    /// It is not lost: it was given another place.
    Moves,
    /// Its gang is below its minimum, for longer than it may be (semantics.md §6.8). Nanoseconds.
    Stale {
        /// For how long.
        since: i64,
        /// How long it may be.
        grace: i64,
    },
    /// Plugin `proportion` is off: no rule protects queues.
    NoRule,
}

/// For whom a pod was told to leave, and why it may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Eviction {
    /// The gang that gets its place; `None`: a stale gang leaves for nobody.
    pub asker: Option<GangIdx>,
    /// By which rule.
    pub why: Why,
}

/// What was done for one gang by evicting or moving others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// The gang.
    pub asker: GangIdx,
    /// The action.
    pub action: Action,
    /// Its pods that got a place.
    pub placed: u32,
    /// Pods that lost theirs.
    pub evicted: u32,
    /// Pods that got another one.
    pub moved: u32,
    /// No choice does with fewer than so many pods, evicted and moved ones together (a lower bound).
    pub least: u32,
    /// Simulations that it took.
    pub tries: u32,
}

/// A gang with pods that still wait when the cycle ends, and why. Pods that were promised a node do not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingGang {
    /// Which gang.
    pub gang: GangIdx,
    /// How many of its pods wait (gated ones included).
    pub pods: u32,
    /// Why: a range of [`Outcome::reasons`], never empty.
    pub reasons: (u32, u32),
}

/// A queue as it stood: shares and demand at the start of the cycle, holdings at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueReport {
    /// What the division of the cluster gave it.
    pub fair_share: Amounts,
    /// Held by its pods and those of all queues below it, promised nodes included.
    pub allocated: Amounts,
    /// The part of it that may not be evicted.
    pub non_preemptible: Amounts,
    /// Held or waited for at the start.
    pub requested: Amounts,
}

/// The result of a cycle. Reused from cycle to cycle.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// In the order they were made.
    pub decisions: Vec<Decision>,
    /// What [`Decision::groups`] points into.
    pub groups: Vec<GroupIdx>,
    /// For whom and why, one for each decision to evict, in their order.
    pub evictions: Vec<Eviction>,
    /// One for each gang for whom others were evicted or moved, in the order in which that was decided.
    pub batches: Vec<Batch>,
    /// In gang order.
    pub pending: Vec<PendingGang>,
    /// What [`PendingGang::reasons`] points into.
    pub reasons: Vec<Reason>,
    /// One for each queue.
    pub queues: Col<QueueIdx, QueueReport>,
    /// What could be shared at all: the ready nodes without what foreign pods hold (semantics.md §3.1).
    pub pie: Amounts,
}

impl Outcome {
    /// The shared GPUs of a decision.
    #[must_use]
    pub fn groups_of(&self, decision: &Decision) -> &[GroupIdx] {
        &self.groups[decision.groups.0 as usize..decision.groups.1 as usize]
    }

    /// The reasons of a pending gang.
    #[must_use]
    pub fn reasons_of(&self, pending: &PendingGang) -> &[Reason] {
        &self.reasons[pending.reasons.0 as usize..pending.reasons.1 as usize]
    }

    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.decisions.clear();
        self.groups.clear();
        self.evictions.clear();
        self.batches.clear();
        self.pending.clear();
        self.reasons.clear();
        self.queues.clear();
        self.pie = Amounts::ZERO;
    }
}
