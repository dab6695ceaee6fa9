//! The corpus of situations with known outcome: which scenarios this version must get right, and the checker's verdict on them.
//!
//! The checker (`../shared/tools/check_corpus.py`) knows what is right; this file knows what is asked for: the tags of the
//! scenarios decide, no list of names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::repo::{Repo, run};
use crate::stages::Verdict;

/// Tags of scenarios that need what is not built yet: actions beside `allocate`, then features.
const LATER: &[&str] = &["reclaim", "preempt", "consolidation", "stalegang", "topology", "dra", "numa", "volumes", "podaffinity"];

/// Whether this version has to get a scenario with these tags right.
fn is_selected(tags: &[String]) -> bool {
    tags.iter().any(|tag| tag == "allocate") && !tags.iter().any(|tag| LATER.contains(&tag.as_str()))
}

/// What the checker found about some scenarios.
#[derive(Default, Debug, PartialEq, Eq)]
struct Figures {
    scenarios: usize,
    passed: usize,
    /// Scenarios in which the reference or this version decides something.
    busy: usize,
    busy_passed: usize,
    /// Scenarios with a broken invariant.
    unsound: usize,
    /// Id and error of those where the binary crashed, gave up, took too long or answered nonsense.
    crashed: Vec<(String, String)>,
}

impl Figures {
    fn text(&self) -> String {
        let Self { scenarios, passed, busy, busy_passed, unsound, crashed } = self;
        let crashed = crashed.len();
        format!("{passed}/{scenarios} pass, of the non-idle {busy_passed}/{busy}; {unsound} break an invariant, {crashed} crash")
    }
}

/// Reads the checker's report.
fn figures(report: &Value) -> Result<Figures> {
    let mut figures = Figures::default();
    for scenario in report["scenarios"].as_array().context("the checker's report has no list `scenarios`")? {
        let passed = scenario["passed"].as_bool().context("a scenario of the report has no `passed`")?;
        let idle = scenario["oracle"]["idle"].as_bool().unwrap_or(false);
        figures.scenarios += 1;
        figures.passed += usize::from(passed);
        figures.busy += usize::from(!idle);
        figures.busy_passed += usize::from(passed && !idle);
        figures.unsound += usize::from(scenario["invariants"].as_array().is_some_and(|list| !list.is_empty()));
        if let Some(error) = scenario["error"].as_str() {
            figures.crashed.push((scenario["id"].as_str().unwrap_or("?").into(), error.into()));
        }
    }
    Ok(figures)
}

/// The scenarios of a folder, those that must pass first: (selected, others).
fn split(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let mut paths: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut parts = (Vec::new(), Vec::new());
    for path in paths {
        let bytes = fs::read(&path)?;
        let scenario: BTreeMap<String, Value> =
            serde_json::from_slice(&bytes).with_context(|| format!("{} is no scenario", path.display()))?;
        let tags = scenario.get("tags").and_then(Value::as_array).with_context(|| format!("{}: no tags", path.display()))?;
        let tags: Vec<String> = tags.iter().filter_map(|tag| Some(tag.as_str()?.to_owned())).collect();
        if is_selected(&tags) { parts.0.push(path) } else { parts.1.push(path) }
    }
    Ok(parts)
}

/// Runs the checker. It exits with 1 if a scenario fails, which is for the caller to judge; its report is read either way.
fn check(repo: &Repo, scenarios: &[PathBuf], show_failures: u32) -> Result<Figures> {
    let report = repo.target("corpus-report.json");
    if report.exists() {
        fs::remove_file(&report)?;
    }
    let mut command = repo.program("python3");
    command.arg(repo.shared("tools/check_corpus.py")).arg("--bin").arg(repo.target("release/muster"));
    command.arg("--show-failures").arg(show_failures.to_string()).arg("--json").arg(&report).args(scenarios);
    println!("$ check_corpus.py on {} scenarios", scenarios.len());
    let status = command.status().context("cannot start python3")?;
    if !matches!(status.code(), Some(0 | 1)) {
        bail!("the checker of the corpus: {status}");
    }
    figures(&serde_json::from_slice(&fs::read(&report).context("the checker wrote no report")?)?)
}

