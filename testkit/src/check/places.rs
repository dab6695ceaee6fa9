//! Every pod that was placed may be where it is: the node is ready and of the right kind, its labels and taints allow it, and the
//! pod gets as many cards as it asks for (semantics.md §9.2). And nobody waits for what is free.

use muster_core::explain::Refusal;
use muster_core::index::{ClassIdx, Col, GroupIdx, KeyIdx, LabelIdx, NodeIdx, PodIdx};
use muster_core::outcome::DecisionKind;
use muster_core::snapshot::{Blocked, GpuRequest, Mig, PodRow, Requirement, Snapshot};

use super::nodes::{GPU, Used, asked, offered, used};
use super::{After, holds};

pub(super) fn check(after: &After<'_>, wrong: &mut Vec<String>) {
    for decision in after.outcome.decisions.iter().filter(|decision| decision.kind != DecisionKind::Evict) {
        let (pod, node) = (decision.pod, decision.node);
        let row = &after.rows.pods[pod];
        let class = after.class(pod);
        if row.gang.is_none() || row.subgroup.is_none() {
            wrong.push(format!("{pod:?}: placed without a gang or a sub-group of it"));
        }
        if after.rows.classes[class].blocked.is_some() {
            wrong.push(format!("{pod:?}: placed although it is blocked"));
        }
        if let Some(refusal) = refusal(after.rows, class, node) {
            wrong.push(format!("{pod:?}: placed on {node:?}, which it may not use: {refusal:?}"));
        }
        check_cards(after, pod, node, after.outcome.groups_of(decision), wrong);
    }
}

fn check_cards(after: &After<'_>, pod: PodIdx, node: NodeIdx, groups: &[GroupIdx], wrong: &mut Vec<String>) {
    let devices = match after.rows.classes[after.class(pod)].gpu {
        GpuRequest::None | GpuRequest::Whole(_) => 0,
        GpuRequest::Fraction { devices, .. } | GpuRequest::Memory { devices, .. } => devices as usize,
    };
    let mut different = groups.to_vec();
    different.sort_unstable();
    different.dedup();
    if groups.len() != devices || different.len() != devices {
        wrong.push(format!("{pod:?}: asks for parts of {devices} cards and got {groups:?}"));
    }
    if after.mib(after.class(pod), node).is_some_and(|mib| mib > after.card_mib(node)) {
        wrong.push(format!("{pod:?}: asks for more of a card than a card of {node:?} is"));
    }
}

/// The first test of the node itself that a class fails, whatever is free; `None`: it may go there.
pub(super) fn refusal(rows: &Snapshot, class: ClassIdx, node: NodeIdx) -> Option<Refusal> {
    if !rows.config.plugins.predicates {
        return None;
    }
    let (asks, is) = (&rows.classes[class], &rows.nodes[node]);
    let mig = asks.extra.iter().any(|&(dim, n)| rows.dims[dim].mig_gpus > 0 && n >= 1000);
    let gpu = asks.gpu != GpuRequest::None || mig;
    let kind = match (asks.gpu, is.mig) {
        // MIG by name does not go where MIG by annotation is.
        _ if mig => matches!(is.mig, Mig::Mixed | Mig::Unknown) && !legacy_mig(rows, node),
        (GpuRequest::None, _) => true,
        (GpuRequest::Whole(_), strategy) => strategy != Mig::Mixed,
        (GpuRequest::Fraction { .. }, strategy) => matches!(strategy, Mig::Off | Mig::Unknown),
        (GpuRequest::Memory { .. }, strategy) => matches!(strategy, Mig::Off | Mig::Unknown) && is.card_mib.is_some(),
    };
    let untolerated = rows.taints.entries().any(|(taint, on)| on.contains(&node) && !asks.tolerated.contains(&taint));
    let selected = asks.selector.iter().all(|requirement| meets(rows, node, requirement));
    let affine = asks.affinity.as_ref().is_none_or(|terms| {
        terms.iter().any(|term| !term.is_empty() && term.iter().all(|requirement| meets(rows, node, requirement)))
    });
    [
        (Refusal::NotReady, is.ready),
        (Refusal::WorkerLabel, !rows.config.restrict_nodes || if gpu { is.gpu_worker } else { is.cpu_worker }),
        (Refusal::NodeKind, kind),
        (Refusal::Taint, !untolerated),
        (Refusal::Selector, selected),
        (Refusal::Affinity, affine),
    ]
    .into_iter()
    .find_map(|(refusal, good)| (!good).then_some(refusal))
}

fn legacy_mig(rows: &Snapshot, node: NodeIdx) -> bool {
    let here = |row: &&PodRow| row.node == Some(node) && holds(row.status);
    rows.pods.iter().filter(here).any(|row| rows.classes[row.class].blocked == Some(Blocked::LegacyMig))
}

fn meets(rows: &Snapshot, node: NodeIdx, requirement: &Requirement) -> bool {
    let has = |label: &LabelIdx| rows.labels[*label].nodes.contains(&node);
    let value = |key: KeyIdx| rows.keys[key].iter().find(|label| has(label));
    let number = |key: &Option<KeyIdx>| key.and_then(value).and_then(|label| rows.labels[*label].number);
    match requirement {
        Requirement::In(labels) => labels.iter().any(has),
        Requirement::NotIn(labels) => !labels.iter().any(has),
        Requirement::Exists(key) => key.and_then(value).is_some(),
        Requirement::DoesNotExist(key) => key.and_then(value).is_none(),
        Requirement::Greater(key, bound) => number(key).is_some_and(|n| n > *bound),
        Requirement::Less(key, bound) => number(key).is_some_and(|n| n < *bound),
        Requirement::NodeIn(nodes) => nodes.contains(&node),
        Requirement::NodeNotIn(nodes) => !nodes.contains(&node),
    }
}

/// Pods of this list that could start now, each by itself; they only have a promise.
pub(super) fn could_start(after: &After<'_>, promised: &[PodIdx]) -> Vec<PodIdx> {
    let now = used(after, &after.pods, holds);
    promised.iter().copied().filter(|&pod| start_together(after, &now, &[pod])).collect()
}

/// Whether all pods of this list could start now, one beside the other. A card that nobody holds counts as not there.
pub(super) fn could_all_start(after: &After<'_>, promised: &[PodIdx]) -> bool {
    start_together(after, &used(after, &after.pods, holds), promised)
}

fn start_together(after: &After<'_>, now: &Col<NodeIdx, Used>, promised: &[PodIdx]) -> bool {
    let mut now = now.clone();
    promised.iter().all(|&pod| {
        let node = after.pods[pod].node.expect("a promise is of a node");
        let (offered, used) = (offered(after, node), &mut now[node]);
        let mut good = true;
        for (dim, need) in asked(after, pod).into_iter().enumerate() {
            good &= need == 0 || offered[dim] - used.amounts[dim] >= need;
            used.amounts[dim] += need;
        }
        // Where more GPUs are in use than there are, one of the cards is not there.
        good &= after.pods[pod].groups.is_empty() || offered[GPU] >= used.amounts[GPU];
        for group in &after.pods[pod].groups {
            let mib = after.mib(after.class(pod), node).unwrap_or(0);
            good &= used.cards.get_mut(group).is_some_and(|card| {
                card.0 += mib;
                card.0 <= after.card_mib(node)
            });
        }
        good
    })
}
