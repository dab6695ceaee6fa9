//! Victims in the order in which they go (semantics.md §4.4 reversed, §7.5): from the queue that would be served last, lowest
//! priority first, pods above a minimum first, youngest first.
//!
//! Each leaf has a list, made once for an action; gangs whose place changed meanwhile are put in a small list beside it. A unit
//! that its own rule protects is passed over, never a reason to stop.

use std::cmp::{Ordering, Reverse};

use crate::actions::Plan;
use crate::config::{Action, Config};
use crate::explain::Unhelped;
use crate::index::{Col, GangIdx, Idx, PodIdx, QueueIdx, SubgroupIdx};
use crate::order::{Standing, Turn, turn};
use crate::place::gang::in_order;
use crate::search::counting::{Places, Victims};
use crate::search::rules;
use crate::search::{Asker, Pass, Unit};
use crate::tables::gangs::Member;
use crate::tables::{Tables, is_active};
use crate::units::Amounts;

/// Jobs that reclaim may move for one asker where consolidation has no bound of its own.
const MOVED_JOBS_MAX: u32 = 64;

/// How many jobs may go for one asker: where they may only move, as many as consolidation may move.
fn jobs_max(config: &Config, asker: &Asker, loses: bool) -> Option<u32> {
    let max = config.victims.consolidation_jobs_max;
    match asker.action {
        Action::Consolidation => max,
        Action::Reclaim if !loses => max.or(Some(MOVED_JOBS_MAX)),
        _ => None,
    }
}

#[derive(Clone, Debug, Default)]
struct Leaf {
    /// All that may be victims, first to go first: the order of service reversed.
    listed: Vec<Turn>,
    /// Gangs to be put in their places in `listed` once the leaf gives to somebody.
    fresh: Vec<GangIdx>,
    /// Those before it hold nothing any more.
    from: usize,
    /// Where this search is.
    at: usize,
    /// Gangs that come back with another place; few.
    again: Vec<Turn>,
    /// It gives for this asker.
    gives: bool,
    /// Units that the rules of reclaim protected, given those who were needed.
    refused: u32,
}

/// As often a leaf may be refused before it is passed over for this asker.
const REFUSALS_MAX: u32 = 8;

/// The order of victims.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    leaves: Col<QueueIdx, Leaf>,
    is_listed: Col<GangIdx, bool>,
    /// Those that were listed since the action began.
    late: Vec<GangIdx>,
    best: Col<QueueIdx, Option<GangIdx>>,
    standing: Col<QueueIdx, Option<Standing>>,
    /// What the queue held when this search began.
    held: Col<QueueIdx, Amounts>,
    /// What those of each leaf gave who won a place for the asker.
    taken: Col<QueueIdx, Amounts>,
    /// The leaf that gave last; it has to be looked at again.
    dirty: Option<QueueIdx>,
    /// Those who may not be lost are passed over.
    loses: bool,
    /// Somebody was passed over for that.
    passed_over: bool,
    /// For whom it was rewound, if nothing was taken since.
    fresh_for: Option<(GangIdx, Pass)>,
    /// Somebody could be lost for this asker, as far as queues go.
    gives_for_good: bool,
    jobs: u32,
    last_job: Option<GangIdx>,
    /// Who could go for this asker.
    victims: Victims,
}

