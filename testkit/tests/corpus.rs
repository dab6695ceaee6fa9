//! The scenario corpus beside the repository, in Rust: what `check_corpus.py` asks of the binary, asked of the crates.
//!
//! Where the folder is not there (a clone by itself), this says so and passes; the repository's own scenarios are in
//! `scenarios.rs`. `MUSTER_CORPUS` names another folder. The format is the corpus' SCHEMA.md.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use muster_api::names::ObjectName;
use muster_api::read::Options;
use muster_core::index::PodIdx;
use muster_core::outcome::DecisionKind;
use muster_core::snapshot::{GpuRequest, PodStatus};
use muster_testkit::check::check;
use muster_testkit::session::{PodAtEnd, Session};
use serde_json::{Map, Value, json};

/// Tags of what later versions decide.
const NOT_YET: [&str; 9] =
    ["reclaim", "preempt", "consolidation", "stalegang", "topology", "dra", "numa", "volumes", "podaffinity"];
/// Levels of the reference's agreement with itself, finest first.
const LEVELS: [&str; 5] = ["gpuGroups", "nodes", "pods", "perJob", "counts"];
const GROUP_LABEL: &str = "runai-gpu-group";
const LAST_START: &str = "kai.scheduler/last-start-timestamp";

#[test]
fn visible_scenarios_of_allocate_come_out_as_stated() {
    let Some(files) = files("visible") else { return };
    let (mut selected, mut busy, mut failed) = (0, 0, Vec::new());
    for path in files {
        let scenario = read(&path);
        if !is_selected(&scenario) {
            continue;
        }
        selected += 1;
        match catch_unwind(AssertUnwindSafe(|| judge(&scenario))) {
            Ok(Ok(decided)) => busy += usize::from(decided),
            Ok(Err(differences)) => failed.push(format!("{}: {}", id(&scenario), differences.join("\n    "))),
            Err(_) => failed.push(format!("{}: panic", id(&scenario))),
        }
    }
    println!("corpus: {} of {selected} scenarios pass, {busy} of them decide something", selected - failed.len());
    assert!(failed.is_empty(), "{} of {selected} scenarios fail:\n{}", failed.len(), failed.join("\n"));
    assert!(busy > 0, "a corpus in which nothing is decided shows nothing");
}

/// Whatever a scenario is about: no panic, and no rule broken by what is decided.
#[test]
fn every_scenario_keeps_the_rules() {
    for folder in ["visible", "random", "derived"] {
        let mut wrong = Vec::new();
        for path in files(folder).unwrap_or_default() {
            let scenario = read(&path);
            let run = || session(&scenario, &scenario["rawObjects"], 0, None);
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(session)) => wrong.extend(broken(&session).into_iter().map(|w| format!("{}: {w}", id(&scenario)))),
                Ok(Err(message)) => wrong.push(format!("{}: {message}", id(&scenario))),
                Err(_) => wrong.push(format!("{}: panic", id(&scenario))),
            }
        }
        assert!(wrong.is_empty(), "{folder}:\n{}", wrong.join("\n"));
    }
}

/// The scenarios of a folder, sorted; `None`, said aloud, if the corpus is not there.
fn files(folder: &str) -> Option<Vec<PathBuf>> {
    let corpus = std::env::var_os("MUSTER_CORPUS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus"), PathBuf::from);
    let Ok(entries) = std::fs::read_dir(corpus.join(folder)) else {
        eprintln!("\n*** NOT TESTED: no corpus at {} (MUSTER_CORPUS names another place) ***\n", corpus.join(folder).display());
        return None;
    };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    Some(files)
}

