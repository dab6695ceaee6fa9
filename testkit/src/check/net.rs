//! What is carried out of a plan (`muster_core::net`), worked out anew from rows and decisions: what starts fits at this moment,
//! beside everything that is still leaving; gangs start as a whole; and nobody waits for a place that is free.

use std::collections::BTreeSet;

use muster_core::index::{Col, GangIdx, PodIdx};
use muster_core::net::Net;
use muster_core::outcome::{Decision, DecisionKind, Outcome};
use muster_core::snapshot::{GpuRequest, PodStatus, Snapshot, SubgroupKind};
use muster_core::units::{Amounts, Resource, UNLIMITED};

use super::gangs::{Counting, pods_of};
use super::nodes::{self, GPU, at_start, offered, used};
use super::queues::path;
use super::{After, At, active, holds};

/// Everything that is wrong with what is to be carried out of an outcome of these rows, one line each.
#[must_use]
pub fn check_net(rows: &Snapshot, outcome: &Outcome, net: &Net) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(plan) = After::of(rows, outcome, &mut wrong) else { return wrong };
    let truth = After { pods: carried_out(&plan, net, &mut wrong), rows, outcome, cards: plan.cards.clone() };
    if !wrong.is_empty() {
        return wrong;
    }
    let (before, now) = (used(&truth, &at_start(&truth), holds), used(&truth, &truth.pods, holds));
    for node in rows.nodes.indices() {
        if let Some(what) = nodes::exceeds(&truth, node, &before[node], &now[node]) {
            wrong.push(format!("{node:?}: {what} by what is carried out"));
        }
    }
    let really_asked_for = really_asked_for(&truth);
    for gang in rows.gangs.indices() {
        let started: Vec<PodIdx> =
            net.starts.iter().map(|start| start.pod).filter(|&pod| rows.pods[pod].gang == Some(gang)).collect();
        let promised = promised(&truth, gang);
        let waits = really_asked_for.contains(&gang) || promised.iter().any(|&pod| truth.pods[pod].left.is_some());
        if !started.is_empty() {
            if !promised.is_empty() || waits {
                wrong.push(format!("{gang:?}: {started:?} start, but {promised:?} wait, or pods really leave for it"));
            }
            if !have_room(&truth, &started) || !within_bounds(&truth, gang, &started) {
                wrong.push(format!("{gang:?}: {started:?} start, but there is no room for them now"));
            }
        } else if !promised.is_empty() && !waits {
            let mut then = After { pods: truth.pods.clone(), rows, outcome, cards: truth.cards.clone() };
            promised.iter().for_each(|&pod| then.pods[pod].status = PodStatus::Allocated);
            if have_room(&then, &promised) && within_bounds(&then, gang, &promised) {
                wrong.push(format!("{gang:?}: {promised:?} could start now"));
            }
        }
        check_whole(&truth, net, gang, &mut wrong);
    }
    wrong
}

/// Where each pod is once the plan is carried out: who never had a place does not leave one.
fn carried_out(plan: &After<'_>, net: &Net, wrong: &mut Vec<String>) -> Col<PodIdx, At> {
    let mut pods = plan.pods.clone();
    let waited = |pod: PodIdx| plan.rows.pods[pod].status == PodStatus::Pending;
    for (pod, at) in pods.as_mut_slice().iter_mut().enumerate().map(|(pod, at)| (muster_core::index::Idx::new(pod), at)) {
        let gone = waited(pod) && at.status == PodStatus::Releasing;
        if net.never_started.iter().filter(|&&other| other == pod).count() != usize::from(gone) {
            wrong.push(format!("{pod:?}: is {at:?} in the plan, and among those that never started: {}", !gone));
        }
        if gone {
            *at = At { status: PodStatus::Pending, node: None, groups: Vec::new(), left: None };
        } else if waited(pod) {
            at.left = None;
        }
    }
    let mut turn = |decision: &Decision, from: PodStatus, to: PodStatus, kind: DecisionKind| {
        let at = &mut pods[decision.pod];
        let same = at.node == Some(decision.node) && at.groups == plan.outcome.groups_of(decision);
        let action = plan.last_action(decision.pod) == Some(decision.action);
        if !waited(decision.pod) || at.status != from || !same || !action || decision.kind != kind {
            wrong.push(format!("{decision:?}: the pod is {at:?} in the plan"));
        }
        at.status = to;
    };
    for start in &net.starts {
        turn(start, PodStatus::Pipelined, PodStatus::Allocated, DecisionKind::Bind);
    }
    for held in &net.held_back {
        turn(held, PodStatus::Allocated, PodStatus::Pipelined, DecisionKind::Pipeline);
    }
    pods
}

