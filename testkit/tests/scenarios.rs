//! Runs every text under `scenarios/`: `muster_testkit::fixture` says what they say.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use muster_testkit::fixture::play;

#[test]
fn every_scenario_comes_out_as_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let mut files = Vec::new();
    collect(&folder, &mut files);
    files.sort();
    assert!(!files.is_empty(), "no scenario under {}", folder.display());
    let mut failures = Vec::new();
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let shown = path.strip_prefix(&folder).unwrap_or(path).display();
        failures.extend(play(&text).into_iter().map(|c| format!("scenarios/{shown}:{}: {}", c.line, c.what)));
    }
    assert!(failures.is_empty(), "{} complaints in {} scenarios:\n{}", failures.len(), files.len(), failures.join("\n"));
}

/// A scenario that expects nothing of what happens fails: the comparison is complete.
#[test]
fn what_no_line_speaks_of_is_a_complaint() {
    let cluster = "node n1 gpu=1\nqueue q\njob a queue=q pods=1 gpu=1\njob b queue=q pods=1 gpu=1\n";
    assert_eq!(play(cluster).len(), 2, "a decision and a waiting job");
    let said = "expect bind a-0 n1\nexpect pending b no-node placed=0\n";
    assert_eq!(play(&format!("{cluster}{said}")), []);
    for wrong in ["expect bind a-0 n2", "expect pending b no-node placed=1", "expect pending b over-limit", "expect error x"] {
        let lines = format!("{cluster}{said}{wrong}\n");
        assert!(!play(&lines).is_empty(), "{wrong}");
    }
    assert!(!play("nod n1").is_empty(), "a line that says nothing");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a folder that can be read").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "txt") {
            files.push(path);
        }
    }
}
