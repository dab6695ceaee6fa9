//! `cargo xtask …`: everything a developer or the CI runs, written once, in the language of the house.
//!
//! Known here: cargo, the checker of the corpus, the rules of the house. Not known: anything of the scheduler itself; no crate of
//! the workspace is a dependency, so that a broken one can still be tested and tidied.

#![forbid(unsafe_code)]

mod corpus;
mod e2e;
mod growth;
mod live_bench;
mod repo;
mod stages;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::repo::Repo;

/// Builds, tests and checks Muster.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that CI runs: format, clippy, tidy, tests, docs, the baseline build, the release build, the corpus, and
    /// a real control plane.
    Test {
        /// Go on after a failing stage; the exit code still tells.
        #[arg(long)]
        keep_going: bool,
        /// Only the stages with these names (a summary lists them); may be repeated.
        #[arg(long, value_name = "STAGE")]
        only: Vec<String>,
    },
    /// Format, clippy and tidy.
    Lint,
    /// The rules of the house that no compiler checks (CONTRIBUTING.md).
    Tidy,
    /// Judges the release binary with the corpus. Without folders: `../shared/corpus/visible`, where every scenario that this
    /// version has to get right must pass.
    Corpus {
        /// Other folders of scenarios: counted and shown, not judged.
        folders: Vec<PathBuf>,
        /// Failures to show in full.
        #[arg(long, default_value_t = 5)]
        show_failures: u32,
    },
    /// The tests on a real control plane (etcd, kube-apiserver, kube-controller-manager, kwok; built once with Go, on loopback).
    E2e(e2e::Arguments),
    /// `muster run` on a real control plane: pods per second, binds per second, memory, idling (docs/perf/README.md, "Live").
    LiveBench(live_bench::Arguments),
    /// The benchmarks (docs/perf/README.md). What follows `--` goes to criterion.
    Bench {
        /// Arguments for `cargo bench`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Cycle times of a scenario at several sizes, what was decided, and the slope of log on log (docs/perf/README.md).
    Growth(growth::Options),
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

fn run() -> anyhow::Result<ExitCode> {
    let repo = Repo::find()?;
    match Arguments::parse().command {
        Command::Test { keep_going, only } => stages::run_named(&repo, stages::TEST, keep_going, &only),
        Command::Lint => Ok(stages::run_all(&repo, stages::LINT, true)),
        Command::Tidy => tidy::report(&repo),
        Command::Corpus { folders, show_failures } => corpus::report(&repo, &folders, show_failures),
        Command::E2e(arguments) => e2e::run_some(&repo, &arguments),
        Command::LiveBench(arguments) => live_bench::report(&repo, &arguments),
        Command::Bench { arguments } => {
            repo::run(repo.cargo(["bench", "--package", "muster-benches"]).args(arguments))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Growth(options) => growth::report(&repo, &options),
    }
}
