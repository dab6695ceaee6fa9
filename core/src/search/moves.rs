//! Who moves: nodes in the order of what freeing them yields per move, so that the fewest pods move (consolidation, and reclaim
//! where nobody may be lost). With the policy `fewest` those who may be lost are chosen so, too.
//!
//! For each node the smallest choice of units is made after which one more pod of the asker fits; nodes are then taken by pods
//! moved for each place won, ties to the most junior. A choice that the simulation refuses makes room for the one that begins
//! with the next node.

use std::cmp::{Ordering, Reverse};

use crate::actions::Plan;
use crate::index::{ClassIdx, NodeIdx, PodIdx};
use crate::order::Turn;
use crate::search::{Asker, SearchMemory, Unit, rules};
use crate::statement::Mark;
use crate::tables::Tables;
use crate::tables::classes::{Kind, Need};
use crate::tables::nodes::GPU;
use crate::units::Resource;

/// Choices that are tried before the stream is asked in its own order.
const CHOICES_MAX: u32 = 16;

/// A unit as far as it stands on one node.
#[derive(Clone, Copy, Debug)]
struct Donor {
    node: NodeIdx,
    /// What it frees there of the resource that matters most.
    frees: i64,
    turn: Turn,
    /// An index of [`Donors::units`].
    unit: usize,
    /// Where its part of [`Donors::freed`] begins.
    freed: usize,
}

/// A node that could be freed.
#[derive(Clone, Copy, Debug)]
struct Choice {
    /// Pods that would be told to leave.
    pods: usize,
    /// Places for the asker that this wins.
    wins: i64,
    /// The highest priority among them, and the GPU time that they lose (micro-GPU × seconds).
    worth: (i32, i128),
    /// The place in line of the most senior of them.
    senior: Turn,
    node: NodeIdx,
    /// A range of [`Donors::chosen`].
    units: (usize, usize),
}

/// Memory of a choice.
#[derive(Clone, Debug, Default)]
pub struct Donors {
    units: Vec<(Unit, Turn)>,
    donors: Vec<Donor>,
    /// What each donor frees of each need of the asker's class.
    freed: Vec<i64>,
    /// What those chosen on a node free, need by need.
    sum: Vec<i64>,
    choices: Vec<Choice>,
    chosen: Vec<usize>,
    picked: Vec<usize>,
}

impl SearchMemory {
    /// Whether moving those who cost least lets the asker start. If not, the log is as it was at `mark`.
    pub(super) fn find_donors(&mut self, plan: &mut Plan<'_>, asker: &Asker, mark: Mark) -> bool {
        let Some((class, missing)) = self.places.only_need(plan.tables) else { return false };
        self.list_donors(plan, asker, class);
        self.donors.choose(plan, class, &self.unit_pods);
        for first in 0..CHOICES_MAX as usize {
            let Some(jobs) = self.donors.pick(first, missing) else { return false };
            if !self.stream.jobs_allowed(plan.config, asker, jobs) {
                continue;
            }
            self.tell(plan, asker);
            self.keep_where(plan, asker, |search, plan, _| search.places.enough_now(plan));
            let allowed = !self.stream.loses()
                || rules::first_protected(plan, asker, &mut self.ledger, &self.units, &self.unit_pods).is_none();
            if allowed && self.places.enough_now(plan) && self.try_once(plan, asker) {
                return true;
            }
            plan.statement.rollback(plan.tables, mark);
            self.places.refresh(plan);
            if self.tried_enough(plan) {
                break;
            }
        }
        false
    }

