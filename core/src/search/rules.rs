//! Who is protected, and what reclaim must keep at every level of the queues (semantics.md §6.6, §9.6).

use bumpalo::collections::Vec as BumpVec;

use crate::actions::Plan;
use crate::config::{Action, ReclaimProtection};
use crate::explain::{Bound, Unhelped};
use crate::fair_share::allocatable_share;
use crate::index::{Col, GangIdx, Idx, PodIdx, QueueIdx};
use crate::outcome::Why;
use crate::search::counting::{depends_on_card, free_in_all};
use crate::search::{Asker, Unit};
use crate::tables::gangs::Member;
use crate::tables::{Tables, is_active};
use crate::units::{Amounts, Resource, UNLIMITED};

/// What the queues held when a search began, and what is left of it without the victims so far.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    start: Col<QueueIdx, Amounts>,
    left: Col<QueueIdx, Amounts>,
    /// Resources that victims gave, by queue; a bit each.
    touched: Col<QueueIdx, u8>,
}

impl Ledger {
    /// A search begins.
    pub fn begin(&mut self, tables: &Tables) {
        self.start.clone_from(&tables.queues.allocated);
        self.rewind();
    }

    /// No victims.
    pub fn rewind(&mut self) {
        self.left.clone_from(&self.start);
        self.touched.reset(self.start.len(), 0);
    }

    /// Takes something from a leaf and all queues above it.
    pub fn take(&mut self, tables: &Tables, leaf: QueueIdx, amount: Amounts) {
        let bits = Resource::ALL.iter().filter(|&&r| amount[r] > 0).fold(0, |bits, &r| bits | 1 << r as u8);
        for queue in tables.queues.ancestors(leaf) {
            self.left[queue] -= amount;
            self.touched[queue] |= bits;
        }
    }

    /// Which rule lets reclaim take one more victim from a leaf, given what was taken so far: the queue at the parting level is
    /// above what it may count on, or above its quota while the asker's stays within its own (semantics.md §6.6.3).
    #[must_use]
    pub fn may_take(&self, tables: &Tables, asker: &Asker, leaf: QueueIdx) -> Option<Why> {
        let (ours, theirs) = tables.queues.parting(asker.queue, leaf);
        may_take(tables, asker, (ours, self.start[ours]), (theirs, self.left[theirs]))
    }
}

/// [`Ledger::may_take`], given the queues at the parting level and what they hold.
fn may_take(
    tables: &Tables,
    asker: &Asker,
    (ours, start): (QueueIdx, Amounts),
    (theirs, left): (QueueIdx, Amounts),
) -> Option<Why> {
    let queues = &tables.queues;
    let above = |bound: Amounts| {
        let resource = Resource::ALL.into_iter().rev().find(|&r| left[r] > bound[r] && bound[r] != UNLIMITED)?;
        Some(Bound { queue: theirs, resource, bound: bound[resource], held: left[resource], asked: asker.asks[resource] })
    };
    if let Some(bound) = above(share_of(tables, theirs)) {
        return Some(Why::AboveShare(bound));
    }
    let within_quota = (start + asker.asks).fits(queues.quota[ours]);
    above(queues.quota[theirs]).filter(|_| within_quota).map(Why::AboveQuota)
}

/// Whether the asker's queue would be served beyond its share and at least as far as the one beside it, whatever is taken: then
/// nothing may be taken there (semantics.md §6.6.3, the test of ratios). Exact for the relaxation in which everybody below the
/// asker's queue who may be evicted has gone and the other queue has lost nothing.
fn saturated(plan: &Plan<'_>, asker: &Asker, ours: QueueIdx, theirs: QueueIdx) -> Option<(Resource, i64)> {
    let queues = &plan.tables.queues;
    let least = least_after(plan.tables, asker, ours);
    Resource::ALL.into_iter().filter(|&r| asker.asks[r] > 0).find_map(|r| {
        let (our_share, their_share) = (queues.fair_share[ours][r], queues.fair_share[theirs][r]);
        let (a, s) = (ratio(least[r], our_share), ratio(queues.allocated[theirs][r], their_share));
        let unfair = a > 1.0 && their_share > 0 && a * plan.config.victims.saturation_multiplier >= s;
        unfair.then_some((r, least[r]))
    })
}

