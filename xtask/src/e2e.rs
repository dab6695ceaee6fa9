//! The tests on a real control plane: builds what they need and runs them. The control plane itself is started by the test
//! program (`e2e/`), which also stops it; that program builds etcd, kube-apiserver and the others once, with Go.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::repo::{Repo, answers, run};
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
    if !answers(repo.program("go").arg("version")) {
        bail!(
            "Go is missing. These tests build etcd, kube-apiserver, kube-controller-manager, kubectl and kwok with it.\n\
             Install Go 1.26 or newer (https://go.dev/dl) and make sure that `go` is on the PATH."
        );
    }
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
