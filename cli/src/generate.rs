//! `muster generate`: a seeded cluster as a snapshot.

use muster_core::config::Action;
use muster_testkit::generate::{Cluster, Counts, Shape};

use crate::args::Generate;
use crate::fault::{Fault, say};
use crate::sink;
use crate::text::{count, plural};

/// More pods than these may need more than 4 GiB.
const LARGE_PODS: u64 = 2_000_000;

/// Draws and writes, then says on standard error what it was.
pub(crate) fn run(args: &Generate) -> Result<(), Fault> {
    check_actions(&args.actions)?;
    let shape = Shape {
        nodes: args.nodes,
        gpus: args.gpus,
        racks: args.racks.unwrap_or_else(|| args.nodes.div_ceil(16).max(1)),
        queues: args.queues,
        depth: args.depth,
        mix: args.mix,
        fill: args.fill,
        pending: args.pending,
        cordoned: args.cordoned,
        seed: args.seed,
        actions: args.actions.clone(),
    };
    let cluster = Cluster::new(&shape).map_err(|bad| Fault::bad_input(bad.to_string()))?;
    let counts = cluster.counts();
    let large = counts.running + counts.pending > LARGE_PODS;
    sink::write_snapshot(args.output.as_deref(), large, |out| cluster.write(out).map(drop))?;
    let name = args.output.as_ref().map_or_else(|| "-".to_owned(), |path| path.display().to_string());
    say(&format!("{name}: {}", describe(&counts)));
    Ok(())
}

/// A snapshot whose actions nothing knows could not be planned.
fn check_actions(actions: &str) -> Result<(), Fault> {
    let names = Action::DEFAULT.map(Action::name);
    match actions.split(',').map(str::trim).find(|name| !names.contains(name)) {
        Some(name) => Err(Fault::bad_input(format!("--actions: {name:?}: expected one or more of {}", names.join(", ")))),
        None => Ok(()),
    }
}

/// `1,250 nodes, 10,000 GPUs, 36 queues, 3,412 gangs; 5,123 pods run, 1,000 wait`.
pub(crate) fn describe(counts: &Counts) -> String {
    let number = |pods: u64| usize::try_from(pods).unwrap_or(usize::MAX);
    format!(
        "{}, {}, {}, {}; {} run, {} wait",
        plural(counts.nodes, "node", "nodes"),
        plural(number(counts.gpus), "GPU", "GPUs"),
        plural(counts.queues, "queue", "queues"),
        plural(counts.gangs, "gang", "gangs"),
        plural(number(counts.running), "pod", "pods"),
        count(number(counts.pending))
    )
}
