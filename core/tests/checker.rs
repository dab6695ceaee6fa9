//! The checker notices: outcomes that are wrong on purpose, each in one way, and the checker must say so.

#![forbid(unsafe_code)]

use muster_core::config::Action;
use muster_core::cycle::Scheduler;
use muster_core::index::{Idx, NodeIdx, PodIdx};
use muster_core::net::Net;
use muster_core::outcome::{Decision, DecisionKind, Outcome};
use muster_core::snapshot::{PodStatus, Snapshot};
use muster_testkit::check::{check, check_net};
use muster_testkit::rows::{contended_drafts, drafts, fragmented_drafts};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// A way to be wrong; `false` if this outcome cannot be wrong in this way.
type Wrong = fn(&Snapshot, &mut Outcome) -> bool;

/// The first decision that starts a pod.
fn binding(outcome: &mut Outcome) -> Option<&mut Decision> {
    outcome.decisions.iter_mut().find(|decision| decision.kind == DecisionKind::Bind)
}

const ALWAYS: [(&str, Wrong); 12] = [
    ("a pod is decided on twice", |_, outcome| {
        let Some(&first) = outcome.decisions.first() else { return false };
        outcome.decisions.push(first);
        true
    }),
    ("a pod that runs is placed", |rows, outcome| {
        let running = rows.pods.entries().find(|(_, row)| row.status == PodStatus::Running);
        let (Some((pod, _)), Some(decision)) = (running, binding(outcome)) else { return false };
        decision.pod = pod;
        true
    }),
    ("a pod is on a node that is not ready", |rows, outcome| {
        let broken = rows.nodes.entries().find(|(_, row)| !row.ready).filter(|_| rows.config.plugins.predicates);
        let (Some((node, _)), Some(decision)) = (broken, binding(outcome)) else { return false };
        decision.node = node;
        true
    }),
    ("a shared card is in another node", |rows, outcome| {
        let other = |node: NodeIdx| NodeIdx::new((node.at() + 1) % rows.nodes.len());
        let known = |outcome: &Outcome, n: usize| {
            let decision = &outcome.decisions[n];
            outcome.groups_of(decision).iter().any(|group| group.at() < rows.groups.len())
        };
        let places = |n: &usize| outcome.decisions[*n].kind != DecisionKind::Evict;
        let shared = (0..outcome.decisions.len()).filter(places).find(|&n| known(outcome, n)).filter(|_| rows.nodes.len() > 1);
        let Some(n) = shared else { return false };
        outcome.decisions[n].node = other(outcome.decisions[n].node);
        true
    }),
    ("a gang that waits is not listed", |_, outcome| outcome.pending.pop().is_some()),
    ("a gang that waits has no reason", |_, outcome| {
        outcome.pending.first_mut().is_some_and(|pending| {
            pending.reasons.1 = pending.reasons.0;
            true
        })
    }),
    ("a queue's report is wrong", |_, outcome| {
        outcome.queues.as_mut_slice().first_mut().is_some_and(|report| {
            report.allocated.0[2] += 1;
            true
        })
    }),
    ("allocate evicts", |_, outcome| {
        binding(outcome).is_some_and(|decision| {
            decision.kind = DecisionKind::Evict;
            true
        })
    }),
    ("a pod is evicted twice", |_, outcome| {
        let Some(at) = outcome.decisions.iter().position(|d| d.kind == DecisionKind::Evict) else { return false };
        outcome.decisions.insert(at, outcome.decisions[at]);
        true
    }),
    ("a pod is evicted for nobody", |_, outcome| {
        let evicts = |d: &Decision| d.kind == DecisionKind::Evict && d.action != Action::StaleGangEviction;
        let Some(first) = outcome.decisions.iter().position(evicts) else { return false };
        outcome.decisions.retain(|d| d.kind == DecisionKind::Evict || d.action == Action::Allocate);
        first < outcome.decisions.len()
    }),
    ("a victim may not be evicted", |rows, outcome| {
        let evicts = |d: &&mut Decision| d.kind == DecisionKind::Evict && d.action != Action::StaleGangEviction;
        let fixed = rows.pods.entries().find(|(_, row)| {
            row.status == PodStatus::Running && row.node.is_some() && row.gang.is_some_and(|gang| !rows.gangs[gang].preemptible)
        });
        let (Some((pod, row)), Some(decision)) = (fixed, outcome.decisions.iter_mut().find(evicts)) else { return false };
        (decision.pod, decision.node, decision.groups) = (pod, row.node.expect("it runs"), (0, 0));
        true
    }),
    ("what consolidation moves goes nowhere", |_, outcome| {
        let moves = |d: &&Decision| d.kind == DecisionKind::Evict && d.action == Action::Consolidation;
        let Some(pod) = outcome.decisions.iter().find(moves).map(|d| d.pod) else { return false };
        outcome.decisions.retain(|d| d.pod != pod || d.kind == DecisionKind::Evict);
        true
    }),
];

