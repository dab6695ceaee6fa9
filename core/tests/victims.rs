//! Laws of who has to go: over several rounds, and of the search against itself.
//!
//! The rules of one cycle are checked by `muster_testkit::check` in `laws.rs`.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use muster_core::config::Action;
use muster_core::cycle::Scheduler;
use muster_core::index::{GangIdx, Idx as _, QueueIdx};
use muster_core::outcome::{Decision, DecisionKind, Outcome};
use muster_core::snapshot::Snapshot;
use muster_testkit::check::{Displacement, check, check_net, displacements};
use muster_testkit::rows::{Draft, carried_out, contended_drafts, drafts, fragmented_drafts, shared_drafts};
use muster_testkit::rows::{next_round, next_round_without_promises};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

fn cases(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::Direct("tests/victims.regressions");
    // PROPTEST_CASES asks for more of everything, on a machine with time.
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases };
    ProptestConfig { cases, failure_persistence: Some(Box::new(kept)), max_shrink_iters: 20_000, ..default }
}

fn full_drafts() -> impl Strategy<Value = Draft> {
    prop_oneof![3 => contended_drafts(), 2 => fragmented_drafts()]
}

fn run(rows: &Snapshot) -> Outcome {
    Scheduler::new(rows).run(&rows.config, &mut |_| {}).clone()
}

/// Decisions as people read them.
fn lines(rows: &Snapshot, outcome: &Outcome) -> Vec<String> {
    let line = |decision: &Decision| {
        let gang = rows.pods[decision.pod].gang;
        let groups = outcome.groups_of(decision);
        format!("{:?} {:?} of {gang:?} on {:?} {groups:?} by {:?}", decision.kind, decision.pod, decision.node, decision.action)
    };
    outcome.decisions.iter().map(line).collect()
}

/// Of everything, on at most six nodes: every try is made in a moment.
fn small_drafts() -> impl Strategy<Value = Draft> {
    prop_oneof![4 => contended_drafts(), 3 => fragmented_drafts(), 1 => shared_drafts(), 1 => drafts()].prop_map(|mut draft| {
        draft.nodes.truncate(6);
        draft
    })
}

/// Evictions of a cycle, and of each leaf queue.
fn evictions(rows: &Snapshot, outcome: &Outcome) -> (u32, BTreeMap<QueueIdx, u32>) {
    let mut of_queues = BTreeMap::new();
    let evicted = outcome.decisions.iter().filter(|decision| decision.kind == DecisionKind::Evict);
    for decision in evicted.clone() {
        if let Some(Ok(queue)) = rows.pods[decision.pod].gang.map(|gang| rows.gangs[gang].queue) {
            *of_queues.entry(queue).or_default() += 1;
        }
    }
    (u32::try_from(evicted.count()).expect("few pods"), of_queues)
}

