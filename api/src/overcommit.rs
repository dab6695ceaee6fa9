//! Nodes that hold more than they have before anything is decided: legal, but worth knowing, because nothing fits there until
//! pods end. One line for all of them.

use muster_core::index::Idx;
use muster_core::snapshot::{GpuRequest, Snapshot};

use crate::assemble::is_active;
use crate::names::Names;
use crate::problem::{Findings, Subject};

/// Nodes that the warning names.
const NAMED: usize = 3;

/// What is held of a node: millicores, bytes, GPUs.
#[derive(Clone, Default)]
struct Held {
    cpu: i128,
    memory: i128,
    gpus: i128,
}

/// Warns if pods hold more CPU, memory or GPUs of a node than it offers.
pub(crate) fn warn(snapshot: &Snapshot, names: &Names, findings: &mut Findings) {
    let mut held = vec![Held::default(); snapshot.nodes.len()];
    for pod in snapshot.pods.iter().filter(|pod| is_active(pod.status)) {
        let Some(node) = pod.node else { continue };
        let (class, node) = (&snapshot.classes[pod.class], &mut held[node.at()]);
        node.cpu += i128::from(class.cpu);
        node.memory += i128::from(class.memory);
        // The GPU of a reservation pod is that of the group it stands for.
        if let (GpuRequest::Whole(gpus), false) = (class.gpu, pod.reservation) {
            node.gpus += i128::from(gpus);
        }
    }
    for node in snapshot.groups.iter() {
        held[node.at()].gpus += 1;
    }
    let over: Vec<String> = (snapshot.nodes.iter().zip(names.nodes.iter()).zip(&held))
        .filter_map(|((row, name), held)| {
            let what = [
                (held.gpus > i128::from(row.gpus), "GPUs"),
                (held.cpu > i128::from(row.cpu), "CPU"),
                (held.memory > i128::from(row.memory), "memory"),
            ];
            let (_, what) = what.iter().find(|(over, _)| *over)?;
            Some(format!("{name} ({what})"))
        })
        .collect();
    if over.is_empty() {
        return;
    }
    let more = if over.len() > NAMED { ", …" } else { "" };
    let named = format!("{}{more}", over[..over.len().min(NAMED)].join(", "));
    let nodes = if over.len() == 1 { "1 node holds".to_owned() } else { format!("{} nodes hold", over.len()) };
    let note = format!("{nodes} more than allocatable at the start: what is short there fits no further pod until pods end");
    findings.warn(Subject::setting("Node"), "status.allocatable", named, note);
}
