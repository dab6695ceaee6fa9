//! Who moves: nodes in the order of what freeing them yields per move, so that the fewest pods move (consolidation, and reclaim
//! where nobody may be lost). With the policy `fewest` those who may be lost are chosen so, too.
//!
//! For each node the smallest choice of units is made after which one more pod of the asker fits; nodes are then taken by pods
//! moved for each place won, ties to the most junior. A choice that the simulation refuses makes room for the one that begins
//! with the next node.

use std::cmp::{Ordering, Reverse};

use crate::actions::Plan;
use crate::config::Action;
use crate::index::{ClassIdx, GangIdx, NodeIdx, PodIdx, QueueIdx};
use crate::order::Turn;
use crate::search::counting::Victims;
use crate::search::stream::can_go;
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

/// What a list of donors depends on, beside the tables.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Key {
    class: ClassIdx,
    action: Action,
    loses: bool,
    /// Min runtime may depend on who asks.
    queue: Option<QueueIdx>,
}

/// A unit that may move, as it was listed.
#[derive(Clone, Copy, Debug)]
struct Listed {
    /// Its pods are a range of [`Donors::pods`].
    unit: Unit,
    turn: Turn,
    /// Pods with a place that its gang had then; with another number the unit is another one.
    active: u32,
}

/// Donors, kept from asker to asker: only what changed is looked at again.
#[derive(Clone, Debug, Default)]
pub struct Donors {
    key: Option<Key>,
    victims: Victims,
    /// How much of the log of changed nodes, and of the gangs listed late, is in it.
    seen: (usize, usize),
    units: Vec<Listed>,
    pods: Vec<PodIdx>,
    donors: Vec<Donor>,
    /// What each donor frees of each need of the asker's class.
    freed: Vec<i64>,
    /// What those chosen on a node free, need by need.
    sum: Vec<i64>,
    choices: Vec<Choice>,
    merged: Vec<Choice>,
    changed: Vec<NodeIdx>,
    chosen: Vec<usize>,
    picked: Vec<usize>,
    /// Units that might be enough alone.
    alone: Vec<(Unit, Turn)>,
}

