//! What rows come out of small clusters, object by object: links, orders, rules that need more than one object.

use muster_api::names::Names;
use muster_api::read::{Loaded, Options, Source, load, load_bytes};
use muster_core::index::{Col, Idx, PodIdx};
use muster_core::snapshot::{Blocked, GpuRequest, NoQueue, PodStatus, Requirement};
use proptest::prelude::*;
use serde_json::{Value, json};

fn loaded(snapshot: &Value) -> Loaded {
    load_bytes("s", snapshot.to_string().as_bytes(), &Options::default()).unwrap_or_else(|failure| panic!("{failure}"))
}

fn node(name: &str, labels: &Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}, "status": {
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "8"},
        "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn queue(name: &str, parent: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"parentQueue": parent, "resources": {"gpu": {"quota": -1, "limit": -1}}}})
}

fn group(namespace: &str, name: &str, queue: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"queue": queue}})
}

fn pod(namespace: &str, name: &str, gang: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "annotations": {"pod-group-name": gang}},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c"}]}, "status": {"phase": "Pending"}})
}

/// The same with further values, by pointer.
fn with(mut object: Value, changes: &[(&str, Value)]) -> Value {
    for (pointer, value) in changes {
        let mut at = &mut object;
        for key in pointer.split('/').skip(1) {
            at = match key.parse::<usize>() {
                Ok(i) => &mut at[i],
                Err(_) => &mut at[key.replace("~1", "/")],
            };
        }
        *at = value.clone();
    }
    object
}

fn find(names: &Names, pod: &str) -> PodIdx {
    PodIdx::new(names.pods.iter().position(|name| name.name == pod).unwrap_or_else(|| panic!("no pod {pod}")))
}

fn texts<I: Idx, T: ToString>(column: &Col<I, T>) -> Vec<String> {
    column.iter().map(ToString::to_string).collect()
}

#[test]
fn pods_belong_to_the_gang_of_their_own_namespace() {
    let loaded = loaded(&json!({"rawObjects": {
        "nodes": [node("n", &json!({}))],
        "queues": [queue("q", "")],
        "podGroups": [group("a", "g", "q"), group("b", "g", "q")],
        "pods": [pod("b", "pb", "g"), pod("a", "pa", "g"), pod("c", "pc", "g"),
            with(pod("c", "held", "g"), &[("/spec/nodeName", json!("n")), ("/status/phase", json!("Running"))])]}}));
    let (snapshot, names) = (&loaded.snapshot, &loaded.names);
    assert_eq!(texts(&names.gangs), ["a/g", "b/g"]);
    assert_eq!(texts(&names.pods), ["a/pa", "b/pb", "c/held"]);
    let gangs: Vec<_> = snapshot.pods.iter().map(|pod| pod.gang.map(Idx::at)).collect();
    assert_eq!(gangs, [Some(0), Some(1), None]);
    let spans: Vec<_> = snapshot.gangs.iter().map(|gang| gang.pods.as_usize()).collect();
    assert_eq!(spans, [0..1, 1..2]);
}

#[test]
fn rows_are_in_the_order_that_core_asks_for() {
    let at = |object: Value, time: &str| with(object, &[("/metadata/creationTimestamp", json!(time))]);
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let loaded = loaded(&json!({"rawObjects": {
        "nodes": [node("n2", &json!({})), node("n1", &json!({}))],
        "queues": [at(queue("a", ""), new), at(queue("b", ""), old), at(queue("c", ""), old)],
        "podGroups": [at(group("x", "late", "a"), new), at(group("y", "early", "a"), old), at(group("x", "early", "a"), old)],
        "pods": [at(pod("x", "p2", "late"), new), at(pod("x", "p3", "late"), old), at(pod("x", "p1", "late"), new),
            pod("y", "p0", "early")]}}));
    assert_eq!(texts(&loaded.names.nodes), ["n1", "n2"]);
    assert_eq!(texts(&loaded.names.queues), ["b", "c", "a"]);
    assert_eq!(texts(&loaded.names.gangs), ["x/early", "y/early", "x/late"]);
    assert_eq!(texts(&loaded.names.pods), ["y/p0", "x/p3", "x/p1", "x/p2"]);
}