/// Whether the queues that give to an asker may lose less than it wants beyond what is free: each may only lose as long as it is
/// served further than the asker's queue beside it (semantics.md §6.6.3, the test of ratios). Exact for the relaxation in which
/// GPUs are one heap and each level of queues is looked at by itself.
#[must_use]
pub fn give_too_little(plan: &Plan<'_>, asker: &Asker, leaves: &[QueueIdx]) -> Option<Unhelped> {
    let tables = &*plan.tables;
    let queues = &tables.queues;
    let gpu = Resource::Gpu;
    let mut missing = asker.asks[gpu] - free_in_all(tables);
    if missing <= 0 || depends_on_card(plan, asker) {
        return None;
    }
    let mut nearest = None;
    let mut seen: BumpVec<'_, QueueIdx> = BumpVec::new_in(plan.arena);
    for &leaf in leaves {
        let (ours, theirs) = queues.parting(asker.queue, leaf);
        if seen.contains(&theirs) {
            continue;
        }
        seen.push(theirs);
        let (our_share, their_share) = (queues.fair_share[ours][gpu], queues.fair_share[theirs][gpu]);
        let a = ratio(least_after(tables, asker, ours)[gpu], our_share);
        let held = queues.allocated[theirs][gpu];
        let stays = if a > 1.0 && their_share > 0 && their_share != UNLIMITED {
            #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "KAI's rule is a ratio of floats")]
            let least = (their_share as f64 * a * plan.config.victims.saturation_multiplier).floor() as i64;
            least.min(held)
        } else {
            0
        };
        missing -= held - stays;
        let bound = |queue, share, held, asked| Bound { queue, resource: gpu, bound: share, held, asked };
        nearest = nearest.or((stays > 0).then(|| Unhelped::Saturated {
            ours: bound(ours, our_share, queues.allocated[ours][gpu], asker.asks[gpu]),
            theirs: bound(theirs, their_share, held, 0),
        }));
    }
    nearest.filter(|_| missing > 0)
}

/// What one of the asker's queues holds at least once the asker has started, whoever of those below it goes.
fn least_after(tables: &Tables, asker: &Asker, ours: QueueIdx) -> Amounts {
    let queues = &tables.queues;
    let inside = queues.ancestors(asker.queue).take_while(|&queue| queue != ours).last();
    let freeable = |queue: QueueIdx| queues.allocated[queue] - queues.non_preemptible[queue];
    let most = match inside {
        // Its own leaf gives nothing.
        None => Amounts::ZERO,
        Some(child) if child == asker.queue => freeable(ours) - freeable(child),
        // Further below others of its own branch may go too.
        Some(_) => freeable(ours),
    };
    queues.allocated[ours] + asker.asks - most
}

/// Of the leaves that do not give for an asker, the reason of the one that comes nearest: whose queue at the parting level holds
/// most of what it may count on.
#[must_use]
pub fn nearest_refusal(plan: &Plan<'_>, asker: &Asker, leaves: impl Iterator<Item = QueueIdx>) -> Option<Unhelped> {
    let queues = &plan.tables.queues;
    let mut nearest: Option<(f64, Unhelped)> = None;
    for leaf in leaves {
        let (ours, theirs) = queues.parting(asker.queue, leaf);
        let bound =
            |queue: QueueIdx, r: Resource, held: i64, bound: i64, asked: i64| Bound { queue, resource: r, bound, held, asked };
        let share = share_of(plan.tables, theirs);
        let saturated = saturated(plan, asker, ours, theirs);
        let r = saturated.map_or_else(
            || Resource::ALL.into_iter().rev().find(|&r| asker.asks[r] > 0 && share[r] != UNLIMITED),
            |(r, _)| Some(r),
        );
        let Some(r) = r else { continue };
        let held = queues.allocated[theirs][r];
        let theirs_bound = bound(theirs, r, held, share[r], 0);
        let why = match saturated {
            Some((r, _)) => {
                let ours = bound(ours, r, queues.allocated[ours][r], queues.fair_share[ours][r], asker.asks[r]);
                let theirs = bound(theirs, r, held, queues.fair_share[theirs][r], 0);
                Unhelped::Saturated { ours, theirs }
            }
            None => Unhelped::KeepsShare(theirs_bound),
        };
        let near = ratio(held, share[r]);
        if nearest.as_ref().is_none_or(|&(best, _)| near > best) {
            nearest = Some((near, why));
        }
    }
    nearest.map(|(_, why)| why)
}

