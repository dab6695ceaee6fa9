//! Every scenario of the corpus loads, with every object counted for. The corpus is beside the repository, not in it: where it
//! is absent this test says so loudly.

use std::path::{Path, PathBuf};

use muster_api::read::{Loaded, Options, Source, load};
use serde_json::Value;

fn corpus() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus");
    if beside.is_dir() {
        return Some(beside);
    }
    eprintln!("\n*** NOT TESTED: no corpus at {} ***\n", beside.display());
    None
}

#[test]
fn every_scenario_loads() {
    let Some(corpus) = corpus() else { return };
    let mut seen = 0;
    for folder in ["visible", "random", "derived"] {
        let files = std::fs::read_dir(corpus.join(folder)).expect("a folder of the corpus");
        for file in files {
            let path = file.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let loaded = load(&Source::Path(path.clone()), &Options::default());
                check(&path, &loaded.unwrap_or_else(|failure| panic!("{}:\n{failure}", path.display())));
                seen += 1;
            }
        }
    }
    assert!(seen >= 700, "{seen} scenarios");
}

/// Every object of the file is a row, unless a rule says otherwise.
fn check(path: &Path, loaded: &Loaded) {
    let text = std::fs::read(path).expect("a file that was just read");
    let scenario: Value = serde_json::from_slice(&text).expect("JSON");
    let raw = |kind: &str| scenario["rawObjects"][kind].as_array().cloned().unwrap_or_default();
    let snapshot = &loaded.snapshot;
    assert_eq!(loaded.now.to_string(), scenario["now"], "{}", path.display());
    assert_eq!(snapshot.nodes.len(), raw("nodes").len(), "{}", path.display());
    assert_eq!(snapshot.gangs.len(), raw("podGroups").len(), "{}", path.display());
    let gang = |pod: &Value| pod["metadata"]["annotations"]["pod-group-name"].is_string();
    let pods = raw("pods").iter().filter(|pod| gang(pod) || pod["spec"]["nodeName"].is_string()).count();
    assert_eq!(snapshot.pods.len(), pods, "{}", path.display());
    assert_eq!(snapshot.classes.len(), loaded.names.classes.len());
    assert_eq!(snapshot.pods.len(), loaded.names.pods.len());
    for pod in snapshot.pods.iter() {
        assert!(
            pod.gang.is_none() || pod.subgroup.is_some() || path.to_string_lossy().contains("subgroup"),
            "{}",
            path.display()
        );
    }
    assert!(loaded.skipped.is_empty() && loaded.left_out == 0, "{}", path.display());
}
