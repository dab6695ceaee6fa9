//! A warm cycle does not touch the heap: no allocation, no reallocation, counted over all threads of the process.
//!
//! One test in a file of its own, because a count of the whole process bears no neighbours.

#![forbid(unsafe_code)]

use std::alloc::System;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;

use muster_core::cycle::Scheduler;
use muster_core::explain::Reason;
use muster_core::outcome::{DecisionKind, Outcome};
use muster_core::snapshot::Snapshot;
use muster_testkit::rows::{Draft, contended_drafts, drafts, fragmented_drafts, with_own_classes};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Clusters that are drawn.
const CLUSTERS: usize = 80;
/// Nodes that each has at least, unless it is crowded.
const NODES_MIN: usize = 200;
/// Cycles before the one that is counted.
const WARM_UP: usize = 3;

#[test]
fn a_warm_cycle_does_not_touch_the_heap() {
    let counter = Region::new(ALLOCATOR);
    drop(std::hint::black_box(vec![0_u8; 64]));
    assert!(counter.change().allocations > 0, "the counter counts");
    let mut runner = TestRunner::deterministic();
    let draws: Vec<Draft> = (0..CLUSTERS).map(|number| draw(&mut runner, number)).collect();
    let mut seen = Seen::default();
    for (number, draft) in draws.into_iter().enumerate() {
        // Where somebody has to go, more nodes would make room for all.
        let times = if is_crowded(number) { 1 } else { NODES_MIN.div_ceil(draft.nodes.len()) };
        let rows = draft.clone().tiled(times).snapshot();
        let (allocated, outcome) = count(&rows);
        assert_eq!(allocated, 0, "cluster {number}: {} decisions, {} gangs wait", outcome.decisions.len(), outcome.pending.len());
        seen.add(&outcome);
    }
    seen.assert_everything();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("a pool of threads");
    let mut runner = TestRunner::deterministic();
    for number in 0..CLUSTERS / 4 {
        let draft = draw(&mut runner, number);
        // A class for each pod and thousands of nodes: enough keys that tournaments and reasons are worked out on both threads.
        let times = 4096_usize.div_ceil(draft.nodes.len());
        let rows = with_own_classes(&draft.tiled(times).snapshot());
        let (allocated, outcome) = pool.install(|| count(&rows));
        assert_eq!(allocated, 0, "two threads, cluster {number}: {} decisions", outcome.decisions.len());
    }
}

/// Every other cluster is one where somebody has to go.
const fn is_crowded(number: usize) -> bool {
    number % 2 == 1
}

fn draw(runner: &mut TestRunner, number: usize) -> Draft {
    let draft = [drafts().boxed(), contended_drafts().boxed(), drafts().boxed(), fragmented_drafts().boxed()];
    let draft = &draft[number % draft.len()];
    draft.new_tree(runner).expect("a draft can be drawn").current()
}

/// Allocations and reallocations of a warm cycle, and what it decided.
fn count(rows: &Snapshot) -> (usize, Outcome) {
    let mut scheduler = Scheduler::new(rows);
    for _ in 0..WARM_UP {
        scheduler.run(&rows.config, &mut |_| {});
        scheduler.net(&rows.config);
        scheduler.rewind();
    }
    let region = Region::new(ALLOCATOR);
    scheduler.run(&rows.config, &mut |_| {});
    scheduler.net(&rows.config);
    let change = region.change();
    scheduler.rewind();
    (change.allocations + change.reallocations, scheduler.run(&rows.config, &mut |_| {}).clone())
}

/// What the clusters had in them: a count of nothing would prove nothing.
#[derive(Default)]
struct Seen {
    binds: usize,
    pipelines: usize,
    evictions: BTreeMap<&'static str, usize>,
    shared: usize,
    reasons: BTreeSet<String>,
    kinds: Vec<std::mem::Discriminant<Reason>>,
}

impl Seen {
    fn add(&mut self, outcome: &Outcome) {
        for decision in &outcome.decisions {
            match decision.kind {
                DecisionKind::Bind => self.binds += 1,
                DecisionKind::Pipeline => self.pipelines += 1,
                DecisionKind::Evict => *self.evictions.entry(decision.action.name()).or_default() += 1,
            }
            self.shared += usize::from(!outcome.groups_of(decision).is_empty());
        }
        for reason in &outcome.reasons {
            if !self.kinds.contains(&discriminant(reason)) {
                self.kinds.push(discriminant(reason));
                self.reasons.insert(format!("{reason:?}"));
            }
        }
    }

    fn assert_everything(&self) {
        assert!(self.binds > 0 && self.pipelines > 0 && self.shared > 0, "{} {} {}", self.binds, self.pipelines, self.shared);
        for name in ["consolidation", "reclaim", "preempt", "stalegangeviction"] {
            assert!(self.evictions.contains_key(name), "no cluster where {name} evicts: {:?}", self.evictions);
        }
        for name in ["NoNode", "OverLimit", "OverQuota", "TooFewPods", "TooLarge"] {
            assert!(self.reasons.iter().any(|reason| reason.starts_with(name)), "no cluster with {name}: {:#?}", self.reasons);
        }
    }
}