impl Stream {
    /// Lists everybody who could be a victim.
    pub fn begin(&mut self, tables: &Tables, config: &Config) {
        let queues = tables.queues.parent.len();
        while self.leaves.len() < queues {
            self.leaves.push(Leaf::default());
        }
        self.fresh_for = None;
        for leaf in self.leaves.as_mut_slice() {
            leaf.listed.clear();
            leaf.fresh.clear();
            leaf.from = 0;
        }
        self.is_listed.reset(tables.gangs.queue.len(), false);
        self.late.clear();
        for gang in (0..tables.gangs.queue.len()).map(GangIdx::new) {
            let Ok(queue) = tables.gangs.queue[gang] else { continue };
            if tables.gangs.preemptible[gang] && tables.queues.is_leaf(queue) && tables.gangs.active(gang) > 0 {
                self.leaves[queue].listed.push(turn(tables, config, gang));
                self.is_listed[gang] = true;
            }
        }
        for leaf in self.leaves.as_mut_slice() {
            leaf.listed.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    /// A gang that was given a place in this action may be a victim of those who ask later, too (semantics.md §6.0).
    pub(crate) fn list(&mut self, tables: &Tables, gang: GangIdx) {
        let Ok(queue) = tables.gangs.queue[gang] else { return };
        if tables.gangs.preemptible[gang] && !std::mem::replace(&mut self.is_listed[gang], true) {
            self.leaves[queue].fresh.push(gang);
            self.late.push(gang);
        }
    }

    /// At the first victim, for an asker; nothing to do if nobody was taken since the last rewind for the same.
    pub(crate) fn start(&mut self, plan: &Plan<'_>, asker: &Asker, pass: Pass) {
        if self.fresh_for != Some((asker.gang, pass)) {
            self.rewind(plan, asker, pass);
        }
    }

    /// Back to the first victim, for an asker.
    pub(crate) fn rewind(&mut self, plan: &Plan<'_>, asker: &Asker, pass: Pass) {
        let (tables, config) = (&*plan.tables, plan.config);
        let queues = tables.queues.parent.len();
        self.fresh_for = Some((asker.gang, pass));
        self.loses = pass == Pass::Lose;
        if self.loses || asker.action == Action::Consolidation {
            self.passed_over = false;
        }
        self.best.reset(queues, None);
        self.standing.reset(queues, None);
        self.held.clone_from(&tables.queues.allocated);
        self.taken.reset(queues, Amounts::ZERO);
        (self.jobs, self.last_job, self.dirty) = (0, None, None);
        self.victims.leaves.clear();
        self.victims.below = (asker.action == Action::Preempt).then_some(tables.gangs.priority[asker.gang]);
        for leaf in self.leaves.indices() {
            let list = &mut self.leaves[leaf];
            list.again.clear();
            list.refused = 0;
            while list.listed.get(list.from).is_some_and(|&(.., gang)| tables.gangs.active(gang) == 0) {
                list.from += 1;
            }
            list.at = list.from;
            let listed = list.from < list.listed.len() || !list.fresh.is_empty();
            list.gives = listed
                && match asker.action {
                    Action::Preempt => leaf == asker.queue,
                    Action::Reclaim => leaf != asker.queue,
                    _ => true,
                };
            if list.gives && asker.action == Action::Reclaim && config.plugins.proportion {
                // Who may move is among those whom reclaim looks at, too (semantics.md §6.6.2).
                let looked_at = rules::leaf_may_be_looked_at(tables, asker, leaf);
                list.gives = looked_at && (!self.loses || rules::leaf_gives(plan, asker, leaf));
                self.passed_over |= !list.gives;
            }
            if list.gives {
                list.sort_in(tables, config);
                self.victims.leaves.push(leaf);
            }
        }
        if self.loses {
            self.gives_for_good = self.somebody_gives();
        }
        for &root in &tables.queues.roots {
            self.line_up(tables, config, asker, root);
        }
    }

    /// A unit won a place: its leaf has given that much. Others of the prefix stand where they do not help, so nothing was taken.
    pub(crate) fn won(&mut self, tables: &Tables, unit: Unit, pods: &[PodIdx]) {
        let Ok(leaf) = tables.gangs.queue[unit.gang] else { return };
        self.taken[leaf] += unit.of(pods).iter().fold(Amounts::ZERO, |sum, &pod| sum + rules::held_before(tables, pod));
    }

    /// Who could go for this asker.
    pub(crate) const fn victims(&self) -> &Victims {
        &self.victims
    }

    /// Gangs that became possible victims since the action began.
    pub(crate) fn listed_late(&self) -> &[GangIdx] {
        &self.late
    }

    /// Whether any leaf gives for this asker.
    pub(crate) fn somebody_gives(&self) -> bool {
        !self.victims.leaves.is_empty()
    }

    /// Whether some leaf was found, at the last rewind for [`Pass::Lose`], whose gangs may be lost.
    pub(crate) const fn somebody_gives_for_good(&self) -> bool {
        self.gives_for_good
    }

    /// Whether those who may not be lost are passed over.
    pub(crate) const fn loses(&self) -> bool {
        self.loses
    }

    /// A gang turned out to be protected, given those who are needed. After some of those the leaf gives no more.
    pub(crate) fn refuse(&mut self, tables: &Tables, gang: GangIdx) {
        self.passed_over = true;
        let leaf = tables.gangs.queue[gang].expect("a victim has a queue");
        self.leaves[leaf].refused += 1;
        if self.leaves[leaf].refused >= REFUSALS_MAX {
            self.leaves[leaf].gives = false;
            self.dirty = self.dirty.or(Some(leaf));
        }
    }

    fn line_up(&mut self, tables: &Tables, config: &Config, asker: &Asker, queue: QueueIdx) {
        for &child in tables.queues.children_of(queue) {
            self.line_up(tables, config, asker, child);
        }
        self.refresh(tables, config, asker, queue);
    }

    /// Whether everybody who may go together would free too little; if so, nobody has to be tried.
    pub(crate) fn too_little(&self, plan: &Plan<'_>, asker: &Asker, places: &mut Places) -> Option<Unhelped> {
        let everybody = |add: &mut dyn FnMut(PodIdx)| self.every_victim(plan, asker, add);
        let (pods, most) = places.too_little(plan, &self.victims, everybody)?;
        Some(Unhelped::TooLittle { pods, most })
    }

    /// Every pod that could go for the asker, or was told to in this turn.
    pub(crate) fn every_victim(&self, plan: &Plan<'_>, asker: &Asker, visit: &mut dyn FnMut(PodIdx)) {
        let tables = &*plan.tables;
        for &leaf in &self.victims.leaves {
            let leaf = &self.leaves[leaf];
            for &(.., gang) in &leaf.listed[leaf.from..] {
                if gang != asker.gang && self.victims.below.is_none_or(|below| tables.gangs.priority[gang] < below) {
                    let goes = |pod: &PodIdx| can_go(tables, *pod) || tables.pods.evicted_from[*pod].is_some();
                    tables.gangs.pods[gang].iter().filter(goes).for_each(&mut *visit);
                }
            }
        }
    }

    /// The first unit of every gang that could go, in no order that matters. Their pods are appended to `pods`.
    pub(crate) fn every_unit(
        &self,
        plan: &Plan<'_>,
        asker: &Asker,
        pods: &mut Vec<PodIdx>,
        mut visit: impl FnMut(Unit, Turn, &[PodIdx]),
    ) {
        for &leaf in &self.victims.leaves {
            let leaf = &self.leaves[leaf];
            for &(.., gang) in &leaf.listed[leaf.from..] {
                if !may_be_victim(plan.tables, asker, gang) {
                    continue;
                }
                let start = pods.len();
                let unit = take_unit(plan, gang, pods);
                if self.is_free(plan, asker, unit) {
                    visit(unit, turn(plan.tables, plan.config, gang), &pods[start..]);
                } else {
                    pods.truncate(start);
                }
            }
        }
    }

    /// Whether anybody could go for the asker.
    pub(crate) fn has_unit(&self, plan: &Plan<'_>, asker: &Asker, pods: &mut Vec<PodIdx>) -> bool {
        self.victims.leaves.iter().any(|&leaf| {
            let leaf = &self.leaves[leaf];
            leaf.listed[leaf.from..].iter().any(|&(.., gang)| {
                let start = pods.len();
                may_be_victim(plan.tables, asker, gang) && {
                    let unit = take_unit(plan, gang, pods);
                    pods.truncate(start);
                    self.is_free(plan, asker, unit)
                }
            })
        })
    }

    /// Whether all that queues may lose by the rules of reclaim, and all that is free, is less than the asker wants.
    pub(crate) fn give_too_little(&self, plan: &Plan<'_>, asker: &Asker) -> Option<Unhelped> {
        if asker.action != Action::Reclaim || !plan.config.plugins.proportion {
            return None;
        }
        rules::give_too_little(plan, asker, &self.victims.leaves)
    }

    /// Why nobody gives for the asker.
    pub(crate) fn nobody(&self, plan: &Plan<'_>, asker: &Asker) -> Unhelped {
        let listed = self.victims.leaves.iter().flat_map(|&leaf| &self.leaves[leaf].listed[self.leaves[leaf].from..]);
        let could_go = listed.filter(|(.., gang)| may_be_victim(plan.tables, asker, *gang));
        let (mut protected, mut kept) = (0, 0);
        for &(.., gang) in could_go {
            if rules::is_protected(plan, asker, gang) {
                protected += 1;
            } else if plan.tables.gangs.pods[gang].iter().any(|pod| plan.tables.pods.kept[pod]) {
                kept += 1;
            }
        }
        if protected > 0 {
            return Unhelped::Protected { gangs: protected };
        }
        if kept > 0 {
            return Unhelped::Kept { gangs: kept };
        }
        if !self.passed_over {
            return Unhelped::Nobody;
        }
        let leaves = self.leaves.entries().filter(|(leaf, list)| *leaf != asker.queue && list.from < list.listed.len());
        rules::nearest_refusal(plan, asker, leaves.map(|(leaf, _)| leaf)).unwrap_or(Unhelped::Nobody)
    }

    /// Whether the rules of reclaim kept somebody out since the last rewind.
    #[must_use]
    pub const fn passed_over(&self) -> bool {
        self.passed_over
    }

    /// The next unit that may go. Its pods are appended to `pods`.
    pub(crate) fn next(&mut self, plan: &Plan<'_>, asker: &Asker, pods: &mut Vec<PodIdx>) -> Option<Unit> {
        let (tables, config) = (&*plan.tables, plan.config);
        self.fresh_for = None;
        loop {
            if let Some(leaf) = self.dirty.take() {
                for above in tables.queues.ancestors(leaf) {
                    self.refresh(tables, config, asker, above);
                }
            }
            let mut queue = self.last(config, &tables.queues.roots)?;
            while !tables.queues.is_leaf(queue) {
                queue = self.last(config, tables.queues.children_of(queue))?;
            }
            let gang = self.leaves[queue].pop()?;
            self.dirty = Some(queue);
            let start = pods.len();
            let unit = take_unit(plan, gang, pods);
            if !self.is_free(plan, asker, unit) {
                pods.truncate(start);
                continue;
            }
            if !self.one_job_more(gang, jobs_max(config, asker, self.loses)) {
                pods.truncate(start);
                return None;
            }
            let left = tables.gangs.active(gang) > u32::try_from(pods.len() - start).unwrap_or(u32::MAX);
            if left && !unit.core {
                // Its place is looked up at the next call: the unit is not gone yet.
                self.leaves[queue].again.push((Reverse(i32::MIN), u8::MAX, gang));
            }
            return Some(unit);
        }
    }

    /// Whether a unit has somebody to give whom min runtime does not protect.
    fn is_free(&self, plan: &Plan<'_>, asker: &Asker, unit: Unit) -> bool {
        unit.pods.0 < unit.pods.1 && (unit.single || !rules::is_protected(plan, asker, unit.gang))
    }

    /// Whether so many jobs may move for one asker.
    pub(crate) fn jobs_allowed(&self, config: &Config, asker: &Asker, jobs: u32) -> bool {
        jobs_max(config, asker, self.loses).is_none_or(|max| jobs <= max)
    }

    fn one_job_more(&mut self, gang: GangIdx, max: Option<u32>) -> bool {
        if self.last_job == Some(gang) {
            return true;
        }
        if max.is_some_and(|max| self.jobs >= max) {
            return false;
        }
        self.jobs += 1;
        self.last_job = Some(gang);
        true
    }

    fn refresh(&mut self, tables: &Tables, config: &Config, asker: &Asker, queue: QueueIdx) {
        self.best[queue] = if tables.queues.is_leaf(queue) {
            self.leaves[queue].top(tables, config, asker)
        } else {
            self.last(config, tables.queues.children_of(queue)).and_then(|child| self.best[child])
        };
        self.standing[queue] = self.best[queue].map(|gang| {
            let next = held_by(tables, gang);
            let leaf = tables.gangs.queue[gang].expect("a victim has a queue");
            Standing::of_victims(tables, queue, self.held[queue], self.taken[leaf] + next)
        });
    }

    /// The queue that would be served last among siblings; `None` if none of them has a victim.
    fn last(&self, config: &Config, siblings: &[QueueIdx]) -> Option<QueueIdx> {
        let mut last: Option<(QueueIdx, &Standing)> = None;
        for &queue in siblings {
            let Some(standing) = &self.standing[queue] else { continue };
            let later = last.is_none_or(|(_, best)| !config.plugins.proportion || standing.before(best) != Ordering::Less);
            if later {
                last = Some((queue, standing));
            }
        }
        last.map(|(queue, _)| queue)
    }
}

impl Leaf {
    /// Puts fresh gangs in their places.
    fn sort_in(&mut self, tables: &Tables, config: &Config) {
        if self.fresh.is_empty() {
            return;
        }
        self.listed.drain(..self.from);
        (self.from, self.at) = (0, 0);
        self.listed.extend(self.fresh.drain(..).map(|gang| turn(tables, config, gang)));
        self.listed.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// The gang that goes first, passing over those that cannot be victims of this asker.
    fn top(&mut self, tables: &Tables, config: &Config, asker: &Asker) -> Option<GangIdx> {
        if !self.gives {
            return None;
        }
        for entry in &mut self.again {
            *entry = turn(tables, config, entry.2);
        }
        self.again.sort_unstable();
        while let Some(&listed) = self.listed.get(self.at) {
            let gang = listed.2;
            if !may_be_victim(tables, asker, gang) {
                self.at += 1;
            } else if turn(tables, config, gang) != listed {
                self.again.push(turn(tables, config, gang));
                self.again.sort_unstable();
                self.at += 1;
            } else {
                break;
            }
        }
        let listed = self.listed.get(self.at).copied();
        let again = self.again.last().copied();
        listed.max(again).map(|(.., gang)| gang)
    }

    fn pop(&mut self) -> Option<GangIdx> {
        let listed = self.listed.get(self.at).copied();
        let again = self.again.last().copied();
        if again > listed {
            return self.again.pop().map(|(.., gang)| gang);
        }
        self.at += 1;
        listed.map(|(.., gang)| gang)
    }
}

fn may_be_victim(tables: &Tables, asker: &Asker, gang: GangIdx) -> bool {
    gang != asker.gang
        && tables.gangs.active(gang) > 0
        && (asker.action != Action::Preempt || tables.gangs.priority[gang] < tables.gangs.priority[asker.gang])
}

/// What a gang holds in its queues.
fn held_by(tables: &Tables, gang: GangIdx) -> Amounts {
    tables.gangs.pods[gang]
        .iter()
        .filter(|&pod| is_active(tables.pods.status[pod]))
        .filter_map(|pod| Some((tables.pods.class[pod], tables.pods.node[pod]?)))
        .fold(Amounts::ZERO, |sum, (class, node)| sum + tables.queue_charge(class, node))
}

/// What of a gang goes at once. Its pods are appended to `pods`.
fn take_unit(plan: &Plan<'_>, gang: GangIdx, pods: &mut Vec<PodIdx>) -> Unit {
    let start = pods.len();
    let part = unit_of(plan.tables, plan.config, plan.arena, gang, pods);
    Unit { gang, pods: (start, pods.len()), core: part == Part::All, single: part == Part::Pod, told: false, out: false }
}

/// How much of a gang goes at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// One pod above the minimum of its pod set.
    Pod,
    /// A whole member above what is required.
    Member,
    /// Everything.
    All,
}

/// What goes at once (semantics.md §7.5).
fn unit_of(tables: &Tables, config: &Config, arena: &bumpalo::Bump, gang: GangIdx, pods: &mut Vec<PodIdx>) -> Part {
    let root = Member::Gang(gang);
    let some_satisfied = tables.gangs.members(root).iter().any(|&member| tables.gangs.satisfied(Member::Subgroup(member)));
    if some_satisfied && let Some(part) = surplus(tables, config, arena, root, pods) {
        return part;
    }
    let start = pods.len();
    pods.extend(tables.gangs.pods[gang].iter().filter(|&pod| can_go(tables, pod)));
    if pods.len() - start < tables.gangs.active(gang) as usize {
        // One of them is moving for somebody else already: the others must not be left below their minimum.
        pods.truncate(start);
    }
    Part::All
}

/// A pod above a minimum, or a whole member above what is required, last first.
fn surplus(tables: &Tables, config: &Config, arena: &bumpalo::Bump, of: Member, pods: &mut Vec<PodIdx>) -> Option<Part> {
    let gangs = &tables.gangs;
    let members = in_order(tables, config, of, arena);
    for &member in members.iter().rev() {
        let this = Member::Subgroup(member);
        if !gangs.is_pod_set(member) {
            let part = surplus(tables, config, arena, this, pods);
            if part.is_some() {
                return part;
            }
        } else if gangs.counts[member].active > 0 && gangs.attained(this) > gangs.threshold(this) {
            pods.extend(tables.pods.last_first(member).find(|&pod| can_go(tables, pod)));
            return Some(Part::Pod);
        }
    }
    if gangs.attained(of) <= gangs.threshold(of) {
        return None;
    }
    let start = pods.len();
    for &member in members.iter().rev() {
        let whole = collect_active(tables, member, pods);
        if whole && pods.len() > start {
            return Some(Part::Member);
        }
        pods.truncate(start);
    }
    None
}

/// Appends all pods below a member that have a place; whether all of those can go.
fn collect_active(tables: &Tables, of: SubgroupIdx, pods: &mut Vec<PodIdx>) -> bool {
    let mut whole = true;
    if tables.gangs.is_pod_set(of) {
        let start = pods.len();
        pods.extend(tables.pods.last_first(of).filter(|&pod| can_go(tables, pod)));
        whole = pods.len() - start == tables.gangs.counts[of].active as usize;
    }
    for &member in tables.gangs.members(Member::Subgroup(of)) {
        whole &= collect_active(tables, member, pods);
    }
    whole
}

/// Whether a pod can be told to leave: it has a place, is not moving already, and no budget keeps it.
pub(crate) fn can_go(tables: &Tables, pod: PodIdx) -> bool {
    is_active(tables.pods.status[pod])
        && tables.pods.node[pod].is_some()
        && tables.pods.leaves[pod].is_none()
        && !tables.pods.told[pod]
        && !tables.pods.kept[pod]
        && tables.pods.subgroup[pod].is_some()
}
