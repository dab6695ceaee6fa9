//! The tests on a real control plane: builds what they need and runs them. The control plane itself is started by the test
//! program (`e2e/`), which also stops it; that program builds etcd, kube-apiserver and the others once, with Go.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::repo::{Repo, run};
use crate::stages::{EVERYTHING_AND_CLUSTER, Verdict, counted_tests};

/// What to run, and how.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave the control plane running at the end, and say how to reach and how to stop it.
    #[arg(long)]
    keep: bool,
    /// Kubernetes version: 1.37, or 1.34 before a release.
    #[arg(long, default_value = "1.37", value_parser = ["1.37", "1.34"])]
    version: String,
    /// Only tests whose name contains this.
    filter: Option<String>,
}

/// Where the tools' versions are pinned, and with them the oldest Go that builds them.
const TOOLS: &str = "scale-tests/tools/go.mod";

/// Fails, before anything is compiled, if there is no Go, or one that is too old.
pub(crate) fn require_go(repo: &Repo) -> Result<()> {
    let text = std::fs::read_to_string(repo.root.join(TOOLS)).with_context(|| format!("cannot read {TOOLS}"))?;
    let oldest =
        text.lines().find_map(|line| line.strip_prefix("go ")).with_context(|| format!("{TOOLS} names no version of go"))?;
    let output = repo.program("go").args(["env", "GOVERSION"]).output();
    let found =
        output.ok().filter(|output| output.status.success()).map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let found = found.as_deref().map(|found| found.trim().trim_start_matches("go"));
    if found.is_some_and(|found| numbers(found) >= numbers(oldest)) {
        return Ok(());
    }
    bail!(
        "{}. These tests build etcd, kube-apiserver, kube-controller-manager, kubectl and kwok with it.\n\
         Install Go {oldest} or newer (https://go.dev/dl) and make sure that `go` is on the PATH; `.ci/run` does it by itself.",
        found.map_or_else(|| "Go is missing".to_owned(), |found| format!("Go {found} is too old"))
    )
}

/// `1.26.8` or `1.27rc1` as numbers.
fn numbers(version: &str) -> Vec<u32> {
    version.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok()).collect()
}

/// `cargo xtask e2e`.
pub(crate) fn run_some(repo: &Repo, arguments: &Arguments) -> Result<ExitCode> {
    tests(repo, arguments)?;
    Ok(ExitCode::SUCCESS)
}

/// The stage of `cargo xtask test`: all tests on the newest version.
pub(crate) fn stage(repo: &Repo) -> Result<Verdict> {
    tests(repo, &Arguments { keep: false, version: "1.37".into(), filter: None })
}

fn tests(repo: &Repo, arguments: &Arguments) -> Result<Verdict> {
    require_go(repo)?;
    // With a test among the targets, the program is built from the same dependencies as the tests, and not from others again.
    run(repo.cargo(["build"]).args(EVERYTHING_AND_CLUSTER).args(["--bin", "muster", "--test", "cluster"]))?;
    let mut command = repo.cargo(["test"]);
    command.args(EVERYTHING_AND_CLUSTER).args(["--test", "cluster", "--"]).args(&arguments.filter);
    command.env("MUSTER_E2E_PROGRAM", repo.target("debug/muster")).env("MUSTER_E2E_VERSION", &arguments.version);
    if arguments.keep {
        command.env("MUSTER_E2E_KEEP", "1");
    }
    counted_tests(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(
            numbers("1.26.10") > numbers("1.26.8")
                && numbers("1.26.0") > numbers("1.9")
                && numbers("1.27rc1") > numbers("1.26.0")
        );
    }
}