const OFTEN: [(&str, Wrong); 6] = [
    ("a gang that is not stale is evicted as stale", |_, outcome| {
        let evicts = |d: &&mut Decision| d.kind == DecisionKind::Evict && d.action != Action::StaleGangEviction;
        let Some(decision) = outcome.decisions.iter_mut().rfind(evicts) else { return false };
        decision.action = Action::StaleGangEviction;
        true
    }),
    ("reclaim is called preempt, and the other way round", |_, outcome| {
        for decision in &mut outcome.decisions {
            decision.action = match decision.action {
                Action::Reclaim => Action::Preempt,
                Action::Preempt => Action::Reclaim,
                other => other,
            };
        }
        outcome.decisions.iter().any(|d| d.kind == DecisionKind::Evict && matches!(d.action, Action::Reclaim | Action::Preempt))
    }),
    ("everything is on one node", |_, outcome| {
        let Some(&first) = outcome.decisions.first() else { return false };
        outcome.decisions.iter_mut().for_each(|decision| decision.node = first.node);
        outcome.decisions.len() > 3
    }),
    ("a promise is given at once", |_, outcome| {
        let promised = outcome.decisions.iter_mut().find(|decision| decision.kind == DecisionKind::Pipeline);
        promised.is_some_and(|decision| {
            decision.kind = DecisionKind::Bind;
            true
        })
    }),
    ("what could start waits", |_, outcome| {
        binding(outcome).is_some_and(|decision| {
            decision.kind = DecisionKind::Pipeline;
            true
        })
    }),
    ("a pod takes the turn of one before it", |rows, outcome| {
        let placed: Vec<PodIdx> = outcome.decisions.iter().map(|decision| decision.pod).collect();
        let waits = |pod: &PodIdx| rows.pods[*pod].status == PodStatus::Pending && !placed.contains(pod);
        let Some(decision) = outcome.decisions.last_mut() else { return false };
        let of = rows.pods[decision.pod].subgroup;
        let other = rows.pods.indices().filter(waits).find(|&pod| rows.pods[pod].subgroup == of);
        other.is_some_and(|other| {
            decision.pod = other;
            true
        })
    }),
];

#[test]
fn the_checker_notices_what_is_wrong() {
    let mut runner = TestRunner::deterministic();
    let mut tried = [[0_u32; 2]; ALWAYS.len() + OFTEN.len()];
    let drawn = proptest::prop_oneof![2 => drafts(), 2 => contended_drafts(), 1 => fragmented_drafts()];
    for _ in 0..600 {
        let rows = drawn.new_tree(&mut runner).expect("a draft can be drawn").current().snapshot();
        let right = Scheduler::new(&rows).run(&rows.config, &mut |_| {}).clone();
        for (count, (name, spoil)) in tried.iter_mut().zip(ALWAYS.iter().chain(&OFTEN)) {
            let mut wrong = right.clone();
            if spoil(&rows, &mut wrong) {
                let noticed = !check(&rows, &wrong).is_empty();
                assert!(noticed || OFTEN.iter().any(|(often, _)| often == name), "not noticed: {name}");
                count[0] += 1;
                count[1] += u32::from(noticed);
            }
        }
    }
    for ([tries, noticed], (name, _)) in tried.into_iter().zip(ALWAYS.iter().chain(&OFTEN)) {
        assert!(tries >= 20, "{name}: tried {tries} times only");
        assert!(noticed * 2 > tries, "{name}: noticed {noticed} times of {tries}");
    }
}

/// A way in which what is carried out can be wrong; `false` if this cannot be wrong in this way.
type WrongNet = fn(&Snapshot, &Outcome, &mut Net) -> bool;

const NETS: [(&str, WrongNet); 6] = [
    ("a pod that never started leaves", |_, _, net| net.never_started.pop().is_some()),
    ("a pod that starts never started", |_, outcome, net| {
        let starts = outcome.decisions.iter().find(|decision| decision.kind == DecisionKind::Bind);
        let pod = starts.map(|decision| decision.pod).filter(|pod| !net.never_started.contains(pod));
        net.never_started.extend(pod);
        pod.is_some()
    }),
    ("what could start waits", |_, _, net| net.starts.pop().is_some()),
    ("a pod starts elsewhere", |rows, _, net| {
        let start = net.starts.first_mut().filter(|_| rows.nodes.len() > 1);
        start.is_some_and(|start| {
            start.node = NodeIdx::new((start.node.at() + 1) % rows.nodes.len());
            true
        })
    }),
    ("a pod starts where others are still leaving", |_, outcome, net| {
        let last = |at: usize, pod: PodIdx| !outcome.decisions[at + 1..].iter().any(|other| other.pod == pod);
        let promised = outcome.decisions.iter().enumerate().find(|(at, decision)| {
            let known = net.starts.iter().any(|start| start.pod == decision.pod);
            decision.kind == DecisionKind::Pipeline && last(*at, decision.pod) && !known
        });
        net.starts.extend(promised.map(|(_, decision)| Decision { kind: DecisionKind::Bind, ..*decision }));
        promised.is_some()
    }),
    ("a pod is held back for nothing", |_, outcome, net| {
        let starts = outcome.decisions.iter().find(|decision| decision.kind == DecisionKind::Bind);
        net.held_back.extend(starts.map(|decision| Decision { kind: DecisionKind::Pipeline, ..*decision }));
        starts.is_some() && net.held_back.len() == 1
    }),
];

#[test]
fn the_checker_notices_what_is_carried_out_wrongly() {
    let mut runner = TestRunner::deterministic();
    let mut tried = [0_u32; NETS.len()];
    let drawn = proptest::prop_oneof![4 => contended_drafts(), 1 => fragmented_drafts()];
    for _ in 0..2000 {
        let rows = drawn.new_tree(&mut runner).expect("a draft can be drawn").current().snapshot();
        let mut scheduler = Scheduler::new(&rows);
        let outcome = scheduler.run(&rows.config, &mut |_| {}).clone();
        let right = scheduler.net(&rows.config).clone();
        for (count, (name, spoil)) in tried.iter_mut().zip(&NETS) {
            let mut wrong = right.clone();
            if spoil(&rows, &outcome, &mut wrong) {
                assert!(!check_net(&rows, &outcome, &wrong).is_empty(), "not noticed: {name}");
                *count += 1;
            }
        }
    }
    for (tries, (name, _)) in tried.into_iter().zip(&NETS) {
        assert!(tries >= 20, "{name}: tried {tries} times only");
    }
}
