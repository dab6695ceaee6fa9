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

/// Tags of scenarios that need what is not built yet.
const LATER: &[&str] = &["topology", "dra", "numa", "volumes", "podaffinity"];

/// Scenarios that differ for good: by a rule that is not copied. Each has its line in docs/compat.md; one that passes after all
/// is an error, too.
const DIFFER: &[&str] = &["extra-besteffort-01", "extra-subgroups-01"];

/// Other folders, and how many in a hundred of their non-idle scenarios must agree per job or be better (issue 4).
const FOLDERS: &[(&str, usize)] = &[("derived", 100), ("random", 90)];

/// Whether this version has to get a scenario with these tags right.
fn is_selected(tags: &[String]) -> bool {
    !tags.iter().any(|tag| LATER.contains(&tag.as_str()))
}

/// What the checker found about some scenarios.
#[derive(Default, Debug, PartialEq, Eq)]
struct Figures {
    scenarios: usize,
    passed: usize,
    /// Scenarios in which the reference or this version decides something.
    busy: usize,
    busy_passed: usize,
    /// Of the scenarios in which the reference decides something, those that say for which jobs, and of these those that agree
    /// on the jobs or are better.
    judged: usize,
    per_job_or_better: usize,
    /// Ids of those that did not pass.
    failed: Vec<String>,
    /// Scenarios with a broken invariant.
    unsound: usize,
    /// Id and error of those where the binary crashed, gave up, took too long or answered nonsense.
    crashed: Vec<(String, String)>,
}

impl Figures {
    fn text(&self) -> String {
        let Self { scenarios, passed, busy, busy_passed, unsound, crashed, judged, per_job_or_better, .. } = self;
        let crashed = crashed.len();
        format!(
            "{passed}/{scenarios} pass, of the non-idle {busy_passed}/{busy}; per job or better {per_job_or_better}/{judged}; \
             {unsound} break an invariant, {crashed} crash"
        )
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
        let oracle = &scenario["oracle"];
        if !idle && oracle["level"].as_str().is_some_and(|level| level != "counts") {
            let agrees = oracle["agrees"].as_str().is_some_and(|level| level != "counts");
            figures.judged += 1;
            figures.per_job_or_better += usize::from(agrees || scenario["dominates"].as_bool().unwrap_or(false));
        }
        if !passed {
            figures.failed.push(scenario["id"].as_str().unwrap_or("?").into());
        }
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

/// The corpus: of the visible folder the selection must pass completely, of the others enough; nothing may crash or break an
/// invariant.
pub(crate) fn stage(repo: &Repo) -> Result<Verdict> {
    judge(repo, 5)
}

fn judge(repo: &Repo, show_failures: u32) -> Result<Verdict> {
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
    println!("-- must pass: none of {} --", LATER.join(", "));
    let must = check(repo, &selected, show_failures)?;
    println!("-- the others: may fail, must not crash --");
    let may = check(repo, &others, 0)?;
    println!("\nmust pass:  {}\nthe others: {}", must.text(), may.text());
    let mut wrong = complaints("visible", &must, true);
    wrong.extend(may.crashed.iter().map(|(id, error)| format!("visible, {id} crashes: {error}")));
    let mut better = Vec::new();
    for &(name, percent) in FOLDERS {
        let (selected, _) = split(&repo.shared("corpus").join(name))?;
        println!("-- {name}: {percent} % per job or better --");
        let found = check(repo, &selected, 0)?;
        println!("{name}: {}", found.text());
        wrong.extend(complaints(name, &found, false));
        if found.judged == 0 || found.per_job_or_better * 100 < percent * found.judged {
            wrong.push(format!("{name}: per job or better {}/{}", found.per_job_or_better, found.judged));
        }
        better.push(format!("{name} {}/{}", found.per_job_or_better, found.judged));
    }
    if !wrong.is_empty() {
        bail!("the corpus is not met:\n{}", wrong.join("\n"));
    }
    Ok(Verdict::Passed(format!("{}/{} ({} non-idle), {}", must.passed, must.scenarios, must.busy_passed, better.join(", "))))
}

/// What is wrong with a folder's figures; if it is complete, every scenario must pass but those that differ for good.
fn complaints(folder: &str, found: &Figures, complete: bool) -> Vec<String> {
    let mut wrong: Vec<_> = found.crashed.iter().map(|(id, error)| format!("{folder}, {id} crashes: {error}")).collect();
    if found.unsound > 0 {
        wrong.push(format!("{folder}: {} break an invariant", found.unsound));
    }
    if complete {
        let differ = |id: &&String| !DIFFER.contains(&id.as_str());
        wrong.extend(found.failed.iter().filter(differ).map(|id| format!("{folder}, {id} fails")));
        let passes = DIFFER.iter().filter(|id| !found.failed.iter().any(|failed| failed == *id));
        wrong.extend(
            passes.map(|id| format!("{folder}, {id} passes: take it off DIFFER (xtask/src/corpus.rs) and docs/compat.md")),
        );
    }
    wrong
}

/// `cargo xtask corpus`: builds the binary, then judges the visible corpus, or counts other folders.
pub(crate) fn report(repo: &Repo, folders: &[PathBuf], show_failures: u32) -> Result<ExitCode> {
    run(&mut repo.cargo(["build", "--release", "--locked", "--package", "muster"]))?;
    if folders.is_empty() {
        return Ok(match judge(repo, show_failures)? {
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
    fn selection_leaves_out_what_is_not_built() {
        assert!(is_selected(&tags("gang allocate reclaim")));
        for later in LATER {
            assert!(!is_selected(&tags(&format!("allocate gang {later}"))), "{later}");
        }
        assert!(is_selected(&tags("allocate topology-like")), "only whole tags count");
    }

    #[test]
    fn whoever_differs_for_good_must_differ() {
        let differ = || DIFFER.iter().map(|&id| id.to_owned());
        assert!(complaints("visible", &Figures { failed: differ().collect(), ..Figures::default() }, true).is_empty());
        assert_eq!(complaints("visible", &Figures::default(), true).len(), DIFFER.len());
        let other = differ().chain(["other".to_owned()]).collect();
        assert_eq!(complaints("visible", &Figures { failed: other, ..Figures::default() }, true), ["visible, other fails"]);
    }

    #[test]
    fn figures_count_idle_and_crashed_apart() {
        let report = serde_json::json!({"scenarios": [
            {"id": "a", "passed": true, "error": null, "invariants": [], "oracle": {"idle": true}},
            {"id": "b", "passed": true, "error": null, "invariants": [],
             "oracle": {"idle": false, "level": "pods", "agrees": "perJob"}},
            {"id": "c", "passed": false, "error": "exit status 101", "invariants": [], "oracle": {"idle": false}},
            {"id": "d", "passed": false, "error": null, "invariants": ["node over-committed"], "oracle": null},
        ]});
        let found = figures(&report).unwrap();
        assert_eq!((found.scenarios, found.passed, found.busy, found.busy_passed, found.unsound), (4, 2, 3, 1, 1));
        assert_eq!((found.judged, found.per_job_or_better), (1, 1));
        assert_eq!(found.failed, ["c", "d"]);
        assert_eq!(found.crashed, [("c".to_owned(), "exit status 101".to_owned())]);
        assert!(figures(&serde_json::json!({})).is_err());
    }
}
