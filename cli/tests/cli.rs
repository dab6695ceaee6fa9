//! The binary as users meet it: output, exit codes, pipes. What a plan has to contain is tested in core and by the corpus.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The example of PLAN_CONTRACT.md.
const EXAMPLE: &str = include_str!("example.json");

fn muster(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    muster(args).stdin(Stdio::null()).output().expect("the binary starts")
}

/// With this on standard input.
fn run_with(args: &[&str], input: &[u8]) -> Output {
    let mut child =
        muster(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    // A command that fails early does not read all of it.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("the binary ends");
    writer.join().expect("the writer ends");
    output
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

#[track_caller]
fn good(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{}", err(output));
    out(output)
}

/// Exit code 2, nothing on standard output; returns standard error.
#[track_caller]
fn bad(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(2), "{}", err(output));
    assert_eq!(out(output), "");
    err(output)
}

/// A file of its own for a test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("muster-cli-{}-{name}", std::process::id())))
    }

    fn holding(name: &str, text: &str) -> Self {
        let scratch = Self::new(name);
        std::fs::write(&scratch.0, text).expect("the temporary folder is writable");
        scratch
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("valid JSON")
}

/// `(pod, node)` of one list.
fn pairs<'a>(plan: &'a Value, list: &str) -> Vec<(&'a str, &'a str)> {
    let entries = plan[list].as_array().expect("the list is there");
    entries.iter().map(|entry| (entry["pod"].as_str().expect("a pod"), entry["node"].as_str().expect("a node"))).collect()
}

#[test]
fn the_example_of_the_contract() {
    let output = run_with(&["plan", "-", "--actions", "allocate", "-o", "json", "--verify"], EXAMPLE.as_bytes());
    let plan = json(good(&output));
    // Both are of one priority and the node has one free GPU: the older name is served first.
    assert_eq!(pairs(&plan, "bound"), [("notebook-0", "n1")]);
    assert_eq!(plan["evicted"], json("[]"));
    assert_eq!(plan["resourceClaims"], json("[]"));
    let group = plan["bound"][0]["gpuGroups"][0].as_str().expect("a shared GPU has a name");
    assert_eq!((plan["bound"][0]["gpuGroups"].as_array().map(Vec::len), group.len()), (Some(1), 36));
    assert_eq!(plan["bound"][0]["action"], "allocate");
    assert!(plan["timing"]["loadMs"].is_number() && plan["timing"]["cycleMs"].is_number());
    assert!(plan["timing"]["actionsMs"]["allocate"].is_number());
    assert!(plan["timing"]["stagesMs"]["fairShare"].is_number(), "{}", plan["timing"]);
    let pending = &plan["pending"][0];
    assert_eq!((pending["podGroup"].as_str(), pending["pods"].as_u64()), (Some("train"), Some(1)));
    assert_eq!(pending["reasons"][0]["code"], "no-node");
    assert_eq!(plan["summary"]["gpusAllocated"], 1.5);
    assert_eq!(plan["summary"]["gpusAllocatedPercent"], 75.0);
}