/// Why a gang may not ask for victims of other queues at all; `None`: it may (semantics.md §6.6.1).
#[must_use]
pub fn may_not_ask(tables: &Tables, asker: &Asker) -> Option<Unhelped> {
    let queues = &tables.queues;
    let queue = asker.queue;
    let over = |bound: Amounts, held: Amounts| {
        let over = |r: &Resource| bound[*r] != UNLIMITED && held[*r] + asker.asks[*r] > bound[*r];
        let resource = Resource::ALL.into_iter().rev().find(over)?;
        Some(Bound { queue, resource, bound: bound[resource], held: held[resource], asked: asker.asks[resource] })
    };
    if let Some(bound) = over(queues.fair_share[queue], queues.allocated[queue]) {
        return Some(Unhelped::AboveShare(bound));
    }
    let quota = over(queues.quota[queue], queues.non_preemptible[queue]);
    quota.filter(|_| !tables.gangs.preemptible[asker.gang]).map(Unhelped::AboveQuota)
}

/// The limit on the asker's path that would be exceeded though everybody below it who could go for this asker had gone.
#[must_use]
pub fn over_limit(tables: &Tables, asker: &Asker) -> Option<Unhelped> {
    let queues = &tables.queues;
    let freeable = |queue: QueueIdx| queues.allocated[queue] - queues.non_preemptible[queue];
    queues.ancestors(asker.queue).find_map(|queue| {
        let most = match asker.action {
            Action::Preempt => freeable(asker.queue),
            Action::Reclaim => freeable(queue) - freeable(asker.queue),
            _ => Amounts::ZERO,
        };
        let (limit, held) = (queues.limit[queue], queues.allocated[queue]);
        let over =
            |r: &Resource| asker.asks[*r] > 0 && limit[*r] != UNLIMITED && held[*r] - most[*r] + asker.asks[*r] > limit[*r];
        let resource = Resource::ALL.into_iter().rev().find(over)?;
        let bound = Bound { queue, resource, bound: limit[resource], held: held[resource], asked: asker.asks[resource] };
        Some(Unhelped::OverLimit(bound))
    })
}

/// Whether of a leaf that reclaim looks at the first victim may be lost, and the asker's queue can stay fair to theirs
/// (semantics.md §6.6.3).
#[must_use]
pub fn leaf_gives(plan: &Plan<'_>, asker: &Asker, leaf: QueueIdx) -> bool {
    let queues = &plan.tables.queues;
    let (ours, theirs) = queues.parting(asker.queue, leaf);
    may_take(plan.tables, asker, (ours, queues.allocated[ours]), (theirs, queues.allocated[theirs])).is_some()
        && saturated(plan, asker, ours, theirs).is_none()
}

/// Whether reclaim looks at the victims of a leaf at all (semantics.md §6.6.2), to lose or to move them.
#[must_use]
pub fn leaf_may_be_looked_at(tables: &Tables, asker: &Asker, leaf: QueueIdx) -> bool {
    let queues = &tables.queues;
    let (ours, theirs) = queues.parting(asker.queue, leaf);
    let held = queues.allocated[theirs];
    if !(queues.allocated[ours] + asker.asks).fits(queues.quota[ours]) {
        return !held.fits(share_of(tables, theirs));
    }
    let quota = queues.quota[theirs];
    let counted = Resource::ALL.into_iter().filter(|&r| asker.asks[r] > 0 && quota[r] != UNLIMITED);
    counted.clone().any(|r| held[r] > quota[r]) || counted.clone().all(|r| held[r] >= quota[r])
}

fn share_of(tables: &Tables, queue: QueueIdx) -> Amounts {
    let queues = &tables.queues;
    allocatable_share(queues.quota[queue], queues.limit[queue], queues.fair_share[queue])
}

/// Whether a gang that runs is protected from the asker for now: it keeps its minimum (semantics.md §9.6).
#[must_use]
pub fn is_protected(plan: &Plan<'_>, asker: &Asker, victim: GangIdx) -> bool {
    let Ok(leaf) = plan.tables.gangs.queue[victim] else { return false };
    runs_too_short(plan, plan.tables.gangs.times[victim].started, min_runtime(plan, asker, leaf))
}

/// Whether a gang that began to run then has not yet run so long (ns).
#[must_use]
pub fn runs_too_short(plan: &Plan<'_>, started: Option<i64>, min_runtime: Option<i64>) -> bool {
    started.zip(min_runtime).is_some_and(|(started, least)| plan.config.now < started.saturating_add(least))
}

