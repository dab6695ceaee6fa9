//! Bad input: each kind of fault gives a clear message, none a panic, and a lenient reader goes on with the rest.

use std::io::Write as _;

use flate2::write::GzEncoder;
use muster_api::problem::Failure;
use muster_api::read::{Options, load_bytes};
use proptest::prelude::*;
use serde_json::{Value, json};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A small cluster in which everything is right.
fn cluster() -> Value {
    json!({
        "now": "2026-01-01T00:00:00Z",
        "config": {"actions": "allocate"},
        "rawObjects": {
            "nodes": [{"metadata": {"name": "n1", "labels": {"pool": "a"}}, "status": {
                "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "8"},
                "conditions": [{"type": "Ready", "status": "True"}]}}],
            "queues": [
                {"metadata": {"name": "root"}, "spec": {"resources": {"gpu": {"quota": -1, "limit": -1}}}},
                {"metadata": {"name": "team"}, "spec": {"parentQueue": "root", "resources": {"gpu": {"quota": 4, "limit": -1}}}}],
            "podGroups": [{"metadata": {"name": "g", "namespace": "ml"}, "spec": {"queue": "team", "minMember": 1}}],
            "pods": [{"metadata": {"name": "p", "namespace": "ml", "uid": "u", "annotations": {"pod-group-name": "g"}},
                "spec": {"schedulerName": "kai-scheduler", "containers": [
                    {"name": "c", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}}}]},
                "status": {"phase": "Pending"}}]}
    })
}

fn message(bytes: &[u8]) -> String {
    match load_bytes("in", bytes, &Options::default()) {
        Ok(loaded) => panic!("loaded: {loaded:?}"),
        Err(failure) => failure.to_string(),
    }
}

fn zipped(name: &str, text: &[u8]) -> Vec<u8> {
    zipped_all(&[(name, text)])
}

fn zipped_all(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, text) in files {
        zip.start_file(*name, SimpleFileOptions::default()).expect("an entry");
        zip.write_all(text).expect("text");
    }
    zip.finish().expect("a zip").into_inner()
}

/// A zip of two files called `snapshot.json`, which the writer refuses to make: the second is renamed afterwards.
fn twice_in_zip(text: &[u8]) -> Vec<u8> {
    let mut zip = zipped_all(&[("snapshot.json", text), ("snapshot.jsoN", b"{}")]);
    for at in 0..zip.len() - 13 {
        if &zip[at..at + 13] == b"snapshot.jsoN" {
            zip[at + 12] = b'n';
        }
    }
    zip
}

fn gzipped(text: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text).expect("text");
    gzip.finish().expect("a gzip")
}

#[test]
fn the_cluster_loads_from_every_wrapping() {
    let text = cluster().to_string().into_bytes();
    let plain = load_bytes("in", &text, &Options::default()).expect("right input");
    assert_eq!((plain.snapshot.nodes.len(), plain.snapshot.pods.len()), (1, 1));
    let with_mark = [b"\xef\xbb\xbf".as_slice(), &text].concat();
    for bytes in [gzipped(&text), zipped("snapshot.json", &text), zipped("dump/snapshot.json", &text), with_mark] {
        assert_eq!(load_bytes("in", &bytes, &Options::default()).as_ref(), Ok(&plain));
    }
}

