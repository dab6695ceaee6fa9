//! Who has to go so that a gang can start: proofs of impossibility first, then the first sufficient prefix of the victim stream,
//! then everybody back who was not needed (architecture.md, "Decisions" 2).
//!
//! [`stream`] is the order of victims, [`rules`] who is protected and what reclaim must keep, [`counting`] what can be known
//! without trying, [`simulate`] the trying. `reclaim` and `preempt` differ by [`Kind`] only.

pub mod counting;
pub mod rules;
pub mod simulate;
pub mod stream;

use crate::actions::Plan;
use crate::config::Action;
use crate::index::{GangIdx, PodIdx, QueueIdx};
use crate::place::gang::{next_pods, next_request};
use crate::search::counting::Places;
use crate::search::simulate::Simulation;
use crate::search::stream::Stream;
use crate::statement::Mark;
use crate::units::Amounts;

/// What the search keeps from asker to asker and from cycle to cycle: memory, and victims in order.
#[derive(Clone, Debug, Default)]
pub struct SearchMemory {
    stream: Stream,
    places: Places,
    simulation: Simulation,
    ledger: rules::Ledger,
    units: Vec<Unit>,
    unit_pods: Vec<PodIdx>,
}

/// On whose behalf, and by which rule.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The gang.
    pub gang: GangIdx,
    /// Its leaf queue.
    pub queue: QueueIdx,
    /// `Reclaim`, `Preempt` or `Consolidation`.
    pub action: Action,
    /// What it asks for at once, MiB counted by the smallest card.
    pub asks: Amounts,
}

/// What goes at once: a pod above the minimum of its gang, or all that a gang has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    pub(crate) gang: GangIdx,
    /// A range of [`SearchMemory::unit_pods`].
    pub(crate) pods: (usize, usize),
    /// The rest of a gang, not a part above what it must have.
    pub(crate) core: bool,
    /// One pod above the minimum of its pod set.
    pub(crate) single: bool,
}

/// How a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The asker starts, once what was told to leave is gone.
    Solved,
    /// Nobody that may go would help.
    Unsolved,
}

impl SearchMemory {
    /// An action begins: victims are listed anew.
    pub fn begin(&mut self, plan: &Plan<'_>) {
        self.stream.begin(plan.tables, plan.config);
        let card = plan.tables.nodes.smallest_card;
        let next = |gang| next_request(plan.tables, plan.config, gang, card, plan.arena);
        self.simulation.begin(plan.tables, plan.config, next);
    }