/// How long gangs of a leaf are protected from the asker once they run (ns); `None`: not at all.
#[must_use]
pub fn min_runtime(plan: &Plan<'_>, asker: &Asker, leaf: QueueIdx) -> Option<i64> {
    let rules = plan.config.victims.min_runtime?;
    let queues = &plan.tables.queues;
    match asker.action {
        Action::Preempt => Some(queues.ancestors(leaf).find_map(|q| queues.preempt_min_runtime[q]).unwrap_or(rules.preempt)),
        Action::Reclaim => {
            let from = match rules.reclaim_by {
                ReclaimProtection::OwnQueue => leaf,
                ReclaimProtection::CommonAncestor => below_common(plan.tables, asker.queue, leaf),
            };
            Some(queues.ancestors(from).find_map(|q| queues.reclaim_min_runtime[q]).unwrap_or(rules.reclaim))
        }
        _ => None,
    }
}

/// The queue on the victim's path right below the lowest common ancestor of both; the ancestor itself if the path ends there;
/// the root of the victim's path if there is no common one.
fn below_common(tables: &Tables, asker: QueueIdx, victim: QueueIdx) -> QueueIdx {
    let mut below = victim;
    for queue in tables.queues.ancestors(victim) {
        if tables.queues.ancestors(asker).any(|q| q == queue) {
            return below;
        }
        below = queue;
    }
    below
}

/// Whether what a try came to keeps the rules of its action.
pub(crate) fn allow(plan: &Plan<'_>, asker: &Asker, ledger: &mut Ledger, units: &[Unit], pods: &[PodIdx]) -> bool {
    let placed = |pod: &PodIdx| is_active(plan.tables.pods.status[*pod]);
    match asker.action {
        Action::Consolidation => units.iter().all(|unit| unit.of(pods).iter().all(placed)),
        Action::Reclaim if plan.config.plugins.proportion => reclaim_is_fair(plan, asker, ledger, units, pods),
        _ => true,
    }
}

/// Semantics.md §6.6.3, victims in the order in which they were taken. Those that found another place do not count as taken,
/// unless consolidating reclaim is off.
fn reclaim_is_fair(plan: &Plan<'_>, asker: &Asker, ledger: &mut Ledger, units: &[Unit], pods: &[PodIdx]) -> bool {
    let tables = &*plan.tables;
    ledger.rewind();
    // It was let in with what it asks for first.
    if !(ledger.left[asker.queue] + asker.asks).fits(tables.queues.fair_share[asker.queue]) {
        return false;
    }
    for unit in units {
        if !take(plan, asker, ledger, unit, pods, |pod| is_lost(plan, pod)) {
            return false;
        }
    }
    tables.queues.ancestors(asker.queue).all(|queue| level_is_fair(plan, asker, ledger, queue))
}

/// Takes from the ledger what those pods of a unit hold that count; whether each piece may be taken.
fn take(
    plan: &Plan<'_>,
    asker: &Asker,
    ledger: &mut Ledger,
    unit: &Unit,
    pods: &[PodIdx],
    counts: impl Fn(PodIdx) -> bool,
) -> bool {
    let Ok(leaf) = plan.tables.gangs.queue[unit.gang] else { return true };
    vectors(plan, unit, pods, counts, |amount| {
        let may = ledger.may_take(plan.tables, asker, leaf).is_some();
        ledger.take(plan.tables, leaf, amount);
        may
    })
}

/// By which rule a unit goes; what it loses is taken off the ledger.
pub(crate) fn why(plan: &Plan<'_>, asker: &Asker, ledger: &mut Ledger, unit: &Unit, pods: &[PodIdx]) -> Why {
    let tables = &*plan.tables;
    match (asker.action, tables.gangs.queue[unit.gang]) {
        (Action::Preempt, _) => {
            Why::LowerPriority { victim: tables.gangs.priority[unit.gang], asker: tables.gangs.priority[asker.gang] }
        }
        (Action::Reclaim, Ok(leaf)) if plan.config.plugins.proportion => {
            let mut why = None;
            vectors(
                plan,
                unit,
                pods,
                |pod| is_lost(plan, pod),
                |amount| {
                    let allowed = ledger.may_take(tables, asker, leaf);
                    why = why.or(allowed);
                    ledger.take(tables, leaf, amount);
                    true
                },
            );
            why.unwrap_or(Why::Moves)
        }
        (Action::Reclaim, _) if !plan.config.plugins.proportion => Why::NoRule,
        _ => Why::Moves,
    }
}

