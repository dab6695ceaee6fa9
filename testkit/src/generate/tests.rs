//! What a generated cluster promises: exact amounts, legal placements, the same bytes for the same shape.

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;

fn shapes() -> Vec<Shape> {
    let base = Shape { nodes: 60, racks: 7, queues: 9, depth: 3, pending: 200, ..Shape::default() };
    vec![
        base.clone(),
        Shape { fill: 0.0, ..base.clone() },
        Shape { fill: 1.0, cordoned: 0.1, seed: 5, ..base.clone() },
        Shape { gpus: 1, depth: 1, ..base.clone() },
        Shape { gpus: 0, ..base.clone() },
        Shape { nodes: 0, racks: 1, queues: 1, ..base.clone() },
        Shape { mix: "fractions=1".parse().expect("a mix"), fill: 0.55, seed: 9, ..base.clone() },
        Shape { mix: "gangs=3,elastic=1".parse().expect("a mix"), depth: 16, ..base },
    ]
}

fn document(shape: &Shape) -> Value {
    let cluster = Cluster::new(shape).expect("a usable shape");
    let bytes = cluster.write(Vec::new()).expect("memory takes all");
    serde_json::from_slice(&bytes).expect("valid JSON")
}

fn list<'a>(document: &'a Value, key: &str) -> &'a [Value] {
    document["rawObjects"][key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Thousandths of a GPU.
fn asked(pod: &Value) -> u64 {
    let whole: u64 = text(pod, "/spec/containers/0/resources/requests/nvidia.com~1gpu").parse().unwrap_or_default();
    let fraction: f64 = text(pod, "/metadata/annotations/gpu-fraction").parse().unwrap_or_default();
    whole * 1000 + share_of(fraction, 1000)
}

#[test]
fn running_work_holds_exactly_the_share_and_no_node_more_than_it_has() {
    for shape in shapes() {
        let document = document(&shape);
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        let mut cards: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for pod in list(&document, "pods").iter().filter(|pod| !text(pod, "/spec/nodeName").is_empty()) {
            let group = text(pod, "/metadata/labels/runai-gpu-group");
            if group.is_empty() {
                *held.entry(text(pod, "/spec/nodeName")).or_default() += asked(pod);
            } else if text(pod, "/metadata/namespace") == "kai-resource-reservation" {
                cards.entry(group).or_default().1 += 1;
                *held.entry(text(pod, "/spec/nodeName")).or_default() += 1000;
            } else {
                cards.entry(group).or_default().0 += asked(pod);
            }
        }
        let cordoned = |node: &&Value| node.pointer("/spec/unschedulable").is_some();
        let closed = list(&document, "nodes").iter().filter(cordoned).count() as u64;
        let total = u64::from(shape.nodes) * u64::from(shape.gpus);
        let usable = total - closed * u64::from(shape.gpus);
        assert_eq!(held.values().sum::<u64>(), share_of(shape.fill, total).min(usable) * 1000, "{shape:?}");
        assert!(held.values().all(|&milli| milli <= u64::from(shape.gpus) * 1000), "{shape:?}");
        assert!(cards.values().all(|&(milli, placeholders)| milli <= 1000 && placeholders == 1), "{shape:?}");
        for node in list(&document, "nodes").iter().filter(cordoned) {
            assert_eq!(held.get(text(node, "/metadata/name")), None, "{shape:?}");
        }
    }
}

#[test]
fn pods_gangs_and_queues_agree() {
    for shape in shapes() {
        let cluster = Cluster::new(&shape).expect("a usable shape");
        let counts = cluster.counts();
        let document = document(&shape);
        let mut pods: BTreeMap<&str, u64> = BTreeMap::new();
        for pod in list(&document, "pods") {
            let gang = text(pod, "/metadata/annotations/pod-group-name");
            *pods.entry(gang).or_default() += u64::from(!gang.is_empty());
        }
        let leaves: Vec<&str> = list(&document, "queues").iter().map(|queue| text(queue, "/metadata/name")).collect();
        for gang in list(&document, "podGroups") {
            let min = gang.pointer("/spec/minMember").and_then(Value::as_u64).unwrap_or_default();
            let members = pods.get(text(gang, "/metadata/name")).copied().unwrap_or_default();
            assert!(min >= 1 && min <= members, "{shape:?}: {gang}");
            assert!(leaves.contains(&text(gang, "/spec/queue")), "{gang}");
        }
        for queue in list(&document, "queues").iter().filter(|queue| queue.pointer("/spec/parentQueue").is_some()) {
            assert!(leaves.contains(&text(queue, "/spec/parentQueue")), "{queue}");
        }
        assert_eq!(pods.values().sum::<u64>(), counts.running + counts.pending, "{shape:?}");
        assert_eq!(counts.pending, u64::from(shape.pending));
        assert_eq!(list(&document, "queues").len(), counts.queues);
        assert_eq!(list(&document, "podGroups").len(), counts.gangs);
    }
}

#[test]
fn limits_and_quotas_hold_at_the_start() {
    for shape in shapes() {
        let document = document(&shape);
        let class: BTreeMap<&str, i64> = list(&document, "priorityClasses")
            .iter()
            .map(|class| (text(class, "/metadata/name"), class["value"].as_i64().unwrap_or_default()))
            .collect();
        let gangs: BTreeMap<&str, &Value> =
            list(&document, "podGroups").iter().map(|gang| (text(gang, "/metadata/name"), gang)).collect();
        let mut held: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for pod in list(&document, "pods").iter().filter(|pod| !text(pod, "/spec/nodeName").is_empty()) {
            let Some(gang) = gangs.get(text(pod, "/metadata/annotations/pod-group-name")) else { continue };
            let entry = held.entry(text(gang, "/spec/queue")).or_default();
            entry.0 += asked(pod);
            entry.1 += if class[text(gang, "/spec/priorityClassName")] >= 100 { asked(pod) } else { 0 };
        }
        for queue in list(&document, "queues") {
            let (all, pinned) = held.get(text(queue, "/metadata/name")).copied().unwrap_or_default();
            let bound = |path: &str| queue.pointer(path).and_then(Value::as_u64).unwrap_or(u64::MAX / 1000);
            assert!(all <= bound("/spec/resources/gpu/limit") * 1000, "{shape:?}: {queue}");
            assert!(pinned <= bound("/spec/resources/gpu/quota") * 1000, "{shape:?}: {queue}");
        }
    }
}

#[test]
fn quotas_of_each_level_sum_up_to_the_cluster() {
    for shape in shapes() {
        let document = document(&shape);
        let quota = |queue: &Value| queue.pointer("/spec/resources/gpu/quota").and_then(Value::as_u64).unwrap_or_default();
        let mut below: BTreeMap<&str, u64> = BTreeMap::new();
        for queue in list(&document, "queues") {
            *below.entry(text(queue, "/spec/parentQueue")).or_default() += quota(queue);
        }
        assert_eq!(below[""], u64::from(shape.nodes) * u64::from(shape.gpus));
        for queue in list(&document, "queues") {
            let sum = below.get(text(queue, "/metadata/name")).copied().unwrap_or_else(|| quota(queue));
            assert_eq!(sum, quota(queue), "{shape:?}: {queue}");
        }
    }
}

#[test]
fn the_same_shape_gives_the_same_bytes_and_another_seed_others() {
    let bytes = |shape: &Shape| Cluster::new(shape).expect("a usable shape").write(Vec::new());
    let shape = &shapes()[0];
    let first = bytes(shape).expect("memory takes all");
    assert_eq!(first, bytes(shape).expect("memory takes all"));
    assert_ne!(first, bytes(&Shape { seed: 2, ..shape.clone() }).expect("memory takes all"));
    // A promise to users: seeds in reports stay valid. Change it only with a note in the changelog.
    let hash =
        first.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    assert_eq!(hash, 4_166_606_649_849_570_452, "the bytes of seed 1 have changed");
}

#[test]
fn more_pending_work_leaves_the_rest_alone() {
    let shape = &shapes()[0];
    let more = Shape { pending: shape.pending * 2, ..shape.clone() };
    let places = |shape: &Shape| -> Vec<Job> {
        let cluster = Cluster::new(shape).expect("a usable shape");
        cluster.jobs.into_iter().filter(|job| !job.places.is_empty()).collect()
    };
    assert_eq!(places(shape), places(&more));
}

#[test]
fn weights_are_shares_of_the_pods() {
    let shape = Shape { nodes: 1, pending: 100_000, fill: 0.0, ..Shape::default() };
    let cluster = Cluster::new(&shape).expect("a usable shape");
    let mut pods = [0_u32; 4];
    for job in &cluster.jobs {
        let kind = match (job.pods, job.min, job.gpus) {
            (_, _, Gpus::Milli(_)) => 2,
            (1, ..) => 0,
            (pods, min, _) if pods == min => 1,
            _ => 3,
        };
        pods[kind] += job.pods;
    }
    for (pods, weight) in pods.into_iter().zip([40.0, 35.0, 15.0, 10.0]) {
        let share = f64::from(pods) / 1000.0;
        assert!((share - weight).abs() < 2.0, "{share} % instead of {weight} %");
    }
}

#[test]
fn unusable_shapes_are_refused_by_field() {
    let refused = [
        (Shape { fill: 1.5, ..Shape::default() }, "fill"),
        (Shape { fill: f64::NAN, ..Shape::default() }, "fill"),
        (Shape { queues: 0, ..Shape::default() }, "queues"),
        (Shape { depth: 0, ..Shape::default() }, "depth"),
        (Shape { racks: 0, ..Shape::default() }, "racks"),
    ];
    for (shape, field) in refused {
        assert_eq!(Cluster::new(&shape).expect_err("refused").field, field);
    }
    for text in ["", "singles", "singles=x", "singles=-1", "whales=1", "gangs=0", "gangs=inf"] {
        assert!(text.parse::<Mix>().is_err(), "{text:?}");
    }
}
