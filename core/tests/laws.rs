//! Laws of a cycle, on random rows: what holds whatever the cluster is. Counter-examples shrink, and are kept beside this file.
//!
//! The rules themselves are checked by `muster_testkit::check`, which knows nothing of the core's tables; here are the laws
//! that compare the core with itself: rewinding, repeating, threads, memory of failures, index against scan, order against order.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use muster_core::config::{Action, Config};
use muster_core::cycle::Scheduler;
use muster_core::explain::Reason;
use muster_core::fair_share;
use muster_core::index::{ClassIdx, GangIdx, Idx, NodeIdx, PodIdx};
use muster_core::net::Net;
use muster_core::order::Order;
use muster_core::outcome::{DecisionKind, Outcome};
use muster_core::place::gang::next_request;
use muster_core::place::key::{Scratch, View};
use muster_core::place::{NodeSearch, scan};
use muster_core::snapshot::{GpuRequest, PodStatus, Snapshot};
use muster_core::statement::Statement;
use muster_core::tables::Tables;
use muster_core::verify;
use muster_testkit::check::{check, check_net};
use muster_testkit::rows::{Draft, contended_drafts, drafts, fragmented_drafts, plain_drafts, shared_drafts, with_own_classes};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

fn cases(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::Direct("tests/laws.regressions");
    // PROPTEST_CASES asks for more of everything, on a machine with time.
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases };
    ProptestConfig { cases, failure_persistence: Some(Box::new(kept)), max_shrink_iters: 20_000, ..default }
}

fn all_drafts() -> impl Strategy<Value = Draft> {
    prop_oneof![3 => drafts(), 1 => shared_drafts(), 4 => contended_drafts(), 3 => fragmented_drafts()]
}

/// Only what `allocate` decides: what it remembers of failures is about itself.
fn allocates_only(mut draft: Draft) -> Draft {
    draft.config.actions = vec![Action::Allocate];
    draft
}

fn run(rows: &Snapshot) -> Outcome {
    Scheduler::new(rows).run(&rows.config, &mut |_| {}).clone()
}

/// Decisions, one a line: a counter-example is read by people.
struct Lines<'a>(&'a Outcome);

impl std::fmt::Debug for Lines<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.decisions.iter().try_for_each(|decision| {
            writeln!(
                f,
                "{:?} {:?} {:?} by {:?} {:?}",
                decision.kind,
                decision.pod,
                decision.node,
                decision.action,
                self.0.groups_of(decision)
            )
        })
    }
}

/// The tables as far as a rewind has to restore them: shares and what lists look at first are written anew by every cycle.
fn lasting(tables: &Tables) -> Tables {
    let mut lasting = tables.clone();
    lasting.nodes.changes.clear();
    lasting.pods.waiting_from.as_mut_slice().fill(0);
    lasting.queues.fair_share.as_mut_slice().fill(muster_core::units::Amounts::ZERO);
    lasting
}

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn the_checker_finds_nothing(draft in all_drafts()) {
        let rows = draft.snapshot();
        let mut scheduler = Scheduler::new(&rows);
        let outcome = scheduler.run(&rows.config, &mut |_| {}).clone();
        let wrong = check(&rows, &outcome);
        prop_assert!(wrong.is_empty(), "{wrong:#?} after {:#?}", Lines(&outcome));
        let net = scheduler.net(&rows.config);
        let wrong = check_net(&rows, &outcome, net);
        prop_assert!(wrong.is_empty(), "{wrong:#?} carrying out {net:?} of {:#?}", Lines(&outcome));
    }
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn rewinding_restores_every_column(draft in all_drafts()) {
        let rows = draft.snapshot();
        let mut scheduler = Scheduler::new(&rows);
        let before = scheduler.tables().clone();
        prop_assert_eq!(verify::placements(&before), None);
        let first = scheduler.run(&rows.config, &mut |_| {}).clone();
        prop_assert_eq!(verify::all(&rows, scheduler.tables(), scheduler.statement()), None);
        let net = scheduler.net(&rows.config).clone();
        prop_assert_eq!(verify::all(&rows, scheduler.tables(), scheduler.statement()), None, "carried out");
        prop_assert_eq!(&net, scheduler.net(&rows.config), "the same again");
        scheduler.rewind();
        prop_assert!(lasting(scheduler.tables()) == lasting(&before), "rewinding leaves something behind");
        prop_assert_eq!(scheduler.net(&rows.config), &Net::default(), "nothing was decided any more");
        let second = scheduler.run(&rows.config, &mut |_| {}).clone();
        prop_assert_eq!(&first, &second, "the same cycle again");
        prop_assert_eq!(&net, scheduler.net(&rows.config), "the same cycle again, carried out");
        prop_assert_eq!(&first, &run(&rows), "the same cycle from new tables");
    }

    #[test]
    fn remembered_failures_change_no_decision(draft in drafts()) {
        let rows = allocates_only(draft).snapshot();
        let forgetful = run(&with_own_classes(&rows));
        let with_memory = run(&rows);
        prop_assert_eq!(&with_memory.decisions, &forgetful.decisions);
        prop_assert_eq!(&with_memory.groups, &forgetful.groups);
        let gangs = |outcome: &Outcome| outcome.pending.iter().map(|p| (p.gang, p.pods)).collect::<Vec<_>>();
        prop_assert_eq!(gangs(&with_memory), gangs(&forgetful));
        prop_assert_eq!(with_memory.queues, forgetful.queues);
    }

    #[test]
    fn the_index_is_the_scan(draft in all_drafts(), steps in vec(any::<Step>(), 1..60)) {
        let rows = draft.snapshot();
        let mut bench = Bench::new(&rows);
        for step in steps {
            bench.take(step);
            bench.compare()?;
        }
    }

    #[test]
    fn the_order_is_the_one_lined_up_anew(draft in drafts(), steps in vec((0usize..4, any::<bool>()), 1..40)) {
        compare_orders(&draft.snapshot(), &steps)?;
    }

    #[test]
    fn a_whole_gang_is_refused_only_if_it_does_not_fit(draft in plain_drafts()) {
        compare_with_counting(&draft.snapshot())?;
    }
}

