//! A Node object → facts: allocatable amounts, GPU labels, readiness, taints (semantics.md §1.5, §2.1, §3.1).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as k8s;
use muster_core::snapshot::{Mig, NodeRow};

use crate::gpu::MIG_PREFIX;
use crate::problem::{Findings, Subject, show};
use crate::quantity::Quantity;
use crate::requests::{in_row_units, read_list};
use crate::selector::{Taint, taints_of};
use crate::settings::Settings;
use crate::validate::cluster_name;

const GPU_WORKER: &str = "node-role.kubernetes.io/gpu-worker";
const CPU_WORKER: &str = "node-role.kubernetes.io/cpu-worker";
const MIG_ENABLED: &str = "node-role.kubernetes.io/mig-enabled";
const MIG_STRATEGY: &str = "nvidia.com/mig.strategy";
const GPU_MEMORY: &str = "nvidia.com/gpu.memory";
const GPU_COUNT: &str = "nvidia.com/gpu.count";

/// A node without indices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeFacts {
    pub(crate) name: String,
    /// `extra` is empty here, see below.
    pub(crate) row: NodeRow,
    /// Other resources by name, value × 1000.
    pub(crate) extra: Vec<(String, i64)>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
}

/// What becomes of a Node object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeRead {
    /// A node of this shard.
    Ours(Box<NodeFacts>),
    /// Right, but not in this shard, or not for scheduling.
    Elsewhere(String),
}

/// Reads one node; `None` if something in it is bad.
pub(crate) fn read(node: &mut k8s::Node, settings: &Settings, findings: &mut Findings) -> Option<NodeRead> {
    let name = cluster_name("Node", &mut node.metadata, findings)?;
    let subject = Subject { kind: "Node", namespace: "", name: &name };
    let before = findings.bad.len();
    let labels = node.metadata.labels.take().unwrap_or_default();
    let spec = node.spec.get_or_insert_default();
    let status = node.status.get_or_insert_default();
    let taints = taints_of(subject, spec.taints.take().unwrap_or_default(), findings);
    // As the API server fills in.
    let allocatable = status.allocatable.take().or_else(|| status.capacity.take());
    let amounts = read_list(subject, format_args!("status.allocatable"), allocatable, findings);
    let pods = amounts.get("pods").and_then(Quantity::units).unwrap_or(0);
    let requests = in_row_units(subject, "status.allocatable", amounts, findings);
    let gpus = i64::from(requests.gpus);
    let row = NodeRow {
        cpu: requests.cpu,
        memory: requests.memory,
        gpus,
        pods,
        extra: Vec::new(),
        gpu_count: gpu_count(subject, &labels, gpus, findings),
        card_mib: card_mib(subject, &labels, findings),
        mig: mig(&labels, &requests.extra),
        ready: !spec.unschedulable.unwrap_or(false) && is_ready(status.conditions.as_deref().unwrap_or_default()),
        gpu_worker: labels.contains_key(GPU_WORKER),
        cpu_worker: labels.contains_key(CPU_WORKER),
    };
    if findings.bad.len() > before {
        return None;
    }
    let restricted = settings.config.restrict_nodes && !row.gpu_worker && !row.cpu_worker;
    if restricted || !settings.shard.holds(Some(&labels)) {
        return Some(NodeRead::Elsewhere(name));
    }
    Some(NodeRead::Ours(Box::new(NodeFacts { row, extra: requests.extra, labels, taints, name })))
}

/// Label `nvidia.com/gpu.count`, else what is allocatable.
fn gpu_count(subject: Subject<'_>, labels: &BTreeMap<String, String>, gpus: i64, findings: &mut Findings) -> i64 {
    let Some(text) = labels.get(GPU_COUNT) else { return gpus };
    match text.parse() {
        Ok(count) if count >= 0 => count,
        _ => {
            let note = "no number of GPUs: the allocatable ones are counted";
            findings.warn(subject, &format!("metadata.labels.{GPU_COUNT}"), show(text), note);
            gpus
        }
    }
}

/// Label `nvidia.com/gpu.memory` in MiB, exact (KAI rounds down to 100 MiB); what is 2²⁰ or more is bytes (semantics.md §1.5).
fn card_mib(subject: Subject<'_>, labels: &BTreeMap<String, String>, findings: &mut Findings) -> Option<i64> {
    let text = labels.get(GPU_MEMORY)?;
    match text.parse::<i64>() {
        Ok(bytes) if bytes >= 1 << 20 => Some(bytes >> 20),
        Ok(mib) if mib > 0 => Some(mib),
        _ => {
            let note = "no amount of MiB: requests in MiB cannot be placed here";
            findings.warn(subject, &format!("metadata.labels.{GPU_MEMORY}"), show(text), note);
            None
        }
    }
}

fn mig(labels: &BTreeMap<String, String>, extra: &[(String, i64)]) -> Mig {
    let enabled = match labels.get(MIG_ENABLED).map(String::as_str) {
        // As Go parses a boolean.
        Some(text) => matches!(text, "1" | "t" | "T" | "TRUE" | "true" | "True"),
        None => extra.iter().any(|(name, amount)| name.starts_with(MIG_PREFIX) && *amount > 0),
    };
    match labels.get(MIG_STRATEGY).map(String::as_str) {
        _ if !enabled => Mig::Off,
        Some("single") => Mig::Single,
        Some("mixed") => Mig::Mixed,
        _ => Mig::Unknown,
    }
}