/// Gangs for which pods leave that were somewhere when the cycle began.
fn really_asked_for(after: &After<'_>) -> BTreeSet<GangIdx> {
    let evicted = after.outcome.decisions.iter().filter(|decision| decision.kind == DecisionKind::Evict);
    let real = evicted.zip(&after.outcome.evictions).filter(|(d, _)| after.rows.pods[d.pod].status != PodStatus::Pending);
    real.filter_map(|(_, eviction)| eviction.asker).collect()
}

/// Pods of a gang that only have a promise.
fn promised(after: &After<'_>, gang: GangIdx) -> Vec<PodIdx> {
    after.rows.gangs[gang].pods.iter().filter(|&pod| after.pods[pod].status == PodStatus::Pipelined).collect()
}

/// Whether nothing that these pods take is over-committed at this moment.
fn have_room(after: &After<'_>, pods: &[PodIdx]) -> bool {
    let now = used(after, &after.pods, holds);
    pods.iter().all(|&pod| {
        let at = &after.pods[pod];
        let node = at.node.expect("a pod that starts has a node");
        let (offered, used, row) = (offered(after, node), &now[node], &after.rows.classes[after.class(pod)]);
        let mut asked = nodes::asked(after, pod);
        asked[GPU] += i64::from(matches!(row.gpu, GpuRequest::Fraction { .. } | GpuRequest::Memory { .. }));
        let amounts =
            asked.iter().zip(&used.amounts).zip(&offered).all(|((&need, &used), &offered)| need == 0 || used <= offered);
        amounts && at.groups.iter().all(|card| used.cards.get(card).is_some_and(|card| card.0 <= after.card_mib(node)))
    })
}

/// Whether the queues of a gang are within their bounds, whatever these pods take of, with everything that is still leaving.
fn within_bounds(after: &After<'_>, gang: GangIdx, pods: &[PodIdx]) -> bool {
    if !after.rows.config.plugins.proportion {
        return true;
    }
    let place = |pod: PodIdx| after.pods[pod].node.expect("a pod that starts has a node");
    let asked = pods.iter().fold(Amounts::ZERO, |sum, &pod| sum + after.charge(after.class(pod), after.card_mib(place(pod))));
    path(after.rows, gang).into_iter().all(|queue| {
        let mut held = [Amounts::ZERO; 2];
        for (pod, at) in after.pods.entries() {
            let row = &after.rows.pods[pod];
            let (Some(other), Some(_)) = (row.gang, row.subgroup) else { continue };
            if !path(after.rows, other).contains(&queue) {
                continue;
            }
            let counts = at.status == PodStatus::Releasing || active(at.status) && at.status != PodStatus::Pipelined;
            let here = at.node.filter(|_| counts).into_iter().chain(at.left.as_ref().map(|left| left.0));
            for node in here {
                let charge = after.charge(row.class, after.card_mib(node));
                held[0] += charge;
                if !after.rows.gangs[other].preemptible {
                    held[1] += charge;
                }
            }
        }
        let row = &after.rows.queues[queue];
        let good = |bound: Amounts, held: Amounts| {
            Resource::ALL.into_iter().all(|r| asked[r] == 0 || bound[r] == UNLIMITED || held[r] <= bound[r])
        };
        good(row.limit, held[0]) && (after.rows.gangs[gang].preemptible || good(row.quota, held[1]))
    })
}

/// A gang that got a place that it never had taken away does not start in part; and nobody is held back for another reason.
fn check_whole(after: &After<'_>, net: &Net, gang: GangIdx, wrong: &mut Vec<String>) {
    let rows = after.rows;
    let mine = |pod: PodIdx| rows.pods[pod].gang == Some(gang);
    let told = |pod: PodIdx| after.outcome.decisions.iter().any(|d| d.pod == pod && d.kind == DecisionKind::Evict);
    let moves_unseen = promised(after, gang).into_iter().any(|pod| rows.pods[pod].status == PodStatus::Pending && told(pod));
    let lacks = rows.gangs[gang].subgroups.iter().any(|leaf| {
        let waits = promised(after, gang).iter().any(|&pod| rows.pods[pod].subgroup == Some(leaf));
        let SubgroupKind::PodSet { min } = rows.subgroups[leaf].kind else { return false };
        waits && pods_of(after, leaf, Counting::Starting) < min
    });
    let starts = rows.gangs[gang].pods.iter().filter(|&pod| after.pods[pod].status == PodStatus::Allocated).count();
    if moves_unseen && lacks && starts > 0 {
        wrong.push(format!("{gang:?}: {starts} pods start, though it is not whole"));
    }
    if net.held_back.iter().any(|held| mine(held.pod)) && !(moves_unseen && lacks) {
        wrong.push(format!("{gang:?}: held back for no reason"));
    }
}