#[test]
fn an_eviction_says_for_whom_and_why() {
    let output = run_with(&["plan", "-", "--actions", "allocate,preempt", "-o", "json", "--verify"], EXAMPLE.as_bytes());
    let plan = json(good(&output));
    assert_eq!(pairs(&plan, "evicted"), [("old-0", "n1")]);
    assert_eq!(pairs(&plan, "pipelined"), [("train-0", "n1")]);
    let evicted = &plan["evicted"][0];
    assert_eq!(evicted["for"], json(r#"{"namespace": "ml", "podGroup": "train"}"#));
    let rule = &evicted["rule"];
    assert_eq!(
        (&rule["code"], &rule["priority"], &rule["askerPriority"]),
        (&json(r#""lower-priority""#), &json("50"), &json("75"))
    );
    assert_eq!(
        (&evicted["movesTo"], &plan["pipelined"][0]["movesFrom"], &plan["bound"][0]["for"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let mut batch = plan["batches"][0].clone();
    assert!(batch["tries"].take().as_u64().is_some_and(|tries| tries > 0), "{batch}");
    let expected = r#"{"for": {"namespace": "ml", "podGroup": "train"}, "queue": "team", "action": "preempt", "placed": 1,
        "evicted": 1, "moved": 0, "atLeast": 1, "tries": null}"#;
    assert_eq!(batch, json(expected));
    let summary = ["podsEvicted", "podsMoved", "evictionsForGangs", "evictionsAtLeast", "evictionsAboveBound"];
    assert_eq!(summary.map(|key| plan["summary"][key].as_u64()), [Some(1), Some(0), Some(1), Some(1), Some(0)]);
    let output = run_with(&["plan", "-", "--actions", "allocate,preempt"], EXAMPLE.as_bytes());
    let part = "\nEvictions: 1 pod leaves for 1 gang\n  at least 1 of 1 had to, by counting: 0 above that bound\n  \
                pod       node  for       rule\n  ml/old-0  n1    ml/train  priority 50 < 75\n";
    assert!(good(&output).contains(part), "{}", out(&output));
    let explain = |gang: &str| run_with(&["explain", "-", gang, "--actions", "allocate,preempt"], EXAMPLE.as_bytes());
    let output = explain("old");
    assert!(good(&output).contains("  - old-0 is told to leave n1 for ml/train: Its priority is 50,"), "{}", out(&output));
    let output = explain("train");
    assert!(
        good(&output).contains("preempt: 1 pod placed for 1 evicted and 0 moved; at least 1 had to leave"),
        "{}",
        out(&output)
    );
}

/// Two half-full nodes and a pod that needs a whole one.
const FRAGMENTS: &str = r#"{"now": "2026-01-01T00:00:00Z", "rawObjects": {
 "nodes": [NODE(n1), NODE(n2)],
 "queues": [{"metadata": {"name": "q"}, "spec": {"resources": {"gpu": {"quota": -1, "limit": -1},
    "cpu": {"quota": -1, "limit": -1}, "memory": {"quota": -1, "limit": -1}}}}],
 "podGroups": [{"metadata": {"name": "a", "namespace": "ml"}, "spec": {"queue": "q", "minMember": 1}},
    {"metadata": {"name": "b", "namespace": "ml"}, "spec": {"queue": "q", "minMember": 1}},
    {"metadata": {"name": "large", "namespace": "ml"}, "spec": {"queue": "q", "minMember": 1}}],
 "pods": [POD(a, 1, n1), POD(b, 1, n2), POD(large, 2, )]}}"#;

fn fragments() -> String {
    let mut text = FRAGMENTS.to_owned();
    for node in ["n1", "n2"] {
        let object = format!(
            r#"{{"metadata": {{"name": "{node}"}}, "status": {{"allocatable": {{"cpu": "16", "memory": "64Gi",
            "nvidia.com/gpu": "2",            "pods": "110"}}, "conditions": [{{"type": "Ready", "status": "True"}}]}}}}"#
        );
        text = text.replace(&format!("NODE({node})"), &object);
    }
    for (gang, gpus, node) in [("a", 1, "n1"), ("b", 1, "n2"), ("large", 2, "")] {
        let (place, phase) =
            if node.is_empty() { (String::new(), "Pending") } else { (format!(r#""nodeName": "{node}","#), "Running") };
        let object = format!(
            r#"{{"metadata": {{"name": "{gang}-0", "namespace": "ml", "uid": "{gang}",
            "annotations": {{"pod-group-name": "{gang}"}}}},
            "spec": {{{place} "containers": [{{"name": "c", "resources": {{"requests": {{"nvidia.com/gpu": "{gpus}"}}}}}}]}},
            "status": {{"phase": "{phase}"}}}}"#
        );
        text = text.replace(&format!("POD({gang}, {gpus}, {node})"), &object);
    }
    text
}