    /// Whether one unit that moves is enough by itself: where parts of cards are asked for or held, what a unit frees is not a
    /// sum, so it is told to leave and the places are counted. Fewest pods first, then the most junior. If nobody is enough, the
    /// log is as it was at `mark`.
    pub(super) fn find_alone(&mut self, plan: &mut Plan<'_>, asker: &Asker, mark: Mark) -> bool {
        if !self.stream.jobs_allowed(plan.config, asker, 1) {
            return false;
        }
        let (units, classes) = (&mut self.donors.units, &plan.tables.classes);
        let parts = |pod: &PodIdx| matches!(classes.kind[plan.tables.pods.class[*pod]], Kind::Shared { .. });
        let tables = &*plan.tables;
        let wanted = self.places.needs().map(|(class, _)| class).next();
        // Whole GPUs that make room for whole GPUs were added up before.
        let summed = self.places.only_need(plan.tables).is_some();
        units.clear();
        self.stream.every_unit(plan, asker, &mut self.unit_pods, |unit, turn, pods| {
            if (!summed || pods.iter().any(parts)) && pods.iter().any(|&pod| may_help(tables, pod, wanted)) {
                units.push((unit, turn));
            }
        });
        units.sort_unstable_by_key(|&(unit, turn)| (unit.pods.1 - unit.pods.0, Reverse(turn)));
        let mut choices = 0;
        for at in 0..self.donors.units.len() {
            let (mut unit, _) = self.donors.units[at];
            unit.tell(plan, asker, &self.unit_pods);
            if self.places.enough_now(plan) {
                self.units.clear();
                self.units.push(unit);
                if self.try_once(plan, asker) {
                    return true;
                }
                choices += 1;
            }
            plan.statement.rollback(plan.tables, mark);
            self.places.refresh(plan);
            if choices >= CHOICES_MAX || self.tried_enough(plan) {
                break;
            }
        }
        false
    }

    /// Every unit that may move, node by node.
    fn list_donors(&mut self, plan: &Plan<'_>, asker: &Asker, class: ClassIdx) {
        let donors = &mut self.donors;
        donors.units.clear();
        donors.donors.clear();
        donors.freed.clear();
        let (unit_pods, tables) = (&mut self.unit_pods, &*plan.tables);
        let moves = !self.stream.loses();
        let needs = tables.classes.needs(class);
        let main = needs.iter().position(|n| n.dim == GPU).unwrap_or(0);
        self.stream.every_unit(plan, asker, unit_pods, |unit, turn, pods| {
            // Who may only move and needs as much as the asker finds no place where the asker found none.
            if moves && pods.iter().any(|&pod| needs_as_much(tables, tables.pods.class[pod], class)) {
                return;
            }
            let start = donors.donors.len();
            for &pod in pods {
                let Some(node) = tables.pods.node[pod] else { continue };
                let at = donors.donors[start..].iter().position(|donor| donor.node == node).map_or_else(
                    || {
                        let (frees, freed, unit) = (0, donors.freed.len(), donors.units.len());
                        donors.freed.resize(freed + needs.len(), 0);
                        donors.donors.push(Donor { node, frees, turn, unit, freed });
                        donors.donors.len() - 1
                    },
                    |at| start + at,
                );
                for held in tables.classes.needs(tables.pods.class[pod]) {
                    if let Some(row) = needs.iter().position(|need| need.dim == held.dim) {
                        donors.freed[donors.donors[at].freed + row] += held.amount;
                    }
                }
                donors.donors[at].frees = donors.freed[donors.donors[at].freed + main];
            }
            donors.units.push((unit, turn));
        });
        donors.donors.sort_unstable_by_key(|d| (d.node, Reverse(d.frees), Reverse(d.turn)));
    }

    /// Tells the picked units to leave, in the order of the stream.
    fn tell(&mut self, plan: &mut Plan<'_>, asker: &Asker) {
        let Donors { units, picked, .. } = &mut self.donors;
        picked.sort_unstable_by_key(|&unit| Reverse(units[unit].1));
        self.units.clear();
        for &unit in picked.iter() {
            let mut unit = units[unit].0;
            unit.tell(plan, asker, &self.unit_pods);
            self.units.push(unit);
        }
        self.places.refresh(plan);
    }
}

impl Donors {
    /// For each node the units after which one more pod fits, largest first; nodes in the order in which they are taken.
    fn choose(&mut self, plan: &Plan<'_>, class: ClassIdx, unit_pods: &[PodIdx]) {
        self.choices.clear();
        self.chosen.clear();
        let mut at = 0;
        while at < self.donors.len() {
            let node = self.donors[at].node;
            let end = at + self.donors[at..].iter().take_while(|d| d.node == node).count();
            self.choose_on(plan, class, node, (at, end), unit_pods);
            at = end;
        }
        self.choices.sort_unstable_by(|a, b| {
            // Pods / places, compared without dividing.
            let pods = |x: &Choice| i64::try_from(x.pods).unwrap_or(i64::MAX);
            let per_place = |x: &Choice, y: &Choice| pods(x).saturating_mul(y.wins);
            let time = |x: &Choice, y: &Choice| x.worth.1.saturating_mul(i128::from(y.wins));
            let by_worth = || a.worth.0.cmp(&b.worth.0).then(time(a, b).cmp(&time(b, a)));
            let worth = if plan.config.victims.fewest { by_worth() } else { Ordering::Equal };
            worth
                .then(per_place(a, b).cmp(&per_place(b, a)))
                .then(a.pods.cmp(&b.pods))
                .then(b.senior.cmp(&a.senior))
                .then(a.node.cmp(&b.node))
        });
    }

