//! Laws of the fold: whatever happened before, what is known is what a fresh list would say.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::read::{Options, load_bytes};

const NOW: &str = "2026-01-01T00:10:00Z";

/// An object of a kind, one of four names, in one of five versions; version 4 is bad where an object of ours can be.
fn object(kind: Watched, name: usize, version: usize) -> Value {
    let base = |spec: Value, status: Value| {
        json!({"apiVersion": "v1", "kind": kind.name(), "metadata": {"name": format!("o{name}"),
            "uid": format!("{name}-{version}"),
            "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": status})
    };
    let ours = |api: &str, spec: Value| {
        let mut object = base(spec, json!({}));
        object["apiVersion"] = json!(api);
        object
    };
    let mut object = match kind {
        Watched::Pod => {
            let mut pod = base(
                json!({"schedulerName": "kai-scheduler", "containers": [{"name": "c", "resources": {"requests":
                    {"nvidia.com/gpu": version.to_string()}}}]}),
                json!({"phase": if version == 3 { "Running" } else { "Pending" }}),
            );
            pod["metadata"]["annotations"] = json!({"pod-group-name": format!("o{}", version % 3)});
            if version >= 2 {
                pod["spec"]["nodeName"] = json!("o1");
            }
            pod
        }
        Watched::Node => base(
            json!({"unschedulable": version == 2}),
            json!({"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": (version * 2).to_string()},
                "conditions": [{"type": "Ready", "status": if version == 3 { "False" } else { "True" }}]}),
        ),
        Watched::PriorityClass => {
            json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": format!("o{name}")},
                "value": version * 60, "globalDefault": version == 3})
        }
        Watched::Queue => ours(
            "scheduling.run.ai/v2",
            json!({"parentQueue": if version == 2 { "o0" } else { "" },
                "priority": if version == 4 { json!("high") } else { json!(version) }}),
        ),
        Watched::PodGroup => ours(
            "scheduling.run.ai/v2alpha2",
            json!({"queue": format!("o{version}"), "priorityClassName": format!("o{version}"),
                "minMember": if version == 4 { json!("two") } else { json!(version) }}),
        ),
        Watched::BindRequest => {
            ours("scheduling.run.ai/v1alpha2", json!({"podName": format!("o{name}"), "selectedNode": format!("o{version}")}))
        }
        Watched::SchedulingShard => ours("kai.scheduler/v1", json!({"partitionLabelValue": format!("v{version}")})),
        // `budgets` has tests of its own.
        Watched::PodDisruptionBudget => base(json!({}), json!({})),
    };
    if matches!(kind, Watched::Pod | Watched::PodGroup | Watched::BindRequest) {
        object["metadata"]["namespace"] = json!("ns");
    }
    object
}

fn seen(kind: Watched, tree: Value) -> Seen {
    match kind {
        Watched::Pod => Seen::Pod(serde_json::from_value(tree).expect("a pod")),
        Watched::Node => Seen::Node(serde_json::from_value(tree).expect("a node")),
        Watched::PriorityClass => Seen::PriorityClass(serde_json::from_value(tree).expect("a class")),
        ours => Seen::Ours(ours, tree),
    }
}

/// What happens to a kind of objects.
#[derive(Clone, Debug)]
enum Step {
    Put(usize, usize),
    Remove(usize),
    /// A list begins that will not be finished; some objects of it arrive.
    Broken(usize),
    /// The watch was lost: these changes are seen by a list only.
    Unseen(Vec<(usize, Option<usize>)>),
}

fn step() -> impl Strategy<Value = Step> {
    let change = (0..4_usize, prop::option::of(0..5_usize));
    prop_oneof![
        6 => (0..4_usize, 0..5_usize).prop_map(|(name, version)| Step::Put(name, version)),
        2 => (0..4_usize).prop_map(Step::Remove),
        1 => (0..4_usize).prop_map(Step::Broken),
        2 => prop::collection::vec(change, 0..4).prop_map(Step::Unseen),
    ]
}

type Truth = std::collections::BTreeMap<(Watched, usize), usize>;

