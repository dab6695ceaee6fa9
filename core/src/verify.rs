//! Invariants, recomputed from scratch: O(everything). On in tests, behind a flag in production.

use crate::index::{Col, NodeIdx};
use crate::statement::Statement;
use crate::tables::{Tables, holds_node, keeps_node};

/// The first column whose content is not what the pods' placements add up to; `None` if all are.
///
/// `at_start` are the tables as they were loaded.
#[must_use]
pub fn ledgers(tables: &Tables, statement: &Statement, at_start: &Tables) -> Option<String> {
    let mut again = at_start.clone();
    let mut log = statement.clone();
    let mut undone = tables.clone();
    log.rollback(&mut undone, statement.start());
    again.nodes.changes.clear();
    undone.nodes.changes.clear();
    undone.pods.waiting_from.clone_from(&again.pods.waiting_from);
    undone.queues.fair_share.clone_from(&again.queues.fair_share);
    if undone.nodes != again.nodes {
        return Some("rollback: nodes differ from what was loaded".into());
    }
    if undone.gpus != again.gpus || undone.pods != again.pods || undone.gangs != again.gangs || undone.queues != again.queues {
        return Some("rollback: cards, pods, gangs or queues differ from what was loaded".into());
    }
    over_commit(tables, at_start)
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
            let before = at_start.gpus.kept_mib.get(crate::index::Idx::at(group)).copied().unwrap_or(0);
            tables.gpus.kept_mib[group] > card.max(before)
        });
        full.map(|(group, _)| format!("over-commit: {group:?}"))
    })
}

/// A pod that holds or keeps a node without having one, or the other way round.
#[must_use]
pub fn placements(tables: &Tables) -> Option<String> {
    tables.pods.status.entries().find_map(|(pod, &status)| {
        let placed = tables.pods.node[pod].is_some();
        let pending = !holds_node(status) && !keeps_node(status);
        (placed && pending && status == crate::snapshot::PodStatus::Pending).then(|| format!("{pod:?} waits, but has a node"))
    })
}