fn read(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn id(scenario: &Value) -> &str {
    scenario["id"].as_str().unwrap_or("?")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn map(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    list(value).iter().filter_map(Value::as_str)
}

fn is_selected(scenario: &Value) -> bool {
    strings(&scenario["tags"]).all(|tag| !NOT_YET.contains(&tag))
}

/// One session on these objects; `actions`: those of the scenario unless others are given.
fn session(scenario: &Value, raw: &Value, round: usize, actions: Option<Vec<String>>) -> Result<Session, String> {
    let mut snapshot = Map::new();
    for key in ["config", "schedulerParams", "discovery", "now"] {
        if let Some(value) = scenario.get(key) {
            snapshot.insert(key.into(), value.clone());
        }
    }
    snapshot.insert("rawObjects".into(), raw.clone());
    let bytes = Value::Object(snapshot).to_string();
    let stated = || strings(&scenario["expect"]["actions"]).map(str::to_owned).collect();
    let options = Options { actions: Some(actions.unwrap_or_else(stated)), ..Options::default() };
    Session::run(id(scenario), bytes.as_bytes(), &options, round).map_err(|failure| failure.to_string())
}

/// Rules that a session breaks.
fn broken(session: &Session) -> Vec<String> {
    check(&session.loaded.snapshot, &session.outcome)
}

/// Runs a scenario and compares; whether anything was decided.
fn judge(scenario: &Value) -> Result<bool, Vec<String>> {
    let expect = &scenario["expect"];
    let stated = ["jobs", "pods", "nodes"].iter().any(|key| map(&expect[key]).next().is_some());
    let number = |key: &str| usize::try_from(expect[key].as_u64().unwrap_or(0)).expect("a few rounds");
    let one = expect["mode"] == "session";
    let mut raw = scenario["rawObjects"].clone();
    let mut sessions: Vec<Session> = Vec::new();
    let mut differences = Vec::new();
    let compare = |session: &Session, differences: &mut Vec<String>| {
        if stated {
            differences.extend(compare_expect(expect, session));
        }
    };
    for round in 0..if one { 1 } else { number("rounds") + number("roundsAfter") } {
        if !one && round == number("rounds") {
            let reading = session(scenario, &raw, round, Some(Vec::new())).map_err(|message| vec![message])?;
            compare(&reading, &mut differences);
        }
        let session = session(scenario, &raw, round, None).map_err(|message| vec![message])?;
        differences.extend(broken(&session));
        if one || round >= number("rounds") {
            compare(&session, &mut differences);
        }
        turn_into_objects(&mut raw, &session, scenario);
        sessions.push(session);
    }
    if !stated {
        differences.extend(compare_oracle(&scenario["oracle"], &sessions));
    }
    if differences.is_empty() { Ok(sessions.iter().any(|s| !s.outcome.decisions.is_empty())) } else { Err(differences) }
}

/// SCHEMA.md §3: the objects of the next round.
fn turn_into_objects(raw: &mut Value, session: &Session, scenario: &Value) {
    let now: Timestamp = scenario["now"].as_str().expect("every scenario has its instant").parse().expect("RFC 3339");
    let at = session.pods();
    let leaves_slowly: Vec<&str> = strings(&scenario["expect"]["deleteOnEvict"]).collect();
    let jobs: BTreeSet<ObjectName> = list(&raw["podGroups"]).iter().map(key).collect();
    let mut running = BTreeSet::new();
    for object in raw["pods"].as_array_mut().into_iter().flatten() {
        let Some(job) = object["metadata"]["annotations"]["pod-group-name"].as_str() else { continue };
        let job = ObjectName { namespace: key(object).namespace, name: job.to_owned() };
        let Some(pod) = at.get(&key(object)).filter(|_| jobs.contains(&job)) else { continue };
        match pod.status {
            PodStatus::Releasing if leaves_slowly.contains(&job.name.as_str()) && object["spec"]["nodeName"].is_string() => {
                object["status"]["phase"] = json!("Running");
                object["metadata"]["deletionTimestamp"] = json!((now - SignedDuration::from_secs(5)).to_string());
            }
            PodStatus::Releasing | PodStatus::Pipelined => let_go(object),
            PodStatus::Binding => start(object, session.node_name(pod.node.expect("a pod that is bound has a node")), pod),
            _ => {}
        }
        if object["status"]["phase"] == "Running" && object["metadata"]["deletionTimestamp"].is_null() {
            running.insert(job);
        }
    }
    for object in raw["podGroups"].as_array_mut().into_iter().flatten() {
        if running.contains(&key(object)) {
            object["metadata"]["annotations"][LAST_START] = json!((now - SignedDuration::from_secs(60)).to_string());
        } else if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove(LAST_START);
        }
    }
}

fn let_go(object: &mut Value) {
    object["spec"].as_object_mut().map(|spec| spec.remove("nodeName"));
    object["metadata"].as_object_mut().map(|meta| meta.remove("deletionTimestamp"));
    if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
        labels.retain(|label, _| !label.starts_with(GROUP_LABEL));
    }
    object["metadata"]["annotations"].as_object_mut().map(|annotations| annotations.remove("received-resource-type"));
    object["status"]["phase"] = json!("Pending");
}

fn start(object: &mut Value, node: &str, pod: &PodAtEnd) {
    object["spec"]["nodeName"] = json!(node);
    object["status"]["phase"] = json!("Running");
    for (n, group) in pod.groups.iter().enumerate() {
        let label = if n == 0 { GROUP_LABEL.to_owned() } else { format!("{GROUP_LABEL}/{group}") };
        object["metadata"]["labels"][label] = json!(group);
    }
    let kind = if pod.groups.is_empty() { "Regular" } else { "Fraction" };
    object["metadata"]["annotations"]["received-resource-type"] = json!(kind);
}

fn key(object: &Value) -> ObjectName {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    ObjectName { namespace: text("namespace"), name: text("name") }
}

