//! Nobody leaves for nothing (architecture.md, "Decisions" 2, the last step: whoever is not needed is given back).
//!
//! What is checked, for askers of one pod set whose pods are alike and share no cards, so that a try that can place them does:
//!
//! * with all victims of the batch where they were, the asker cannot be where it was placed: some node, card or limit would be
//!   exceeded. This holds for every action, since without victims nobody else is in the line;
//! * for `preempt` with plugin `priority`, the same with each unit of the batch by itself where it was, all others gone or moved:
//!   the asker comes before every victim in the line, and no rule protects the others' places.
//!
//! Not checked: single units of `reclaim` and `consolidation`. There a victim can come before the asker in the line, so that
//! keeping one unit gives its place in the queue's limit to another victim instead of the asker; whether the asker then starts
//! depends on the whole try.
//!
//! A unit is a pod above the minimum of its pod set, or all that a gang lost of what it must have, or, where a tree has sets or
//! optional members, whatever it lost.

use std::collections::BTreeSet;

use muster_core::config::Action;
use muster_core::index::{ClassIdx, GangIdx, PodIdx, QueueIdx};
use muster_core::snapshot::{GpuRequest, SubgroupKind};
use muster_core::units::{Resource, UNLIMITED};

use super::batches::{Batch, batches};
use super::gangs::{Counting, pods_of};
use super::nodes::{exceeds, used};
use super::queues::{held, path};
use super::{After, keeps};

pub(super) fn check(after: &After<'_>, wrong: &mut Vec<String>) {
    for batch in batches(after).iter().filter(|batch| batch.action != Action::StaleGangEviction) {
        let Some(asker) = batch.asker(after).filter(|&asker| is_alike(after, batch, asker)) else { continue };
        let before = after.until(batch.decisions.0);
        if stands_without(&before, batch, asker, &batch.victims) {
            wrong.push(format!("{asker:?}: starts by {:?} even if {:?} stay", batch.action, batch.victims));
        }
        if batch.action != Action::Preempt || !after.rows.config.plugins.priority {
            continue;
        }
        for victim in batch.losers(after) {
            for unit in units(&before, batch, victim) {
                if stands_without(&before, batch, asker, &unit) {
                    wrong.push(format!("{asker:?}: starts by {:?} even if {unit:?} of {victim:?} stay", batch.action));
                }
            }
        }
    }
}

/// Whether as many pods of the asker as fit are placed by placing one after the other.
fn is_alike(after: &After<'_>, batch: &Batch, asker: GangIdx) -> bool {
    let mine = |pod: &PodIdx| after.rows.pods[*pod].gang == Some(asker);
    let classes: BTreeSet<ClassIdx> = batch.placed.iter().filter(|pod| mine(pod)).map(|&pod| after.class(pod)).collect();
    let whole = |class: ClassIdx| matches!(after.rows.classes[class].gpu, GpuRequest::None | GpuRequest::Whole(_));
    // With several pod sets it depends on the victims which of them take their step.
    classes.len() == 1 && classes.into_iter().all(whole) && after.rows.gangs[asker].subgroups.len() == 1
}

/// What of a gang could have stayed by itself.
fn units(before: &After<'_>, batch: &Batch, victim: GangIdx) -> Vec<Vec<PodIdx>> {
    let rows = before.rows;
    let row = &rows.gangs[victim];
    let lost: Vec<PodIdx> = batch.victims.iter().copied().filter(|&pod| rows.pods[pod].gang == Some(victim)).collect();
    let is_leaf = |leaf| matches!(rows.subgroups[leaf].kind, SubgroupKind::PodSet { .. });
    if !row.subgroups.iter().all(is_leaf) || (row.required as usize) < row.subgroups.len() {
        return vec![lost];
    }
    let mut surplus = Vec::new();
    let mut core = Vec::new();
    for leaf in row.subgroups.iter() {
        let SubgroupKind::PodSet { min } = rows.subgroups[leaf].kind else { continue };
        // What is above the minimum leaves first.
        let above = pods_of(before, leaf, Counting::Placed).saturating_sub(min) as usize;
        let here = lost.iter().copied().filter(|&pod| rows.pods[pod].subgroup == Some(leaf));
        for (nth, pod) in here.enumerate() {
            if nth < above { &mut surplus } else { &mut core }.push(pod);
        }
    }
    if core.is_empty() { surplus.into_iter().map(|pod| vec![pod]).collect() } else { vec![core] }
}

/// Whether all else can be as the batch made it while a unit stays where it was.
fn stands_without(before: &After<'_>, batch: &Batch, asker: GangIdx, unit: &[PodIdx]) -> bool {
    let rows = before.rows;
    let losers = batch.losers(before);
    // Whoever was placed after the asker without a victim of its own is no business of this batch.
    let plays = |pod: PodIdx| rows.pods[pod].gang.is_some_and(|gang| gang == asker || losers.contains(&gang));
    let mut then = before.until(batch.decisions.0);
    for decision in &before.outcome.decisions[batch.decisions.0..batch.decisions.1] {
        if plays(decision.pod) && !unit.contains(&decision.pod) {
            then.apply(decision, &mut Vec::new());
        }
    }
    let (kept, keeps_now) = (used(before, &before.pods, keeps), used(&then, &then.pods, keeps));
    let full = rows.nodes.indices().any(|node| exceeds(before, node, &kept[node], &keeps_now[node]).is_some());
    let placed: Vec<PodIdx> = batch.placed.iter().copied().filter(|&pod| plays(pod) && !unit.contains(&pod)).collect();
    !full && !is_over_limit(before, &then, &placed)
}

/// Whether one of those that were placed would break a limit; a queue that is above its limit already takes nobody.
fn is_over_limit(before: &After<'_>, then: &After<'_>, placed: &[PodIdx]) -> bool {
    let rows = before.rows;
    let end = held(then, &then.pods).allocated;
    let breaks = |pod: PodIdx| {
        let (Some(gang), Some(node)) = (rows.pods[pod].gang, then.pods[pod].node) else { return false };
        let charge = then.charge(then.class(pod), then.card_mib(node));
        let over = |queue: QueueIdx, r: Resource| {
            let limit = rows.queues[queue].limit[r];
            charge[r] > 0 && limit != UNLIMITED && end[queue][r] > limit
        };
        path(rows, gang).into_iter().any(|queue| Resource::ALL.into_iter().any(|r| over(queue, r)))
    };
    rows.config.plugins.proportion && placed.iter().any(|&pod| breaks(pod))
}
