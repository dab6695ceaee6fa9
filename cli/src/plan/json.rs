//! The plan for machines: the keys of PLAN_CONTRACT.md, then `batches`, `pending`, `queues` and `summary`. Of an eviction it says
//! for whom and by which rule; a pod that moves is in `evicted` with `movesTo` and in `pipelined` with `movesFrom`.

use std::collections::HashMap;

use muster_api::evictions::rule;
use muster_api::report;
use muster_core::index::{GroupIdx, NodeIdx, PodIdx};
use muster_core::outcome::{Decision, DecisionKind};
use muster_core::units::MICRO_PER_GPU;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::View;
use super::evictions::{self, Leaving, gang_json};
use super::gpus::GpuUse;
use crate::group_names::new_group_names;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Output<'a> {
    bound: Vec<Entry<'a>>,
    pipelined: Vec<Entry<'a>>,
    evicted: Vec<Entry<'a>>,
    resource_claims: [Value; 0],
    timing: Value,
    summary: Value,
    batches: Vec<Value>,
    queues: Vec<Value>,
    pending: Vec<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    seq: usize,
    namespace: &'a str,
    pod: &'a str,
    node: &'a str,
    action: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpu_groups: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moves_from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moves_to: Option<&'a str>,
    /// The gang that gets the place; null for a stale gang.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    asker: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<Value>,
}

/// One line of JSON.
pub(super) fn bytes(view: &View<'_>) -> Vec<u8> {
    let new_groups = new_group_names(&view.planned.outcome, &view.loaded.names);
    let leaving = evictions::all(view);
    let list = |kind| entries(view, kind, &new_groups, &leaving);
    let mut output = Output {
        bound: list(DecisionKind::Bind),
        pipelined: list(DecisionKind::Pipeline),
        evicted: list(DecisionKind::Evict),
        resource_claims: [],
        summary: summary(view, &leaving),
        batches: evictions::batches_json(view),
        queues: queues(view),
        pending: pending(view),
        timing: Value::Null,
    };
    output.timing = timing(view);
    let mut bytes = serde_json::to_vec(&output).expect("the keys of every map are strings");
    bytes.push(b'\n');
    bytes
}

fn entries<'a>(
    view: &'a View<'_>,
    kind: DecisionKind,
    new_groups: &'a HashMap<GroupIdx, String>,
    leaving: &[Leaving<'a>],
) -> Vec<Entry<'a>> {
    let names = &view.loaded.names;
    let evictions: HashMap<usize, &Leaving<'a>> = leaving.iter().map(|leaving| (leaving.seq, leaving)).collect();
    let left: HashMap<PodIdx, NodeIdx> = leaving.iter().map(|leaving| (leaving.decision.pod, leaving.decision.node)).collect();
    let node = |node: NodeIdx| names.nodes[node].as_str();
    let entry = |(seq, decision): (usize, &'a Decision)| {
        let leaving = evictions.get(&seq);
        let evict = kind == DecisionKind::Evict;
        Entry {
            seq,
            namespace: &names.pods[decision.pod].namespace,
            pod: &names.pods[decision.pod].name,
            node: node(decision.node),
            action: decision.action.name(),
            // An eviction says only what leaves.
            gpu_groups: if evict { Vec::new() } else { groups(view, decision, new_groups) },
            moves_from: left.get(&decision.pod).filter(|_| !evict).map(|&from| node(from)),
            moves_to: leaving.and_then(|leaving| leaving.moves_to).map(|place| node(place.node)),
            asker: leaving.map(|leaving| leaving.eviction.asker.map_or(Value::Null, |gang| gang_json(view, gang))),
            rule: leaving.map(|leaving| rule(&leaving.eviction.why, names)),
        }
    };
    view.planned.outcome.decisions.iter().enumerate().filter(|(_, decision)| decision.kind == kind).map(entry).collect()
}

fn groups<'a>(view: &'a View<'_>, decision: &Decision, new_groups: &'a HashMap<GroupIdx, String>) -> Vec<&'a str> {
    let name = |group: &GroupIdx| match new_groups.get(group) {
        Some(name) => name.as_str(),
        None => &view.loaded.names.groups[*group],
    };
    view.planned.outcome.groups_of(decision).iter().map(name).collect()
}

