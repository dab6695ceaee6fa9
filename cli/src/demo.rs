//! `muster demo`: the whole way from objects to a plan on a generated cluster. The first thing a stranger runs.

use std::fmt::Write as _;
use std::time::Instant;

use muster_api::read::{self, Options};
use muster_testkit::generate::{Cluster, Shape};

use crate::args::{Demo, Resources};
use crate::cycle;
use crate::fault::Fault;
use crate::generate::describe;
use crate::plan::{View, table};
use crate::text::{milliseconds, wrap_into};
use crate::{input, sink};

const INTRODUCTION: &str = "\
A generated cluster, written as Kubernetes objects, read back and planned: one
scheduling cycle, decided and explained.
";

/// Few enough lines for one screen.
const LENGTHS: table::Lengths = table::Lengths { gangs: 6, queues: 20, reasons: 6, rest: "" };

/// Generates, reads, plans, prints.
pub(crate) fn run(args: &Demo, started: Instant) -> Result<(), Fault> {
    let shape = Shape {
        nodes: args.nodes,
        racks: args.nodes.div_ceil(16).max(1),
        queues: 12,
        fill: 0.85,
        pending: args.nodes.saturating_mul(2),
        cordoned: 0.01,
        seed: args.seed,
        actions: "allocate".to_owned(),
        ..Shape::default()
    };
    let cluster = Cluster::new(&shape).map_err(|bad| Fault::bad_input(bad.to_string()))?;
    let bytes = cluster.write(Vec::new()).map_err(|error| Fault::failed(format!("cannot generate: {error}")))?;
    let generated = started.elapsed();
    let (loaded, planned, load) = cycle::in_pool(args.threads, || {
        let begin = Instant::now();
        let options = Options { now: None, actions: None, lenient: false, progress: None };
        let loaded = read::load_bytes("demo", &bytes, &options)?;
        let load = begin.elapsed();
        let planned = cycle::run(&loaded.snapshot, false)?;
        Ok::<_, Fault>((loaded, planned, load))
    })??;
    input::tell(&loaded);
    let view = View { loaded: &loaded, planned: &planned, load, started };
    let mut out = format!("{INTRODUCTION}\n");
    wrap_into(&mut out, "Generated: ", &describe(&cluster.counts()));
    let _ = writeln!(out, "({:.1} MB of objects in {}, seed {})\n", bytes.len() as f64 / 1e6, milliseconds(generated), args.seed);
    out.push_str(&table::text(&view, Resources::Gpu, &LENGTHS));
    out.push_str(&next_steps(&shape));
    sink::print(out.as_bytes())
}

/// The commands that give the same cluster, and the same plan, from a file.
fn next_steps(shape: &Shape) -> String {
    let Shape { nodes, queues, fill, pending, cordoned, seed, actions, .. } = shape;
    format!(
        "\nNext: keep this cluster; see every decision; every reason, and what helps\n  \
         muster generate --nodes {nodes} --queues {queues} --fill {fill} --pending {pending} \\\n      \
         --cordoned {cordoned} --seed {seed} --actions {actions} -o cluster.zip\n  \
         muster plan cluster.zip --all\n  \
         muster explain cluster.zip\n"
    )
}