/// The visible corpus: the selection must pass completely, nothing may crash.
pub(crate) fn stage(repo: &Repo) -> Result<Verdict> {
    judge_visible(repo, 5)
}

fn judge_visible(repo: &Repo, show_failures: u32) -> Result<Verdict> {
    let folder = repo.shared("corpus/visible");
    if !folder.is_dir() {
        return Ok(Verdict::Skipped(format!("{} IS NOT THERE, NO SCENARIO WAS JUDGED", folder.display())));
    }
    let (selected, others) = split(&folder)?;
    if selected.is_empty() || others.is_empty() {
        bail!(
            "{} holds {} scenarios to pass and {} others: expected some of both",
            folder.display(),
            selected.len(),
            others.len()
        );
    }
    println!("-- must pass: allocate, and none of {} --", LATER.join(", "));
    let must = check(repo, &selected, show_failures)?;
    println!("-- the others: may fail, must not crash --");
    let may = check(repo, &others, 0)?;
    println!("\nmust pass:  {}\nthe others: {}", must.text(), may.text());
    for (id, error) in must.crashed.iter().chain(&may.crashed) {
        println!("crash: {id}: {error}");
    }
    if must.passed < must.scenarios || !may.crashed.is_empty() {
        bail!("must pass: {}; the others: {} crash", must.text(), may.crashed.len());
    }
    Ok(Verdict::Passed(format!("{}/{} ({} non-idle)", must.passed, must.scenarios, must.busy_passed)))
}

/// `cargo xtask corpus`: builds the binary, then judges the visible corpus, or counts other folders.
pub(crate) fn report(repo: &Repo, folders: &[PathBuf], show_failures: u32) -> Result<ExitCode> {
    run(&mut repo.cargo(["build", "--release", "--locked", "--package", "muster"]))?;
    if folders.is_empty() {
        return Ok(match judge_visible(repo, show_failures)? {
            Verdict::Passed(_) => ExitCode::SUCCESS,
            Verdict::Skipped(why) => {
                println!("{why}");
                ExitCode::FAILURE
            }
        });
    }
    for folder in folders {
        let folder = std::path::absolute(folder)?;
        let (selected, others) = split(&folder)?;
        println!("\n== {}: {} of {} scenarios are asked for ==", folder.display(), selected.len(), selected.len() + others.len());
        if !selected.is_empty() {
            println!("{}", check(repo, &selected, show_failures)?.text());
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn selection_is_allocate_alone() {
        assert!(is_selected(&tags("gang allocate running")));
        assert!(!is_selected(&tags("gang idle running")), "no action");
        for later in LATER {
            assert!(!is_selected(&tags(&format!("allocate gang {later}"))), "{later}");
        }
        assert!(is_selected(&tags("allocate preemption-delay reclaimer")), "only whole tags count");
    }

    #[test]
    fn figures_count_idle_and_crashed_apart() {
        let report = serde_json::json!({"scenarios": [
            {"id": "a", "passed": true, "error": null, "invariants": [], "oracle": {"idle": true}},
            {"id": "b", "passed": true, "error": null, "invariants": [], "oracle": {"idle": false}},
            {"id": "c", "passed": false, "error": "exit status 101", "invariants": [], "oracle": {"idle": false}},
            {"id": "d", "passed": false, "error": null, "invariants": ["node over-committed"], "oracle": null},
        ]});
        let found = figures(&report).unwrap();
        assert_eq!((found.scenarios, found.passed, found.busy, found.busy_passed, found.unsound), (4, 2, 3, 1, 1));
        assert_eq!(found.crashed, [("c".to_owned(), "exit status 101".to_owned())]);
        assert!(figures(&serde_json::json!({})).is_err());
    }
}