impl SearchMemory {
    /// Whether moving those who cost least lets the asker start. If not, the log is as it was at `mark`.
    pub(super) fn find_donors(&mut self, plan: &mut Plan<'_>, asker: &Asker, mark: Mark) -> bool {
        let Some((class, missing)) = self.places.only_need(plan.tables) else { return false };
        self.list_donors(plan, asker, class);
        for first in 0..CHOICES_MAX as usize {
            let Some(jobs) = self.donors.pick(first, missing, asker.gang) else { return false };
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

    /// Brings the list of donors up to date.
    fn list_donors(&mut self, plan: &Plan<'_>, asker: &Asker, class: ClassIdx) {
        let queue = (asker.action != Action::Consolidation).then_some(asker.queue);
        let key = Key { class, action: asker.action, loses: self.stream.loses(), queue };
        let late = self.stream.listed_late();
        let donors = &mut self.donors;
        let same = donors.key.as_ref() == Some(&key) && donors.victims == *self.stream.victims();
        let known = same && plan.tables.nodes.changes_since(donors.seen.0).is_some() && {
            // Whoever came late matters only if it could be a donor.
            let is_donor = |gang: &GangIdx| {
                let mut pods = plan.tables.gangs.pods[*gang].iter();
                key.loses || !pods.any(|pod| needs_as_much(plan.tables, plan.tables.pods.class[pod], class))
            };
            !late[donors.seen.1..].iter().any(is_donor)
        };
        if known {
            donors.look_again(plan, class);
        } else {
            donors.victims.clone_from(self.stream.victims());
            donors.key = Some(key);
            self.list_all(plan, asker, class);
            self.donors.choose(plan, class);
        }
        self.donors.seen = (plan.tables.nodes.changes.len(), self.stream.listed_late().len());
    }

    /// Whether one unit that moves is enough by itself: where parts of cards are asked for or held, what a unit frees is not a
    /// sum, so it is told to leave and the places are counted. Fewest pods first, then the most junior. If nobody is enough, the
    /// log is as it was at `mark`.
    pub(super) fn find_alone(&mut self, plan: &mut Plan<'_>, asker: &Asker, mark: Mark) -> bool {
        if !self.stream.jobs_allowed(plan.config, asker, 1) {
            return false;
        }
        let (units, classes) = (&mut self.donors.alone, &plan.tables.classes);
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
        for at in 0..self.donors.alone.len() {
            let (mut unit, _) = self.donors.alone[at];
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
    fn list_all(&mut self, plan: &Plan<'_>, asker: &Asker, class: ClassIdx) {
        let Donors { units, pods: all, donors, freed, .. } = &mut self.donors;
        units.clear();
        all.clear();
        donors.clear();
        freed.clear();
        let tables = &*plan.tables;
        let moves = !self.stream.loses();
        let needs = tables.classes.needs(class);
        let main = needs.iter().position(|n| n.dim == GPU).unwrap_or(0);
        self.stream.every_unit(plan, asker, &mut self.unit_pods, |unit, turn, pods| {
            // Who may only move and needs as much as the asker finds no place where the asker found none.
            if moves && pods.iter().any(|&pod| needs_as_much(tables, tables.pods.class[pod], class)) {
                return;
            }
            let start = donors.len();
            for &pod in pods {
                let Some(node) = tables.pods.node[pod] else { continue };
                let at = donors[start..].iter().position(|donor| donor.node == node).map_or_else(
                    || {
                        donors.push(Donor { node, frees: 0, turn, unit: units.len(), freed: freed.len() });
                        freed.resize(freed.len() + needs.len(), 0);
                        donors.len() - 1
                    },
                    |at| start + at,
                );
                for held in tables.classes.needs(tables.pods.class[pod]) {
                    if let Some(row) = needs.iter().position(|need| need.dim == held.dim) {
                        freed[donors[at].freed + row] += held.amount;
                    }
                }
                donors[at].frees = freed[donors[at].freed + main];
            }
            let unit = Unit { pods: (all.len(), all.len() + pods.len()), ..unit };
            all.extend_from_slice(pods);
            units.push(Listed { unit, turn, active: tables.gangs.active(unit.gang) });
        });
        donors.sort_unstable_by_key(|d| (d.node, Reverse(d.frees), Reverse(d.turn)));
    }

    /// Tells the picked units to leave, in the order of the stream.
    fn tell(&mut self, plan: &mut Plan<'_>, asker: &Asker) {
        let Donors { units, pods, picked, .. } = &mut self.donors;
        picked.sort_unstable_by_key(|&unit| Reverse(units[unit].turn));
        self.units.clear();
        self.unit_pods.clear();
        for &picked in picked.iter() {
            let listed = units[picked].unit;
            let start = self.unit_pods.len();
            self.unit_pods.extend_from_slice(listed.of(pods));
            let mut unit = Unit { pods: (start, self.unit_pods.len()), ..listed };
            unit.tell(plan, asker, &self.unit_pods);
            self.units.push(unit);
        }
        self.places.refresh(plan);
    }
}

impl Donors {
    /// An action begins.
    pub(super) fn forget(&mut self) {
        self.key = None;
    }

    /// For each node the units after which one more pod fits, largest first; nodes in the order in which they are taken.
    fn choose(&mut self, plan: &Plan<'_>, class: ClassIdx) {
        self.choices.clear();
        self.chosen.clear();
        let mut at = 0;
        while at < self.donors.len() {
            let node = self.donors[at].node;
            let end = at + self.donors[at..].iter().take_while(|d| d.node == node).count();
            self.choose_on(plan, class, node, (at, end));
            at = end;
        }
        self.choices.sort_unstable_by(|a, b| compare(plan.config.victims.fewest, a, b));
    }

    /// Chooses anew on the nodes that changed.
    fn look_again(&mut self, plan: &Plan<'_>, class: ClassIdx) {
        self.changed.clear();
        self.changed.extend_from_slice(&plan.tables.nodes.changes[self.seen.0..]);
        self.changed.sort_unstable();
        self.changed.dedup();
        let changed = std::mem::take(&mut self.changed);
        self.choices.retain(|choice| changed.binary_search(&choice.node).is_err());
        let kept = self.choices.len();
        for &node in &changed {
            let from = self.donors.partition_point(|donor| donor.node < node);
            let to = from + self.donors[from..].iter().take_while(|donor| donor.node == node).count();
            self.choose_on(plan, class, node, (from, to));
        }
        self.changed = changed;
        let order = |a: &Choice, b: &Choice| compare(plan.config.victims.fewest, a, b);
        self.choices[kept..].sort_unstable_by(order);
        let (old, new) = self.choices.split_at(kept);
        self.merged.clear();
        let mut old = old.iter().peekable();
        for choice in new {
            while let Some(earlier) = old.next_if(|earlier| order(earlier, choice) == Ordering::Less) {
                self.merged.push(*earlier);
            }
            self.merged.push(*choice);
        }
        self.merged.extend(old);
        std::mem::swap(&mut self.choices, &mut self.merged);
    }

    /// Whether a unit is still what it was when it was listed, and can go.
    fn is_there(&self, tables: &Tables, unit: usize) -> bool {
        let Listed { unit, active, .. } = self.units[unit];
        tables.gangs.active(unit.gang) == active && unit.of(&self.pods).iter().all(|&pod| can_go(tables, pod))
    }

    fn choose_on(&mut self, plan: &Plan<'_>, class: ClassIdx, node: NodeIdx, (from, to): (usize, usize)) {
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
        for at in from..to {
            let donor = self.donors[at];
            if !self.is_there(tables, donor.unit) {
                continue;
            }
            let unit = self.units[donor.unit].unit;
            self.chosen.push(donor.unit);
            pods += unit.pods.1 - unit.pods.0;
            senior = senior.max(Some(Reverse(donor.turn)));
            worth = (worth.0.max(tables.gangs.priority[unit.gang]), worth.1 + time_lost(plan, unit, &self.pods));
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
    fn pick(&mut self, first: usize, missing: i64, asker: GangIdx) -> Option<u32> {
        self.picked.clear();
        let mut won = 0;
        for choice in self.choices.get(first..)? {
            let units = &self.chosen[choice.units.0..choice.units.1];
            if units.iter().any(|&unit| self.units[unit].unit.gang == asker) {
                continue;
            }
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

/// The order in which nodes are taken; with the policy `fewest` what is lost comes first.
fn compare(fewest: bool, a: &Choice, b: &Choice) -> Ordering {
    // Pods / places, compared without dividing.
    let pods = |x: &Choice| i64::try_from(x.pods).unwrap_or(i64::MAX);
    let per_place = |x: &Choice, y: &Choice| pods(x).saturating_mul(y.wins);
    let time = |x: &Choice, y: &Choice| x.worth.1.saturating_mul(i128::from(y.wins));
    let worth = if fewest { a.worth.0.cmp(&b.worth.0).then(time(a, b).cmp(&time(b, a))) } else { Ordering::Equal };
    worth
        .then(per_place(a, b).cmp(&per_place(b, a)))
        .then(a.pods.cmp(&b.pods))
        .then(b.senior.cmp(&a.senior))
        .then(a.node.cmp(&b.node))
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