/// SCHEMA.md §4.
fn compare_expect(expect: &Value, session: &Session) -> Vec<String> {
    let (pods, rows, names) = (session.pods(), &session.loaded.snapshot, &session.loaded.names);
    let mut differences = Vec::new();
    for (job, want) in map(&expect["jobs"]) {
        let gangs = || names.gangs.entries().filter(|(_, name)| name.name == *job).map(|(gang, _)| gang);
        if gangs().next().is_none() {
            differences.push(format!("job {job}: not in the cluster"));
        }
        let mine: Vec<&PodAtEnd> = pods.values().filter(|at| gangs().any(|g| rows.pods[at.pod].gang == Some(g))).collect();
        compare_pods(&format!("job {job}"), want, &mine, session, &mut differences);
    }
    for (pod, want) in map(&expect["pods"]) {
        let mine: Vec<&PodAtEnd> = pods.iter().filter(|(name, _)| name.name == *pod).map(|(_, at)| at).collect();
        if mine.is_empty() {
            differences.push(format!("pod {pod}: not in the cluster"));
        }
        compare_pods(&format!("pod {pod}"), want, &mine, session, &mut differences);
    }
    for (name, want) in map(&expect["nodes"]) {
        let Some((node, _)) = names.nodes.entries().find(|(_, n)| *n == name) else {
            differences.push(format!("node {name}: not in the cluster"));
            continue;
        };
        let (idle, releasing) = session.gpus_left(node);
        for (field, is) in [("idleGPUs", idle), ("releasingGPUs", releasing)] {
            if want[field].as_f64().is_some_and(|wanted| !near(wanted, from_int(is))) {
                differences.push(format!("node {name}: {field} {is}, expected {}", want[field]));
            }
        }
    }
    differences
}

fn compare_pods(subject: &str, want: &Value, pods: &[&PodAtEnd], session: &Session, differences: &mut Vec<String>) {
    for at in pods {
        let status = format!("{:?}", at.status);
        if want["status"].as_str().is_some_and(|wanted| wanted != status) {
            differences.push(format!("{subject}: {:?} is {status}, expected {}", at.pod, want["status"]));
        }
        let node = at.node.map_or("", |node| session.node_name(node));
        if want["node"].as_str().is_some_and(|wanted| wanted != node) {
            differences.push(format!("{subject}: {:?} is on {node:?}, expected {}", at.pod, want["node"]));
        }
    }
    let requested: f64 = pods.iter().map(|at| requested_gpus(session, at.pod)).sum();
    let accepted: f64 = pods.iter().map(|at| accepted_gpus(session, at)).sum();
    for (field, is) in [("gpuCount", requested), ("gpusAccepted", accepted)] {
        if !pods.is_empty() && want[field].as_f64().is_some_and(|wanted| !near(wanted, is)) {
            differences.push(format!("{subject}: {field} {is}, expected {}", want[field]));
        }
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6
}

#[expect(clippy::cast_precision_loss, reason = "GPUs of a scenario are few")]
fn from_int(n: i64) -> f64 {
    n as f64
}

/// GPUs that the request names; the reference rounds parts to 0.01 and counts a request in MiB as 0.
fn requested_gpus(session: &Session, pod: PodIdx) -> f64 {
    let rows = &session.loaded.snapshot;
    match rows.classes[rows.pods[pod].class].gpu {
        GpuRequest::Whole(gpus) => f64::from(gpus),
        GpuRequest::Fraction { portion, devices } => (from_int(portion) / 10_000.0).round() / 100.0 * f64::from(devices),
        GpuRequest::None | GpuRequest::Memory { .. } => 0.0,
    }
}

/// GPUs that a pod holds or was given; a request in MiB is its share of the card, rounded up to 0.01 of a card whose size the
/// reference rounds down to 100 MiB.
fn accepted_gpus(session: &Session, at: &PodAtEnd) -> f64 {
    let rows = &session.loaded.snapshot;
    let Some(node) = at.node else { return 0.0 };
    match rows.classes[rows.pods[at.pod].class].gpu {
        GpuRequest::Memory { mib, devices } => {
            let card = rows.nodes[node].card_mib.unwrap_or(100);
            let card = (card - card % 100).max(100);
            from_int((100 * mib + card - 1) / card) / 100.0 * f64::from(devices)
        }
        _ => requested_gpus(session, at.pod),
    }
}

/// A decision, as the reference writes it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    kind: &'static str,
    pod: String,
    node: String,
    groups: Vec<String>,
    job: String,
}

fn our_entries(session: &Session) -> Vec<Entry> {
    let names = &session.loaded.names;
    let entry = |decision: &muster_core::outcome::Decision| Entry {
        kind: match decision.kind {
            DecisionKind::Bind => "bound",
            DecisionKind::Pipeline => "pipelined",
            DecisionKind::Evict => "evicted",
        },
        pod: names.pods[decision.pod].name.clone(),
        node: session.node_name(decision.node).to_owned(),
        groups: session.groups_of(decision),
        job: session.loaded.snapshot.pods[decision.pod].gang.map_or(String::new(), |gang| names.gangs[gang].name.clone()),
    };
    session.outcome.decisions.iter().map(entry).collect()
}

