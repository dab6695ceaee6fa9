//! What CI runs, stage by stage, and the table at the end. One stage is one function; their order is the order below: what fails
//! often and costs little comes first.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::repo::{Repo, answers, run, run_watched};
use crate::{corpus, e2e, tidy};

/// What a stage that did not fail has to say.
pub(crate) enum Verdict {
    /// It passed; a figure worth a place in the table, or nothing.
    Passed(String),
    /// It had nothing to work on, and why.
    Skipped(String),
}

/// All crates with all that they can do. Every stage that compiles for tests says this, and no package by name: so that cargo
/// finds the same features everywhere, and compiles what they depend on once. `muster-e2e/cluster` adds the tests on a control
/// plane; it changes no other crate.
pub(crate) const EVERYTHING: [&str; 4] = ["--workspace", "--locked", "--features", "muster/controller"];
/// [`EVERYTHING`], with the tests on a control plane.
pub(crate) const EVERYTHING_AND_CLUSTER: [&str; 4] =
    ["--workspace", "--locked", "--features", "muster/controller,muster-e2e/cluster"];

/// A name and what it does.
pub(crate) type Stage = (&'static str, fn(&Repo) -> Result<Verdict>);

/// Everything.
pub(crate) const TEST: &[Stage] = &[
    ("format", format),
    ("clippy", clippy),
    ("tidy", tidy_stage),
    ("test", test),
    ("bench-once", bench_once),
    ("baseline", baseline),
    ("doc", doc),
    ("deny", deny),
    ("python", python),
    ("release", release),
    ("demo", demo),
    ("corpus", corpus::stage),
    ("e2e", e2e::stage),
];

/// What an editor could have shown.
pub(crate) const LINT: &[Stage] = &[("format", format), ("clippy", clippy), ("tidy", tidy_stage)];

/// One line of the table.
struct Row {
    name: &'static str,
    seconds: f64,
    result: Result<Verdict>,
}

/// Runs the stages in order, up to the first that fails unless `keep_going`, then prints the table.
pub(crate) fn run_all(repo: &Repo, stages: &[Stage], keep_going: bool) -> ExitCode {
    let began = Instant::now();
    let mut rows: Vec<Row> = Vec::new();
    for (position, &(name, stage)) in stages.iter().enumerate() {
        println!("\n==== [{}/{}] {name} ====", position + 1, stages.len());
        let stage_began = Instant::now();
        let result = stage(repo);
        match &result {
            Ok(Verdict::Passed(_)) => {}
            Ok(Verdict::Skipped(why)) => println!("!!!! {name} SKIPPED: {why} !!!!"),
            Err(error) => println!("FAILED {name}: {error:#}"),
        }
        let failed = result.is_err();
        rows.push(Row { name, seconds: stage_began.elapsed().as_secs_f64(), result });
        if failed && !keep_going {
            break;
        }
    }
    print_table(&rows, stages.len());
    let ok = rows.iter().all(|row| row.result.is_ok());
    println!("{} in {:.0} s", if ok { "ok: all stages" } else { "FAILED" }, began.elapsed().as_secs_f64());
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_table(rows: &[Row], stages: usize) {
    println!("\n{:12} {:>8}  result", "stage", "seconds");
    for row in rows {
        let text = match &row.result {
            Ok(Verdict::Passed(figure)) => format!("ok       {figure}"),
            Ok(Verdict::Skipped(why)) => format!("skipped  {why}"),
            Err(error) => format!("FAILED   {error}"),
        };
        println!("{:12} {:>8.1}  {}", row.name, row.seconds, text.trim_end());
    }
    if rows.len() < stages {
        println!("{} stages not reached", stages - rows.len());
    }
}

/// [`run_all`] on the stages that were asked for (none: all). Fails on a name that is no stage.
pub(crate) fn run_named(repo: &Repo, stages: &[Stage], keep_going: bool, only: &[String]) -> Result<ExitCode> {
    let names: Vec<_> = stages.iter().map(|stage| stage.0).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("--only {unknown}: no such stage; expected one of {}", names.join(", "));
    }
    let wanted: Vec<_> = stages.iter().copied().filter(|s| only.is_empty() || only.iter().any(|name| name == s.0)).collect();
    Ok(run_all(repo, &wanted, keep_going))
}

fn passed() -> Result<Verdict> {
    Ok(Verdict::Passed(String::new()))
}

fn format(repo: &Repo) -> Result<Verdict> {
    run(&mut repo.cargo(["fmt", "--all", "--check"]))?;
    passed()
}

fn clippy(repo: &Repo) -> Result<Verdict> {
    run(repo.cargo(["clippy"]).args(EVERYTHING_AND_CLUSTER).args(["--all-targets", "--", "-D", "warnings"]))?;
    passed()
}

fn tidy_stage(repo: &Repo) -> Result<Verdict> {
    let offences = tidy::check(repo)?;
    tidy::print(&offences);
    if !offences.is_empty() {
        bail!("{} offences", offences.len());
    }
    passed()
}

/// Sums of libtest's closing lines.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Tally {
    /// Takes `test result: ok. 12 passed; 0 failed; 1 ignored; …`; any other line is nothing to it.
    fn see(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        let words: Vec<_> = rest.split_whitespace().collect();
        for pair in words.windows(2) {
            let Ok(count) = pair[0].parse::<u64>() else { continue };
            match pair[1] {
                "passed;" => self.passed += count,
                "failed;" => self.failed += count,
                "ignored;" => self.ignored += count,
                _ => {}
            }
        }
    }

    fn text(&self) -> String {
        format!("{} passed; {} failed; {} ignored", self.passed, self.failed, self.ignored)
    }
}

