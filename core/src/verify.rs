//! Invariants, recomputed from scratch: O(everything). In tests, and behind a flag in production.

use crate::index::{Col, GroupIdx, Idx, NodeIdx};
use crate::snapshot::{PodStatus, Snapshot};
use crate::statement::Statement;
use crate::tables::Tables;
use crate::tables::nodes::PODS;

/// The first invariant that does not hold after a cycle on `rows`, in words; `None` if all do.
#[must_use]
pub fn all(rows: &Snapshot, tables: &Tables, statement: &Statement) -> Option<String> {
    let at_start = Tables::load(rows);
    placements(tables)
        .or_else(|| ledgers(rows, tables))
        .or_else(|| rollback(tables, statement, &at_start))
        .or_else(|| over_commit(tables, &at_start))
}

/// A ledger that is not what the pods' placements add up to: every pod is put where it is now and the tables are loaded anew.
#[must_use]
pub fn ledgers(rows: &Snapshot, tables: &Tables) -> Option<String> {
    let mut now = rows.clone();
    for (pod, row) in now.pods.as_mut_slice().iter_mut().enumerate() {
        let place = tables.pods.placement(Idx::new(pod));
        (row.status, row.node, row.groups) = (place.status, place.node, place.groups);
    }
    now.groups = tables.gpus.node.clone();
    now.pod_groups.clone_from(&tables.pods.group_list);
    let mut again = Tables::load(&now);
    // A pod that moves still holds what it leaves.
    for (pod, left) in tables.pods.leaves.entries().filter_map(|(pod, left)| Some((pod, (*left)?))) {
        let groups = &tables.pods.group_list[left.groups.0 as usize..left.groups.1 as usize];
        again.charge_node(tables.pods.class[pod], left.node, PodStatus::Releasing, groups, false, 1);
    }
    // The loader takes every shared card for one whose reservation pod is among the pods; those of new cards are still to come.
    for group in (tables.gpus.at_start..tables.gpus.node.len()).map(GroupIdx::new) {
        let (holds, keeps) = (again.gpus.holders[group] > 0, again.gpus.keepers[group] > 0);
        again.nodes.take(PODS, again.gpus.node[group], 1, holds, keeps);
    }
    let (nodes, gpus, queues) = (&tables.nodes, &tables.gpus, &tables.queues);
    [
        (nodes.idle != again.nodes.idle, "what is idle on the nodes"),
        (nodes.soon != again.nodes.soon, "what will be free on the nodes"),
        (gpus.held_mib != again.gpus.held_mib || gpus.holders != again.gpus.holders, "what is held of shared cards"),
        (gpus.kept_mib != again.gpus.kept_mib || gpus.keepers != again.gpus.keepers, "what is kept of shared cards"),
        (gpus.used_mib != again.gpus.used_mib || gpus.room != again.gpus.room, "what shared cards have room for"),
        (tables.gangs.counts != again.gangs.counts, "the pods of the gangs"),
        (queues.allocated != again.queues.allocated, "what the queues hold"),
        (queues.non_preemptible != again.queues.non_preemptible, "what the queues hold and may not be evicted"),
    ]
    .into_iter()
    .find_map(|(wrong, what)| wrong.then(|| format!("ledger: {what} is not what the pods add up to")))
}

/// A column that undoing the cycle does not bring back to what was loaded.
#[must_use]
pub fn rollback(tables: &Tables, statement: &Statement, at_start: &Tables) -> Option<String> {
    let mut again = at_start.clone();
    let mut log = statement.clone();
    let mut undone = tables.clone();
    log.rollback(&mut undone, statement.start());
    again.nodes.changes.clear();
    undone.nodes.changes.clear();
    undone.pods.waiting_from.clone_from(&again.pods.waiting_from);
    undone.queues.fair_share.clone_from(&again.queues.fair_share);
    [
        (undone.nodes != again.nodes, "nodes"),
        (undone.gpus != again.gpus, "shared cards"),
        (undone.pods != again.pods, "pods"),
        (undone.gangs != again.gangs, "gangs"),
        (undone.queues != again.queues, "queues"),
    ]
    .into_iter()
    .find_map(|(wrong, what)| wrong.then(|| format!("rollback: {what} differ from what was loaded")))
}

/// A node that the cycle over-committed, or made worse where it already was.
#[must_use]
pub fn over_commit(tables: &Tables, at_start: &Tables) -> Option<String> {
    let below = |now: &[Col<NodeIdx, i64>], before: &[Col<NodeIdx, i64>], what: &str| {
        now.iter().zip(before).enumerate().find_map(|(dim, (now, before))| {
            let worse = now.iter().zip(before.iter()).position(|(&now, &before)| now < before.min(0));
            worse.map(|node| format!("over-commit: node {node}, dimension {dim}, {what}"))
        })
    };
    let nodes = below(&tables.nodes.idle, &at_start.nodes.idle, "now")
        .or_else(|| below(&tables.nodes.soon, &at_start.nodes.soon, "once everything has left"));
    nodes.or_else(|| {
        let full = tables.gpus.node.entries().find(|&(group, &node)| {
            let card = tables.nodes.card_mib[node];
            let before = at_start.gpus.kept_mib.get(group.at()).copied().unwrap_or(0);
            tables.gpus.kept_mib[group] > card.max(before)
        });
        full.map(|(group, _)| format!("over-commit: {group:?}"))
    })
}

/// A pod that waits and has a node, or was given one in this cycle and has none.
#[must_use]
pub fn placements(tables: &Tables) -> Option<String> {
    tables.pods.status.entries().find_map(|(pod, &status)| {
        let placed = tables.pods.node[pod].is_some();
        let given = matches!(status, PodStatus::Allocated | PodStatus::Pipelined);
        match (status, placed) {
            (PodStatus::Pending, true) => Some(format!("{pod:?} waits, but has a node")),
            _ if given && !placed => Some(format!("{pod:?} was given a node, but has none")),
            _ => None,
        }
    })
}