fn their_entries(round: &Value) -> Vec<Entry> {
    let entries = ["bound", "pipelined", "evicted"].into_iter().flat_map(|kind| {
        list(&round[kind]).iter().map(move |entry| Entry {
            kind,
            pod: entry["pod"].as_str().unwrap_or_default().to_owned(),
            node: entry["node"].as_str().unwrap_or_default().to_owned(),
            groups: strings(&entry["gpuGroups"]).map(str::to_owned).collect(),
            job: String::new(),
        })
    });
    entries.collect()
}

/// SCHEMA.md §5, at the finest level on which the reference agrees with itself. A plan that places all pods that the reference
/// places, and more, is no difference.
fn compare_oracle(oracle: &Value, sessions: &[Session]) -> Vec<String> {
    let Some(level) = LEVELS.into_iter().find(|level| oracle["deterministic"][level] == true) else { return Vec::new() };
    let theirs = list(&oracle["rounds"]);
    let (mut our_groups, mut their_groups) = (Users::default(), Users::default());
    for (round, session) in sessions.iter().enumerate() {
        let reference = theirs.get(round).unwrap_or(&Value::Null);
        let (ours, reference_entries) = (our_entries(session), their_entries(reference));
        let at = |entries: &[Entry]| entries.iter().map(|e| view(e, level)).collect::<BTreeSet<_>>();
        our_groups.add(round, &ours);
        their_groups.add(round, &reference_entries);
        let same = match level {
            "counts" => counts(&ours) == stated_counts(&reference["counts"]),
            "perJob" => per_job(&ours) == stated_per_job(&reference["perJob"]),
            "gpuGroups" => at(&ours) == at(&reference_entries) && our_groups.same(&their_groups),
            _ => at(&ours) == at(&reference_entries),
        };
        if !same {
            let placed = |entries: &[Entry]| entries.iter().map(|e| e.pod.clone()).collect::<BTreeSet<_>>();
            let better = oracle["deterministic"]["pods"] == true
                && placed(&ours).is_superset(&placed(&reference_entries))
                && ours.len() > reference_entries.len();
            return if better {
                Vec::new()
            } else {
                vec![format!("round {round} at {level}: {ours:?}, the reference {reference}")]
            };
        }
    }
    Vec::new()
}

fn view(entry: &Entry, level: &str) -> (&'static str, String, String) {
    let node = if level == "pods" { String::new() } else { entry.node.clone() };
    (entry.kind, entry.pod.clone(), node)
}

fn counts(entries: &[Entry]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for entry in entries {
        *counts.entry(entry.kind.to_owned()).or_default() += 1;
    }
    counts
}

fn stated_counts(counts: &Value) -> BTreeMap<String, u64> {
    let some = map(counts).filter_map(|(kind, n)| Some((kind.clone(), n.as_u64()?)));
    some.filter(|&(_, n)| n > 0).collect()
}

fn per_job(entries: &[Entry]) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut jobs: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for entry in entries {
        jobs.entry(entry.job.clone()).or_default().push(entry.clone());
    }
    jobs.into_iter().map(|(job, entries)| (job, counts(&entries))).collect()
}

fn stated_per_job(jobs: &Value) -> BTreeMap<String, BTreeMap<String, u64>> {
    map(jobs).map(|(job, counts)| (job.clone(), stated_counts(counts))).filter(|(_, counts)| !counts.is_empty()).collect()
}

/// Who uses which shared GPU, over all rounds.
#[derive(Default)]
struct Users(BTreeMap<String, BTreeSet<(usize, String)>>);

impl Users {
    fn add(&mut self, round: usize, entries: &[Entry]) {
        for entry in entries {
            for group in &entry.groups {
                self.0.entry(group.clone()).or_default().insert((round, entry.pod.clone()));
            }
        }
    }

    /// The same users of the same groups, whatever new groups are called.
    fn same(&self, other: &Self) -> bool {
        let old = |users: &Self| -> BTreeMap<String, BTreeSet<(usize, String)>> {
            users.0.iter().filter(|(name, _)| !is_new(name)).map(|(name, users)| (name.clone(), users.clone())).collect()
        };
        let new = |users: &Self| {
            let mut sets: Vec<_> = users.0.iter().filter(|(name, _)| is_new(name)).map(|(_, users)| users.clone()).collect();
            sets.sort();
            sets
        };
        old(self) == old(other) && new(self) == new(other)
    }
}

fn is_new(group: &str) -> bool {
    group.starts_with("new-") || group.starts_with("opened-")
}
