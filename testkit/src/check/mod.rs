//! A slow, plain checker of what a cycle decided, written from semantics.md and not from the core's tables.
//!
//! [`check`] works everything out anew from the rows and the outcome: what each node, card and queue holds at the end, whether
//! every gang is whole, whether each pod may be where it is, and whether the reasons say what is the case. What is wrong comes
//! out as one line each; an empty list means that no rule is broken. It does not know in which order things were decided beyond
//! the order of the decisions, and it does not judge preferences (which of several good nodes): laws and scenarios do.

mod batches;
mod evictions;
mod fairness;
mod gangs;
mod minimal;
mod net;
mod nodes;
mod places;
mod queues;
mod reasons;

use std::collections::{BTreeMap, BTreeSet};

use muster_core::config::Action;
use muster_core::index::{ClassIdx, Col, GangIdx, GroupIdx, NodeIdx, PodIdx};
use muster_core::outcome::{Decision, DecisionKind, Outcome};
use muster_core::snapshot::{GpuRequest, PodStatus, Snapshot};
use muster_core::units::{Amounts, MICRO_PER_GPU, NOMINAL_CARD_MIB};

pub use net::check_net;

/// Everything that is wrong with an outcome of these rows, one line each.
#[must_use]
pub fn check(rows: &Snapshot, outcome: &Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(after) = After::of(rows, outcome, &mut wrong) else { return wrong };
    nodes::check(&after, &mut wrong);
    places::check(&after, &mut wrong);
    queues::check(&after, &mut wrong);
    gangs::check(&after, &mut wrong);
    evictions::check(&after, &mut wrong);
    fairness::check(&after, &mut wrong);
    minimal::check(&after, &mut wrong);
    reasons::check(&after, &mut wrong);
    wrong
}

/// Who lost pods for whom, batch by batch; those that only move lose nothing.
#[must_use]
pub fn displacements(rows: &Snapshot, outcome: &Outcome) -> Vec<Displacement> {
    let Some(after) = After::of(rows, outcome, &mut Vec::new()) else { return Vec::new() };
    let mut all = Vec::new();
    for batch in batches::batches(&after) {
        let Some(asker) = batch.asker(&after) else { continue };
        let then = after.until(batch.decisions.1);
        let lost = batch.victims.iter().filter(|&&pod| !active(then.pods[pod].status));
        let losers: BTreeSet<GangIdx> = lost.filter_map(|&pod| rows.pods[pod].gang).collect();
        all.extend(losers.into_iter().map(|loser| Displacement { action: batch.action, asker, loser }));
    }
    all
}

/// A gang lost pods so that another one can start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Displacement {
    /// By which rule.
    pub action: Action,
    /// Who starts.
    pub asker: GangIdx,
    /// Who lost pods.
    pub loser: GangIdx,
}

/// Where a pod is.
#[derive(Clone, Debug)]
struct At {
    status: PodStatus,
    node: Option<NodeIdx>,
    groups: Vec<GroupIdx>,
    /// Where it still is, if it is to move.
    left: Option<(NodeIdx, Vec<GroupIdx>)>,
}

/// The cluster when the cycle ends, or after some of its decisions.
struct After<'a> {
    rows: &'a Snapshot,
    outcome: &'a Outcome,
    /// Where each pod is.
    pods: Col<PodIdx, At>,
    /// The node of each shared card, new ones included.
    cards: BTreeMap<GroupIdx, NodeIdx>,
}

impl<'a> After<'a> {
    /// The cluster when the cycle begins.
    fn start(rows: &'a Snapshot, outcome: &'a Outcome) -> Self {
        let pods = rows.pods.iter().map(|row| At {
            status: row.status,
            node: row.node,
            groups: rows.pod_groups[row.groups.0 as usize..row.groups.1 as usize].to_vec(),
            left: None,
        });
        let cards = rows.groups.entries().map(|(group, &node)| (group, node));
        Self { rows, outcome, pods: pods.collect(), cards: cards.collect() }
    }