proptest! {
    // Few, because they are large: only then is work spread over threads.
    #![proptest_config(cases(12))]

    #[test]
    fn threads_change_nothing(draft in prop_oneof![drafts(), contended_drafts(), fragmented_drafts()], times in 60usize..80) {
        let rows = with_own_classes(&draft.tiled(times).snapshot());
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool of threads");
            pool.install(|| run(&rows))
        };
        let one = on(1);
        prop_assert_eq!(&one, &on(2), "two threads");
        prop_assert_eq!(&one, &on(4), "four threads");
    }
}

/// The laws are about something: in a good share of what is drawn, each action decides.
#[test]
fn every_action_decides_something_often() {
    let mut runner = TestRunner::deterministic();
    let mut decided = [0_u32; Action::DEFAULT.len()];
    let (draws, strategy) = (400, all_drafts());
    let mut moved = 0;
    for _ in 0..draws {
        let rows = strategy.new_tree(&mut runner).expect("a draft can be drawn").current().snapshot();
        let outcome = run(&rows);
        for action in Action::DEFAULT {
            decided[action as usize] += u32::from(outcome.decisions.iter().any(|decision| decision.action == action));
        }
        let evicted: BTreeSet<PodIdx> =
            outcome.decisions.iter().filter(|d| d.kind == DecisionKind::Evict).map(|d| d.pod).collect();
        let moves = |d: &muster_core::outcome::Decision| d.kind == DecisionKind::Pipeline && evicted.contains(&d.pod);
        moved += u32::from(outcome.decisions.iter().any(moves));
    }
    eprintln!("of {draws}: {decided:?}, moved {moved}");
    for action in Action::DEFAULT {
        assert!(decided[action as usize] >= draws / 20, "{action:?} decided in {} of {draws}", decided[action as usize]);
    }
    assert!(moved >= draws / 20, "pods moved in {moved} of {draws}");
}

/// One thing to do to the tables.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Place the n-th waiting pod at its best node.
    Place(usize),
    /// Remember this state.
    Mark,
    /// Back to the last state remembered.
    Rollback,
    /// What was placed since the last state remembered waits.
    Delay,
}

impl Arbitrary for Step {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        let place = (0usize..1000).prop_map(Step::Place);
        prop_oneof![6 => place, 2 => Just(Step::Mark), 1 => Just(Step::Rollback), 1 => Just(Step::Delay)].boxed()
    }
}

/// Tables that are written without an action.
struct Bench {
    tables: Tables,
    statement: Statement,
    search: NodeSearch,
    config: Config,
    marks: Vec<muster_core::statement::Mark>,
}

impl Bench {
    fn new(rows: &Snapshot) -> Self {
        let tables = Tables::load(rows);
        let mut statement = Statement::default();
        statement.begin(&tables);
        Self { search: NodeSearch::new(&tables), tables, statement, config: rows.config.clone(), marks: Vec::new() }
    }

    fn take(&mut self, step: Step) {
        let Self { tables, statement, search, config, marks } = self;
        match step {
            Step::Place(n) => {
                let waiting: Vec<PodIdx> =
                    tables.pods.status.entries().filter(|(_, s)| **s == PodStatus::Pending).map(|(pod, _)| pod).collect();
                if !waiting.is_empty() {
                    search.place(tables, statement, config, waiting[n % waiting.len()], Action::Allocate);
                }
            }
            Step::Mark => marks.push(statement.mark(tables)),
            Step::Rollback => {
                let mark = marks.pop().unwrap_or(statement.start());
                statement.rollback(tables, mark);
            }
            Step::Delay => {
                if let Some(&mark) = marks.last() {
                    statement.delay_since(tables, mark);
                }
            }
        }
    }