#[test]
fn unreadable_inputs() {
    let text = cluster().to_string().into_bytes();
    let zip = zipped("snapshot.json", &text);
    let gzip = gzipped(&text);
    let deep = [vec![b'['; 200_000], vec![b']'; 200_000]].concat();
    let mut deep_config = br#"{"config": "#.to_vec();
    deep_config.extend(&deep);
    deep_config.push(b'}');
    for (what, bytes, part) in [
        ("empty file", vec![], "the file is empty"),
        ("only space", b" \n ".to_vec(), "the input is empty"),
        ("truncated zip", zip[..zip.len() / 2].to_vec(), "not a complete zip archive"),
        ("head of a zip", zip[..10].to_vec(), "not a complete zip archive"),
        ("zip without snapshot", zipped("other.json", &text), "no snapshot.json in the archive, which holds 1 file: other.json"),
        ("truncated gzip", gzip[..gzip.len() / 2].to_vec(), "not a complete gzip file"),
        ("truncated JSON", text[..text.len() - 10].to_vec(), "ends too early"),
        ("truncated JSON in a zip", zipped("snapshot.json", &text[..100]), "ends too early"),
        ("not JSON", b"{nodes: [}".to_vec(), "not JSON"),
        ("two snapshots", [text.clone(), text.clone()].concat(), "follow the snapshot"),
        ("other JSON", br#"{"a": 1}"#.to_vec(), "neither a snapshot"),
        ("a key twice", br#"{"now": null, "now": null}"#.to_vec(), "key now twice"),
        ("a list twice", br#"{"rawObjects": {"pods": [], "pods": []}}"#.to_vec(), "key rawObjects.pods twice"),
        ("objects outside rawObjects", br#"{"pods": []}"#.to_vec(), "key pods, ignored; expected inside rawObjects"),
        ("a list among documents", b"{\"kind\": \"Pod\"}[1]".to_vec(), "[1]: expected a Kubernetes object"),
        (
            "two snapshots in a zip",
            zipped_all(&[("a/snapshot.json", &text), ("b/snapshot.json", b"{}")]),
            "a/snapshot.json, b/snapshot.json",
        ),
        ("one name twice in a zip", twice_in_zip(&text), "several files of one name (snapshot.json)"),
        ("empty zip", zipped_all(&[]), "the archive, which is empty"),
        ("deep nesting", deep_config, "recursion limit"),
        ("UTF-16", vec![0xff, 0xfe, b'{', 0], "UTF-16"),
        ("not UTF-8", b"a: \xff\xfe\n".to_vec(), "line 1 is not UTF-8"),
        ("not UTF-8 in JSON", b"{\"config\": \"\xff\"}".to_vec(), "not UTF-8"),
        ("nothing but comments", b"# nothing\n---\n# here\n".to_vec(), "no Kubernetes object"),
    ] {
        let message = message(&bytes);
        assert!(message.starts_with("in: ") && message.contains(part), "{what}: {message}");
        assert!(message.ends_with("\n1 error in in") && message.lines().count() == 2, "{what}: {message}");
        assert!(message.len() < 400 && !message.contains("struct "), "{what}: {message}");
    }
}

/// A zip of one empty stored `snapshot.json` whose directory claims another size, in zip64 form.
fn zip_that_claims(bytes: u64) -> Vec<u8> {
    let name = b"snapshot.json";
    let extra: Vec<u8> = [1_u16.to_le_bytes(), 16_u16.to_le_bytes()].concat();
    let extra = [extra.as_slice(), &bytes.to_le_bytes(), &bytes.to_le_bytes()].concat();
    let lengths = |extra: usize| {
        [u16::try_from(name.len()).unwrap_or(0).to_le_bytes(), u16::try_from(extra).unwrap_or(0).to_le_bytes()].concat()
    };
    // Version, flags, method, time, date, checksum, then two sizes of 32 bits.
    let common = [&[45, 0][..], &[0; 12], &[0xff; 8]].concat();
    let local = [b"PK\x03\x04".as_slice(), &common, &lengths(extra.len()), name, &extra].concat();
    let central = [b"PK\x01\x02".as_slice(), &[45, 0], &common, &lengths(extra.len()), &[0; 14], name, &extra].concat();
    let size = |part: &[u8]| u32::try_from(part.len()).unwrap_or(0).to_le_bytes();
    let end = [b"PK\x05\x06".as_slice(), &[0, 0, 0, 0, 1, 0, 1, 0], &size(&central), &size(&local), &[0, 0]].concat();
    [local, central, end].concat()
}

#[test]
fn a_zip_that_claims_to_be_huge_is_refused_unread() {
    let message = message(&zip_that_claims(9 << 30));
    assert!(message.contains("snapshot.json would be 9663676416 bytes; at most 2 GiB are read"), "{message}");
}

#[test]
fn a_yaml_text_that_multiplies_aliases_is_refused() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let names: Vec<_> = std::iter::repeat_n(format!("*a{}", i - 1), 10).collect();
        text += &format!("a{i}: &a{i} [{}]\n", names.join(", "));
    }
    let message = message(text.as_bytes());
    assert!(message.contains("document 1 of in"), "{message}");
}

#[test]
fn deeply_nested_yaml_is_refused() {
    let flow = "[".repeat(300_000);
    let block: String = (0..3000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    let dashes = format!("{}x", "- ".repeat(50_000));
    for text in [flow, block, dashes] {
        let message = message(text.as_bytes());
        assert!(message.contains("document 1 of in") && message.len() < 1000, "{message}");
    }
}

#[test]
fn deep_values_inside_objects_are_read_on_any_thread() {
    // Enough pods that threads of the pool read them; each deep, and wrong elsewhere, so that it is decoded again with its path.
    let deep = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    for (levels, part) in [(110, "spec.hostNetwork: 5: expected true or false"), (500, "recursion limit")] {
        let pod = format!(r#"{{"metadata": {{"name": "p"}}, "spec": {{"hostNetwork": 5, "x": {}}}}}"#, deep(levels));
        let pods = vec![pod; 300].join(",");
        let message = message(format!(r#"{{"rawObjects": {{"pods": [{pods}]}}}}"#).as_bytes());
        assert!(message.contains(part), "{message}");
    }
    let yaml = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{hostNetwork: 5, x: {}}}\n---\n", deep(110));
    let message = message(yaml.repeat(300).as_bytes());
    assert!(message.contains("Pod p: spec.hostNetwork: 5: expected true or false"), "{message}");
}

/// Sets a field of the cluster and gives the lines of the failure.
fn lines_with(pointer: &str, value: Value) -> Vec<String> {
    let mut cluster = cluster();
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let key = key.replace("~1", "/");
    match cluster.pointer_mut(parent).unwrap_or_else(|| panic!("nothing at {parent}")) {
        Value::Array(items) => items.push(value),
        parent => parent[key.as_str()] = value,
    }
    let text = cluster.to_string();
    match load_bytes("s.json", text.as_bytes(), &Options::default()) {
        Ok(loaded) => panic!("{pointer}: loaded with {:?}", loaded.warnings),
        Err(Failure::Unreadable(message)) => panic!("{pointer}: {message}"),
        Err(failure) => {
            let lenient = load_bytes("s.json", text.as_bytes(), &Options { lenient: true, ..Options::default() });
            let lenient = lenient.unwrap_or_else(|failure| panic!("{pointer}: {failure}"));
            assert!(!lenient.warnings.is_empty(), "{pointer}");
            failure.to_string().lines().map(str::to_owned).collect()
        }
    }
}

/// Each change gives a line that begins like this, and a summary.
fn check_lines(cases: &[(&str, Value, &str)]) {
    for (pointer, value, line) in cases {
        let lines = lines_with(pointer, value.clone());
        assert!(lines.iter().any(|l| l.starts_with(line)), "{pointer}: expected {line}\ngot {lines:#?}");
        let count = lines.len() - 1;
        let summary = format!("{count} {} in s.json", if count == 1 { "error" } else { "errors" });
        assert_eq!(lines.last(), Some(&summary));
    }
}

#[test]
fn bad_fields_of_workloads_are_named_with_value_and_expectation() {
    check_lines(&[
        ("/rawObjects/podGroups/0/spec/minMember", json!("two"), r#"PodGroup ml/g: spec.minMember: "two": expected an integer"#),
        (
            "/rawObjects/podGroups/0/spec/minMember",
            json!(-3),
            "PodGroup ml/g: spec.minMember: -3: expected an integer of 0 or more",
        ),
        (
            "/rawObjects/podGroups/0/spec/minMember",
            json!(5_000_000_000_u64),
            "PodGroup ml/g: spec.minMember: 5000000000: expected an integer",
        ),
        (
            "/rawObjects/podGroups/0/spec/preemptibility",
            json!("maybe"),
            r#"PodGroup ml/g: spec.preemptibility: "maybe": expected preemptible or non-preemptible"#,
        ),
        ("/rawObjects/pods/0/metadata/labels", json!([]), "Pod ml/p: metadata.labels: []: expected an object"),
        (
            "/rawObjects/pods/0/metadata/creationTimestamp",
            json!("yesterday"),
            r#"Pod ml/p: metadata.creationTimestamp: "yesterday": expected a time such as 2026-01-01T00:00:00Z (RFC 3339)"#,
        ),
        ("/rawObjects/pods/0/spec/containers", json!("c"), r#"Pod ml/p: spec.containers: "c": expected a list"#),
        (
            "/rawObjects/pods/0/metadata/annotations/gpu-fraction",
            json!(0.5),
            "Pod ml/p: metadata.annotations.gpu-fraction: 0.5: expected a string",
        ),
        (
            "/rawObjects/pods/0/spec/containers/0/resources/requests/cpu",
            json!("-1"),
            r#"Pod ml/p: spec.containers[0].resources.requests.cpu: "-1": expected a quantity of 0 or more"#,
        ),
        (
            "/rawObjects/pods/0/spec/containers/0/resources/requests/cpu",
            json!(true),
            "Pod ml/p: spec.containers[0].resources.requests.cpu: true: expected a quantity such as 4, 500m, 1.5Gi or 2e3",
        ),
    ]);
}

#[test]
fn bad_fields_of_nodes_queues_and_settings_are_named() {
    check_lines(&[
        (
            "/rawObjects/nodes/0/status/allocatable/memory",
            json!("1e40"),
            r#"Node n1: status.allocatable.memory: "1e40": expected a quantity below 2^63 (about 9.2E)"#,
        ),
        ("/rawObjects/nodes/0/metadata/name", json!("N 1"), r#"Node N 1: metadata.name: "N 1": expected lower-case letters"#),
        ("/rawObjects/nodes/0/metadata/name", Value::Null, r#"Node #0: metadata.name: "": expected lower-case letters"#),
        ("/rawObjects/pods/0/metadata/name", Value::Null, r#"Pod ml/#0: metadata.name: "": expected lower-case letters"#),
        (
            "/rawObjects/queues/0/spec/resources/gpu/quota",
            json!("4"),
            r#"Queue root: spec.resources.gpu.quota: "4": expected a number"#,
        ),
        (
            "/rawObjects/queues/0/spec/resources/gpu/limit",
            json!(-2),
            "Queue root: spec.resources.gpu.limit: -2: expected a number of 0 or more, or -1 for no bound",
        ),
        (
            "/rawObjects/queues/0/spec/parentQueue",
            json!("team"),
            r#"Queue root: spec.parentQueue: "team": expected a queue that is not below this one"#,
        ),
        ("/now", json!("noon"), r#"now: "noon": expected a time"#),
        (
            "/config/actions",
            json!("alocate"),
            r#"config: actions: "alocate": expected one of allocate, consolidation, reclaim, preempt, stalegangeviction"#,
        ),
    ]);
}

#[test]
fn duplicates_are_named_once_and_the_oldest_stays() {
    let mut cluster = cluster();
    let mut twin = cluster["rawObjects"]["pods"][0].clone();
    twin["metadata"]["uid"] = json!("a");
    cluster["rawObjects"]["pods"].as_array_mut().expect("pods").push(twin);
    let text = cluster.to_string();
    let failure = load_bytes("s", text.as_bytes(), &Options::default()).expect_err("a duplicate").to_string();
    assert_eq!(failure, "Pod ml/p: metadata.name: \"p\": expected a name that no other Pod has\n1 error in s");
    let lenient = load_bytes("s", text.as_bytes(), &Options { lenient: true, ..Options::default() }).expect("lenient");
    assert_eq!((lenient.left_out, lenient.snapshot.pods.len()), (1, 1));
    assert_eq!(lenient.names.pod_uids.first().map(String::as_str), Some("a"));
}

#[test]
fn a_megabyte_of_text_in_any_string_gives_a_short_line() {
    let long = "x".repeat(1 << 20);
    for pointer in [
        "/rawObjects/nodes/0/metadata/name",
        "/rawObjects/nodes/0/metadata/labels/pool",
        "/rawObjects/pods/0/metadata/annotations/note",
        "/rawObjects/pods/0/metadata/namespace",
        "/rawObjects/pods/0/spec/containers/0/resources/requests/cpu",
        "/config/actions",
    ] {
        for line in lines_with(pointer, json!(long)) {
            assert!(line.len() < 1000, "{pointer}: {} bytes", line.len());
        }
    }
}

#[test]
fn a_lenient_reader_leaves_out_what_is_bad_and_keeps_the_rest() {
    let mut cluster = cluster();
    cluster["rawObjects"]["pods"].as_array_mut().expect("pods").push(json!({"metadata": {"name": 5}}));
    cluster["rawObjects"]["nodes"].as_array_mut().expect("nodes").push(json!("n2"));
    cluster["config"]["actions"] = json!("allocate, nothing");
    let loaded = load_bytes("s", cluster.to_string().as_bytes(), &Options { lenient: true, ..Options::default() });
    let loaded = loaded.expect("lenient");
    assert_eq!((loaded.left_out, loaded.warnings.len()), (2, 3), "{:?}", loaded.warnings);
    assert_eq!((loaded.snapshot.nodes.len(), loaded.snapshot.pods.len()), (1, 1));
}

/// Loads, and gives the warnings as lines.
fn warnings(bytes: &[u8]) -> Vec<String> {
    let loaded = load_bytes("in", bytes, &Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
    loaded.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn chains_of_queues_and_subgroups_of_any_length_load_at_once() {
    const LONG: usize = 20_000;
    let parent = |i: usize, last: Value| if i + 1 < LONG { json!(format!("q{}", i + 1)) } else { last };
    let spec = |i: usize, last: Value| json!({"parentQueue": parent(i, last), "resources": {}});
    let queue = |i: usize, last: Value| json!({"metadata": {"name": format!("q{i}")}, "spec": spec(i, last)});
    let queues = |last: &Value| (0..LONG).map(|i| queue(i, last.clone())).collect::<Vec<_>>();
    let started = std::time::Instant::now();
    let rooted = json!({"rawObjects": {"queues": queues(&Value::Null)}}).to_string();
    let loaded = load_bytes("in", rooted.as_bytes(), &Options::default()).expect("a chain");
    assert_eq!(loaded.snapshot.queues.len(), LONG);
    let cyclic = json!({"rawObjects": {"queues": queues(&json!("q0"))}}).to_string();
    assert!(message(cyclic.as_bytes()).ends_with("20000 errors in in"));
    let subgroups: Vec<Value> = (0..LONG).map(|i| json!({"name": format!("q{i}"), "parent": parent(i, Value::Null)})).collect();
    let group = json!({"metadata": {"name": "g"}, "spec": {"subGroups": subgroups}});
    let group = json!({"rawObjects": {"podGroups": [group]}}).to_string();
    assert_eq!(load_bytes("in", group.as_bytes(), &Options::default()).expect("a group").snapshot.subgroups.len(), LONG);
    // Walking up from each would be 600 million steps: minutes in this build.
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

#[test]
fn objects_written_as_lists_are_refused() {
    check_lines(&[
        ("/rawObjects/queues/-", json!([{"name": "x"}, {"parentQueue": "root"}]), "Queue #2: [{\"name\":\"x\"},"),
        ("/rawObjects/queues/-", json!([5]), "Queue #2: [5]: expected an object"),
        ("/rawObjects/queues/1/spec", json!(["team", "root"]), "Queue team: spec: [\"team\",\"root\"]: expected an object"),
        ("/rawObjects/pods/-", json!([]), "Pod #1: []: expected an object"),
    ]);
}

#[test]
fn wrong_types_of_lists_are_named_and_left_out() {
    check_lines(&[
        ("/rawObjects/configMaps", json!({}), "rawObjects: configMaps: {…}: expected a list of ConfigMap objects"),
        ("/rawObjects/bindRequests", json!("x"), "rawObjects: bindRequests: \"x\": expected a list of BindRequest objects"),
        ("/rawObjects/topologies", json!(-1.5), "rawObjects: topologies: -1.5e0: expected a list"),
        ("/rawObjects", json!([1, 2]), "rawObjects: […]: expected an object"),
        ("/rawObjects", json!(5), "rawObjects: 5: expected an object"),
    ]);
}

#[test]
fn misspelled_keys_and_empty_inputs_are_warned_about() {
    for (text, part) in [
        (r#"{"now": null, "config": {}, "rawObject": {}}"#, "unknown key \"rawObject\", ignored; did you mean rawObjects?"),
        (r#"{"rawObjects": {"Pods": []}}"#, "did you mean pods?"),
        (r#"{"rawObjects": {"things": []}}"#, "none of nodes, pods, queues and podGroups is there"),
        (r#"{"config": {}, "nodes": []}"#, "key nodes, ignored; expected inside rawObjects"),
        ("{}", "rawObjects: absent"),
        ("foo: bar", "manifests: kind: (no kind): no object of a kind that matters"),
        (r#"{"kind": "Deployment", "apiVersion": "apps/v1"}"#, "Deployment.apps: no object of a kind that matters"),
    ] {
        let lines = warnings(text.as_bytes());
        assert!(lines.iter().any(|line| line.contains(part)), "{text}: {lines:#?}");
    }
    let lines = warnings(cluster().to_string().as_bytes());
    assert!(!lines.iter().any(|line| line.contains("unknown") || line.contains("allocatable")), "{lines:#?}");
}

#[test]
fn lists_inside_lists_are_unfolded() {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let list = |items: Value| json!({"apiVersion": "v1", "kind": "List", "items": items});
    let nested = list(json!([list(json!([node]))])).to_string();
    let yaml = format!("---\n{nested}\n");
    for text in [&nested, &yaml] {
        let loaded = load_bytes("in", text.as_bytes(), &Options::default()).expect("a list");
        assert_eq!((loaded.snapshot.nodes.len(), loaded.skipped.len()), (1, 0), "{text}");
    }
    let deep = (0..50).fold(node, |inner, _| list(json!([inner])));
    let loaded = load_bytes("in", deep.to_string().as_bytes(), &Options::default()).expect("a list");
    assert_eq!(loaded.skipped, [("List".to_owned(), 1)]);
}

#[test]
fn yaml_documents_may_have_the_form_of_json() {
    let object = |name: &str| format!(r#"{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{name}"}}}}"#);
    let flow = "{apiVersion: v1, kind: Node, metadata: {name: c}}";
    for text in [
        format!("{}\n---\n{}\n---\n{flow}\n", object("a"), object("b")),
        format!("{flow}\n---\n{}\n---\n{}", object("a"), object("b")),
    ] {
        let loaded = load_bytes("in", text.as_bytes(), &Options::default()).expect("three documents");
        assert_eq!(loaded.snapshot.nodes.len(), 3, "{text}");
    }
}

#[test]
fn nodes_that_hold_too_much_are_warned_about_once() {
    let mut cluster = cluster();
    cluster["rawObjects"]["pods"][0]["spec"]["nodeName"] = json!("n1");
    cluster["rawObjects"]["pods"][0]["status"]["phase"] = json!("Running");
    for (gpus, expected) in [("8", 0), ("9", 1)] {
        let requests = &mut cluster["rawObjects"]["pods"][0]["spec"]["containers"][0]["resources"]["requests"];
        requests["nvidia.com/gpu"] = json!(gpus);
        let lines = warnings(cluster.to_string().as_bytes());
        let over = lines.iter().filter(|line| line.starts_with("Node: status.allocatable: n1 (GPUs): 1 node holds more"));
        assert_eq!(over.count(), expected, "{gpus}: {lines:#?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_load_or_fail_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = load_bytes("in", &bytes, &Options::default());
    }

    #[test]
    fn any_yaml_like_text_loads_or_fails(text in "[a-z:\\-\\[\\]{}&*!|>#%@\"' \n0-9.,?]{0,120}") {
        let _ = load_bytes("in", text.as_bytes(), &Options { lenient: true, ..Options::default() });
    }

    #[test]
    fn a_cluster_with_any_bytes_changed_loads_or_fails(changes in changes()) {
        let mut text = cluster().to_string().into_bytes();
        for (at, byte) in changes {
            let at = at.index(text.len());
            text[at] = byte;
        }
        let _ = load_bytes("in", &text, &Options { lenient: true, ..Options::default() });
    }

    #[test]
    fn a_zip_with_any_bytes_changed_loads_or_fails(changes in changes()) {
        let mut bytes = zipped("snapshot.json", cluster().to_string().as_bytes());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = load_bytes("in", &bytes, &Options::default());
    }

    #[test]
    fn a_cluster_with_any_value_in_any_place_loads_or_fails(at in any::<prop::sample::Index>(), pick in 0..12_usize) {
        let odd = [
            json!(null), json!(true), json!(-1), json!(1e308), json!(u64::MAX), json!(""), json!("\0"), json!("é/…"), json!([]),
            json!({}), json!("9999999999999999999999E"), json!([[{"a": []}]]),
        ];
        let mut cluster = cluster();
        let pointers = pointers(&cluster, String::new());
        let pointer = &pointers[at.index(pointers.len())];
        if let Some(place) = cluster.pointer_mut(pointer) {
            *place = odd[pick].clone();
        }
        let _ = load_bytes("in", cluster.to_string().as_bytes(), &Options { lenient: true, ..Options::default() });
    }
}

/// A few bytes to change: where, and to what.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)
}

/// Pointers to all values.
fn pointers(value: &Value, here: String) -> Vec<String> {
    let mut all = vec![here.clone()];
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                all.extend(pointers(inner, format!("{here}/{}", key.replace('~', "~0").replace('/', "~1"))));
            }
        }
        Value::Array(items) => {
            for (i, inner) in items.iter().enumerate() {
                all.extend(pointers(inner, format!("{here}/{i}")));
            }
        }
        _ => {}
    }
    all
}
