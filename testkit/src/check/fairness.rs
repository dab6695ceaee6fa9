//! Reclaim takes only from queues that have more than is theirs, and its own stay below those it takes from (semantics.md §6.6).
//!
//! Shares are those of the report; that they are right is the business of the tests of the division.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::config::Action;
use muster_core::index::{Col, GangIdx, PodIdx, QueueIdx};
use muster_core::snapshot::SubgroupKind;
use muster_core::units::{Amounts, Resource, UNLIMITED};

use super::batches::{Batch, batches};
use super::queues::{held, path};
use super::{After, active};

pub(super) fn check(after: &After<'_>, wrong: &mut Vec<String>) {
    let reclaims = |batch: &Batch| batch.action == Action::Reclaim && after.rows.config.plugins.proportion;
    for batch in batches(after).into_iter().filter(reclaims) {
        let Some(asker) = batch.asker(after) else { continue };
        let (before, then) = (after.until(batch.decisions.0), after.until(batch.decisions.1));
        if let Err(what) = is_fair(&before, &then, &batch, asker) {
            wrong.push(format!("{asker:?}: reclaim from {:?} is not fair: {what}", batch.victims));
        }
    }
}

/// What is left of what the queues held, victim by victim.
struct Left {
    held: Col<QueueIdx, Amounts>,
    gave: BTreeMap<QueueIdx, BTreeSet<usize>>,
}

fn is_fair(before: &After<'_>, then: &After<'_>, batch: &Batch, asker: GangIdx) -> Result<(), String> {
    let rows = before.rows;
    let start = held(before, &before.pods);
    let ours = path(rows, asker);
    let Some(&leaf) = ours.first() else { return Err("it is in no queue".into()) };
    let (smallest, _) = before.card_range();
    let mine = batch.placed.iter().filter(|&&pod| rows.pods[pod].gang == Some(asker));
    let asks = mine.fold(Amounts::ZERO, |sum, &pod| sum + before.charge(before.class(pod), smallest));
    let share = |queue: QueueIdx| before.outcome.queues[queue].fair_share;
    let within =
        |amounts: Amounts, bound: Amounts| Resource::ALL.iter().all(|&r| bound[r] == UNLIMITED || amounts[r] <= bound[r]);
    if !within(start.allocated[leaf] + asks, share(leaf)) {
        return Err(format!("{leaf:?} would hold more than its share {:?}", share(leaf)));
    }
    let mut left = Left { held: start.allocated.clone(), gave: BTreeMap::new() };
    for unit in units(before, then, batch) {
        let theirs = rows.pods[unit[0]].gang.map_or_else(Vec::new, |gang| path(rows, gang));
        let Some((our, their)) = parting(&ours, &theirs) else { return Err(format!("{unit:?} are in no queue")) };
        let row = &rows.queues[their];
        let most = |r: Resource| {
            let deserved = if row.quota[r] == UNLIMITED { UNLIMITED } else { row.quota[r].max(share(their)[r]) };
            if row.limit[r] == UNLIMITED { deserved } else { deserved.min(row.limit[r]) }
        };
        let above = |bound: &dyn Fn(Resource) -> i64| {
            Resource::ALL.iter().any(|&r| bound(r) != UNLIMITED && left.held[their][r] > bound(r))
        };
        let guaranteed = within(start.allocated[our] + asks, rows.queues[our].quota) && above(&|r| row.quota[r]);
        if !above(&most) && !guaranteed {
            return Err(format!("{their:?} holds {:?}, which is not more than is its own, when {unit:?} go", left.held[their]));
        }
        for &pod in &unit {
            let Some(node) = before.pods[pod].node else { continue };
            let lost = before.charge(before.class(pod), before.card_mib(node));
            for &queue in &theirs {
                left.held[queue] -= lost;
                let gave = Resource::ALL.iter().filter(|&&r| lost[r] > 0).map(|&r| r as usize);
                left.gave.entry(queue).or_default().extend(gave);
            }
        }
    }
    ours.iter().try_for_each(|&queue| stays_below(before, &left, queue, asks, &share))
}

/// Victims that found no other place (all, unless moving is allowed to count), those at the minimum of a gang together.
fn units(before: &After<'_>, then: &After<'_>, batch: &Batch) -> Vec<Vec<PodIdx>> {
    let rows = before.rows;
    let mut units: Vec<Vec<PodIdx>> = Vec::new();
    let mut count: BTreeMap<_, usize> = BTreeMap::new();
    let mut core: Option<GangIdx> = None;
    for &pod in &batch.victims {
        let (leaf, Some(gang)) = (rows.pods[pod].subgroup, rows.pods[pod].gang) else { continue };
        let here = |other: PodIdx| rows.pods[other].subgroup == leaf;
        let has = count
            .entry(leaf)
            .or_insert_with(|| before.pods.entries().filter(|&(other, at)| here(other) && active(at.status)).count());
        let min = leaf.map_or(0, |leaf| if let SubgroupKind::PodSet { min } = rows.subgroups[leaf].kind { min } else { 0 });
        let surplus = *has > min as usize && core != Some(gang);
        *has = has.saturating_sub(1);
        let moved = rows.config.victims.consolidating_reclaim && active(then.pods[pod].status);
        let with_others = !surplus && core == Some(gang);
        core = if surplus { core } else { Some(gang) };
        match units.last_mut().filter(|unit| with_others && rows.pods[unit[0]].gang == Some(gang)) {
            _ if moved => {}
            Some(unit) => unit.push(pod),
            None => units.push(vec![pod]),
        }
    }
    units
}

/// The queues at the level where two paths (leaf first) part, or the last common level.
fn parting(ours: &[QueueIdx], theirs: &[QueueIdx]) -> Option<(QueueIdx, QueueIdx)> {
    let mut down = ours.iter().rev().zip(theirs.iter().rev());
    let parts = down.clone().find(|(ours, theirs)| ours != theirs);
    parts.or_else(|| down.next_back()).map(|(ours, theirs)| (*ours, *theirs))
}

fn stays_below(
    before: &After<'_>,
    left: &Left,
    queue: QueueIdx,
    asks: Amounts,
    share: &dyn Fn(QueueIdx) -> Amounts,
) -> Result<(), String> {
    let rows = before.rows;
    let siblings = rows.queues.entries().filter(|&(other, row)| other != queue && row.parent == rows.queues[queue].parent);
    for (sibling, _) in siblings {
        let Some(gave) = left.gave.get(&sibling) else { continue };
        for r in Resource::ALL.into_iter().filter(|&r| gave.contains(&(r as usize)) || asks[r] > 0) {
            let ours = ratio(left.held[queue][r] + asks[r], share(queue)[r]);
            let theirs = ratio(left.held[sibling][r], share(sibling)[r]);
            if ours > 1.0 && share(sibling)[r] > 0 && ours * rows.config.victims.saturation_multiplier >= theirs {
                return Err(format!("{queue:?} would hold {ours} of its share of {r:?}, {sibling:?} {theirs}"));
            }
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "the rule is a ratio of floats")]
fn ratio(held: i64, share: i64) -> f64 {
    match share {
        UNLIMITED => 0.0,
        0 if held > 0 => f64::INFINITY,
        0 => 0.0,
        _ => held as f64 / share as f64,
    }
}
