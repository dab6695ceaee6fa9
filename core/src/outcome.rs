//! What a cycle decided, as plain data in the order of the decisions.

use crate::config::Action;
use crate::explain::Reason;
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
        self.pending.clear();
        self.reasons.clear();
        self.queues.clear();
        self.pie = Amounts::ZERO;
    }
}