#[test]
fn a_pod_that_moves_says_from_where_and_where_to() {
    let input = fragments();
    let output = run_with(&["plan", "-", "-o", "json", "--verify"], input.as_bytes());
    let plan = json(good(&output));
    assert_eq!(pairs(&plan, "evicted"), [("b-0", "n2")]);
    assert_eq!((&plan["evicted"][0]["movesTo"], &plan["evicted"][0]["rule"]["code"]), (&json(r#""n1""#), &json(r#""moves""#)));
    let moved = plan["pipelined"].as_array().expect("a list").iter().find(|entry| entry["pod"] == "b-0").expect("it moves");
    assert_eq!((&moved["node"], &moved["movesFrom"]), (&json(r#""n1""#), &json(r#""n2""#)));
    assert_eq!(plan["summary"]["podsMoved"], 1);
    let output = run_with(&["plan", "-"], input.as_bytes());
    let text = good(&output);
    assert!(text.contains("Evictions: 1 pod leaves for 1 gang, 1 of them to another place\n"), "{text}");
    assert!(text.contains("  ml/b-0  n2    ml/large  moves to n1\n"), "{text}");
    assert!(text.contains("Decisions: 1 pod of 1 gang start once others have left\n  ml/large"), "{text}");
    assert!(good(&run_with(&["explain", "-", "b"], input.as_bytes())).contains("b-0 gets n1 in a later cycle"));
}

#[test]
fn the_eviction_brake_holds() {
    let input = fragments();
    for option in ["--max-evictions", "--max-evictions-per-queue"] {
        let output = run_with(&["plan", "-", "-o", "json", option, "0"], input.as_bytes());
        let plan = json(good(&output));
        assert_eq!((&plan["evicted"], &plan["batches"]), (&json("[]"), &json("[]")));
        let reasons = plan["pending"][0]["reasons"].as_array().expect("a list");
        let brake = reasons.iter().find(|reason| reason["code"] == "consolidation-brake").expect("the brake is a reason");
        assert_eq!((&brake["max"], &brake["needed"]), (&json("0"), &json("1")));
        assert!(brake["advice"].as_str().is_some_and(|advice| advice.contains(&format!("({option} 1 or more)"))), "{brake}");
        assert!(good(&run_with(&["plan", "-", option, "0"], input.as_bytes())).contains("the eviction brake holds"));
        let output = run_with(&["plan", "-", option, "-1"], input.as_bytes());
        assert!(bad(&output).contains(&format!("'-1' for '{option} <N>'")), "{}", err(&output));
    }
    // The command line stands in for what the snapshot says.
    let own = input.replacen('{', r#"{"schedulerParams": {"muster": {"maxEvictions": 0}}, "#, 1);
    let evicted = |args: &[&str]| pairs(&json(good(&run_with(args, own.as_bytes()))), "evicted").len();
    assert_eq!(evicted(&["plan", "-", "-o", "json"]), 0);
    assert_eq!(evicted(&["plan", "-", "-o", "json", "--max-evictions", "1"]), 1);
}

#[test]
fn the_same_input_gives_the_same_plan() {
    let input = run(&["generate", "--nodes", "20", "--pending", "150", "--actions", "allocate", "-o", "-"]);
    let plan = |threads: &str| {
        let output = run_with(&["plan", "-", "-o", "json", "--verify", "--threads", threads], &input.stdout);
        let mut plan = json(good(&output));
        plan["timing"].take();
        plan
    };
    let first = plan("1");
    assert_eq!(first, plan("1"));
    assert_eq!(first, plan("3"));
    assert_ne!(pairs(&first, "bound"), []);
}

#[test]
fn the_readable_plan_fits_80_columns() {
    let all = "allocate,consolidation,reclaim,preempt,stalegangeviction";
    let generate =
        ["generate", "--nodes", "20", "--pending", "300", "--seed", "3", "--fill", "0.95", "--actions", all, "-o", "-"];
    let input = run(&generate);
    for args in [
        &["plan", "-", "--actions", "allocate"][..],
        &["plan", "-"],
        &["plan", "-", "--all", "--resources", "all"],
        &["explain", "-"],
    ] {
        let output = run_with(args, &input.stdout);
        let text = good(&output);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
        assert!(text.contains("jobs/job-"), "{text}");
        assert_eq!(err(&output), "");
    }
}

#[test]
fn the_readable_plan_has_all_its_parts() {
    let output = run_with(&["plan", "-", "--actions", "allocate"], EXAMPLE.as_bytes());
    let text = good(&output);
    for part in [
        "Cluster: 1 node, 2 queues, 3 gangs, 3 pods\n",
        "Decisions: 1 pod of 1 gang start now\n  ml/notebook  1 pod → n1\n",
        "Queues (GPUs)                 quota      limit fair share       held     wanted\n",
        "\n  team                            2          -",
        "Pending: 1 pod of 1 gang\n       1  A pod found no node: 1 node has too few free GPUs.\n          (ml/train)\n",
        "GPUs: 1.5 of 2 held (75.0 %), 1 (50.0 %) before\n",
        "Time\n  load",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn a_gang_is_explained() {
    let explain = |gang: &str| run_with(&["explain", "-", gang, "--actions", "allocate"], EXAMPLE.as_bytes());
    let output = explain("ml/train");
    let text = good(&output);
    assert!(text.contains("Pod ml/train-0 found no node: 1 node has too few free GPUs; nearest is n1"), "{text}");
    assert!(text.contains("What helps: Free 1 GPU on n1, or add a node with 1 GPU."), "{text}");
    assert!(good(&explain("notebook")).contains("1 pod placed in this cycle: n1 (1)"));
    assert!(good(&explain("old")).contains("1 pod already on a node: n1 (1)"));
    let output = explain("ml/trian");
    assert_eq!(bad(&output), "PodGroup ml/trian: not in this snapshot; did you mean ml/train?\n1 error in standard input\n");
}

#[test]
fn a_promised_gang_names_what_has_to_leave() {
    let leaving = EXAMPLE.replace(
        r#""annotations": {"pod-group-name": "old"}"#,
        r#""deletionTimestamp": "2025-12-31T23:59:59Z", "annotations": {"pod-group-name": "old"}"#,
    );
    assert_ne!(leaving, EXAMPLE);
    let output = run_with(&["explain", "-", "ml/train", "--actions", "allocate"], leaving.as_bytes());
    assert!(good(&output).contains("train-0 gets n1 once this has left it: ml/old-0"), "{}", out(&output));
}

#[test]
fn bad_input_is_refused_line_by_line() {
    let wrong = EXAMPLE.replacen(r#""minMember": 1"#, r#""minMember": "two""#, 1);
    let output = run_with(&["plan", "-", "--actions", "alocate"], wrong.as_bytes());
    let lines: Vec<&str> = bad(&output).lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with(r#"PodGroup ml/old: spec.minMember: "two": expected "#)), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(r#""alocate": expected "#)), "{lines:?}");
    assert!(lines[2].starts_with("2 errors in "), "{lines:?}");
    let output = run_with(&["plan", "-", "--lenient", "-o", "json", "--actions", "allocate"], wrong.as_bytes());
    assert_eq!(pairs(&json(good(&output)), "bound"), [("notebook-0", "n1")]);
    assert!(err(&output).contains("left out"), "{}", err(&output));
}

#[test]
fn what_cannot_be_read_is_one_message_and_a_summary() {
    let empty = Scratch::holding("empty.json", "");
    let cut = Scratch::holding("cut.zip", "PK\u{3}\u{4}rest");
    for path in ["/no/such/file.json", empty.path(), cut.path()] {
        let output = run(&["plan", path, "-o", "json"]);
        let message = bad(&output);
        assert!(message.contains(Path::new(path).file_name().and_then(|name| name.to_str()).expect("a name")), "{message}");
        assert_eq!(message.lines().count(), 2, "{message}");
        assert_eq!(message.lines().last(), Some(format!("1 error in {path}").as_str()));
    }
    bad(&run_with(&["plan", "-"], b"{\"rawObjects\": {"));
}

#[test]
fn a_bad_command_line_is_refused() {
    for args in [
        &["plan"][..],
        &["plan", "-", "--now", "yesterday"],
        &["plan", "-", "-o", "yaml"],
        &["plan", "-", "--threads", "0"],
        &["generate", "--fill", "2", "-o", "-"],
        &["generate", "--mix", "whales=1", "-o", "-"],
        &["nonsense"],
    ] {
        assert_ne!(bad(&run(args)), "", "{args:?}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let input = run(&["generate", "--nodes", "200", "--pending", "2000", "-o", "-"]).stdout;
    let snapshot = Scratch::new("pipe.json");
    std::fs::write(&snapshot.0, &input).expect("the temporary folder is writable");
    for args in [
        &["plan", snapshot.path(), "--all", "--actions", "allocate"][..],
        &["plan", snapshot.path(), "-o", "json", "--actions", "allocate"],
        &["generate", "--nodes", "2000", "-o", "-"],
    ] {
        let mut child = muster(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut stdout = child.stdout.take().expect("piped");
        stdout.read_exact(&mut [0; 10]).expect("there is output");
        drop(stdout);
        let output = child.wait_with_output().expect("the binary ends");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", err(&output));
        assert!(!err(&output).contains("panicked"), "{}", err(&output));
    }
}

#[test]
fn a_file_that_cannot_be_written_is_exit_code_1() {
    let output = run(&["generate", "--nodes", "1", "-o", "/no/such/folder/cluster.zip"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).starts_with("/no/such/folder/cluster.zip: cannot be written: "), "{}", err(&output));
}

#[test]
fn generated_files_of_every_format_hold_the_same_cluster() {
    let args = ["generate", "--nodes", "5", "--pending", "20", "--actions", "allocate", "-o"];
    let plain = run(&[&args[..], &["-"]].concat());
    assert_eq!(good(&run(&[&args[..], &["-"]].concat())), good(&plain));
    let mut plans = Vec::new();
    for name in ["same.zip", "same.json.gz", "same.json"] {
        let file = Scratch::new(name);
        good(&run(&[&args[..], &[file.path()]].concat()));
        let again = Scratch::new(&format!("again-{name}"));
        good(&run(&[&args[..], &[again.path()]].concat()));
        assert_eq!(std::fs::read(&file.0).ok(), std::fs::read(&again.0).ok(), "{name} is the same each time");
        plans.push(pairs(&json(good(&run(&["plan", file.path(), "-o", "json"]))), "bound").len());
    }
    plans.push(pairs(&json(good(&run_with(&["plan", "-", "-o", "json"], &plain.stdout))), "bound").len());
    assert!(plans[0] > 0 && plans.iter().all(|&bound| bound == plans[0]), "{plans:?}");
}

const NODES: &str = "\
sn,cpu_milli,memory_mib,gpu,model
n0,64000,262144,2,T4
n1,96000,786432,8,G2
n2,32000,131072,0,
";
const PODS: &str = "\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,1000,,LS,Running,0,1,0
p1,6000,12288,1,460,G2|T4,Burstable,Running,0,1,0
p2,8000,30517,0,0,,BE,Running,0,1,0
p3,64000,262144,8,1000,G2,Guaranteed,Running,0,1,0
p4,1000,1024,1,500,P100,,Failed,0,1,0
";

fn import(nodes: &str, pods: &str, more: &[&str]) -> Output {
    // Tests run at the same time: the name is that of the content.
    let unique = |text: &str| text.bytes().fold(7_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let name = format!("{}-{}-{}", unique(nodes), unique(pods), unique(&more.concat()));
    let nodes = Scratch::holding(&format!("{name}-nodes.csv"), nodes);
    let pods = Scratch::holding(&format!("{name}-pods.csv"), pods);
    run(&[&["import", "openb", "--nodes", nodes.path(), "--pods", pods.path(), "-o", "-"], more].concat())
}

#[test]
fn an_openb_trace_becomes_a_snapshot() {
    let output = import(NODES, PODS, &[]);
    let snapshot = json(good(&output));
    assert!(err(&output).contains("3 nodes, 10 GPUs; 5 pods (0 of them copies) ask for 9.96 GPUs"), "{}", err(&output));
    let raw = &snapshot["rawObjects"];
    let nodes: Vec<Value> = ["nvidia.com/gpu.count", "nvidia.com/gpu.memory", "muster.dev/gpu-model"]
        .iter()
        .map(|&label| (0..3).map(|i| raw["nodes"][i]["metadata"]["labels"][label].clone()).collect())
        .collect();
    assert_eq!(nodes, [json(r#"["2","8",null]"#), json(r#"["16384",null,null]"#), json(r#"["T4","G2",null]"#)]);
    let requests = |i: usize| &raw["pods"][i]["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(requests(0)["nvidia.com/gpu"], "1");
    assert_eq!(requests(1)["nvidia.com/gpu"], Value::Null);
    assert_eq!(raw["pods"][1]["metadata"]["annotations"]["gpu-fraction"], "0.46");
    assert_eq!((&requests(2)["cpu"], &requests(2)["memory"]), (&json(r#""8""#), &json(r#""30517Mi""#)));
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let expected = r#"[{"matchExpressions": [{"key": "muster.dev/gpu-model", "operator": "In", "values": ["G2", "T4"]}]}]"#;
    assert_eq!(raw["pods"][1].pointer(terms), Some(&json(expected)));
    assert_eq!(raw["pods"][0].pointer(terms), None);
    let classes: Value = (0..5).map(|i| raw["podGroups"][i]["spec"]["priorityClassName"].clone()).collect();
    assert_eq!(classes, json(r#"["ls", "burstable", "be", "guaranteed", null]"#));
    let values = |snapshot: &Value| -> Vec<i64> {
        (0..4).filter_map(|i| snapshot["rawObjects"]["priorityClasses"][i]["value"].as_i64()).collect()
    };
    assert_eq!(values(&snapshot), [50; 4]);
    assert_eq!(values(&json(good(&import(NODES, PODS, &["--rank-by-qos"])))), [90, 75, 60, 50]);
    let plan = run_with(&["plan", "-", "-o", "json", "--actions", "allocate", "--verify"], &output.stdout);
    let plan = json(good(&plan));
    let mut bound = pairs(&plan, "bound");
    bound.sort_unstable();
    bound.retain(|&(pod, _)| pod != "p2"); // Asks for no GPU: may be anywhere.
    assert_eq!(bound, [("p0", "n0"), ("p1", "n0"), ("p3", "n1")]);
    assert_eq!(plan["summary"]["podsBound"], 4);
    assert_eq!(plan["pending"][0]["podGroup"], "p4");
    assert_eq!(plan["summary"]["gpusAllocatedPercent"], 94.6);
}

/// Names of the pods in order of creation.
fn arrival(output: &Output) -> Vec<String> {
    let snapshot = json(good(output));
    let pods = snapshot["rawObjects"]["pods"].as_array().expect("pods").clone();
    let times: Vec<String> = pods.iter().map(|pod| pod["metadata"]["creationTimestamp"].to_string()).collect();
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_seed_shuffles_and_tune_appends() {
    let in_order = arrival(&import(NODES, PODS, &[]));
    assert_eq!(in_order, ["p0", "p1", "p2", "p3", "p4"]);
    let shuffled = arrival(&import(NODES, PODS, &["--seed", "7"]));
    assert_eq!(shuffled, arrival(&import(NODES, PODS, &["--seed", "7"])));
    assert_ne!(shuffled, in_order);
    let mut sorted = shuffled;
    sorted.sort();
    assert_eq!(sorted, in_order);
    let tuned = arrival(&import(NODES, PODS, &["--tune", "3"]));
    assert_eq!(tuned[..5], in_order);
    assert!(tuned.len() > 5 && tuned[5..].iter().all(|name| name.contains("-copy-")), "{tuned:?}");
    let output = import(NODES, PODS, &["--tune", "0.5"]);
    assert!(bad(&output).starts_with("--tune: 0.5: expected at least 0.996"), "{}", err(&output));
}

#[test]
fn bad_csv_is_refused_by_line() {
    let pods = PODS.replace("p1,6000,", "p1,six,").replace(",BE,", ",ZZ,").replace("p3,", "p0,").replace(",1,500,", ",0,500,");
    let output = import(NODES, &pods, &[]);
    let lines: Vec<&str> = bad(&output).lines().map(|line| line.split_once("pods.csv").map_or(line, |(_, rest)| rest)).collect();
    assert_eq!(
        lines,
        [
            r#": line 3: cpu_milli: "six": expected an integer from 0 to 1000000000"#,
            r#": line 4: qos: "ZZ": expected one of Guaranteed, LS, Burstable, BE, or nothing"#,
            r#": line 5: name: "p0": expected a name that no other line has"#,
            r#": line 6: gpu_milli: "500": expected 0 where num_gpu is 0"#,
            "",
        ]
    );
    assert!(err(&output).lines().last().is_some_and(|line| line.starts_with("4 errors in ")));
    let output = import("sn,cpu_milli,memory_mib,gpu\nn0,1,1\n", PODS, &[]);
    assert!(bad(&output).contains("line 2: 3 cells: expected 4, as in line 1"), "{}", err(&output));
    let output = import("sn,cpu\nn0,1\n", PODS, &[]);
    assert!(bad(&output).contains("expected the columns cpu_milli, memory_mib, gpu as well"), "{}", err(&output));
}

#[test]
fn the_demo_runs() {
    let output = run(&["demo", "--nodes", "50"]);
    let text = good(&output);
    for part in ["Generated: 50 nodes, 400 GPUs", "Decisions: ", "Queues (GPUs)", "Pending: ", "Time\n", "\nNext: "] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(text.lines().count() < 90, "{text}");
    assert!(!text.contains("--all,") && !text.contains("see --all"), "{text}");
    for line in good(&run(&["demo", "--nodes", "1250"])).lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn help_shows_examples_and_exit_codes() {
    let commands = ["plan", "explain", "generate", "import", "demo", "completions"].map(|command| vec![command, "--help"]);
    for command in commands.iter().chain(&[vec!["--help"], vec!["import", "openb", "--help"]]) {
        let output = run(command);
        let text = good(&output);
        assert!(text.contains("Examples:\n  muster ") && text.contains("Exit codes:\n  0  "), "{text}");
    }
    let output = run(&["--version"]);
    assert!(good(&output).starts_with(concat!("muster ", env!("CARGO_PKG_VERSION"), " (vectors: ")), "{}", out(&output));
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert!(good(&output).contains("generate"), "{shell}");
    }
}

/// The commands that the demo suggests give the cluster that it showed.
#[test]
fn the_demo_can_be_kept() {
    let output = run(&["demo", "--nodes", "50"]);
    let text = good(&output);
    let (_, next) = text.split_once("  muster generate ").expect("a command");
    let (command, _) = next.split_once(" -o cluster.zip").expect("a file");
    let options: Vec<&str> = command.split_whitespace().filter(|&word| word != "\\").collect();
    let snapshot = run(&[&["generate"][..], &options].concat());
    let plan = run_with(&["plan", "-"], &snapshot.stdout);
    let line = |text: &str, start: &str| text.lines().find(|line| line.starts_with(start)).map(str::to_owned);
    for start in ["Cluster: ", "Decisions: ", "Pending: ", "GPUs: "] {
        let shown = line(text, start);
        assert!(shown.is_some());
        assert_eq!(shown, line(good(&plan), start));
    }
}

#[test]
fn wrong_options_are_named() {
    for (option, value) in [("--nodes", "-1"), ("--seed", "-1"), ("--fill", "-0.1")] {
        let output = run(&["generate", option, value]);
        let text = bad(&output);
        assert!(text.contains(value) && text.contains(option.trim_start_matches('-')), "{text}");
        assert!(!text.contains("unexpected argument"), "{text}");
    }
    assert!(bad(&run(&["plan", "-", "--now", "-1"])).contains("'-1' for '--now"));
    let output = run(&["generate", "--nodes", "1", "--actions", "allocate,foo"]);
    assert!(bad(&output).starts_with(r#"--actions: "foo": expected one or more of allocate, "#), "{}", err(&output));
}

#[test]
fn names_cannot_steer_the_terminal() {
    let odd = EXAMPLE.replace(r#""name": "train""#, r#""name": "tr\u001b[31m\u202e\u009bain""#);
    assert_ne!(odd, EXAMPLE);
    for args in [&["plan", "-", "--all", "--lenient"][..], &["explain", "-", "--lenient"], &["explain", "-", "x", "--lenient"]] {
        let output = run_with(args, odd.as_bytes());
        for text in [out(&output), err(&output)] {
            assert!(!text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{text:?}");
        }
    }
}

#[cfg(unix)]
mod files {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use super::*;

    fn generate(path: &str) -> Output {
        run(&["generate", "--nodes", "2", "--pending", "3", "--actions", "allocate", "-o", path])
    }

    #[test]
    fn links_are_followed_and_modes_kept() {
        let file = Scratch::holding("kept.json", "old");
        std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o600)).expect("our own file");
        let link = Scratch::new("link.json");
        symlink(&file.0, &link.0).expect("the temporary folder is writable");
        let neighbour = Scratch::holding("kept.json.partial", "not ours");
        good(&generate(link.path()));
        assert!(link.0.symlink_metadata().expect("there").is_symlink());
        assert_eq!(file.0.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        assert!(std::fs::read_to_string(&file.0).expect("text").starts_with('{'));
        assert_eq!(std::fs::read_to_string(&neighbour.0).expect("text"), "not ours");
        let target = Scratch::new("later.json");
        let dangling = Scratch::new("dangling.json");
        symlink(&target.0, &dangling.0).expect("the temporary folder is writable");
        good(&generate(dangling.path()));
        assert!(dangling.0.symlink_metadata().expect("there").is_symlink() && target.0.is_file());
    }

    #[test]
    fn a_pipe_is_written_to_and_stays_a_pipe() {
        for name in ["fifo.json", "fifo.zip", "fifo.json.gz"] {
            let pipe = Scratch::new(name);
            assert!(Command::new("mkfifo").arg(&pipe.0).status().expect("mkfifo is there").success());
            let path = pipe.0.clone();
            let reader = std::thread::spawn(move || std::fs::read(path).expect("readable"));
            good(&generate(pipe.path()));
            assert!(pipe.0.symlink_metadata().expect("there").file_type().is_fifo());
            let bytes = reader.join().expect("the reader ends");
            let copy = Scratch::new(&format!("copy-{name}"));
            std::fs::write(&copy.0, bytes).expect("the temporary folder is writable");
            assert!(good(&run(&["plan", copy.path()])).starts_with("Cluster: 2 nodes"));
        }
    }
}
