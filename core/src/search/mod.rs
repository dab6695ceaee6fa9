//! Who has to go or to move so that a gang can start: proofs of impossibility first, then the first sufficient prefix of the
//! victim stream, then everybody back who is not needed (docs/architecture.md, "The search for victims").
//!
//! [`stream`] is the order of victims (that of one queue in `leaf`), [`rules`] who is protected and what reclaim must keep,
//! [`counting`] what can be known without trying (with [`offers`]), [`simulate`] the trying, [`prefix`] (with [`sets`] and
//! [`returns`]) and [`moves`] the two ways to choose, [`least`] the lower bound, [`brake`] the most that may be evicted.

pub mod brake;
pub mod counting;
mod leaf;
pub mod least;
pub mod moves;
pub mod offers;
pub mod prefix;
pub mod returns;
pub mod rules;
pub mod sets;
pub mod simulate;
mod stands;
pub mod stream;

use crate::actions::Plan;
use crate::config::Action;
use crate::explain::Unhelped;
use crate::index::{GangIdx, NodeIdx, PodIdx, QueueIdx};
use crate::outcome::{Batch, Eviction, Why};
use crate::place::gang::{next_pods, next_request};
use crate::search::brake::Brake;
use crate::search::counting::Places;
use crate::search::leaf::Alone;
use crate::search::least::Least;
use crate::search::moves::Donors;
use crate::search::returns::Returns;
use crate::search::simulate::Simulation;
use crate::search::stands::Stands;
use crate::search::stream::Stream;
use crate::snapshot::PodStatus;
use crate::statement::Mark;
use crate::tables::holds_node;
use crate::units::Amounts;

/// What the search keeps from asker to asker and from cycle to cycle: memory, and victims in order.
#[derive(Clone, Debug, Default)]
pub struct SearchMemory {
    stream: Stream,
    places: Places,
    donors: Donors,
    least: Least,
    simulation: Simulation,
    ledger: rules::Ledger,
    /// How much may still be evicted.
    pub brake: Brake,
    /// Units that are told to leave, in the order of the stream.
    units: Vec<Unit>,
    unit_pods: Vec<PodIdx>,
    /// A copy, to go back to.
    spare_units: Vec<Unit>,
    /// What the stream gave so far for this asker.
    prefix: Vec<Unit>,
    /// Positions in `prefix`: who is tried, and who is counted as staying meanwhile.
    chosen: Vec<usize>,
    withdrawn: Vec<usize>,
    /// Lengths of `prefix` that are tried as a whole or in parts.
    turns: Vec<usize>,
    /// Where those of `prefix` stand, and positions of those who may have won a place.
    stands: Stands,
    winners: Vec<usize>,
    nodes: Vec<NodeIdx>,
    /// How many of `prefix` are taken out.
    gone: usize,
    /// Some of `prefix` are not counted on any more.
    some_out: bool,
    /// Nodes of the chosen.
    homes: Vec<NodeIdx>,
    returns: Returns,
    /// Which of the units ended where they were.
    stayed: Vec<bool>,
    /// Who goes by which rule, and its place among those who go.
    whys: Vec<(PodIdx, usize, Why)>,
    /// Simulations for this asker.
    tries: u32,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unit {
    pub(crate) gang: GangIdx,
    /// A range of [`SearchMemory::unit_pods`].
    pub(crate) pods: (usize, usize),
    /// The rest of a gang, not a part above what it must have.
    pub(crate) core: bool,
    /// One pod above the minimum of its pod set.
    pub(crate) single: bool,
    /// The tables know that it was told to leave; if not, it is only counted so.
    pub(crate) told: bool,
    /// It is not counted on any more: it would take its place again before the asker's turn comes.
    pub(crate) out: bool,
    /// It is no part of the prefix any more: a rule protects it.
    pub(crate) gone: bool,
    /// Its pod, if that is the whole gang.
    pub(crate) alone: Option<Alone>,
}

impl Unit {
    /// Nothing of a gang.
    pub(crate) const fn none(gang: GangIdx) -> Self {
        Self { gang, pods: (0, 0), core: false, single: false, told: false, out: false, gone: false, alone: None }
    }

    pub(crate) fn of<'a>(&self, pods: &'a [PodIdx]) -> &'a [PodIdx] {
        &pods[self.pods.0..self.pods.1]
    }

    /// Tells its pods to leave.
    pub(crate) fn tell(&mut self, plan: &mut Plan<'_>, asker: &Asker, pods: &[PodIdx]) {
        for &pod in self.of(pods) {
            plan.statement.evict(plan.tables, pod, asker.action);
        }
        self.told = true;
    }
}