    /// Applies the decisions; `None` if they make no sense at all.
    fn of(rows: &'a Snapshot, outcome: &'a Outcome, wrong: &mut Vec<String>) -> Option<Self> {
        let mut after = Self::start(rows, outcome);
        let before = wrong.len();
        for decision in &outcome.decisions {
            after.apply(decision, wrong);
        }
        (wrong.len() == before).then_some(after)
    }

    /// The cluster after so many decisions.
    fn until(&self, decisions: usize) -> Self {
        let mut then = Self::start(self.rows, self.outcome);
        self.outcome.decisions[..decisions].iter().for_each(|decision| then.apply(decision, &mut Vec::new()));
        then
    }

    fn apply(&mut self, decision: &Decision, wrong: &mut Vec<String>) {
        let pod = decision.pod;
        if !self.rows.config.actions.contains(&decision.action) {
            wrong.push(format!("{pod:?}: decided by an action that does not run: {:?}", decision.action));
        }
        match decision.kind {
            DecisionKind::Evict => self.evict(decision, wrong),
            DecisionKind::Bind | DecisionKind::Pipeline => self.place(decision, wrong),
        }
    }

    /// A pod that only has a promise loses it at once; one that has a node leaves it; one that is moving still leaves the node it
    /// has, and gets no other.
    fn evict(&mut self, decision: &Decision, wrong: &mut Vec<String>) {
        let (pod, at) = (decision.pod, &mut self.pods[decision.pod]);
        if !active(at.status) || at.node != Some(decision.node) {
            return wrong.push(format!("{pod:?}: told to leave {:?} while it is {at:?}", decision.node));
        }
        if decision.action == Action::Allocate {
            wrong.push(format!("{pod:?}: nobody is evicted by allocate"));
        }
        let holds = holds(at.status);
        at.status = PodStatus::Releasing;
        if !holds {
            let (node, groups) = at.left.take().unzip();
            (at.node, at.groups) = (node, groups.unwrap_or_default());
        }
    }

    fn place(&mut self, decision: &Decision, wrong: &mut Vec<String>) {
        let (pod, action) = (decision.pod, decision.action);
        let at = &self.pods[pod];
        // Told to leave in this cycle: it may be promised another place.
        let moves = at.status == PodStatus::Releasing
            && self.rows.pods[pod].status != PodStatus::Releasing
            && decision.kind == DecisionKind::Pipeline;
        if at.status != PodStatus::Pending && !moves {
            wrong.push(format!("{pod:?}: decided on while it is {:?}", at.status));
        }
        let places = match decision.kind {
            DecisionKind::Bind => action == Action::Allocate,
            _ => action != Action::StaleGangEviction && (!moves || action != Action::Allocate),
        };
        if !places {
            wrong.push(format!("{pod:?}: {:?} is nothing that {action:?} does", decision.kind));
        }
        let groups = self.outcome.groups_of(decision).to_vec();
        for &group in &groups {
            if *self.cards.entry(group).or_insert(decision.node) != decision.node {
                wrong.push(format!("{pod:?}: shares {group:?}, which is not a card of {:?}", decision.node));
            }
        }
        let left = at.node.filter(|_| moves).map(|node| (node, at.groups.clone()));
        if left.as_ref().is_some_and(|(node, cards)| *node == decision.node && *cards == groups) {
            wrong.push(format!("{pod:?}: moves from {node:?} to where it is", node = decision.node));
        }
        let status = if decision.kind == DecisionKind::Bind { PodStatus::Allocated } else { PodStatus::Pipelined };
        self.pods[pod] = At { status, node: Some(decision.node), groups, left };
    }

