//! `muster import openb`: Alibaba's GPU trace of 2023 as a snapshot in which every pod waits (performance.md §3.1).

mod rows;

use std::io::{self, Write};

use muster_api::report_amount::bare;
use muster_core::units::Resource;
use muster_testkit::generate::objects::{
    DEFAULT_ACTIONS, Meta, NOW_SECOND, Node, Pod, PodGroup, Queue, SnapshotWriter, priority_class, uid,
};
use oorandom::Rand32;

use crate::args::Openb;
use crate::fault::{Fault, say};
use crate::sink;
use crate::text::plural;
use rows::{CardModel, DEFAULT_PRIORITY, NodeRow, PodRow, Qos};

/// The label that says which model a node's GPUs are.
const MODEL_LABEL: &str = "muster.dev/gpu-model";
const NAMESPACE: &str = "openb";
const QUEUE: &str = "openb";
const PARENT_QUEUE: &str = "cluster";
/// The trace knows no bound on the pods of a node: more than any of them can hold.
const POD_SLOTS: u32 = 1000;

/// Reads both lists, orders the pods, writes the snapshot, and says on standard error what it holds.
pub(crate) fn run(args: &Openb) -> Result<(), Fault> {
    let nodes = rows::nodes(&args.nodes)?;
    let mut pods = rows::pods(&args.pods)?;
    let capacity_milli: u64 = nodes.iter().map(|node| u64::from(node.gpus) * 1000).sum();
    let copied = match args.tune {
        Some(ratio) => inflate(&mut pods, ratio, capacity_milli, args.seed.unwrap_or(0))?,
        None => 0,
    };
    if let Some(seed) = args.seed {
        shuffle(&mut pods, &mut Rand32::new_inc(seed, 2));
    }
    sink::write_snapshot(args.output.as_deref(), false, |out| write(out, &nodes, &pods, args.rank_by_qos))?;
    let gpus = |milli: u64| bare(Resource::Gpu, i64::try_from(milli.saturating_mul(1000)).unwrap_or(i64::MAX - 1));
    say(&format!(
        "{}, {} GPUs; {} ({copied} of them copies) ask for {} GPUs",
        plural(nodes.len(), "node", "nodes"),
        gpus(capacity_milli),
        plural(pods.len(), "pod", "pods"),
        gpus(pods.iter().map(PodRow::asked_milli).sum())
    ));
    Ok(())
}

/// Appends copies of pods drawn at random, with replacement, until all ask for `ratio` of the GPUs; returns how many.
fn inflate(pods: &mut Vec<PodRow>, ratio: f64, capacity_milli: u64, seed: u64) -> Result<usize, Fault> {
    let wrong = |expected: String| Fault::bad_input(format!("--tune: {ratio}: expected {expected}"));
    if !(ratio.is_finite() && (0.0..=1000.0).contains(&ratio)) {
        return Err(wrong("a ratio from 0 to 1000".to_owned()));
    }
    let originals = pods.len();
    let mut asked: u64 = pods.iter().map(PodRow::asked_milli).sum();
    let target = ratio * capacity_milli as f64;
    if asked as f64 > target {
        let present = asked as f64 / capacity_milli.max(1) as f64;
        return Err(wrong(format!("at least {present:.3}, what the pods already ask for (pods are only added)")));
    }
    if asked == 0 && target > 0.0 {
        return Err(wrong("pods that ask for GPUs, to copy them".to_owned()));
    }
    let mut rng = Rand32::new_inc(seed, 1);
    while (asked as f64) < target {
        let original = below(originals, &mut rng);
        let mut copy = pods[original].clone();
        copy.name = format!("{}-copy-{}", copy.name, pods.len() - originals);
        asked += copy.asked_milli();
        pods.push(copy);
    }
    Ok(pods.len() - originals)
}

/// Fisher and Yates.
fn shuffle(pods: &mut [PodRow], rng: &mut Rand32) {
    for i in (1..pods.len()).rev() {
        pods.swap(i, below(i + 1, rng));
    }
}

fn below(bound: usize, rng: &mut Rand32) -> usize {
    rng.rand_range(0..u32::try_from(bound).unwrap_or(u32::MAX)) as usize
}