fn tell(live: &mut Live, kind: Watched, name: usize, version: Option<usize>) {
    let namespace = if matches!(kind, Watched::Pod | Watched::PodGroup | Watched::BindRequest) { "ns" } else { "" };
    match version {
        Some(version) => {
            live.put(seen(kind, object(kind, name, version)));
        }
        None => live.remove(kind, namespace, &format!("o{name}")),
    }
}

fn run(live: &mut Live, truth: &mut Truth, kind: Watched, step: &Step) {
    let mut change = |name: usize, version: Option<usize>| match version {
        Some(version) => drop(truth.insert((kind, name), version)),
        None => drop(truth.remove(&(kind, name))),
    };
    match step {
        Step::Put(name, version) => {
            change(*name, Some(*version));
            tell(live, kind, *name, Some(*version));
        }
        Step::Remove(name) => {
            change(*name, None);
            tell(live, kind, *name, None);
        }
        Step::Broken(count) => {
            live.begin(kind);
            for (&(_, name), &version) in truth.iter().filter(|((of, _), _)| *of == kind).take(*count) {
                tell(live, kind, name, Some(version));
            }
        }
        Step::Unseen(changes) => {
            changes.iter().for_each(|(name, version)| change(*name, *version));
            live.begin(kind);
            for (&(_, name), &version) in truth.iter().filter(|((of, _), _)| *of == kind) {
                tell(live, kind, name, Some(version));
            }
            live.finish(kind);
        }
    }
}

proptest! {
    #[test]
    fn what_is_known_is_what_a_fresh_list_says(steps in prop::collection::vec((0..7_usize, step()), 0..60)) {
        let (mut live, mut truth) = (Live::default(), Truth::new());
        for (kind, step) in &steps {
            run(&mut live, &mut truth, Watched::ALL[*kind], step);
        }
        // A list that did not finish leaves old objects; the next one that does removes them.
        for kind in Watched::ALL {
            run(&mut live, &mut truth, kind, &Step::Unseen(Vec::new()));
        }
        let mut fresh = live.blank();
        for (&(kind, name), &version) in &truth {
            tell(&mut fresh, kind, name, Some(version));
        }
        prop_assert_eq!(live.differences(&fresh), Vec::<String>::new());
        let now = NOW.parse().expect("a time");
        prop_assert_eq!(live.load(now), fresh.load(now));
        // And a file that holds the same objects is read into the same rows.
        let items: Vec<_> = truth.iter().filter(|((kind, _), _)| *kind != Watched::SchedulingShard)
            .map(|(&(kind, name), &version)| object(kind, name, version)).collect();
        if !items.is_empty() {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
            let options = Options { now: Some(now), lenient: true, ..Options::default() };
            let file = load_bytes("list", list.as_bytes(), &options).expect("a list");
            let loaded = live.load(now);
            prop_assert_eq!(&loaded.snapshot, &file.snapshot);
            prop_assert_eq!(&loaded.names, &file.names);
            prop_assert_eq!(loaded.left_out, file.left_out);
        }
    }
}

#[test]
fn differences_name_the_object() {
    let mut live = Live::default();
    let mut other = live.blank();
    tell(&mut live, Watched::Queue, 0, Some(1));
    tell(&mut other, Watched::Queue, 0, Some(3));
    tell(&mut live, Watched::Pod, 1, Some(1));
    tell(&mut other, Watched::Node, 2, Some(1));
    assert_eq!(live.differences(&other), ["Node /o2: only in the second", "Pod ns/o1: only in the first", "Queue /o0: differs"]);
}

#[test]
fn a_bad_object_is_told_and_replaced_when_it_is_mended() {
    let mut live = Live::default();
    tell(&mut live, Watched::Queue, 0, Some(4));
    let now = NOW.parse().expect("a time");
    let loaded = live.load(now);
    assert_eq!(loaded.left_out, 1);
    assert!(
        loaded.warnings.iter().any(|w| w.to_string().starts_with("Queue o0: spec.priority: \"high\"")),
        "{:?}",
        loaded.warnings
    );
    tell(&mut live, Watched::Queue, 0, Some(1));
    assert_eq!(live.load(now).left_out, 0);
}
