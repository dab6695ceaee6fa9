//! `muster run` measured on a real control plane (docs/perf/README.md, "Live"): the measurements among the tests of `e2e/`, with
//! the release build, and a table of what they found.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::e2e::require_go;
use crate::repo::{Repo, run};
use crate::stages::{EVERYTHING_AND_CLUSTER, counted_tests};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Nodes of 8 GPUs. Default: 500; for memory 1,250.
    #[arg(long)]
    nodes: Option<usize>,
    /// Pods. Default: 4,000; for memory 20,000.
    #[arg(long)]
    pods: Option<usize>,
    /// Cycles to be run for memory. Default: 1,000.
    #[arg(long)]
    cycles: Option<usize>,
    /// The program to measure. Default: the release build with the controller, which is made first.
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// How the figures are printed at the end.
    #[arg(long, short, default_value = "table", value_parser = ["table", "json"])]
    output: String,
    /// Only measurements whose name contains this: jobs_while_running, pods_while_running, all_at_once, memory_and_idle.
    filter: Option<String>,
}

/// `cargo xtask live-bench`: some minutes each, with nothing else running.
pub(crate) fn report(repo: &Repo, arguments: &Arguments) -> Result<ExitCode> {
    require_go(repo)?;
    let program = match &arguments.bin {
        Some(path) => std::path::absolute(path)?,
        None => {
            run(&mut repo.cargo(["build", "--release", "--locked", "-p", "muster", "--features", "controller"]))?;
            repo.target("release/muster")
        }
    };
    let figures = repo.target("live-bench.jsonl");
    // Of an earlier run.
    let _ = fs::remove_file(&figures);
    let mut command = repo.cargo(["test"]);
    command.args(EVERYTHING_AND_CLUSTER).args(["--test", "cluster", "--"]).args(&arguments.filter);
    command.env("MUSTER_E2E_MEASURE", "1").env("MUSTER_E2E_PROGRAM", program).env("MUSTER_E2E_FIGURES", &figures);
    let settings = [("NODES", arguments.nodes), ("PODS", arguments.pods), ("CYCLES", arguments.cycles)]
        .map(|(name, value)| Some((name, value?)));
    for (name, value) in settings.into_iter().flatten() {
        command.env(format!("MUSTER_E2E_{name}"), value.to_string());
    }
    let measured = counted_tests(&mut command);
    // What was found before something failed is shown as well.
    let text = fs::read_to_string(&figures).unwrap_or_default();
    let found = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    let found = found.with_context(|| format!("figures in {}", figures.display()))?;
    if arguments.output == "json" {
        println!("{}", serde_json::to_string_pretty(&json!(found))?);
    } else {
        found.iter().for_each(show);
    }
    match measured {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) => bail!("{error:#}"),
    }
}

fn show(scenario: &Value) {
    println!("\n{}", scenario["scenario"].as_str().unwrap_or_default());
    for figure in scenario["figures"].as_array().into_iter().flatten() {
        let text = |field: &str| figure[field].as_str().unwrap_or_default();
        println!("  {:48} {:>10.1} {}", text("name"), figure["value"].as_f64().unwrap_or_default(), text("unit"));
    }
}