    /// Finds room for an asker. What was decided is in the log; if nothing was, nothing is.
    pub fn solve(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> Verdict {
        let mark = plan.statement.mark(plan.tables);
        self.units.clear();
        self.unit_pods.clear();
        self.ledger.begin(plan.tables);
        if self.try_once(plan, asker) {
            plan.statement.settle_since(plan.tables, mark);
            return Verdict::Solved;
        }
        plan.statement.rollback(plan.tables, mark);
        // First only those are taken who may be lost. Where victims of reclaim may move instead, a second pass takes others too:
        // the rules then hold if these find another place.
        let moves = asker.action == Action::Reclaim && plan.config.victims.consolidating_reclaim;
        for protect in [true, false] {
            let second_helps = moves && self.stream.passed_over();
            if !protect && !second_helps {
                break;
            }
            self.units.clear();
            self.unit_pods.clear();
            self.ledger.begin(plan.tables);
            self.places.begin(plan, asker.gang);
            self.stream.rewind(plan.tables, plan.config, asker, protect);
            if asker.action == Action::Consolidation && !counting::room_in_all(plan.tables, asker.asks) {
                break;
            }
            if !self.stream.could_help(plan, asker, &mut self.places) {
                break;
            }
            if self.find_prefix(plan, asker) {
                self.give_back(plan, asker, mark);
                plan.statement.settle_since(plan.tables, mark);
                return Verdict::Solved;
            }
            plan.statement.rollback(plan.tables, mark);
        }
        Verdict::Unsolved
    }

    /// Takes units in order until the asker starts and the rules hold.
    fn find_prefix(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        let mut simulations = 0;
        while let Some(unit) = self.stream.next(plan, asker, &mut self.ledger, &mut self.unit_pods) {
            for &pod in &self.unit_pods[unit.pods.0..unit.pods.1] {
                plan.statement.evict(plan.tables, pod, asker.action);
            }
            self.units.push(unit);
            self.places.refresh(plan);
            if !self.places.enough() {
                continue;
            }
            let mark = plan.statement.mark(plan.tables);
            if self.try_once(plan, asker) {
                return true;
            }
            plan.statement.rollback(plan.tables, mark);
            simulations += 1;
            if simulations >= plan.config.victims.simulations_max {
                break;
            }
        }
        false
    }

    /// From the last unit to the first: everybody stays without whom the asker still starts and the rules hold. A solution
    /// stands before and after.
    ///
    /// First by counting alone, which for pods alike is the whole truth unless somebody else takes the room first; one try
    /// confirms it. If it does not, those who need not move at all stay, and then each unit is tried by itself.
    fn give_back(&mut self, plan: &mut Plan<'_>, asker: &Asker, start: Mark) {
        let staying: Vec<bool> = self.units.iter().map(|&unit| !self.is_gone(plan, unit)).collect();
        self.undo_placements(plan, start);
        let evicted = plan.statement.mark(plan.tables);
        let all = self.units.clone();
        self.keep_where(plan, asker, |search, plan, _| search.places.enough_now(plan));
        if self.try_once(plan, asker) {
            return;
        }
        plan.statement.rollback(plan.tables, evicted);
        self.units.clone_from(&all);
        self.places.refresh(plan);
        self.keep_where(plan, asker, |_, _, at| staying[at]);
        let fewer = plan.statement.mark(plan.tables);
        if self.try_once(plan, asker) {
            plan.statement.rollback(plan.tables, fewer);
        } else {
            plan.statement.rollback(plan.tables, evicted);
            self.units = all;
            self.places.refresh(plan);
        }
        self.keep_where(plan, asker, |search, plan, _| {
            search.places.enough_now(plan) && {
                let before = plan.statement.mark(plan.tables);
                let good = search.try_once(plan, asker);
                plan.statement.rollback(plan.tables, before);
                good
            }
        });
        let again = self.try_once(plan, asker);
        assert!(again, "what was tried once comes out the same");
    }

    /// Keeps every unit for which `good` holds while it is kept, the last one first. No gang is left below its minimum: a pod
    /// above it is not kept while the rest has to go.
    fn keep_where(&mut self, plan: &mut Plan<'_>, asker: &Asker, good: impl Fn(&mut Self, &mut Plan<'_>, usize) -> bool) {
        for at in (0..self.units.len()).rev() {
            let unit = self.units[at];
            if !unit.core && self.units[at + 1..].iter().any(|later| later.gang == unit.gang && later.core) {
                continue;
            }
            let mark = plan.statement.mark(plan.tables);
            for &pod in &self.unit_pods[unit.pods.0..unit.pods.1] {
                plan.statement.keep(plan.tables, pod, asker.action);
            }
            self.units.remove(at);
            if !good(self, plan, at) {
                self.units.insert(at, unit);
                plan.statement.rollback(plan.tables, mark);
            }
        }
        self.places.refresh(plan);
    }

    /// Whether somebody of a unit has to go or to move as things stand.
    fn is_gone(&self, plan: &Plan<'_>, unit: Unit) -> bool {
        let pods = &plan.tables.pods;
        self.unit_pods[unit.pods.0..unit.pods.1].iter().any(|&pod| pods.evicted_from[pod] != Some(pods.placement(pod)))
    }

    /// Takes back where everybody was placed; all units are told to leave again.
    fn undo_placements(&mut self, plan: &mut Plan<'_>, start: Mark) {
        let evictions =
            plan.statement.since(start).iter().position(|op| op.after.status != crate::snapshot::PodStatus::Releasing);
        if let Some(at) = evictions {
            let mark = plan.statement.mark_at(start, at);
            plan.statement.rollback(plan.tables, mark);
        }
    }

    /// Places the asker and whoever was told to leave, in their order; whether the asker starts and the rules hold.
    fn try_once(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        let gangs = self.units.iter().map(|unit| unit.gang);
        self.simulation.run(plan, asker, gangs) && rules::allow(plan, asker, &mut self.ledger, &self.units, &self.unit_pods)
    }
}

/// What a gang asks for at once, and how many pods that is.
pub(crate) fn asks(plan: &Plan<'_>, gang: GangIdx, card_mib: i64) -> (Amounts, usize) {
    let (mut sum, mut pods) = (Amounts::ZERO, 0);
    next_pods(plan.tables, plan.config, gang, plan.arena, |pod| {
        sum += plan.tables.classes.charge_at(plan.tables.pods.class[pod], card_mib);
        pods += 1;
    });
    (sum, pods)
}