    fn choose_on(&mut self, plan: &Plan<'_>, class: ClassIdx, node: NodeIdx, (from, to): (usize, usize), unit_pods: &[PodIdx]) {
        let tables = &*plan.tables;
        let needs = tables.classes.needs(class);
        let fits = |sum: &[i64]| {
            let each = needs.iter().zip(sum).map(|(n, freed)| (tables.nodes.soon[n.dim.at()][node] + freed).max(0) / n.amount);
            each.min().unwrap_or(0)
        };
        self.sum.clear();
        self.sum.resize(needs.len(), 0);
        let before = fits(&self.sum);
        let (mut wins, mut pods, start) = (0, 0, self.chosen.len());
        let mut senior = None;
        let mut worth = (i32::MIN, 0);
        for donor in &self.donors[from..to] {
            let unit = self.units[donor.unit].0;
            self.chosen.push(donor.unit);
            pods += unit.pods.1 - unit.pods.0;
            senior = senior.max(Some(Reverse(donor.turn)));
            worth = (worth.0.max(tables.gangs.priority[unit.gang]), worth.1 + time_lost(plan, unit, unit_pods));
            self.sum.iter_mut().zip(&self.freed[donor.freed..]).for_each(|(sum, freed)| *sum += freed);
            wins = fits(&self.sum) - before;
            if wins > 0 {
                break;
            }
        }
        match senior {
            Some(Reverse(senior)) if wins > 0 => {
                self.choices.push(Choice { pods, wins, worth, senior, node, units: (start, self.chosen.len()) });
            }
            _ => self.chosen.truncate(start),
        }
    }

    /// Picks nodes from the `first` on until `missing` places are won. How many jobs that are; `None`: there are not so many.
    fn pick(&mut self, first: usize, missing: i64) -> Option<u32> {
        self.picked.clear();
        let mut won = 0;
        for choice in self.choices.get(first..)? {
            self.picked.extend_from_slice(&self.chosen[choice.units.0..choice.units.1]);
            won += choice.wins;
            if won >= missing {
                self.picked.sort_unstable();
                self.picked.dedup();
                return u32::try_from(self.picked.len()).ok();
            }
        }
        None
    }
}

/// GPU time that a unit loses if it ends now, micro-GPU × seconds; what never started loses none.
fn time_lost(plan: &Plan<'_>, unit: Unit, pods: &[PodIdx]) -> i128 {
    let Some(started) = plan.tables.gangs.times[unit.gang].started else { return 0 };
    let seconds = plan.config.now.saturating_sub(started).max(0) / 1_000_000_000;
    let gpus: i64 = unit.of(pods).iter().map(|&pod| rules::held_before(plan.tables, pod)[Resource::Gpu]).sum();
    i128::from(seconds) * i128::from(gpus)
}

/// Whether a pod of one class takes at least as much of everything as one of another.
fn needs_as_much(tables: &Tables, of: ClassIdx, as_this: ClassIdx) -> bool {
    let held = tables.classes.needs(of);
    let takes = |need: &Need| held.iter().any(|held| held.dim == need.dim && held.amount >= need.amount);
    tables.classes.needs(as_this).iter().all(takes)
}

/// Whether a pod that goes could make room on its card for one of a class, or frees whole resources.
fn may_help(tables: &Tables, pod: PodIdx, wanted: Option<ClassIdx>) -> bool {
    let (Some(node), Some(wanted)) = (tables.pods.node[pod], wanted) else { return true };
    let card = tables.nodes.card_mib[node];
    let Some(held) = tables.classes.mib_on(tables.pods.class[pod], card) else { return true };
    let asked = tables.classes.mib_on(wanted, card);
    tables.pods.groups_of(tables.pods.placement(pod)).iter().any(|&group| {
        let alone = tables.gpus.keepers[group] <= 1;
        alone || asked.is_some_and(|asked| tables.gpus.room_soon(group, card) + held >= asked)
    })
}
