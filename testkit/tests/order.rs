//! The order in which objects are listed decides nothing: every scenario of the repository, and a generated cluster, with their
//! lists turned round and shuffled.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use muster_api::read::Options;
use muster_api::report;
use muster_api::sentences::Facts;
use muster_testkit::fixture::input;
use muster_testkit::generate::{Cluster, Shape};
use muster_testkit::session::Session;
use oorandom::Rand32;
use serde_json::Value;

/// Shuffles of each input, beside the one that turns every list round.
const SHUFFLES: u64 = 4;

#[test]
fn scenarios_do_not_depend_on_the_order_of_objects() {
    let mut tried = 0;
    for path in scenarios(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios")) {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let bytes = input(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // An input that is no JSON has no objects to shuffle.
        let Ok(snapshot) = serde_json::from_slice::<Value>(&bytes) else { continue };
        compare(&path.display().to_string(), &snapshot);
        tried += 1;
    }
    assert!(tried > 50, "only {tried} scenarios");
}

#[test]
fn a_generated_cluster_does_not_depend_on_the_order_of_objects() {
    let shape = Shape { nodes: 60, racks: 6, queues: 8, pending: 200, fill: 0.7, cordoned: 0.05, seed: 7, ..Shape::default() };
    let mut bytes = Vec::new();
    Cluster::new(&shape).expect("a shape that can be generated").write(&mut bytes).expect("memory can be written");
    let snapshot = serde_json::from_slice(&bytes).expect("the generator writes JSON");
    compare("generated", &snapshot);
}

fn compare(name: &str, snapshot: &Value) {
    let right = result(name, snapshot);
    let mut turned = snapshot.clone();
    for_each_list(&mut turned, |list| list.reverse());
    assert_eq!(right, result(name, &turned), "{name}: lists turned round");
    for seed in 0..SHUFFLES {
        let mut random = Rand32::new(seed);
        let mut shuffled = snapshot.clone();
        for_each_list(&mut shuffled, |list| {
            for at in (1..list.len()).rev() {
                let other = random.rand_range(0..u32::try_from(at + 1).expect("few objects")) as usize;
                list.swap(at, other);
            }
        });
        assert_eq!(right, result(name, &shuffled), "{name}: shuffle {seed}");
    }
}

fn for_each_list(snapshot: &mut Value, mut change: impl FnMut(&mut Vec<Value>)) {
    for list in snapshot["rawObjects"].as_object_mut().into_iter().flat_map(|lists| lists.values_mut()) {
        change(list.as_array_mut().expect("rawObjects holds lists"));
    }
}

/// Everything that comes out, in names: decisions in order, who waits and why, queues; or the errors.
fn result(name: &str, snapshot: &Value) -> Vec<String> {
    let session = match Session::run(name, snapshot.to_string().as_bytes(), &Options::default(), 0) {
        Ok(session) => session,
        Err(failure) => return vec![failure.to_string()],
    };
    let names = &session.loaded.names;
    let facts = Facts { snapshot: &session.loaded.snapshot, names };
    let decisions = session.outcome.decisions.iter().map(|decision| {
        let groups = session.groups_of(decision);
        format!("{:?} {} {} {groups:?}", decision.kind, names.pods[decision.pod], session.node_name(decision.node))
    });
    let pending = session.outcome.pending.iter().map(|pending| {
        let reasons: Vec<String> = session
            .outcome
            .reasons_of(pending)
            .iter()
            .map(|reason| report::reason(reason, pending.gang, facts).to_string())
            .collect();
        format!("{} {} {}", names.gangs[pending.gang], pending.pods, reasons.join(" "))
    });
    let queues = session.outcome.queues.entries().map(|(queue, report)| format!("{} {report:?}", names.queues[queue]));
    let warnings = session.loaded.warnings.iter().map(ToString::to_string);
    decisions.chain(pending).chain(queues).chain(warnings).collect()
}

fn scenarios(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a folder that can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "txt") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}
