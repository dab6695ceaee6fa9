//! Who is protected, and what reclaim must keep at every level of the queues (semantics.md §6.6, §9.6).

use crate::actions::Plan;
use crate::config::{Action, ReclaimProtection};
use crate::fair_share::allocatable_share;
use crate::index::{Col, GangIdx, PodIdx, QueueIdx};
use crate::search::{Asker, Unit};
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

    /// What a queue held when the search began.
    #[must_use]
    pub fn at_start(&self, queue: QueueIdx) -> Amounts {
        self.start[queue]
    }

    /// Takes something from a leaf and all queues above it.
    pub fn take(&mut self, tables: &Tables, leaf: QueueIdx, amount: Amounts) {
        let bits = Resource::ALL.iter().filter(|&&r| amount[r] > 0).fold(0, |bits, &r| bits | 1 << r as u8);
        for queue in tables.queues.ancestors(leaf) {
            self.left[queue] -= amount;
            self.touched[queue] |= bits;
        }
    }

    /// Whether reclaim may take one more victim from a leaf, given what was taken so far: the queue at the parting level is above
    /// what it may count on, or above its quota while the asker's stays within its own (semantics.md §6.6.3).
    #[must_use]
    pub fn may_take(&self, tables: &Tables, asker: &Asker, leaf: QueueIdx) -> bool {
        let (ours, theirs) = tables.queues.parting(asker.queue, leaf);
        let queues = &tables.queues;
        let left = self.left[theirs];
        let within_quota = (self.start[ours] + asker.asks).fits(queues.quota[ours]);
        !left.fits(share_of(tables, theirs)) || within_quota && !left.fits(queues.quota[theirs])
    }
}

/// Whether a gang may ask for victims at all, by its queues.
#[must_use]
pub fn may_ask(tables: &Tables, asker: &Asker) -> bool {
    let queues = &tables.queues;
    let queue = asker.queue;
    let within = (queues.allocated[queue] + asker.asks).fits(queues.fair_share[queue]);
    within && (tables.gangs.preemptible[asker.gang] || (queues.non_preemptible[queue] + asker.asks).fits(queues.quota[queue]))
}

/// Whether reclaim looks at the victims of a leaf at all (semantics.md §6.6.2).
#[must_use]
pub fn leaf_gives(tables: &Tables, asker: &Asker, leaf: QueueIdx) -> bool {
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
    let Some(rules) = plan.config.victims.min_runtime else { return false };
    let Some(started) = plan.tables.gangs.times[victim].started else { return false };
    let Ok(leaf) = plan.tables.gangs.queue[victim] else { return false };
    let queues = &plan.tables.queues;
    let least = match asker.action {
        Action::Preempt => queues.ancestors(leaf).find_map(|q| queues.preempt_min_runtime[q]).unwrap_or(rules.preempt),
        Action::Reclaim => {
            let from = match rules.reclaim_by {
                ReclaimProtection::OwnQueue => leaf,
                ReclaimProtection::CommonAncestor => below_common(plan.tables, asker.queue, leaf),
            };
            queues.ancestors(from).find_map(|q| queues.reclaim_min_runtime[q]).unwrap_or(rules.reclaim)
        }
        _ => return false,
    };
    plan.config.now < started.saturating_add(least)
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
        Action::Consolidation => units.iter().all(|unit| pods[unit.pods.0..unit.pods.1].iter().all(placed)),
        Action::Reclaim if plan.config.plugins.proportion => reclaim_is_fair(plan, asker, ledger, units, pods),
        _ => true,
    }
}

/// Semantics.md §6.6.3, victims in the order in which they were taken. Those that found another place do not count as taken,
/// unless consolidating reclaim is off.
fn reclaim_is_fair(plan: &Plan<'_>, asker: &Asker, ledger: &mut Ledger, units: &[Unit], pods: &[PodIdx]) -> bool {
    let tables = &*plan.tables;
    ledger.rewind();
    for unit in units {
        let Ok(leaf) = tables.gangs.queue[unit.gang] else { continue };
        let mut lost = Amounts::ZERO;
        for &pod in &pods[unit.pods.0..unit.pods.1] {
            if !plan.config.victims.consolidating_reclaim || !is_active(tables.pods.status[pod]) {
                lost += held_before(tables, pod);
            }
        }
        if lost == Amounts::ZERO {
            continue;
        }
        if !ledger.may_take(tables, asker, leaf) {
            return false;
        }
        ledger.take(tables, leaf, lost);
    }
    tables.queues.ancestors(asker.queue).all(|queue| level_is_fair(plan, asker, ledger, queue))
}

/// What a pod that was told to leave counted for in its queues.
pub(crate) fn held_before(tables: &Tables, pod: PodIdx) -> Amounts {
    let node = tables.pods.evicted_from[pod].and_then(|home| home.node).or(tables.pods.node[pod]);
    node.map_or(Amounts::ZERO, |node| tables.queue_charge(tables.pods.class[pod], node))
}

/// Whether one of the asker's queues stays fair to those beside it that give.
fn level_is_fair(plan: &Plan<'_>, asker: &Asker, ledger: &Ledger, queue: QueueIdx) -> bool {
    let queues = &plan.tables.queues;
    let after = ledger.left[queue] + asker.asks;
    let siblings = queues.parent[queue].map_or(&queues.roots[..], |parent| queues.children_of(parent));
    for &sibling in siblings.iter().filter(|&&s| s != queue && ledger.touched[s] != 0) {
        for resource in Resource::ALL {
            let involved = ledger.touched[sibling] & (1 << resource as u8) != 0 || asker.asks[resource] > 0;
            let (ours, theirs) = (queues.fair_share[queue][resource], queues.fair_share[sibling][resource]);
            let a = ratio(after[resource], ours);
            let s = ratio(ledger.left[sibling][resource], theirs);
            if involved && a > 1.0 && theirs > 0 && a * plan.config.victims.saturation_multiplier >= s {
                return false;
            }
        }
    }
    let non_preemptible = queues.non_preemptible[queue];
    plan.tables.gangs.preemptible[asker.gang] || non_preemptible_at_start(plan, asker, non_preemptible).fits(queues.quota[queue])
}

/// After a try the asker is among what its queue holds already.
fn non_preemptible_at_start(_plan: &Plan<'_>, _asker: &Asker, held: Amounts) -> Amounts {
    held
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
