//! Nobody is evicted who may not be, for nobody, or too early; and whoever loses pods keeps what it must have, or nothing
//! (semantics.md §6.2, §6.5–6.8, §7.5, §9.6).

use muster_core::config::{Action, ReclaimProtection};
use muster_core::index::{GangIdx, PodIdx, QueueIdx, SubgroupIdx};
use muster_core::outcome::DecisionKind;
use muster_core::snapshot::{PodStatus, Snapshot, SubgroupKind};

use super::batches::{Batch, batches};
use super::gangs::{Counting, members, satisfied};
use super::queues::path;
use super::{After, At, active, holds};

pub(super) fn check(after: &After<'_>, wrong: &mut Vec<String>) {
    for batch in batches(after) {
        let (before, then) = (after.until(batch.decisions.0), after.until(batch.decisions.1));
        if batch.action == Action::StaleGangEviction {
            batch.losers(after).into_iter().for_each(|gang| check_stale(&before, &then, gang, wrong));
            continue;
        }
        let Some(asker) = batch.asker(after) else {
            wrong.push(format!("{batch:?}: nobody is placed thanks to it"));
            continue;
        };
        check_asker(after.rows, &batch, asker, wrong);
        for victim in batch.losers(after) {
            check_victim(after.rows, &batch, asker, victim, wrong);
            if is_protected(after.rows, asker, victim, batch.action) {
                check_protection(&before, &batch, victim, wrong);
            }
            let whole = |state: &After<'_>| satisfied(state, victim, None, Counting::Placed);
            let left = then.pods.entries().any(|(pod, at)| after.rows.pods[pod].gang == Some(victim) && can_go(after, pod, at));
            if left && whole(&before) && !whole(&then) {
                wrong.push(format!("{victim:?}: evicted in part by {:?}: less than its minimum is left", batch.action));
            }
        }
        if batch.action == Action::Consolidation {
            for &pod in batch.victims.iter().filter(|&&pod| !active(then.pods[pod].status)) {
                wrong.push(format!("{pod:?}: consolidation evicts it and places it nowhere"));
            }
        }
    }
    check_nobody_is_stale(after, wrong);
}

/// Who asks may ask: it is of a kind that the action serves, and its time has come.
fn check_asker(rows: &Snapshot, batch: &Batch, asker: GangIdx, wrong: &mut Vec<String>) {
    let row = &rows.gangs[asker];
    let since = row.times.evicted.map_or(row.times.created, |evicted| evicted.max(row.times.created));
    if rows.config.now < since.saturating_add(row.times.preemption_delay) {
        wrong.push(format!("{asker:?}: {:?} evicts for it, but its preemption delay has not passed", batch.action));
    }
    if row.backed_off || !rows.config.victims.search {
        wrong.push(format!("{asker:?}: {:?} evicts for it, but nobody may be evicted for it", batch.action));
    }
    if batch.action == Action::Consolidation && !row.preemptible {
        wrong.push(format!("{asker:?}: consolidation serves what may be evicted only"));
    }
}

fn check_victim(rows: &Snapshot, batch: &Batch, asker: GangIdx, victim: GangIdx, wrong: &mut Vec<String>) {
    let (asks, gives) = (&rows.gangs[asker], &rows.gangs[victim]);
    if !gives.preemptible {
        wrong.push(format!("{victim:?}: evicted by {:?}, but may not be", batch.action));
    }
    let good = match batch.action {
        Action::Preempt => asks.queue == gives.queue && gives.priority < asks.priority,
        Action::Reclaim => asks.queue != gives.queue,
        Action::Consolidation => true,
        Action::Allocate | Action::StaleGangEviction => false,
    };
    if !good {
        wrong.push(format!("{victim:?}: {:?} does not take from it for {asker:?}", batch.action));
    }
}

/// Semantics.md §9.6: no plugin, no start: no protection.
fn is_protected(rows: &Snapshot, asker: GangIdx, victim: GangIdx, action: Action) -> bool {
    let (Some(times), Some(started)) = (rows.config.victims.min_runtime, rows.gangs[victim].times.started) else { return false };
    let (theirs, ours) = (path(rows, victim), path(rows, asker));
    let first = |from: &[QueueIdx], of: fn(&Snapshot, QueueIdx) -> Option<i64>| from.iter().find_map(|&queue| of(rows, queue));
    let least = match action {
        Action::Preempt => first(&theirs, |rows, queue| rows.queues[queue].preempt_min_runtime).unwrap_or(times.preempt),
        Action::Reclaim => {
            let apart = theirs.iter().take_while(|queue| !ours.contains(queue)).count();
            let from = match times.reclaim_by {
                ReclaimProtection::OwnQueue => 0,
                // Without a common queue it is the root's word that counts.
                ReclaimProtection::CommonAncestor => apart.saturating_sub(1),
            };
            first(theirs.get(from..).unwrap_or(&[]), |rows, queue| rows.queues[queue].reclaim_min_runtime)
                .unwrap_or(times.reclaim)
        }
        _ => return false,
    };
    rows.config.now < started.saturating_add(least)
}

