//! The cluster one cycle later, as far as a scheduler has a say in it: who was told to leave has left and waits again as a new
//! pod, who was placed runs, who was promised a node has it. Nobody ends by itself, nothing else is created.
//!
//! Of the second kind is a cluster that keeps no promises, as the API server: who was promised a node waits again, and what was
//! placed and told to leave in one cycle was never touched (`muster_core::net`).
//!
//! Not modelled: reservation pods (a card that comes to be shared takes no pod slot in the next round), and the time at which a
//! gang was seen to be stale.

use std::collections::BTreeMap;

use muster_core::index::{GangIdx, GroupIdx, Idx, NodeIdx, PodIdx, Span};
use muster_core::net::Net;
use muster_core::outcome::{Decision, DecisionKind, Outcome};
use muster_core::snapshot::{PodRow, PodStatus, Snapshot};

/// Nanoseconds from one round to the next: longer than every protection and delay in a draft.
pub const ROUND: i64 = 1000;

/// What has become of a pod.
#[derive(Clone)]
struct Now {
    row: PodRow,
    cards: Vec<GroupIdx>,
    /// It was deleted; this is the one that its owner made instead.
    anew: bool,
}

/// A round that is coming about.
struct Round<'a> {
    rows: &'a Snapshot,
    outcome: &'a Outcome,
    pods: Vec<Now>,
    nodes: BTreeMap<GroupIdx, NodeIdx>,
}

/// The rows of the next round.
#[must_use]
pub fn next_round(rows: &Snapshot, outcome: &Outcome) -> Snapshot {
    let mut round = Round::new(rows, outcome);
    for decision in &outcome.decisions {
        if decision.kind == DecisionKind::Evict {
            round.leave(decision);
        } else {
            round.bind(decision);
        }
        round.pods[decision.pod.at()].row.nominated = None;
    }
    round.end()
}

/// The rows of the next round if no promise is kept.
#[must_use]
pub fn next_round_without_promises(rows: &Snapshot, outcome: &Outcome, net: &Net) -> Snapshot {
    let mut round = Round::new(rows, outcome);
    for decision in carried_out(rows, outcome, net) {
        if decision.kind == DecisionKind::Evict {
            round.leave(&decision);
        } else {
            round.bind(&decision);
        }
    }
    round.end()
}

/// What is written of a plan: pods that were somewhere leave, pods that were nowhere and can start do.
#[must_use]
pub fn carried_out(rows: &Snapshot, outcome: &Outcome, net: &Net) -> Vec<Decision> {
    let mut last = BTreeMap::new();
    let mut real = BTreeMap::new();
    for decision in &outcome.decisions {
        if rows.pods[decision.pod].status == PodStatus::Pending {
            last.insert(decision.pod, *decision);
        } else if decision.kind == DecisionKind::Evict {
            real.entry(decision.pod).or_insert(*decision);
        }
    }
    for changed in net.starts.iter().chain(&net.held_back) {
        last.insert(changed.pod, *changed);
    }
    real.into_values().chain(last.into_values().filter(|decision| decision.kind == DecisionKind::Bind)).collect()
}

impl<'a> Round<'a> {
    fn new(rows: &'a Snapshot, outcome: &'a Outcome) -> Self {
        let pods = rows.pods.iter().map(|row| settled(rows, row)).collect();
        Self { rows, outcome, pods, nodes: rows.groups.entries().map(|(group, &node)| (group, node)).collect() }
    }

    fn leave(&mut self, decision: &Decision) {
        let pod = &mut self.pods[decision.pod.at()];
        // One that only has a promise does not go away.
        pod.anew |= self.rows.pods[decision.pod].status != PodStatus::Pending;
        (pod.row.status, pod.row.node) = (PodStatus::Pending, None);
        pod.cards.clear();
    }

    fn bind(&mut self, decision: &Decision) {
        let pod = &mut self.pods[decision.pod.at()];
        let cards = self.outcome.groups_of(decision);
        (pod.row.status, pod.row.node) = (PodStatus::Bound, Some(decision.node));
        pod.cards = cards.to_vec();
        self.nodes.extend(cards.iter().map(|&card| (card, decision.node)));
    }

    fn end(self) -> Snapshot {
        let mut next = self.rows.clone();
        next.config.now += ROUND;
        date(self.rows, &self.pods, &mut next);
        line_up(self.rows, self.pods, &self.nodes, &mut next);
        next
    }
}

/// A pod that nobody decided on.
fn settled(rows: &Snapshot, row: &PodRow) -> Now {
    let mut now =
        Now { row: row.clone(), cards: rows.pod_groups[row.groups.0 as usize..row.groups.1 as usize].to_vec(), anew: false };
    if matches!(row.status, PodStatus::Binding | PodStatus::Bound) {
        now.row.status = PodStatus::Running;
    }
    now
}

/// When gangs began to run, and were evicted.
fn date(rows: &Snapshot, pods: &[Now], next: &mut Snapshot) {
    let on_node = |row: &PodRow| matches!(row.status, PodStatus::Running | PodStatus::Bound | PodStatus::Binding);
    for gang in rows.gangs.indices() {
        let times = &mut next.gangs[gang].times;
        let mine = || rows.gangs[gang].pods.iter();
        if mine().any(|pod| pods[pod.at()].anew) {
            times.evicted = Some(rows.config.now);
        }
        if !mine().any(|pod| on_node(&rows.pods[pod])) && mine().any(|pod| on_node(&pods[pod.at()].row)) {
            times.started = Some(rows.config.now);
        }
    }
}

/// Writes the pods: those of a gang by age, those without one last, those that were leaving not at all; and the cards in use.
fn line_up(rows: &Snapshot, pods: Vec<Now>, nodes: &BTreeMap<GroupIdx, NodeIdx>, next: &mut Snapshot) {
    let mut pods: Vec<(PodIdx, Now)> =
        rows.pods.indices().zip(pods).filter(|(_, pod)| pod.row.status != PodStatus::Releasing).collect();
    pods.sort_by_key(|(at, pod)| (pod.row.gang.is_none(), pod.row.gang, pod.anew, *at));
    next.pods.clear();
    next.pod_groups.clear();
    next.groups.clear();
    let used: Vec<GroupIdx> = nodes.keys().copied().filter(|card| pods.iter().any(|(_, pod)| pod.cards.contains(card))).collect();
    for card in &used {
        next.groups.push(nodes[card]);
    }
    let cut = |at: usize| u32::try_from(at).expect("few cards");
    for gang in next.gangs.indices().collect::<Vec<GangIdx>>() {
        let of = |gang| pods.partition_point(|(_, pod)| pod.row.gang.is_some_and(|other| other < gang));
        next.gangs[gang].pods = Span::new(of(gang), of(GangIdx::new(gang.at() + 1)));
    }
    for (_, Now { mut row, cards, .. }) in pods {
        let start = next.pod_groups.len();
        next.pod_groups.extend(cards.iter().map(|card| {
            let at = used.binary_search(card).expect("a card that a pod holds is in use");
            GroupIdx::new(at)
        }));
        row.groups = (cut(start), cut(next.pod_groups.len()));
        next.pods.push(row);
    }
}
