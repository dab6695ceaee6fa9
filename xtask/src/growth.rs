//! How the time of a cycle grows with the cluster: the same scenario at several sizes, planned by a release binary.
//!
//! Known here: the options of `gen_cluster.py`, and the output of `muster plan`. Not known: what has to be decided; the counts
//! are shown, and have to be the same in every run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::repo::Repo;

/// Waiting pods at [`PENDING_NODES`] nodes, for the scenarios that do not say it themselves.
const PENDING: &[(&str, usize)] =
    &[("reclaim", 64), ("preempt", 64), ("frag", 20), ("mixed", 2000), ("large", 0), ("many", 0), ("hopeless", 0)];
const PENDING_NODES: usize = 1250;
/// The generator's clock; plans must not depend on the day.
const NOW: &str = "2026-11-29T12:00:00Z";

#[derive(Args)]
pub(crate) struct Options {
    /// The program that plans. Default: the release build.
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// What `gen_cluster.py` makes: reclaim, preempt, frag, mixed, large, many, hopeless.
    #[arg(long, default_value = "reclaim", value_delimiter = ',')]
    scenario: Vec<String>,
    /// Sizes of the cluster.
    #[arg(long, default_value = "125,250,500,1250,2500,5000,12500", value_delimiter = ',')]
    nodes: Vec<usize>,
    /// Plans of each cluster; the fastest counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The generator. Default: `../shared/tools/gen_cluster.py`.
    #[arg(long, value_name = "PATH")]
    generator: Option<PathBuf>,
}

/// What a plan decided about pods: the last word on each counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Decided {
    /// Got a place and had none.
    placed: usize,
    /// Lost theirs.
    evicted: usize,
    /// Got another one.
    moved: usize,
}

/// One size of one scenario.
struct Row {
    nodes: usize,
    decided: Decided,
    /// Of the fastest run.
    cycle_ms: f64,
}