/// The first unit that the rules of reclaim protect if all of these were lost.
pub(crate) fn first_protected(
    plan: &Plan<'_>,
    asker: &Asker,
    ledger: &mut Ledger,
    units: &[Unit],
    pods: &[PodIdx],
) -> Option<usize> {
    if asker.action != Action::Reclaim || !plan.config.plugins.proportion {
        return None;
    }
    let tables = &*plan.tables;
    ledger.rewind();
    for (at, unit) in units.iter().enumerate() {
        if !take(plan, asker, ledger, unit, pods, |_| true) {
            return Some(at);
        }
    }
    let unfair = tables.queues.ancestors(asker.queue).find_map(|queue| unfair_to(plan, asker, ledger, queue))?;
    // The last one taken there made it so.
    let below = |unit: &Unit| tables.gangs.queue[unit.gang].is_ok_and(|q| tables.queues.ancestors(q).any(|q| q == unfair));
    units.iter().rposition(below)
}

/// Whether a pod that was told to leave counts as taken: it found no other place, or moving does not help.
fn is_lost(plan: &Plan<'_>, pod: PodIdx) -> bool {
    !plan.config.victims.consolidating_reclaim || !is_active(plan.tables.pods.status[pod])
}

/// What a unit takes from its queues, piece by piece in the way that reclaim tests it: each pod above the minimum of its pod set
/// by itself, then what the minimum of all pod sets holds in one piece (semantics.md §6.6.3). Whether `take` was content with
/// all.
fn vectors(
    plan: &Plan<'_>,
    unit: &Unit,
    pods: &[PodIdx],
    counts: impl Fn(PodIdx) -> bool,
    mut take: impl FnMut(Amounts) -> bool,
) -> bool {
    let tables = &*plan.tables;
    let members = tables.gangs.subgroups[unit.gang];
    let mut seen = BumpVec::from_iter_in(std::iter::repeat_n(0_u32, members.len()), plan.arena);
    let first = members.iter().next().map_or(0, Idx::at);
    let mut core: Option<Amounts> = None;
    let mut good = true;
    for &pod in unit.of(pods).iter().filter(|&&pod| counts(pod)) {
        let held = held_before(tables, pod);
        let min = tables.pods.subgroup[pod].map_or(0, |subgroup| {
            seen[subgroup.at() - first] += 1;
            tables.gangs.threshold(Member::Subgroup(subgroup)).saturating_sub(seen[subgroup.at() - first] - 1)
        });
        if min > 0 && !unit.single {
            core = Some(core.unwrap_or(Amounts::ZERO) + held);
        } else {
            good &= take(held);
        }
    }
    good && core.is_none_or(take)
}

/// What a pod that was told to leave counted for in its queues.
pub(crate) fn held_before(tables: &Tables, pod: PodIdx) -> Amounts {
    let node = tables.pods.evicted_from[pod].and_then(|home| home.node).or(tables.pods.node[pod]);
    node.map_or(Amounts::ZERO, |node| tables.queue_charge(tables.pods.class[pod], node))
}

/// Whether one of the asker's queues stays fair to those beside it that give, and within its quota if the asker may not be
/// evicted itself.
fn level_is_fair(plan: &Plan<'_>, asker: &Asker, ledger: &Ledger, queue: QueueIdx) -> bool {
    let queues = &plan.tables.queues;
    // After a try the asker is among what its queue holds already.
    let in_quota = plan.tables.gangs.preemptible[asker.gang] || queues.non_preemptible[queue].fits(queues.quota[queue]);
    in_quota && unfair_to(plan, asker, ledger, queue).is_none()
}

/// The queue beside one of the asker's to which that would be unfair.
fn unfair_to(plan: &Plan<'_>, asker: &Asker, ledger: &Ledger, queue: QueueIdx) -> Option<QueueIdx> {
    let queues = &plan.tables.queues;
    let after = ledger.left[queue] + asker.asks;
    let siblings = queues.parent[queue].map_or(&queues.roots[..], |parent| queues.children_of(parent));
    siblings.iter().copied().filter(|&s| s != queue && ledger.touched[s] != 0).find(|&sibling| {
        Resource::ALL.into_iter().any(|resource| {
            let involved = ledger.touched[sibling] & (1 << resource as u8) != 0 || asker.asks[resource] > 0;
            let (ours, theirs) = (queues.fair_share[queue][resource], queues.fair_share[sibling][resource]);
            let a = ratio(after[resource], ours);
            let s = ratio(ledger.left[sibling][resource], theirs);
            involved && a > 1.0 && theirs > 0 && a * plan.config.victims.saturation_multiplier >= s
        })
    })
}

/// What is held against a share: no share counts as infinite if anything is held, an unlimited one as nothing.
fn ratio(held: i64, share: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "KAI's rule is a ratio of floats")]
    match share {
        UNLIMITED => 0.0,
        0 if held > 0 => f64::INFINITY,
        0 => 0.0,
        _ => held as f64 / share as f64,
    }
}