    /// Pods that this cycle placed and that are there when it ends, with where.
    fn placed(&self) -> impl Iterator<Item = (PodIdx, NodeIdx)> + '_ {
        let here = self.pods.entries().filter(|(_, at)| matches!(at.status, PodStatus::Allocated | PodStatus::Pipelined));
        here.map(|(pod, at)| (pod, at.node.expect("a pod that was placed has a node")))
    }

    /// The action whose decision on a pod was the last one.
    fn last_action(&self, pod: PodIdx) -> Option<Action> {
        self.outcome.decisions.iter().rev().find(|decision| decision.pod == pod).map(|decision| decision.action)
    }

    /// Whether anything was decided after what `allocate` decided: reasons of failed turns speak of what was before.
    fn goes_on(&self) -> bool {
        self.outcome.decisions.iter().any(|decision| decision.action != Action::Allocate)
    }

    fn class(&self, pod: PodIdx) -> ClassIdx {
        self.rows.pods[pod].class
    }

    /// MiB of one card of a node.
    fn card_mib(&self, node: NodeIdx) -> i64 {
        self.rows.nodes[node].card_mib.unwrap_or(NOMINAL_CARD_MIB)
    }

    /// The smallest and the largest card of the cluster.
    fn card_range(&self) -> (i64, i64) {
        let known = || self.rows.nodes.iter().filter_map(|node| node.card_mib);
        (known().min().unwrap_or(NOMINAL_CARD_MIB), known().max().unwrap_or(NOMINAL_CARD_MIB))
    }

    /// What a class counts for in a queue if it runs on cards of this size (semantics.md §2.3, §2.6, exact).
    fn charge(&self, class: ClassIdx, card_mib: i64) -> Amounts {
        let row = &self.rows.classes[class];
        let whole = i128::from(MICRO_PER_GPU);
        let gpu = match row.gpu {
            GpuRequest::None => 0,
            GpuRequest::Whole(gpus) => i128::from(gpus) * whole,
            GpuRequest::Fraction { portion, devices } => i128::from(portion) * i128::from(devices),
            GpuRequest::Memory { mib, devices } => {
                let (mib, card) = (i128::from(mib), i128::from(card_mib));
                // Rounded up: a queue never pays less than it holds.
                ((mib * whole).div_euclid(card) + i128::from((mib * whole).rem_euclid(card) > 0)) * i128::from(devices)
            }
        };
        let mig: i128 = row.extra.iter().map(|&(dim, n)| i128::from(self.rows.dims[dim].mig_gpus) * i128::from(n / 1000)).sum();
        Amounts::new(row.cpu, row.memory, i64::try_from(gpu + mig * whole).expect("an amount of GPUs is an i64"))
    }

    /// MiB of each of its cards that a class takes on a node; `None` if it shares no card.
    fn mib(&self, class: ClassIdx, node: NodeIdx) -> Option<i64> {
        match self.rows.classes[class].gpu {
            GpuRequest::Fraction { portion, .. } => {
                let mib = i128::from(portion) * i128::from(self.card_mib(node)) / i128::from(MICRO_PER_GPU);
                Some(i64::try_from(mib).expect("a part of a card is an i64"))
            }
            GpuRequest::Memory { mib, .. } => Some(mib),
            GpuRequest::None | GpuRequest::Whole(_) => None,
        }
    }
}

/// Occupies its node at this moment (semantics.md §1.3, §1.5).
fn holds(status: PodStatus) -> bool {
    use PodStatus::{Allocated, Binding, Bound, Releasing, Running, StuckInReleasing};
    [Allocated, Binding, Bound, Running, Releasing, StuckInReleasing].contains(&status)
}

/// Occupies its node once everything that leaves has left and everything that is promised has come.
fn keeps(status: PodStatus) -> bool {
    status == PodStatus::Pipelined || holds(status) && status != PodStatus::Releasing
}

/// Counts for its gang and its queues ("active-allocated", semantics.md §1.3).
fn active(status: PodStatus) -> bool {
    use PodStatus::{Allocated, Binding, Bound, Pipelined, Running};
    [Allocated, Binding, Bound, Running, Pipelined].contains(&status)
}