/// The decisions before the first run of evictions with which there would be more than `most`. A stale gang leaves by itself, so
/// runs of theirs end with each gang.
fn within<'a>(rows: &Snapshot, decisions: &'a [Decision], most: u32) -> &'a [Decision] {
    let (mut so_far, mut start) = (0, 0);
    for (at, decision) in decisions.iter().enumerate() {
        let goes_on = at > 0 && decisions[at - 1].kind == DecisionKind::Evict && decisions[at - 1].action == decision.action && {
            let gang = |decision: &Decision| rows.pods[decision.pod].gang;
            decision.action != Action::StaleGangEviction || gang(&decisions[at - 1]) == gang(decision)
        };
        if decision.kind == DecisionKind::Evict {
            start = if goes_on { start } else { at };
            so_far += 1;
        }
        if so_far > most {
            return &decisions[..start];
        }
    }
    decisions
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn shortcuts_change_nothing(draft in small_drafts()) {
        let mut rows = draft.snapshot();
        // What is proved is not tried: the bound on tries would be met sooner or later.
        rows.config.victims.simulations_max = u32::MAX;
        let short = run(&rows);
        rows.config.victims.shortcuts = false;
        let long = run(&rows);
        let same = short.decisions == long.decisions && short.groups == long.groups;
        let (with, without) = (lines(&rows, &short), lines(&rows, &long));
        prop_assert!(same, "with: {with:#?}without: {without:#?}, where {:?} is wrong", check(&rows, &long));
    }

    #[test]
    fn who_is_kept_stays(draft in small_drafts(), kept in prop::collection::vec(any::<bool>(), 64)) {
        let mut rows = draft.snapshot();
        rows.config.victims.simulations_max = u32::MAX;
        for pod in rows.pods.indices() {
            rows.pods[pod].kept = kept[pod.at() % kept.len()];
        }
        let short = run(&rows);
        let gone = short.decisions.iter().find(|made| made.kind == DecisionKind::Evict && rows.pods[made.pod].kept);
        prop_assert!(gone.is_none(), "{gone:?}");
        rows.config.victims.shortcuts = false;
        let long = run(&rows);
        prop_assert_eq!(lines(&rows, &short), lines(&rows, &long), "what is proved without trying knows who is kept");
    }

    #[test]
    fn a_brake_cuts_between_askers(draft in small_drafts(), cycle in 0u32..6, queue in 0u32..6) {
        let mut rows = draft.snapshot();
        (rows.config.victims.evictions_max, rows.config.victims.queue_evictions_max) = (None, None);
        let free = run(&rows);
        let (all, of_queues) = evictions(&rows, &free);
        rows.config.victims.evictions_max = Some(all);
        rows.config.victims.queue_evictions_max = of_queues.values().copied().max();
        prop_assert_eq!(&run(&rows).decisions, &free.decisions, "a brake that is not met");

        (rows.config.victims.evictions_max, rows.config.victims.queue_evictions_max) = (Some(cycle), None);
        let braked = run(&rows);
        prop_assert!(evictions(&rows, &braked).0 <= cycle, "{} evicted", evictions(&rows, &braked).0);
        let untouched = within(&rows, &free.decisions, cycle);
        prop_assert!(braked.decisions.starts_with(untouched), "{:#?} does not begin with {untouched:#?}", braked.decisions);
        let wrong = check(&rows, &braked);
        prop_assert!(wrong.is_empty(), "{wrong:#?}");

        (rows.config.victims.evictions_max, rows.config.victims.queue_evictions_max) = (None, Some(queue));
        let braked = run(&rows);
        let (_, of_queues) = evictions(&rows, &braked);
        prop_assert!(of_queues.values().all(|&evicted| evicted <= queue), "{of_queues:?}");
        let wrong = check(&rows, &braked);
        prop_assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

proptest! {
    #![proptest_config(cases(384))]

    // Without `proportion` no rule says whose turn it is: two queues may take from each other for ever. With it, one may take
    // back from another once: who took within its fair share may thereby exceed its quota, and who fell below his quota since
    // (because others took, too) may then take for that reason (semantics.md §6.6.3); and an elastic gang that grew by `preempt`
    // beyond its queue's share gives to whom it took from before. What must not be is that this goes on.
    #[test]
    fn rounds_come_to_rest_without_ping_pong(mut draft in full_drafts()) {
        draft.config.plugins.proportion = true;
        let mut rows = draft.snapshot();
        // Each round some gang takes a step, and a gang has no more steps than pods.
        let most = 2 * rows.gangs.len() + rows.pods.len() + 2;
        let mut turns: BTreeMap<[GangIdx; 2], Vec<(usize, Displacement)>> = BTreeMap::new();
        for round in 0..=most {
            let outcome = run(&rows);
            if round > 0 && outcome.decisions.is_empty() {
                return Ok(());
            }
            for new in displacements(&rows, &outcome) {
                let pair = [new.asker.min(new.loser), new.asker.max(new.loser)];
                let turns = turns.entry(pair).or_default();
                if turns.last().is_none_or(|(_, last)| last.asker != new.asker) {
                    let apart = turns.last().is_none_or(|(last, _)| *last != round);
                    prop_assert!(apart, "both ways at once: {new:?} after {turns:?}");
                    turns.push((round, new));
                    prop_assert!(turns.len() <= 2, "to and fro: {turns:?}");
                }
            }
            let wrong = check(&rows, &outcome);
            prop_assert!(wrong.is_empty(), "round {round}: {wrong:#?} after {:#?}", lines(&rows, &outcome));
            rows = next_round(&rows, &outcome);
        }
        prop_assert!(false, "no rest after {most} rounds: {:#?} in the last one", lines(&rows, &run(&rows)));
    }
}

proptest! {
    #![proptest_config(cases(384))]

    // The API server keeps no promises. What must not be is that something is planned for ever and never carried out, nor that
    // pods are evicted for ever.
    #[test]
    fn rounds_without_promises_come_to_rest(
        mut draft in prop_oneof![4 => full_drafts(), 1 => shared_drafts(), 1 => drafts()],
        moves in any::<bool>(),
    ) {
        draft.config.plugins.proportion = true;
        if !moves {
            draft.config.actions.retain(|&action| action != Action::Consolidation);
            draft.config.victims.consolidating_reclaim = false;
        }
        let mut rows = draft.snapshot();
        // A step of a gang takes a round to make room and one to start in it.
        let most = 2 * (2 * rows.gangs.len() + rows.pods.len() + 2);
        let (mut plans, mut last_open): (Vec<Vec<String>>, usize) = (Vec::new(), 0);
        for round in 0..=most {
            let mut scheduler = Scheduler::new(&rows);
            let outcome = scheduler.run(&rows.config, &mut |_| {}).clone();
            if round > 0 && outcome.decisions.is_empty() {
                return Ok(());
            }
            let net = scheduler.net(&rows.config);
            let wrong = check_net(&rows, &outcome, net);
            prop_assert!(wrong.is_empty(), "round {round}: {wrong:#?} after {:#?}", lines(&rows, &outcome));
            let done = carried_out(&rows, &outcome, net);
            let idle = round > 0 && done.is_empty();
            prop_assert!(!idle, "round {round}: nothing of this is carried out: {:#?}", lines(&rows, &outcome));
            plans.push(lines(&rows, &outcome));
            last_open = if is_open(&outcome) { round } else { last_open };
            rows = next_round_without_promises(&rows, &outcome, net);
        }
        prop_assert!(last_open > most / 2, "no rest after {most} rounds: {:#?} at last", &plans[most - 3..]);
    }
}

/// Two ways in which pods may be evicted for ever where promises are not kept are known and open (docs/compat.md, Q17): a moved
/// pod comes back to where it was, because its new place was not kept for it; and three gangs each of which may take from the
/// next one, of which the one in the middle gets its place and loses it within the cycle. Whether this cycle has one of them.
fn is_open(outcome: &Outcome) -> bool {
    let asked = |decision: &Decision| decision.kind == DecisionKind::Pipeline && decision.action != Action::Allocate;
    outcome.decisions.iter().filter(|decision| asked(decision)).any(|decision| {
        // Told to leave as well: it moves, or it lost what it was promised.
        outcome.decisions.iter().any(|other| other.pod == decision.pod && other.kind == DecisionKind::Evict)
    })
}

/// The laws about what is carried out are about something.
#[test]
fn what_is_carried_out_often_differs_from_the_plan() {
    let mut runner = TestRunner::deterministic();
    let (mut never_started, mut starts, mut held_back) = (0, 0, 0);
    let drawn = full_drafts();
    for _ in 0..600 {
        let rows = drawn.new_tree(&mut runner).expect("a draft can be drawn").current().snapshot();
        let mut scheduler = Scheduler::new(&rows);
        scheduler.run(&rows.config, &mut |_| {});
        let net = scheduler.net(&rows.config);
        never_started += u32::from(!net.never_started.is_empty());
        starts += u32::from(!net.starts.is_empty());
        held_back += u32::from(!net.held_back.is_empty());
    }
    eprintln!(
        "of 600: {never_started} with pods that never started, {starts} with promises that came true, {held_back} held back"
    );
    assert!(never_started > 0 && starts > 0, "{never_started} {starts}");
}