/// `cargo xtask growth`: a table for each scenario.
pub(crate) fn report(repo: &Repo, options: &Options) -> Result<ExitCode> {
    let bin = options.bin.as_ref().map_or_else(|| Ok(repo.target("release/muster")), std::path::absolute)?;
    let generator = options.generator.as_ref().map_or_else(|| Ok(repo.shared("tools/gen_cluster.py")), std::path::absolute)?;
    for (path, option) in [(&bin, "--bin"), (&generator, "--generator")] {
        if !path.is_file() {
            bail!("{} is not there: build or name it ({option} PATH)", path.display());
        }
    }
    if options.runs == 0 || options.nodes.contains(&0) {
        bail!("--runs {}, --nodes {:?}: expected numbers from 1", options.runs, options.nodes);
    }
    for scenario in &options.scenario {
        let Some(&(_, pending)) = PENDING.iter().find(|(name, _)| name == scenario) else {
            let names: Vec<_> = PENDING.iter().map(|(name, _)| *name).collect();
            bail!("--scenario {scenario}: expected some of {}", names.join(", "));
        };
        println!("\n{scenario:12} {:>8} {:>8} {:>8} {:>10} {:>6}", "placed", "evicted", "moved", "cycle ms", "slope");
        let mut rows: Vec<Row> = Vec::new();
        for &nodes in &options.nodes {
            let pending = (pending * nodes).div_ceil(PENDING_NODES);
            let row = measure(repo, &bin, &generator, (scenario, nodes, pending), options.runs)?;
            let slope = rows.last().and_then(|before| slope(&[before.point(), row.point()]));
            let Decided { placed, evicted, moved } = row.decided;
            println!("{nodes:12} {placed:>8} {evicted:>8} {moved:>8} {:>10.3} {:>6}", row.cycle_ms, shown(slope));
            rows.push(row);
        }
        let points: Vec<_> = rows.iter().map(Row::point).collect();
        println!("{:12} {:>44}", "all sizes", shown(slope(&points)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the cluster, plans it, and deletes it.
fn measure(
    repo: &Repo,
    bin: &Path,
    generator: &Path,
    (scenario, nodes, pending): (&str, usize, usize),
    runs: usize,
) -> Result<Row> {
    let snapshot = repo.target(&format!("growth-{}-{scenario}-{nodes}.zip", std::process::id()));
    let mut command = repo.program("python3");
    command.arg(generator).arg(scenario).args(["--nodes", &nodes.to_string(), "--pending", &pending.to_string(), "-o"]);
    output(command.arg(&snapshot))?;
    let plans: Result<Vec<_>> = (0..runs).map(|_| plan(repo, bin, &snapshot)).collect();
    fs::remove_file(&snapshot)?;
    let plans = plans?;
    let decided = plans[0].0;
    if plans.iter().any(|plan| plan.0 != decided) {
        bail!("{scenario} at {nodes} nodes: runs on the same cluster decide differently");
    }
    Ok(Row { nodes, decided, cycle_ms: plans.iter().map(|plan| plan.1).fold(f64::INFINITY, f64::min) })
}

/// What was decided, and the milliseconds of the cycle.
fn plan(repo: &Repo, bin: &Path, snapshot: &Path) -> Result<(Decided, f64)> {
    let mut command = repo.program(bin);
    let text = output(command.arg("plan").arg(snapshot).args(["--now", NOW, "--output", "json"]))?;
    let plan: Value = serde_json::from_slice(&text).context("the plan is no JSON")?;
    let cycle_ms = plan["timing"]["cycleMs"].as_f64().context("the plan has no `timing.cycleMs`")?;
    Ok((tally(&plan)?, cycle_ms))
}

/// Standard output. Fails, with what it wrote to standard error, unless it exits with 0.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!("{:?}: {}\n{}", command, output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

/// Counts the pods of a plan. A pod whose first decision gives it a place was waiting; any other had one.
fn tally(plan: &Value) -> Result<Decided> {
    // The first and the last decision on each pod: its number, and whether it gives a place.
    let mut pods: BTreeMap<(&str, &str), [(u64, bool); 2]> = BTreeMap::new();
    for (list, gives_place) in [("bound", true), ("pipelined", true), ("evicted", false)] {
        for decision in plan[list].as_array().with_context(|| format!("the plan has no list `{list}`"))? {
            let text = |key: &str| decision[key].as_str().with_context(|| format!("`{list}`: a decision without `{key}`"));
            let seq = decision["seq"].as_u64().with_context(|| format!("`{list}`: a decision without `seq`"))?;
            let one = (seq, gives_place);
            let [first, last] = pods.entry((text("namespace")?, text("pod")?)).or_insert([one, one]);
            *first = one.min(*first);
            *last = one.max(*last);
        }
    }
    let mut decided = Decided::default();
    for [(_, was_waiting), (_, has_place)] in pods.into_values() {
        match (was_waiting, has_place) {
            (true, true) => decided.placed += 1,
            (false, true) => decided.moved += 1,
            (false, false) => decided.evicted += 1,
            (true, false) => {}
        }
    }
    Ok(decided)
}

impl Row {
    /// Size and time, as logarithms.
    #[expect(clippy::cast_precision_loss, reason = "a number of nodes")]
    fn point(&self) -> (f64, f64) {
        ((self.nodes as f64).ln(), self.cycle_ms.ln())
    }
}

/// The slope of the line that is closest to the points (least squares); `None` if their x are all the same.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let mean = |sum: f64| sum / points.iter().map(|_| 1.0).sum::<f64>();
    let middle = (mean(points.iter().map(|p| p.0).sum()), mean(points.iter().map(|p| p.1).sum()));
    let (mut up, mut along) = (0.0, 0.0);
    for point in points {
        let (x, y) = (point.0 - middle.0, point.1 - middle.1);
        up += x * y;
        along += x * x;
    }
    (along > 0.0).then(|| up / along)
}

fn shown(slope: Option<f64>) -> String {
    slope.map_or_else(String::new, |slope| format!("{slope:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_is_the_exponent() {
        for exponent in [0.0, 1.0, 2.5] {
            let points: Vec<_> = [125.0_f64, 500.0, 12_500.0].map(|n| (n.ln(), (3.0 * n.powf(exponent)).ln())).into();
            assert!((slope(&points).unwrap() - exponent).abs() < 1e-9);
        }
        assert_eq!(slope(&[(1.0, 2.0)]), None);
        assert_eq!(slope(&[]), None);
    }

    #[test]
    fn first_and_last_decision_on_a_pod_count() {
        let decision = |seq: u64, pod: &str| serde_json::json!({"seq": seq, "namespace": "n", "pod": pod, "node": "x"});
        let plan = serde_json::json!({
            "bound": [decision(0, "new")],
            "pipelined": [decision(3, "moved"), decision(4, "asker"), decision(5, "unlucky")],
            "evicted": [decision(1, "moved"), decision(2, "lost"), decision(6, "unlucky")],
        });
        assert_eq!(tally(&plan).unwrap(), Decided { placed: 2, evicted: 1, moved: 1 });
        assert!(tally(&serde_json::json!({"bound": [], "pipelined": []})).is_err());
    }
}