/// `fair share` as `fairShare`.
fn camel_case(words: &str) -> String {
    let mut key = String::with_capacity(words.len());
    for (i, word) in words.split(' ').enumerate() {
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if i > 0 => key.extend(first.to_uppercase()),
            first => key.extend(first),
        }
        key.push_str(letters.as_str());
    }
    key
}

fn timing(view: &View<'_>) -> Value {
    // Whole nanoseconds: six decimals, and no digits that nobody measured.
    let ms = |time: std::time::Duration| Value::from(time.as_nanos() as f64 / 1e6);
    let mut actions = Map::new();
    let mut stages = Map::new();
    for stage in &view.planned.stages {
        let map = if stage.action { &mut actions } else { &mut stages };
        map.insert(camel_case(stage.name), ms(stage.time));
    }
    json!({
        "loadMs": ms(view.load),
        "cycleMs": ms(view.planned.total()),
        "actionsMs": actions,
        "stagesMs": stages,
        "processMs": ms(view.started.elapsed()),
    })
}

fn summary(view: &View<'_>, leaving: &[Leaving<'_>]) -> Value {
    let sums = evictions::Sums::of(view, leaving);
    let snapshot = &view.loaded.snapshot;
    let gpus = GpuUse::new(snapshot, &view.planned.outcome);
    let devices = |micro: i64| micro as f64 / MICRO_PER_GPU as f64;
    let count = |kind| view.decisions(kind).count();
    json!({
        "nodes": snapshot.nodes.len(),
        "queues": snapshot.queues.len(),
        "gangs": snapshot.gangs.len(),
        "pods": snapshot.pods.len(),
        "podsBound": count(DecisionKind::Bind),
        "podsPipelined": count(DecisionKind::Pipeline),
        "podsEvicted": sums.leave,
        "podsMoved": sums.moved,
        "evictionsForGangs": sums.asked_for,
        "evictionsAtLeast": sums.at_least,
        "evictionsAboveBound": sums.above_bound(),
        "podsPending": view.planned.outcome.pending.iter().map(|gang| u64::from(gang.pods)).sum::<u64>(),
        "gangsPending": view.planned.outcome.pending.len(),
        "gpusCapacity": devices(gpus.capacity),
        "gpusAllocatedBefore": devices(gpus.before),
        "gpusAllocated": devices(gpus.after),
        "gpusPipelined": devices(gpus.promised),
        "gpusAllocatedPercent": GpuUse::percent(gpus.after, gpus.capacity),
        "leftOut": view.loaded.left_out,
    })
}

fn queues(view: &View<'_>) -> Vec<Value> {
    let names = &view.loaded.names.queues;
    let report = &view.planned.outcome.queues;
    let queue = |(queue, row): (muster_core::index::QueueIdx, &muster_core::snapshot::QueueRow)| {
        json!({
            "name": names[queue],
            "parent": row.parent.map(|parent| &names[parent]),
            "quota": report::amounts(row.quota),
            "limit": report::amounts(row.limit),
            "fairShare": report::amounts(report[queue].fair_share),
            "allocated": report::amounts(report[queue].allocated),
            "allocatedNonPreemptible": report::amounts(report[queue].non_preemptible),
            "requested": report::amounts(report[queue].requested),
        })
    };
    view.loaded.snapshot.queues.entries().map(queue).collect()
}

fn pending(view: &View<'_>) -> Vec<Value> {
    let names = &view.loaded.names;
    let outcome = &view.planned.outcome;
    let gang = |pending: &muster_core::outcome::PendingGang| {
        let name = &names.gangs[pending.gang];
        let reasons = outcome.reasons_of(pending).iter();
        let reasons: Vec<Value> = reasons.map(|reason| report::reason(reason, pending.gang, view.facts())).collect();
        json!({
            "namespace": name.namespace,
            "podGroup": name.name,
            "queue": names.gang_queues[pending.gang],
            "pods": pending.pods,
            "reasons": reasons,
        })
    };
    outcome.pending.iter().map(gang).collect()
}