fn write(out: &mut dyn Write, nodes: &[NodeRow], pods: &[PodRow], rank_by_qos: bool) -> io::Result<()> {
    let mut snapshot = SnapshotWriter::begin(out, DEFAULT_ACTIONS)?;
    snapshot.list("nodes", nodes.iter().enumerate().map(|(i, node)| node_object(i, node)))?;
    snapshot.list("queues", [None, Some(PARENT_QUEUE)].into_iter().enumerate().map(|(i, parent)| queue_object(i, parent)))?;
    // FGD serves pods in the order of their arrival, whatever their class.
    let priority = |qos: Qos| if rank_by_qos { qos.priority() } else { DEFAULT_PRIORITY };
    snapshot.list("priorityClasses", Qos::ALL.iter().map(|&qos| priority_class(qos.class(), priority(qos))))?;
    snapshot.list("podGroups", pods.iter().enumerate().map(|(i, pod)| pod_group_object(i, pod, pods.len())))?;
    snapshot.list("pods", pods.iter().enumerate().map(|(i, pod)| pod_object(i, pod, pods.len())))?;
    snapshot.finish().map(drop)
}

fn node_object(i: usize, node: &NodeRow) -> Node<'static> {
    let mut labels = vec![("kubernetes.io/hostname", node.name.clone())];
    if node.gpus > 0 {
        labels.push(("nvidia.com/gpu.count", node.gpus.to_string()));
    }
    if !node.model.is_empty() {
        labels.push((MODEL_LABEL, node.model.clone()));
    }
    // G2 and G3 are code names: how large their cards are is not published.
    if let Some(mib) = CardModel::memory_mib(&node.model) {
        labels.push(("nvidia.com/gpu.memory", mib.to_string()));
    }
    let created_second = NOW_SECOND - 90 * 86_400;
    Node {
        meta: Meta { name: node.name.clone(), uid: uid(1, i), labels, created_second, ..Meta::default() },
        cpu_milli: node.cpu_milli,
        memory_mib: node.memory_mib,
        gpus: node.gpus,
        pods: POD_SLOTS,
        cordoned: false,
    }
}

fn queue_object(i: usize, parent: Option<&str>) -> Queue<'static> {
    let name = if parent.is_some() { QUEUE } else { PARENT_QUEUE };
    let created_second = NOW_SECOND - 80 * 86_400;
    Queue {
        meta: Meta { name: name.to_owned(), uid: uid(2, i), created_second, ..Meta::default() },
        parent: parent.map(str::to_owned),
        gpu_quota: None,
        gpu_limit: None,
    }
}

/// Pod `i` of `count` was created `count - i` seconds before the snapshot: arrival is the order of creation.
fn created_second(i: usize, count: usize) -> i64 {
    NOW_SECOND - i64::try_from(count - i).unwrap_or(i64::MAX)
}

fn pod_group_object(i: usize, pod: &PodRow, count: usize) -> PodGroup<'static> {
    PodGroup {
        meta: Meta {
            name: pod.name.clone(),
            namespace: NAMESPACE,
            uid: uid(3, i),
            created_second: created_second(i, count),
            ..Meta::default()
        },
        queue: QUEUE,
        priority_class: pod.qos.map_or("", Qos::class),
        min_member: 1,
    }
}

fn pod_object(i: usize, pod: &PodRow, count: usize) -> Pod<'_> {
    let mut annotations = vec![("pod-group-name", pod.name.clone())];
    if pod.shares() {
        annotations.push(("gpu-fraction", format!("0.{:03}", pod.gpu_milli).trim_end_matches('0').to_owned()));
        if pod.gpus > 1 {
            annotations.push(("gpu-fraction-num-devices", pod.gpus.to_string()));
        }
    }
    let models: Vec<&str> = pod.models.iter().map(String::as_str).collect();
    Pod {
        meta: Meta {
            name: pod.name.clone(),
            namespace: NAMESPACE,
            uid: uid(4, i),
            labels: vec![("kai.scheduler/queue", QUEUE.to_owned())],
            annotations,
            created_second: created_second(i, count),
        },
        cpu_milli: pod.cpu_milli,
        memory_mib: pod.memory_mib,
        gpus: if pod.shares() { 0 } else { pod.gpus },
        node: None,
        required_label: (!models.is_empty()).then_some((MODEL_LABEL, models)),
    }
}
