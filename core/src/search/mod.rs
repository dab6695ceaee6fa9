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
use crate::place::gang::next_pods;
use crate::search::counting::Places;
use crate::search::simulate::Simulation;
use crate::search::stream::Stream;
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
    /// The rest of a gang, not a pod above its minimum.
    pub(crate) core: bool,
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
        self.simulation.begin(plan.tables, plan.config);
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
            if !protect && !moves {
                break;
            }
            self.units.clear();
            self.unit_pods.clear();
            self.ledger.begin(plan.tables);
            self.places.begin(plan, asker.gang);
            self.stream.rewind(plan.tables, plan.config, asker, protect);
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

    /// From the last unit to the first: everybody stays without whom the asker still starts and the rules hold.
    fn give_back(&mut self, plan: &mut Plan<'_>, asker: &Asker, start: crate::statement::Mark) {
        let mut solution_stands = true;
        for at in (0..self.units.len()).rev() {
            let unit = self.units[at];
            let senior_core_gone = !unit.core && self.units[at + 1..].iter().any(|later| later.gang == unit.gang && later.core);
            if senior_core_gone || !self.is_gone(plan, unit) {
                continue;
            }
            if solution_stands {
                self.undo_placements(plan, start);
                solution_stands = false;
            }
            let mark = plan.statement.mark(plan.tables);
            for &pod in &self.unit_pods[unit.pods.0..unit.pods.1] {
                plan.statement.keep(plan.tables, pod, asker.action);
            }
            self.places.refresh(plan);
            self.units.remove(at);
            let kept = self.places.enough() && {
                let before = plan.statement.mark(plan.tables);
                let good = self.try_once(plan, asker);
                plan.statement.rollback(plan.tables, before);
                good
            };
            if !kept {
                self.units.insert(at, unit);
                plan.statement.rollback(plan.tables, mark);
                self.places.refresh(plan);
            }
        }
        if !solution_stands {
            let again = self.try_once(plan, asker);
            assert!(again, "what was tried once comes out the same");
        }
    }

    /// Whether somebody of a unit has to go or to move as things stand.
    fn is_gone(&self, plan: &Plan<'_>, unit: Unit) -> bool {
        let pods = &plan.tables.pods;
        self.unit_pods[unit.pods.0..unit.pods.1].iter().any(|&pod| pods.evicted_from[pod] != Some(pods.placement(pod)))
    }

    /// Takes back where everybody was placed; all units are told to leave again.
    fn undo_placements(&mut self, plan: &mut Plan<'_>, start: crate::statement::Mark) {
        let evictions = plan.statement.since(start).iter().position(|op| op.after.status != crate::snapshot::PodStatus::Releasing);
        if let Some(at) = evictions {
            let mark = plan.statement.mark_at(start, at);
            plan.statement.rollback(plan.tables, mark);
        }
    }

    /// Places the asker and whoever was told to leave, in their order; whether the asker starts and the rules hold.
    fn try_once(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        let gangs = self.units.iter().map(|unit| unit.gang);
        self.simulation.run(plan, asker, gangs)
            && rules::allow(plan, asker, &mut self.ledger, &self.units, &self.unit_pods)
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