/// Ready, and under no pressure. A node without a Ready condition has not been heard of: not ready, as everywhere in Kubernetes.
fn is_ready(conditions: &[k8s::NodeCondition]) -> bool {
    let mut ready = false;
    for condition in conditions {
        match condition.type_.as_str() {
            "Ready" => ready = condition.status == "True",
            "MemoryPressure" | "DiskPressure" | "PIDPressure" | "NetworkUnavailable" if condition.status != "False" => {
                return false;
            }
            _ => {}
        }
    }
    ready
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(labels: &Value, spec: &Value, status: &Value) -> (Option<NodeRead>, Findings) {
        let object = json!({"metadata": {"name": "n", "labels": labels}, "spec": spec, "status": status});
        let mut findings = Findings::default();
        let read = read(&mut serde_json::from_value(object).expect("a node"), &Settings::default(), &mut findings);
        (read, findings)
    }

    fn row(labels: &Value, spec: &Value, status: &Value) -> NodeFacts {
        match node(labels, spec, status) {
            (Some(NodeRead::Ours(facts)), findings) if findings.bad.is_empty() => *facts,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn amounts_and_labels() {
        let labels = json!({"nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "81559"});
        let status = json!({
            "allocatable": {"cpu": "192", "memory": "2Gi", "pods": "110", "nvidia.com/gpu": "7", "x.com/nic": "2"},
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]});
        let facts = row(&labels, &json!({}), &status);
        assert_eq!((facts.row.cpu, facts.row.memory, facts.row.gpus, facts.row.pods), (192_000, 2 << 30, 7, 110));
        assert_eq!((facts.row.gpu_count, facts.row.card_mib, facts.row.ready), (8, Some(81559), true));
        assert_eq!(facts.extra, [("x.com/nic".to_owned(), 2000)]);
        let capacity = row(&json!({}), &json!({}), &json!({"capacity": {"cpu": "1"}}));
        assert_eq!((capacity.row.cpu, capacity.row.card_mib, capacity.row.gpu_count), (1000, None, 0));
    }

    #[test]
    fn card_memory_in_bytes_and_nonsense() {
        let memory = |text: &str| {
            let (read, findings) = node(&json!({"nvidia.com/gpu.memory": text}), &json!({}), &json!({}));
            match read {
                Some(NodeRead::Ours(facts)) => (facts.row.card_mib, findings.warnings.len()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(memory("46068"), (Some(46068), 0));
        assert_eq!(memory("42949672960"), (Some(40960), 0));
        assert_eq!(memory("0"), (None, 1));
        assert_eq!(memory("lots"), (None, 1));
    }

    #[test]
    fn readiness() {
        for (conditions, spec, ready) in [
            (json!([{"type": "Ready", "status": "True"}]), json!({}), true),
            (json!([{"type": "Ready", "status": "True"}]), json!({"unschedulable": true}), false),
            (json!([{"type": "Ready", "status": "Unknown"}]), json!({}), false),
            (json!([]), json!({}), false),
            (json!([{"type": "Ready", "status": "True"}, {"type": "PIDPressure", "status": "Unknown"}]), json!({}), false),
            (json!([{"type": "Ready", "status": "True"}, {"type": "Custom", "status": "True"}]), json!({}), true),
        ] {
            assert_eq!(row(&json!({}), &spec, &json!({"conditions": conditions})).row.ready, ready, "{conditions}");
        }
    }

    #[test]
    fn mig_modes() {
        let offers = json!({"allocatable": {"nvidia.com/mig-1g.10gb": "2"}});
        for (labels, status, expected) in [
            (json!({}), json!({}), Mig::Off),
            (json!({}), offers.clone(), Mig::Unknown),
            (json!({"nvidia.com/mig.strategy": "mixed"}), offers.clone(), Mig::Mixed),
            (json!({"nvidia.com/mig.strategy": "single"}), json!({}), Mig::Off),
            (json!({"nvidia.com/mig.strategy": "single", "node-role.kubernetes.io/mig-enabled": "true"}), json!({}), Mig::Single),
            (json!({"node-role.kubernetes.io/mig-enabled": "false"}), offers, Mig::Off),
        ] {
            assert_eq!(row(&labels, &json!({}), &status).row.mig, expected, "{labels} {status}");
        }
    }

    #[test]
    fn bad_nodes() {
        for (spec, status, part) in [
            (json!({}), json!({"allocatable": {"cpu": "-1"}}), "status.allocatable.cpu"),
            (json!({}), json!({"allocatable": {"memory": "1e30"}}), "below 2^63"),
            (json!({"taints": [{"key": "a", "effect": "Never"}]}), json!({}), "spec.taints[0].effect"),
        ] {
            let (read, findings) = node(&json!({}), &spec, &status);
            assert!(read.is_none() && findings.bad.len() == 1 && findings.bad[0].to_string().contains(part), "{findings:?}");
        }
    }
}