    /// For every class: the tournament's winner is the scan's, and keys by column are keys by node.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        let Self { tables, search, config, .. } = self;
        let mut scratch = Scratch::default();
        let mut keys = vec![0; tables.nodes.len()];
        for class in tables.classes.row.indices().collect::<Vec<ClassIdx>>() {
            search.feasible.prepare(tables, config, class);
            let view = View { tables, config, mask: search.feasible.mask(class), class };
            prop_assert_eq!(search.index.best(&view), scan::best(&view, |_| true), "{:?}", class);
            view.fill(&mut keys, &mut scratch);
            for (node, &key) in keys.iter().enumerate() {
                prop_assert_eq!(key, view.key(NodeIdx::new(node)), "{:?} on node {}", class, node);
            }
        }
        Ok(())
    }
}

/// Turns with placements between them, some gangs lining up again: whose turn it is, is what a new line-up says. A step is how
/// many pods of the gang are placed, and whether it lines up again.
fn compare_orders(rows: &Snapshot, steps: &[(usize, bool)]) -> Result<(), TestCaseError> {
    let mut bench = Bench::new(rows);
    let arena = bumpalo::Bump::new();
    fair_share::divide(&mut bench.tables.queues, bench.tables.pie, rows.config.k_value, &mut fair_share::Scratch::default());
    let next = |tables: &Tables, gang| next_request(tables, &rows.config, gang, tables.nodes.smallest_card, &arena);
    let in_leaf = |tables: &Tables, gang: GangIdx| tables.gangs.queue[gang].is_ok_and(|queue| tables.queues.is_leaf(queue));
    let mut waiting: BTreeSet<GangIdx> = rows.gangs.indices().filter(|&gang| in_leaf(&bench.tables, gang)).collect();
    let mut order = Order::default();
    order.begin(&bench.tables, &rows.config, waiting.iter().copied(), |gang| next(&bench.tables, gang));
    for &(pods, again) in steps {
        let mut anew = Order::default();
        anew.begin(&bench.tables, &rows.config, waiting.iter().copied(), |gang| next(&bench.tables, gang));
        let gang = order.pop(&bench.tables, &rows.config);
        prop_assert_eq!(gang, anew.pop(&bench.tables, &rows.config));
        let Some(gang) = gang else { return Ok(()) };
        waiting.remove(&gang);
        let Bench { tables, statement, search, config, .. } = &mut bench;
        let pending = |pod: &PodIdx| rows.pods[*pod].status == PodStatus::Pending && rows.pods[*pod].subgroup.is_some();
        for pod in rows.gangs[gang].pods.iter().filter(pending).take(pods) {
            if tables.pods.status[pod] == PodStatus::Pending {
                search.place(tables, statement, config, pod, Action::Allocate);
            }
        }
        if again {
            order.push(&bench.tables, &rows.config, gang);
            waiting.insert(gang);
        }
        order.settle(&bench.tables, &rows.config, gang, |gang| next(&bench.tables, gang));
    }
    Ok(())
}

/// With one class of whole GPUs it only counts how many places there are: gangs in order, each whole or not at all; and whoever
/// is refused is told how many places are left in the end.
fn compare_with_counting(rows: &Snapshot) -> Result<(), TestCaseError> {
    let GpuRequest::Whole(gpus) = rows.classes[ClassIdx::new(0)].gpu else { unreachable!("plain drafts ask for whole GPUs") };
    let count = |gang: GangIdx| i64::try_from(rows.gangs[gang].pods.len()).expect("few pods");
    let mut places: i64 = rows.nodes.iter().map(|node| (node.gpus / i64::from(gpus)).min(node.pods)).sum();
    let mut order: Vec<GangIdx> = rows.gangs.indices().collect();
    order.sort_by_key(|&gang| (-rows.gangs[gang].priority, gang));
    let (mut fit, mut refused) = (Vec::new(), Vec::new());
    for gang in order {
        if count(gang) <= places {
            places -= count(gang);
            fit.push(gang);
        } else {
            refused.push(gang);
        }
    }
    let outcome = run(rows);
    let mine = |gang: GangIdx| outcome.decisions.iter().filter(move |decision| rows.pods[decision.pod].gang == Some(gang));
    for gang in fit {
        prop_assert_eq!(mine(gang).count(), rows.gangs[gang].pods.len(), "{:?} fits", gang);
    }
    for gang in refused {
        prop_assert_eq!(mine(gang).count(), 0, "{:?} does not fit", gang);
        let pending = outcome.pending.iter().find(|pending| pending.gang == gang).expect("a gang that waits is listed");
        match outcome.reasons_of(pending) {
            [Reason::NoNode { placed, members, .. }] => {
                prop_assert_eq!((i64::from(*placed), i64::from(*members)), (places, count(gang)), "{:?}", gang);
            }
            [Reason::TooLarge { .. }] => prop_assert!(rows.nodes.iter().all(|node| node.gpus < i64::from(gpus))),
            other => prop_assert!(false, "{:?}: {:?}", gang, other),
        }
    }
    Ok(())
}