/// A protected gang gives what it has above its minima, nothing else.
fn check_protection(before: &After<'_>, batch: &Batch, victim: GangIdx, wrong: &mut Vec<String>) {
    for leaf in before.rows.gangs[victim].subgroups.iter() {
        let SubgroupKind::PodSet { min } = before.rows.subgroups[leaf].kind else { continue };
        let here = |pod: PodIdx| before.rows.pods[pod].subgroup == Some(leaf);
        let lost = batch.victims.iter().filter(|&&pod| here(pod)).count();
        // One that ended well is not missing (users.md, 9).
        let counts = |status| uses(status) || status == PodStatus::Succeeded;
        let had = before.pods.entries().filter(|&(pod, at)| here(pod) && counts(at.status)).count();
        if lost > 0 && had < lost + min as usize {
            wrong.push(format!(
                "{victim:?}: protected from {:?}, but {leaf:?} lost {lost} of {had} pods, minimum {min}",
                batch.action
            ));
        }
    }
}

/// A pod that can be told to leave, and that a gang has to have its minimum for: not one of an unknown sub-group, or on a node
/// of another shard.
fn can_go(after: &After<'_>, pod: PodIdx, at: &At) -> bool {
    active(at.status) && at.node.is_some() && after.rows.pods[pod].subgroup.is_some()
}

fn uses(status: PodStatus) -> bool {
    active(status) || holds(status)
}

/// Whether a gang is below its minimum, counting everything that it still holds, and has nothing that ended well.
fn is_stale(state: &After<'_>, gang: GangIdx) -> bool {
    let mine = || state.pods.entries().filter(|(pod, _)| state.rows.pods[*pod].gang == Some(gang));
    mine().all(|(_, at)| at.status != PodStatus::Succeeded)
        && mine().any(|(_, at)| uses(at.status))
        && !keeps_minimum(state, gang, None)
}

fn keeps_minimum(state: &After<'_>, gang: GangIdx, of: Option<SubgroupIdx>) -> bool {
    let required = match of.map(|member| state.rows.subgroups[member].kind) {
        Some(SubgroupKind::PodSet { min }) => {
            let here = state.pods.entries().filter(|(pod, at)| state.rows.pods[*pod].subgroup == of && uses(at.status));
            return here.count() >= min as usize;
        }
        Some(SubgroupKind::Set { required }) => required,
        None => state.rows.gangs[gang].required,
    };
    let good = members(state.rows, gang, of).into_iter().filter(|&member| keeps_minimum(state, gang, Some(member)));
    good.count() >= required as usize
}

fn grace_has_passed(rows: &Snapshot, gang: GangIdx) -> bool {
    let times = rows.gangs[gang].times;
    let grace = times.staleness_grace.unwrap_or(rows.config.victims.staleness_grace);
    grace >= 0 && rows.config.now - times.stale.unwrap_or(rows.config.now) >= grace
}

fn check_stale(before: &After<'_>, then: &After<'_>, gang: GangIdx, wrong: &mut Vec<String>) {
    if !is_stale(before, gang) {
        wrong.push(format!("{gang:?}: evicted as stale, but it has its minimum, or pods that ended well"));
    }
    if !grace_has_passed(before.rows, gang) {
        wrong.push(format!("{gang:?}: evicted as stale before its grace period has passed"));
    }
    let stays = |(pod, at): (PodIdx, &At)| before.rows.pods[pod].gang == Some(gang) && can_go(before, pod, at);
    if then.pods.entries().any(stays) {
        wrong.push(format!("{gang:?}: stale, and only some of its pods are told to leave"));
    }
}

/// If the last action removes stale gangs, none is left.
fn check_nobody_is_stale(after: &After<'_>, wrong: &mut Vec<String>) {
    if after.rows.config.actions.last() != Some(&Action::StaleGangEviction) {
        return;
    }
    for gang in after.rows.gangs.indices().filter(|&gang| is_stale(after, gang) && grace_has_passed(after.rows, gang)) {
        let mine = |pod: PodIdx| after.rows.pods[pod].gang == Some(gang);
        let left = after.pods.entries().filter(|&(pod, at)| mine(pod) && can_go(after, pod, at)).count();
        if left > 0 && !is_braked(after, gang, left) {
            wrong.push(format!("{gang:?}: stale for too long, but not evicted"));
        }
    }
}

/// Whether the brake lets no further `pods` of a gang go.
fn is_braked(after: &After<'_>, gang: GangIdx, pods: usize) -> bool {
    let (rows, rules) = (after.rows, &after.rows.config.victims);
    let queue_of = |pod: PodIdx| rows.pods[pod].gang.and_then(|gang| rows.gangs[gang].queue.ok());
    let evicted = after.outcome.decisions.iter().filter(|decision| decision.kind == DecisionKind::Evict);
    let here = evicted.clone().filter(|decision| queue_of(decision.pod) == rows.gangs[gang].queue.ok());
    let over = |so_far: usize, most: Option<u32>| most.is_some_and(|most| so_far + pods > most as usize);
    over(evicted.count(), rules.evictions_max) || over(here.count(), rules.queue_evictions_max)
}
