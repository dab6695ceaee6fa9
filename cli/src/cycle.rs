//! One cycle from loaded rows to an outcome, with the time of each stage, on a thread pool of its own.

use std::time::{Duration, Instant};

use muster_core::cycle::{Scheduler, Stage};
use muster_core::outcome::Outcome;
use muster_core::snapshot::Snapshot;
use muster_core::verify;
use rayon::ThreadPoolBuilder;

use crate::fault::Fault;

/// What a cycle decided, and how long each stage took.
pub(crate) struct Planned {
    pub(crate) outcome: Outcome,
    pub(crate) stages: Vec<StageTime>,
}

/// A stage that ran.
pub(crate) struct StageTime {
    pub(crate) name: &'static str,
    /// Whether it is an action.
    pub(crate) action: bool,
    pub(crate) time: Duration,
}

impl Planned {
    /// Rows to finished plan, reasons included.
    pub(crate) fn total(&self) -> Duration {
        self.stages.iter().map(|stage| stage.time).sum()
    }
}

/// Runs `work` inside a pool of `threads` (default: one a processor), entered once: entering costs more than a small cycle.
pub(crate) fn in_pool<R: Send>(threads: Option<u16>, work: impl FnOnce() -> R + Send) -> Result<R, Fault> {
    let threads = threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("muster-{i}")).build();
    let pool = pool.map_err(|error| Fault::failed(format!("cannot start {threads} threads: {error}")))?;
    Ok(pool.install(work))
}

/// One cycle. With `check`, every ledger is computed anew afterwards; fails with the first that is wrong.
pub(crate) fn run(snapshot: &Snapshot, check: bool) -> Result<Planned, Fault> {
    let mut starts = vec![("tables", false, Instant::now())];
    let mut scheduler = Scheduler::new(snapshot);
    let outcome = scheduler.run(&snapshot.config, &mut |stage| {
        starts.push((stage.name(), matches!(stage, Stage::Act(_)), Instant::now()));
    });
    let end = Instant::now();
    let outcome = outcome.clone();
    if check {
        verify_all(&scheduler, snapshot)?;
    }
    let ends = starts.iter().skip(1).map(|&(_, _, start)| start).chain([end]);
    let stages = starts.iter().zip(ends).map(|(&(name, action, start), end)| StageTime { name, action, time: end - start });
    Ok(Planned { stages: stages.collect(), outcome })
}

fn verify_all(scheduler: &Scheduler, snapshot: &Snapshot) -> Result<(), Fault> {
    match verify::all(snapshot, scheduler.tables(), scheduler.statement()) {
        Some(what) => Err(Fault::failed(format!("--verify: an invariant does not hold, please report this: {what}"))),
        None => Ok(()),
    }
}