/// Whether victims may be lost or may only move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// Those may go whom no rule protects.
    Lose,
    /// Others may go too, if they find another place.
    Move,
}

impl SearchMemory {
    /// An action begins: victims are listed anew.
    pub fn begin(&mut self, plan: &Plan<'_>) {
        self.stream.begin(plan.tables, plan.config);
        self.places.forget();
        self.donors.forget();
        self.least.begin();
        let card = plan.tables.nodes.smallest_card;
        let next = |gang| next_request(plan.tables, plan.config, gang, card, plan.arena);
        self.simulation.begin(plan.tables, plan.config, next);
    }

    /// Finds room for an asker.
    ///
    /// # Errors
    /// Why nobody can be evicted or moved for it; then the log is as it was.
    pub fn solve(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> Result<(), Unhelped> {
        let mark = plan.statement.mark(plan.tables);
        self.tries = 0;
        self.start_over(plan);
        let moves_only = asker.action == Action::Consolidation;
        if moves_only
            && plan.config.victims.shortcuts
            && let Some(little) = counting::too_little_free(plan, asker)
        {
            return Err(little);
        }
        if !self.somebody_could_go(plan, asker) {
            return Err(self.stream.nobody(plan, asker));
        }
        if self.try_once(plan, asker) {
            return self.finish(plan, asker, mark);
        }
        plan.statement.rollback(plan.tables, mark);
        let mut found = if moves_only { Err(Unhelped::Nobody) } else { self.lose(plan, asker, mark) };
        // Where victims of reclaim may move instead, a second pass takes those too who may not be lost.
        let may_move = asker.action == Action::Reclaim && plan.config.victims.consolidating_reclaim && self.stream.passed_over();
        if found.is_err() && (moves_only || may_move) {
            let moved = self.shift_around(plan, asker, mark);
            found = if moves_only || moved.is_ok() { moved } else { found };
        }
        found?;
        self.finish(plan, asker, mark)
    }

    /// Promises an asker what is free or will be, if it can start with that; nobody goes for it.
    pub fn promise(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        let mark = plan.statement.mark(plan.tables);
        self.start_over(plan);
        let starts = simulate::place(plan, asker, asker.gang)
            && rules::allow(plan, asker, &mut self.ledger, &[], &[])
            && self.finish(plan, asker, mark).is_ok();
        if !starts {
            plan.statement.rollback(plan.tables, mark);
        }
        starts
    }

    /// Whether anybody may go or move for the asker at all. Where nobody may, it has no turn, even if it fits without
    /// (semantics.md §6.4.6): others who may ask come first, and it gets what they leave ([`Self::promise`]).
    fn somebody_could_go(&mut self, plan: &Plan<'_>, asker: &Asker) -> bool {
        let moves = asker.action == Action::Reclaim && plan.config.victims.consolidating_reclaim;
        let passes =
            [(Pass::Lose, asker.action != Action::Consolidation), (Pass::Move, moves || asker.action == Action::Consolidation)];
        let found = passes.into_iter().filter(|&(_, looked_at)| looked_at).any(|(pass, _)| {
            self.stream.rewind(plan, asker, pass);
            self.stream.has_unit(plan, asker, &mut self.unit_pods)
        });
        self.unit_pods.clear();
        found
    }

    /// Nobody is told to leave yet.
    fn start_over(&mut self, plan: &Plan<'_>) {
        self.units.clear();
        self.unit_pods.clear();
        self.places.clear_offers(plan);
        self.ledger.begin(plan.tables);
    }

    /// First proofs, then those who may be lost.
    fn lose(&mut self, plan: &mut Plan<'_>, asker: &Asker, mark: Mark) -> Result<(), Unhelped> {
        self.stream.start(plan, asker, Pass::Lose);
        if plan.config.victims.shortcuts {
            if !self.stream.somebody_gives() {
                return Err(self.stream.nobody(plan, asker));
            }
            if let Some(why) = self.stream.give_too_little(plan, asker) {
                return Err(why);
            }
        }
        self.places.begin(plan, asker);
        if plan.config.victims.shortcuts
            && let Some(little) = self.stream.too_little(plan, &mut self.places)
        {
            return Err(little);
        }
        self.least.remember(plan.tables, &self.stream);
        if plan.config.victims.fewest {
            if self.find_donors(plan, asker, mark) {
                return Ok(());
            }
            self.start_over(plan);
            self.places.refresh(plan);
        }
        let found = self.find_prefix(plan, asker);
        if found.is_err() {
            plan.statement.rollback(plan.tables, mark);
            self.places.promise_nothing(plan, self.stream.victims());
        }
        found
    }

    /// First the donors that give most per move, then one unit alone, then the stream in its order.
    fn shift_around(&mut self, plan: &mut Plan<'_>, asker: &Asker, mark: Mark) -> Result<(), Unhelped> {
        self.start_over(plan);
        if plan.config.victims.shortcuts
            && !self.stream.somebody_gives_for_good()
            && let Some(little) = counting::too_little_free(plan, asker)
        {
            return Err(little);
        }
        self.stream.start(plan, asker, Pass::Move);
        self.places.begin(plan, asker);
        self.least.remember(plan.tables, &self.stream);
        if self.find_donors(plan, asker, mark) {
            return Ok(());
        }
        self.start_over(plan);
        if self.find_alone(plan, asker, mark) {
            return Ok(());
        }
        self.start_over(plan);
        self.places.refresh(plan);
        self.stream.start(plan, asker, Pass::Move);
        let found = self.find_prefix(plan, asker);
        if found.is_err() {
            plan.statement.rollback(plan.tables, mark);
        }
        found
    }

    /// Places the asker and whoever was told to leave, in their order; whether the asker starts and the rules hold.
    fn try_once(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        self.tries += 1;
        let gangs = self.units.iter().map(|unit| unit.gang);
        self.simulation.run(plan, asker, gangs)
            && rules::allow(plan, &self.simulation.served(asker), &mut self.ledger, &self.units, &self.unit_pods)
            && !self.units.iter().any(|unit| unit.of(&self.unit_pods).iter().any(|&pod| plan.tables.pods.goes_in_circles(pod)))
    }

    /// Whether the safety net was reached.
    fn tried_enough(&self, plan: &Plan<'_>) -> bool {
        self.tries > plan.config.victims.simulations_max
    }

    /// The asker starts: the turn stands, with the rule that allowed each eviction, unless the brake holds.
    fn finish(&mut self, plan: &mut Plan<'_>, asker: &Asker, mark: Mark) -> Result<(), Unhelped> {
        if let Some(braked) = self.brake.refuses(plan, self.units.iter().flat_map(|unit| unit.of(&self.unit_pods))) {
            plan.statement.rollback(plan.tables, mark);
            return Err(braked);
        }
        self.explain(plan, &self.simulation.served(asker));
        let least = if self.units.is_empty() { 0 } else { self.least_evictions(plan) };
        plan.statement.settle_since(plan.tables, mark);
        // In the order in which the rules were asked, not in that in which they were told.
        plan.statement.order_evictions_since(mark, |pod| self.whys[self.known(pod)].1);
        self.stream.list(plan.tables, asker.gang);
        let mut batch =
            Batch { asker: asker.gang, action: asker.action, placed: 0, evicted: 0, moved: 0, least, tries: self.tries };
        let start = plan.statement.evictions().len();
        for at in plan.statement.positions_since(mark) {
            let op = plan.statement.ops()[at];
            if let Some(gang) = plan.tables.pods.gang[op.pod] {
                self.stream.changed(gang);
                if self.stream.is_listed(gang) {
                    self.least.list(plan.tables, op.pod);
                }
            }
            if op.after.status == PodStatus::Releasing {
                let known = self.known(op.pod);
                plan.statement.account(Eviction { asker: Some(asker.gang), why: self.whys[known].2 });
                self.brake.count(plan.tables, op.pod);
                batch.evicted += 1;
            } else if plan.tables.pods.gang[op.pod] == Some(asker.gang) {
                batch.placed += 1;
            } else if op.after.leaves.is_some() {
                batch.moved += 1;
            }
        }
        batch.evicted -= batch.moved;
        if plan.statement.evictions().len() > start {
            plan.statement.close_batch(batch);
        }
        Ok(())
    }

    /// Where a pod that goes stands in `whys`.
    fn known(&self, pod: PodIdx) -> usize {
        self.whys.binary_search_by_key(&pod, |&(known, ..)| known).expect("who left was in a unit")
    }

    /// By which rule each pod goes, in the order in which they were taken (semantics.md §6.6.3).
    fn explain(&mut self, plan: &Plan<'_>, asker: &Asker) {
        self.whys.clear();
        self.ledger.rewind();
        for unit in &self.units {
            let pods = unit.of(&self.unit_pods);
            let why = rules::why(plan, asker, &mut self.ledger, unit, &self.unit_pods);
            for &pod in pods {
                // What holds a node and got another place moves.
                let moves = plan.tables.pods.evicted_from[pod]
                    .is_some_and(|home| holds_node(home.status) || home.leaves.is_some())
                    && plan.tables.pods.status[pod] == PodStatus::Pipelined;
                self.whys.push((pod, self.whys.len(), if moves { Why::Moves } else { why }));
            }
        }
        self.whys.sort_unstable_by_key(|&(pod, ..)| pod);
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