#[test]
fn queues_that_are_missing_or_hang_in_the_air() {
    let loaded = loaded(&json!({"rawObjects": {
        "queues": [queue("root", ""), queue("leaf", "root"), queue("lost", "gone")],
        "priorityClasses": [
            {"metadata": {"name": "high"}, "value": 200},
            {"metadata": {"name": "std"}, "value": 60, "globalDefault": true}],
        "podGroups": [
            with(group("x", "a", "leaf"), &[("/spec/priorityClassName", json!("high"))]),
            group("x", "b", "lost"), group("x", "c", "nowhere"),
            with(group("x", "d", "leaf"), &[
                ("/spec/priorityClassName", json!("high")), ("/spec/preemptibility", json!("preemptible"))]),
            with(group("x", "e", "leaf"), &[("/spec/priorityClassName", json!("unknown"))])]}}));
    let gangs: Vec<_> = loaded.snapshot.gangs.iter().map(|g| (g.queue.map(Idx::at), g.priority, g.preemptible)).collect();
    let expected = [
        (Ok(1), 200, false),
        (Err(NoQueue::MissingAncestor), 60, false),
        (Err(NoQueue::Missing), 60, false),
        (Ok(1), 200, true),
        (Ok(1), 60, true),
    ];
    // Queues without creation go by name: leaf is 0, root is 1.
    let expected = expected.map(|(queue, priority, preemptible)| (queue.map(|_: usize| 0), priority, preemptible));
    assert_eq!(gangs, expected);
    assert_eq!(texts(&loaded.names.gang_queues), ["leaf", "lost", "nowhere", "leaf", "leaf"]);
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(warnings.iter().any(|w| w.starts_with(r#"Queue lost: spec.parentQueue: "gone""#)), "{warnings:?}");
    assert!(warnings.iter().any(|w| w.starts_with("PriorityClass unknown")), "{warnings:?}");
}

#[test]
fn shared_gpus_have_their_node_and_their_users() {
    let shares = |name: &str, labels: Value| {
        with(
            pod("x", name, "g"),
            &[
                ("/metadata/annotations/gpu-fraction", json!("0.5")),
                ("/metadata/labels", labels),
                ("/spec/nodeName", json!("n1")),
                ("/status/phase", json!("Running")),
            ],
        )
    };
    let loaded = loaded(&json!({"rawObjects": {
        "nodes": [node("n1", &json!({})), node("n2", &json!({}))],
        "queues": [queue("q", "")],
        "podGroups": [group("x", "g", "q")],
        "pods": [shares("a", json!({"runai-gpu-group": "g1"})),
            shares("b", json!({"runai-gpu-group/g1": "g1", "runai-gpu-group/g0": "g0"})),
            with(pod("x", "c", "g"), &[("/metadata/annotations/gpu-memory", json!("2000"))]),
            shares("d", json!({})),
            {"metadata": {"name": "r", "namespace": "kai-resource-reservation",
                    "labels": {"app": "kai-resource-reservation", "runai-gpu-group": "g1"}},
                "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]},
                "status": {"phase": "Running"}}],
        "bindRequests": [
            {"metadata": {"name": "c", "namespace": "x"},
                "spec": {"podName": "c", "selectedNode": "n2", "selectedGPUGroups": ["g9"]}}]}}));
    let (snapshot, names) = (&loaded.snapshot, &loaded.names);
    assert_eq!(texts(&names.groups), ["g0", "g1", "g9"]);
    assert_eq!(snapshot.groups.iter().map(|node| node.at()).collect::<Vec<_>>(), [0, 0, 1]);
    let groups_of = |name: &str| {
        let (start, end) = snapshot.pods[find(names, name)].groups;
        snapshot.pod_groups[start as usize..end as usize].iter().map(|group| group.at()).collect::<Vec<_>>()
    };
    assert_eq!((groups_of("a"), groups_of("b"), groups_of("c"), groups_of("d")), (vec![1], vec![0, 1], vec![2], vec![]));
    let c = &snapshot.pods[find(names, "c")];
    assert_eq!((c.status, c.node.map(Idx::at)), (PodStatus::Binding, Some(1)));
    assert_eq!(snapshot.classes[c.class].gpu, GpuRequest::Memory { mib: 2000, devices: 1 });
    let reservation = &snapshot.pods[find(names, "r")];
    assert!(reservation.reservation && !reservation.foreign && groups_of("r").is_empty());
    assert!(loaded.warnings.iter().any(|w| w.object == "x/d"), "{:?}", loaded.warnings);
}

#[test]
fn a_reservation_that_nobody_shares_is_nothing_in_a_snapshot() {
    let reservation = json!({"metadata": {"name": "r", "namespace": "kai-resource-reservation",
            "labels": {"app": "kai-resource-reservation", "runai-gpu-group": "g1"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Running"}});
    let loaded = loaded(&json!({"rawObjects": {
        "nodes": [node("n", &json!({}))], "queues": [queue("q", "")], "podGroups": [group("x", "g", "q")],
        "pods": [reservation], "bindRequests": []}}));
    let row = &loaded.snapshot.pods[find(&loaded.names, "r")];
    assert!(row.reservation && !row.foreign, "its GPU would be that of its group, which is none");
    assert_eq!((row.status, row.node.map(Idx::at)), (PodStatus::Running, Some(0)));
    assert_eq!(loaded.snapshot.classes[row.class].gpu, GpuRequest::Whole(1));
}

#[test]
fn bind_requests_to_unknown_nodes_or_failed_ones_do_not_count() {
    let bind = |pod: &str, node: &str, status: Value| {
        let spec = json!({"podName": pod, "selectedNode": node});
        json!({"metadata": {"name": pod, "namespace": "x"}, "spec": spec, "status": status})
    };
    let loaded = loaded(&json!({"rawObjects": {
        "nodes": [node("n", &json!({}))], "queues": [queue("q", "")], "podGroups": [group("x", "g", "q")],
        "pods": [pod("x", "a", "g"), pod("x", "b", "g"), pod("x", "c", "g"),
            with(pod("x", "d", "g"), &[("/spec/nodeName", json!("elsewhere")), ("/status/phase", json!("Running"))]),
            with(pod("x", "e", "g"), &[("/status/phase", json!("Failed"))])],
        "bindRequests": [
            bind("a", "n", json!({})), bind("b", "elsewhere", json!({})), bind("c", "n", json!({"phase": "Failed"}))]}}));
    let rows: Vec<_> = loaded.snapshot.pods.iter().map(|pod| (pod.status, pod.node.is_some())).collect();
    let expected =
        [(PodStatus::Binding, true), (PodStatus::Pending, false), (PodStatus::Pending, false), (PodStatus::Running, false)];
    assert_eq!(rows, expected);
}

#[test]
fn constraints_become_labels_and_taints() {
    let tainted = with(
        node("n2", &json!({"pool": "b", "rank": "7"})),
        &[(
            "/spec",
            json!({"taints": [
        {"key": "gpu", "value": "x", "effect": "NoSchedule"}, {"key": "soft", "effect": "PreferNoSchedule"}]}),
        )],
    );
    let choosy = with(
        pod("x", "p", "g"),
        &[
            ("/spec/nodeSelector", json!({"pool": "b"})),
            ("/spec/tolerations", json!([{"key": "gpu", "operator": "Exists"}])),
            (
                "/spec/affinity",
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [
                {"key": "rank", "operator": "Gt", "values": ["5"]}, {"key": "pool", "operator": "NotIn", "values": ["a", "z"]},
                {"key": "none", "operator": "Exists"}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}, {}]}}}),
            ),
        ],
    );
    let loaded = loaded(&json!({"rawObjects": {
        "nodes": [node("n1", &json!({"pool": "a", "unused": "x"})), tainted], "queues": [queue("q", "")],
        "podGroups": [group("x", "g", "q")], "pods": [choosy, pod("x", "plain", "g")]}}));
    let snapshot = &loaded.snapshot;
    // pool=a, pool=b, rank=7: only keys that a class refers to.
    let numbers: Vec<_> = snapshot.labels.iter().map(|label| (label.number, label.nodes.len())).collect();
    assert_eq!(numbers, [(None, 1), (None, 1), (Some(7), 1)]);
    assert_eq!(texts(&loaded.names.taints), ["gpu=x:NoSchedule"]);
    let row = &snapshot.classes[snapshot.pods[find(&loaded.names, "p")].class];
    let label = |i| muster_core::index::LabelIdx::new(i);
    assert_eq!(row.selector, [Requirement::In(vec![label(1)])]);
    let rank = Some(muster_core::index::KeyIdx::new(1));
    let terms = vec![
        vec![Requirement::Greater(rank, 5), Requirement::NotIn(vec![label(0)]), Requirement::Exists(None)],
        vec![Requirement::NodeIn(vec![muster_core::index::NodeIdx::new(1)])],
        vec![],
    ];
    assert_eq!((row.affinity.as_ref(), row.tolerated.len()), (Some(&terms), 1));
    assert_eq!(snapshot.classes.len(), 2);
    assert_eq!(loaded.names.classes[snapshot.pods[find(&loaded.names, "p")].class].selector, "pool=b");
}

#[test]
fn config_maps_are_missing_in_a_snapshot_and_unknown_among_manifests() {
    let needy = with(
        pod("x", "p", "g"),
        &[
            ("/spec/volumes", json!([{"name": "v", "configMap": {"name": "cm"}}])),
            ("/spec/containers/0/volumeMounts", json!([{"name": "v", "mountPath": "/v"}])),
        ],
    );
    let cluster = |maps: Value| {
        let (queues, groups) = ([queue("q", "")], [group("x", "g", "q")]);
        json!({"rawObjects": {"queues": queues, "podGroups": groups, "pods": [needy], "configMaps": maps}})
    };
    let blocked = |loaded: &Loaded| loaded.snapshot.classes[loaded.snapshot.pods[PodIdx::new(0)].class].blocked;
    assert_eq!(blocked(&loaded(&cluster(json!([])))), Some(Blocked::MissingConfigMap));
    assert_eq!(
        blocked(&loaded(&cluster(json!([{"metadata": {"name": "cm", "namespace": "y"}}])))),
        Some(Blocked::MissingConfigMap)
    );
    let present = loaded(&cluster(json!([{"metadata": {"name": "cm", "namespace": "x"}}])));
    assert_eq!((blocked(&present), present.names.classes.first().map(|c| c.missing_config_maps.len())), (None, Some(0)));
    let mut group = group("x", "g", "q");
    (group["apiVersion"], group["kind"]) = (json!("scheduling.run.ai/v2alpha2"), json!("PodGroup"));
    let mut pod = needy.clone();
    (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
    let manifests = load_bytes("m", format!("{group}\n{pod}").as_bytes(), &Options::default()).expect("manifests");
    assert_eq!(blocked(&manifests), None);
    assert!(manifests.warnings.iter().any(|w| w.note.contains("ConfigMaps")), "{:?}", manifests.warnings);
}

#[test]
fn what_is_not_considered_is_said_once_for_each_kind() {
    let needy = |name: &str| {
        with(
            pod("x", name, "g"),
            &[
                ("/spec/volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}])),
                ("/spec/resourceClaims", json!([{"name": "c", "resourceClaimName": "d"}])),
                ("/spec/affinity", json!({"podAntiAffinity": {}})),
                ("/spec/containers/0/ports", json!([{"hostPort": 80, "containerPort": 80}])),
            ],
        )
    };
    let placed = with(needy("run"), &[("/spec/nodeName", json!("n")), ("/status/phase", json!("Running"))]);
    let loaded = loaded(&json!({"config": {"actions": "allocate"}, "rawObjects": {
        "nodes": [node("n", &json!({}))], "queues": [queue("q", "")],
        "podGroups": [with(group("x", "g", "q"), &[
            ("/spec/topologyConstraint", json!({"topology": "t", "requiredTopologyLevel": "rack"}))])],
        "pods": [needy("a"), needy("b"), placed]}}));
    let fields: Vec<_> = loaded.warnings.iter().map(|w| (w.field.as_str(), w.value.as_str())).collect();
    let expected = [
        ("spec.affinity", "2"),
        ("spec.containers.ports", "2"),
        ("spec.resourceClaims", "2"),
        ("spec.volumes", "2"),
        ("spec.topologyConstraint", "1"),
    ];
    assert_eq!(fields, expected, "{:?}", loaded.warnings);
}

#[test]
fn shards_and_worker_labels_narrow_the_cluster() {
    let pooled = |object: Value, pool: &str| with(object, &[("/metadata/labels/pool", json!(pool))]);
    let running = with(pod("x", "run", "g"), &[("/spec/nodeName", json!("other")), ("/status/phase", json!("Running"))]);
    let loaded = loaded(&json!({
        "schedulerParams": {
            "partitionParams": {"NodePoolLabelKey": "pool", "NodePoolLabelValue": "a"}, "restrictSchedulingNodes": true},
        "rawObjects": {
            "nodes": [
                node("n", &json!({"pool": "a", "node-role.kubernetes.io/gpu-worker": ""})), node("bare", &json!({"pool": "a"})),
                node("other", &json!({"pool": "b", "node-role.kubernetes.io/gpu-worker": ""}))],
            "queues": [pooled(queue("q", ""), "a"), queue("unpooled", "")],
            "podGroups": [
                pooled(group("x", "g", "q"), "a"), pooled(group("x", "h", "q"), "b"), pooled(group("x", "i", "unpooled"), "a")],
            "pods": [running, pod("x", "gone", "h")]}}));
    assert_eq!(texts(&loaded.names.nodes), ["n"]);
    assert_eq!(texts(&loaded.names.queues), ["q"]);
    assert_eq!(texts(&loaded.names.gangs), ["x/g", "x/i"]);
    assert_eq!(texts(&loaded.names.pods), ["x/run"]);
    assert_eq!(loaded.snapshot.pods[PodIdx::new(0)].status, PodStatus::Running);
    assert_eq!(loaded.snapshot.gangs.iter().map(|gang| gang.queue.is_ok()).collect::<Vec<_>>(), [true, false]);
}

const MANIFESTS: &str = r#"
%YAML 1.2
---
# A comment.
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: n1, labels: {"nvidia.com/gpu.memory": "40000"}}
  status:
    allocatable: {cpu: 8, memory: 32Gi, pods: 110, nvidia.com/gpu: 2}
    conditions: [{type: Ready, status: "True"}]
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: ignored}
--- # the queues
apiVersion: scheduling.run.ai/v2
kind: QueueList
items:
- metadata: {name: root}
  spec: {resources: {gpu: {quota: -1, limit: -1, overQuotaWeight: 1}}}
- metadata: {name: team}
  spec: {parentQueue: root, displayName: "The team", resources: {gpu: {quota: 1.5, limit: -1}}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: other}
...
---
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {name: train, namespace: ml, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {queue: team, minMember: 2}
---
apiVersion: v1
kind: Pod
metadata:
  name: train-0
  namespace: ml
  annotations: {pod-group-name: train, gpu-fraction: "0.5"}
spec:
  schedulerName: kai-scheduler
  containers:
  - name: c
    command: ["sh", "-c", "echo '---'"]
    args:
    - |
      cat <<END
      --- not a document ---
      END
    resources: {limits: {cpu: 500m, memory: 1Gi}}
"#;

#[test]
fn manifests_as_people_write_them() {
    let loaded = load_bytes("m.yaml", MANIFESTS.as_bytes(), &Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
    let (snapshot, names) = (&loaded.snapshot, &loaded.names);
    assert_eq!((texts(&names.nodes), texts(&names.queues)), (vec!["n1".to_owned()], vec!["root".to_owned(), "team".to_owned()]));
    assert_eq!(texts(&names.queue_titles), ["", "The team"]);
    assert_eq!((texts(&names.gangs), texts(&names.pods)), (vec!["ml/train".to_owned()], vec!["ml/train-0".to_owned()]));
    let class = &snapshot.classes[snapshot.pods[PodIdx::new(0)].class];
    assert_eq!((class.cpu, class.memory, class.gpu), (500, 1 << 30, GpuRequest::Fraction { portion: 500_000, devices: 1 }));
    assert_eq!(loaded.skipped, [("Deployment.apps".to_owned(), 1), ("Queue.scheduling.volcano.sh".to_owned(), 1)]);
}

#[test]
fn yaml_and_json_and_a_folder_of_both_say_the_same() {
    let whole = load_bytes("m", MANIFESTS.as_bytes(), &Options { now: Some(jiff::Timestamp::UNIX_EPOCH), ..Options::default() });
    let whole = whole.expect("manifests");
    let folder = std::env::temp_dir().join(format!("muster-api-manifests-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("sub")).expect("a folder");
    let documents: Vec<&str> = MANIFESTS.split("\n---").collect();
    let (front, back) = documents.split_at(3);
    std::fs::write(folder.join("b.yaml"), front.join("\n---")).expect("a file");
    std::fs::write(folder.join("sub/a.yml"), back.join("\n---")).expect("a file");
    std::fs::write(folder.join("notes.txt"), "not a manifest").expect("a file");
    std::fs::write(folder.join("empty.json"), r#"{"apiVersion": "v1", "kind": "List", "items": []}"#).expect("a file");
    let options = Options { now: Some(jiff::Timestamp::UNIX_EPOCH), ..Options::default() };
    let read = load(&Source::Path(folder.clone()), &options);
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    assert_eq!(read, Ok(whole));
}

#[test]
fn documents_that_are_no_yaml_are_one_line_each() {
    let text = format!("{MANIFESTS}\n---\na: [1\n---\n- 1\n");
    let failure = load_bytes("m", text.as_bytes(), &Options::default()).expect_err("bad documents").to_string();
    let lines: Vec<_> = failure.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert!(lines[0].starts_with("document 6 of m: expected a Kubernetes object, in YAML or JSON ("), "{lines:#?}");
    assert_eq!(lines[2], "2 errors in m");
    let lenient = load_bytes("m", text.as_bytes(), &Options { lenient: true, ..Options::default() }).expect("lenient");
    assert_eq!((lenient.left_out, lenient.snapshot.pods.len()), (2, 1));
}

#[test]
fn progress_ends_at_the_whole() {
    let last = std::sync::Mutex::new((0, 0));
    let note = |done, total| *last.lock().expect("no panic") = (done, total);
    let pods: Vec<_> = (0..500).map(|i| pod("x", &format!("p{i}"), "g")).collect();
    let text = json!({"rawObjects": {"pods": pods}}).to_string();
    load_bytes("s", text.as_bytes(), &Options { progress: Some(&note), ..Options::default() }).expect("a snapshot");
    let (done, total) = *last.lock().expect("no panic");
    assert!(done > total / 2 && total == text.len() as u64, "{done} of {total}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_do_not_depend_on_the_order_of_objects(seed in any::<u64>()) {
        let cluster = random_cluster();
        let mut shuffled = cluster.clone();
        let mut state = seed | 1;
        for list in shuffled["rawObjects"].as_object_mut().into_iter().flatten().filter_map(|(_, list)| list.as_array_mut()) {
            for i in (1..list.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                list.swap(i, usize::try_from(state >> 33).unwrap_or(0) % (i + 1));
            }
        }
        let (one, other) = (loaded(&cluster), loaded(&shuffled));
        prop_assert_eq!(&one.names.pods, &other.names.pods);
        prop_assert!(one == other, "same names, but other rows");
    }
}

/// A cluster with something of everything and several equal creation times.
fn random_cluster() -> Value {
    let nodes: Vec<_> = (0..6).map(|i| node(&format!("n{i}"), &json!({"pool": format!("{}", i % 3)}))).collect();
    let mut queues = vec![queue("root", "")];
    queues.extend((0..4).map(|i| queue(&format!("q{i}"), "root")));
    let groups: Vec<_> = (0..12).map(|i| group(["x", "y"][i % 2], &format!("g{}", i / 2), &format!("q{}", i % 5))).collect();
    let pods: Vec<_> = (0..60)
        .map(|i| {
            let pod = pod(["x", "y"][i % 2], &format!("p{i}"), &format!("g{}", i % 7));
            let pod = with(pod, &[("/spec/nodeSelector", json!({"pool": format!("{}", i % 4)}))]);
            let pod = with(pod, &[("/spec/containers/0/resources", json!({"requests": {"cpu": i % 3, "x.com/nic": i % 2}}))]);
            match i % 3 {
                0 => with(
                    pod,
                    &[
                        ("/spec/nodeName", json!(format!("n{}", i % 8))),
                        ("/status/phase", json!("Running")),
                        ("/metadata/annotations/gpu-fraction", json!("0.25")),
                        ("/metadata/labels", json!({"runai-gpu-group": format!("c{}", i % 9)})),
                    ],
                ),
                _ => pod,
            }
        })
        .collect();
    json!({"now": "2026-01-01T00:00:00Z", "rawObjects": {"nodes": nodes, "queues": queues, "podGroups": groups, "pods": pods}})
}