/// `cargo test` with a count. No test at all is a failure: a stage that cannot fail is none.
pub(crate) fn counted_tests(command: &mut std::process::Command) -> Result<Verdict> {
    let mut tally = Tally::default();
    run_watched(command, |line| tally.see(line))?;
    if tally.passed == 0 {
        bail!("no test ran");
    }
    println!("test result: ok. {} in all", tally.text());
    Ok(Verdict::Passed(tally.text()))
}

fn test(repo: &Repo) -> Result<Verdict> {
    counted_tests(repo.cargo(["test"]).args(EVERYTHING).arg("--no-fail-fast"))
}

/// Each benchmark once, so that none can rot.
fn bench_once(repo: &Repo) -> Result<Verdict> {
    let package =
        repo.metadata.packages.iter().find(|p| p.name.as_str() == "muster-benches").context("no crate muster-benches")?;
    let benches: Vec<&str> =
        package.targets.iter().filter(|target| target.is_bench()).map(|target| target.name.as_str()).collect();
    if benches.is_empty() {
        return Ok(Verdict::Skipped("there are no benchmarks yet".into()));
    }
    run(repo.cargo(["test"]).args(EVERYTHING).args(benches.iter().flat_map(|name| ["--bench", name])))?;
    Ok(Verdict::Passed(format!("{} benchmark programs", benches.len())))
}

/// The kernels without AVX2, as a machine from before 2013 would run them (docs/architecture.md, "Vectors").
fn baseline(repo: &Repo) -> Result<Verdict> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Verdict::Skipped("not an x86-64 machine: there is one build only".into()));
    }
    let mut command = repo.cargo(["test", "--locked", "--package", "muster-kernels"]);
    command.env("RUSTFLAGS", "-Cforce-frame-pointers=yes -Ctarget-cpu=x86-64").env("CARGO_TARGET_DIR", repo.target("baseline"));
    counted_tests(&mut command)
}

fn doc(repo: &Repo) -> Result<Verdict> {
    run(repo.cargo(["doc"]).args(EVERYTHING_AND_CLUSTER).arg("--no-deps").env("RUSTDOCFLAGS", "-Dwarnings"))?;
    passed()
}

/// Licences, bans, sources. Advisories need another server than the registry: the release checks them.
fn deny(repo: &Repo) -> Result<Verdict> {
    if !answers(&mut repo.cargo(["deny", "--version"])) {
        return Ok(Verdict::Skipped("cargo-deny is not installed (cargo install --locked cargo-deny)".into()));
    }
    run(&mut repo.cargo(["deny", "check", "bans", "licenses", "sources"]))?;
    passed()
}

/// Every folder with a `test_*.py`.
fn python(repo: &Repo) -> Result<Verdict> {
    let files = tidy::files(&repo.root)?;
    let is_test = |path: &Path| path.extension().is_some_and(|e| e == "py") && file_name(path).starts_with("test_");
    let folders: BTreeSet<PathBuf> = files.iter().filter(|path| is_test(path)).filter_map(|p| Some(p.parent()?.into())).collect();
    if folders.is_empty() {
        return Ok(Verdict::Skipped("there are no Python tests".into()));
    }
    for folder in &folders {
        run(repo.program("python3").args(["-m", "unittest", "discover", "--start-directory"]).arg(folder))?;
    }
    Ok(Verdict::Passed(format!("{} folders", folders.len())))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn release(repo: &Repo) -> Result<Verdict> {
    run(&mut repo.cargo(["build", "--release", "--locked", "--package", "muster"]))?;
    passed()
}

/// The first command of the README.
fn demo(repo: &Repo) -> Result<Verdict> {
    run(repo.program(repo.target("release/muster")).arg("demo"))?;
    passed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tally_sums_the_closing_lines_and_nothing_else() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 10 passed; 2 failed; 1 ignored; 0 measured; 5 filtered out; finished in 0.00s",
            "99 passed; 99 failed;",
        ] {
            tally.see(line);
        }
        assert_eq!(tally.text(), "13 passed; 2 failed; 1 ignored");
    }

    #[test]
    fn stages_have_different_names() {
        let names: BTreeSet<_> = TEST.iter().map(|stage| stage.0).collect();
        assert_eq!(names.len(), TEST.len());
    }
}
