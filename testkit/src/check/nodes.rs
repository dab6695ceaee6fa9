//! Nothing is over-committed: no resource of a node and no card, neither now by what starts nor later by what is promised; and a
//! node that was over-committed at the start is not made worse (semantics.md §1.5, §2.5).

use std::collections::BTreeMap;

use muster_core::index::{Col, GroupIdx, Idx, NodeIdx, PodIdx};
use muster_core::snapshot::{GpuRequest, PodStatus};

use super::{After, At, holds, keeps};

pub(super) const CPU: usize = 0;
pub(super) const MEMORY: usize = 1;
pub(super) const GPU: usize = 2;
pub(super) const PODS: usize = 3;
pub(super) const FIRST_EXTRA: usize = 4;

/// What is used of a node: cpu, memory, cards (whole or shared), pods, other resources.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Used {
    pub(super) amounts: Vec<i64>,
    /// MiB and users of each shared card with a user.
    pub(super) cards: BTreeMap<GroupIdx, (i64, u32)>,
}

/// What each node offers, in the order of [`Used::amounts`].
pub(super) fn offered(after: &After<'_>, node: NodeIdx) -> Vec<i64> {
    let row = &after.rows.nodes[node];
    let mut amounts = vec![0; FIRST_EXTRA + after.rows.dims.len()];
    amounts[..FIRST_EXTRA].copy_from_slice(&[row.cpu, row.memory, row.gpus, row.pods]);
    for &(dim, amount) in &row.extra {
        amounts[FIRST_EXTRA + dim.at()] = amount;
    }
    amounts
}

/// What a pod asks of its node, cards that it shares apart.
pub(super) fn asked(after: &After<'_>, pod: PodIdx) -> Vec<i64> {
    let row = &after.rows.classes[after.class(pod)];
    let mut amounts = vec![0; FIRST_EXTRA + after.rows.dims.len()];
    let gpus = if let GpuRequest::Whole(gpus) = row.gpu { i64::from(gpus) } else { 0 };
    amounts[..FIRST_EXTRA].copy_from_slice(&[row.cpu, row.memory, gpus, 1]);
    for &(dim, amount) in &row.extra {
        amounts[FIRST_EXTRA + dim.at()] = amount;
    }
    amounts
}

/// What is used of every node by the pods whose status counts, at the start or at the end.
pub(super) fn used(after: &After<'_>, pods: &Col<PodIdx, At>, counts: fn(PodStatus) -> bool) -> Col<NodeIdx, Used> {
    let dims = FIRST_EXTRA + after.rows.dims.len();
    let mut all: Col<NodeIdx, Used> =
        after.rows.nodes.iter().map(|_| Used { amounts: vec![0; dims], cards: BTreeMap::new() }).collect();
    for (pod, at) in pods.entries() {
        if let Some(node) = at.node.filter(|_| counts(at.status)) {
            hold(after, &mut all[node], pod, node, &at.groups);
        }
        // A pod that is to move still is where it was.
        if let Some((node, groups)) = at.left.as_ref().filter(|_| counts(PodStatus::Releasing)) {
            hold(after, &mut all[*node], pod, *node, groups);
        }
    }
    for used in all.as_mut_slice() {
        used.amounts[GPU] += i64::try_from(used.cards.len()).expect("few cards");
        // The reservation pod of a card that was not shared before is still to come.
        let new = used.cards.keys().filter(|group| group.at() >= after.rows.groups.len()).count();
        used.amounts[PODS] += i64::try_from(new).expect("few cards");
    }
    all
}

fn hold(after: &After<'_>, used: &mut Used, pod: PodIdx, node: NodeIdx, groups: &[GroupIdx]) {
    for (dim, amount) in asked(after, pod).into_iter().enumerate() {
        // The card of a reservation pod is counted where the pods that share it are.
        if !(dim == GPU && after.rows.pods[pod].reservation) {
            used.amounts[dim] += amount;
        }
    }
    if let Some(mib) = after.mib(after.class(pod), node) {
        for &group in groups {
            let card = used.cards.entry(group).or_insert((0, 0));
            card.0 += mib;
            card.1 += 1;
        }
    }
}

/// The pods as they were when the cycle began.
pub(super) fn at_start(after: &After<'_>) -> Col<PodIdx, At> {
    After::start(after.rows, after.outcome).pods
}

pub(super) fn check(after: &After<'_>, wrong: &mut Vec<String>) {
    let start = at_start(after);
    for (when, counts) in [("now", holds as fn(PodStatus) -> bool), ("once everything has left", keeps)] {
        let (before, end) = (used(after, &start, counts), used(after, &after.pods, counts));
        for node in after.rows.nodes.indices() {
            if let Some(what) = exceeds(after, node, &before[node], &end[node]) {
                wrong.push(format!("{node:?}: {what} {when}"));
            }
        }
    }
}

/// What a node would hold more of than it has, and more than before.
pub(super) fn exceeds(after: &After<'_>, node: NodeIdx, before: &Used, end: &Used) -> Option<String> {
    let offered = offered(after, node);
    let amounts = before.amounts.iter().zip(&end.amounts).zip(&offered).enumerate();
    let mut over = amounts.filter(|&(_, ((&old, &new), &offered))| new > old && new > offered);
    if let Some((dim, ((old, new), offered))) = over.next() {
        return Some(format!("dimension {dim}: {new} of {offered} used, {old} before,"));
    }
    let card = after.card_mib(node);
    end.cards.iter().find_map(|(group, &(mib, _))| {
        let old = before.cards.get(group).map_or(0, |card| card.0);
        (mib > old && mib > card).then(|| format!("{group:?}: {mib} of {card} MiB used, {old} before,"))
    })
}
