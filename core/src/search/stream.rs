//! Victims in the order in which they go (semantics.md §4.4 reversed, §7.5): from the queue that would be served last, lowest
//! priority first, pods above a minimum first, youngest first.
//!
//! Each leaf has its own order (`leaf`); here it is said whose turn it is to give, and what of a gang goes at once. A
//! unit that its own rule protects is passed over, never a reason to stop.

use std::cmp::Ordering;

use crate::actions::Plan;
use crate::config::{Action, Config};
use crate::explain::Unhelped;
use crate::index::{Col, GangIdx, Idx, PodIdx, QueueIdx, SubgroupIdx};
use crate::order::{Standing, Turn, turn};
use crate::place::gang::in_order;
use crate::search::counting::{Places, Victims};
use crate::search::leaf::{Leaf, Row, Visit, may_be_victim};
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

/// As often a leaf may be refused before it is passed over for this asker.
const REFUSALS_MAX: u32 = 8;

/// The order of victims.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    leaves: Col<QueueIdx, Leaf>,
    is_listed: Col<GangIdx, bool>,
    /// Gangs that hold something else, or elsewhere, than when the action began.
    has_changed: Col<GangIdx, bool>,
    /// Those that were listed since the action began.
    late: Vec<GangIdx>,
    /// The leaf in a queue that gives next.
    best: Col<QueueIdx, Option<QueueIdx>>,
    standing: Col<QueueIdx, Option<Standing>>,
    /// What the queue held when this search began.
    held: Col<QueueIdx, Amounts>,
    /// What each leaf has given once its next gang goes: by that its queues are compared.
    given: Col<QueueIdx, Amounts>,
    /// What those of each leaf gave who won a place for the asker.
    taken: Col<QueueIdx, Amounts>,
    /// The child that would be last if the last one were not there, by parent; and for the roots.
    runner_up: Col<QueueIdx, Option<QueueIdx>>,
    root_runner_up: Option<QueueIdx>,
    /// The leaf that gave last; it has to be looked at again.
    dirty: Option<QueueIdx>,
    /// A leaf gives no more.
    closed: bool,
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
        self.leaves.as_mut_slice().iter_mut().for_each(Leaf::clear);
        self.is_listed.reset(tables.gangs.queue.len(), false);
        self.has_changed.reset(tables.gangs.queue.len(), false);
        self.late.clear();
        for gang in (0..tables.gangs.queue.len()).map(GangIdx::new) {
            let Ok(queue) = tables.gangs.queue[gang] else { continue };
            if tables.gangs.preemptible[gang] && tables.queues.is_leaf(queue) && tables.gangs.active(gang) > 0 {
                self.leaves[queue].push(tables, config, gang);
                self.is_listed[gang] = true;
            }
        }
        self.leaves.as_mut_slice().iter_mut().for_each(Leaf::sort);
    }

    /// Whether a gang is among those who could be victims.
    pub(crate) fn is_listed(&self, gang: GangIdx) -> bool {
        self.is_listed[gang]
    }

    /// A gang that was given a place in this action may be a victim of those who ask later, too (semantics.md §6.0).
    pub(crate) fn list(&mut self, tables: &Tables, gang: GangIdx) {
        let Ok(queue) = tables.gangs.queue[gang] else { return };
        if tables.gangs.preemptible[gang] && !std::mem::replace(&mut self.is_listed[gang], true) {
            self.leaves[queue].push_late(gang);
            self.late.push(gang);
        }
    }

    /// A turn came to something: what a gang holds, and where, is not what it was.
    pub(crate) fn changed(&mut self, gang: GangIdx) {
        self.has_changed[gang] = true;
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
        self.given.reset(queues, Amounts::ZERO);
        self.held.clone_from(&tables.queues.allocated);
        self.taken.reset(queues, Amounts::ZERO);
        self.runner_up.reset(queues, None);
        (self.jobs, self.last_job, self.dirty, self.closed) = (0, None, None, false);
        self.victims.leaves.clear();
        self.victims.below = (asker.action == Action::Preempt).then_some(tables.gangs.priority[asker.gang]);
        for leaf in self.leaves.indices() {
            let list = &mut self.leaves[leaf];
            list.gives = list.rewind(tables)
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
                list.min_runtime = rules::min_runtime(plan, asker, leaf);
                self.victims.leaves.push(leaf);
            }
        }
        if self.loses {
            self.gives_for_good = self.somebody_gives();
        }
        self.line_up_all(tables, config, asker);
    }

    fn line_up_all(&mut self, tables: &Tables, config: &Config, asker: &Asker) {
        for &root in &tables.queues.roots {
            self.line_up(tables, config, asker, root);
        }
        self.find_root_runner_up(tables, config);
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
            self.closed = true;
        }
    }

    fn line_up(&mut self, tables: &Tables, config: &Config, asker: &Asker, queue: QueueIdx) {
        for &child in tables.queues.children_of(queue) {
            self.line_up(tables, config, asker, child);
        }
        if tables.queues.is_leaf(queue) {
            self.refresh_leaf(tables, config, asker, queue);
        } else {
            self.refresh(tables, config, queue);
        }
    }

    /// Whether everybody who may go together would free too little; if so, nobody has to be tried.
    pub(crate) fn too_little(&self, plan: &Plan<'_>, places: &mut Places) -> Option<Unhelped> {
        let everybody = |add: &mut Visit<'_>| self.every_victim(plan, add);
        let (pods, most) = places.too_little(plan, &self.victims, everybody)?;
        Some(Unhelped::TooLittle { pods, most })
    }

    /// Every pod that could go for the asker, or was told to in this turn; until `visit` has seen enough.
    pub(crate) fn every_victim(&self, plan: &Plan<'_>, visit: &mut Visit<'_>) {
        let mut leaves = self.victims.leaves.iter();
        let _ = leaves.try_for_each(|&leaf| self.leaves[leaf].pods(plan.tables, self.victims.below, &self.has_changed, visit));
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
            for (gang, row) in self.leaves[leaf].rows(&self.has_changed) {
                if !may_be_victim(plan.tables, asker, gang, row.is_none()) {
                    continue;
                }
                let start = pods.len();
                let Some(unit) = self.unit_to_give(plan, asker, (leaf, gang, row), pods) else { continue };
                let turn = row.map_or_else(|| turn(plan.tables, plan.config, gang), |row| row.turn);
                visit(unit, turn, &pods[start..]);
            }
        }
    }

    /// What of a gang goes at once, if it is not protected. Its pods are appended to `pods`.
    fn unit_to_give(
        &self,
        plan: &Plan<'_>,
        asker: &Asker,
        (leaf, gang, row): (QueueIdx, GangIdx, Option<&Row>),
        pods: &mut Vec<PodIdx>,
    ) -> Option<Unit> {
        let start = pods.len();
        if let Some(&Row { alone: Some(alone), started, .. }) = row {
            if rules::runs_too_short(plan, started, self.leaves[leaf].min_runtime) {
                return None;
            }
            pods.push(alone.pod);
            return Some(Unit { pods: (start, start + 1), core: true, alone: Some(alone), ..Unit::none(gang) });
        }
        let unit = take_unit(plan, gang, pods);
        if !self.is_free(plan, asker, unit) {
            pods.truncate(start);
            return None;
        }
        Some(unit)
    }

    /// Whether anybody could go for the asker.
    pub(crate) fn has_unit(&self, plan: &Plan<'_>, asker: &Asker, pods: &mut Vec<PodIdx>) -> bool {
        self.victims.leaves.iter().any(|&leaf| {
            self.leaves[leaf].gangs().any(|gang| {
                let start = pods.len();
                may_be_victim(plan.tables, asker, gang, true) && {
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
        let listed = self.victims.leaves.iter().flat_map(|&leaf| self.leaves[leaf].gangs());
        let could_go = listed.filter(|&gang| may_be_victim(plan.tables, asker, gang, true));
        let (mut protected, mut kept) = (0, 0);
        for gang in could_go {
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
        let leaves = self.leaves.entries().filter(|(leaf, list)| *leaf != asker.queue && list.gangs().next().is_some());
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
            let queue = self.next_leaf(tables, config, asker)?;
            let (gang, row) = self.leaves[queue].pop(&self.has_changed)?;
            self.dirty = Some(queue);
            let start = pods.len();
            let Some(unit) = self.unit_to_give(plan, asker, (queue, gang, row.as_ref()), pods) else { continue };
            if !self.one_job_more(gang, jobs_max(config, asker, self.loses)) {
                pods.truncate(start);
                return None;
            }
            if !unit.core && tables.gangs.active(gang) as usize > pods.len() - start {
                self.leaves[queue].push_again(gang);
            }
            return Some(unit);
        }
    }

    /// The leaf that gives next.
    fn next_leaf(&mut self, tables: &Tables, config: &Config, asker: &Asker) -> Option<QueueIdx> {
        if std::mem::take(&mut self.closed) {
            self.dirty = None;
            self.line_up_all(tables, config, asker);
        }
        if let Some(leaf) = self.dirty.take() {
            let given = self.given[leaf];
            self.refresh_leaf(tables, config, asker, leaf);
            if self.best[leaf].is_some() && self.given[leaf] == given || self.is_still_last(tables, config, leaf) {
                return Some(leaf);
            }
            for above in tables.queues.ancestors(leaf).skip(1) {
                self.refresh(tables, config, above);
            }
            self.find_root_runner_up(tables, config);
        }
        self.last_two(config, &tables.queues.roots).0.and_then(|root| self.best[root])
    }

    /// Whether the leaf that gave last gives again: at every level its queue is still behind the one that was next to last.
    /// Until it is not, the queues above it stand as they should.
    fn is_still_last(&mut self, tables: &Tables, config: &Config, leaf: QueueIdx) -> bool {
        for queue in tables.queues.ancestors(leaf) {
            if queue != leaf {
                self.stand(tables, queue);
            }
            let parent = tables.queues.parent[queue];
            let runner_up = parent.map_or(self.root_runner_up, |parent| self.runner_up[parent]);
            let Some(standing) = &self.standing[queue] else { return false };
            let behind = |other: QueueIdx| {
                self.standing[other].as_ref().is_none_or(|other_standing| match standing.before(other_standing) {
                    _ if !config.plugins.proportion => queue > other,
                    Ordering::Equal => queue > other,
                    order => order == Ordering::Greater,
                })
            };
            if !runner_up.is_none_or(behind) {
                return false;
            }
        }
        true
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

    fn refresh_leaf(&mut self, tables: &Tables, config: &Config, asker: &Asker, leaf: QueueIdx) {
        let next = self.leaves[leaf].top(tables, config, asker, &self.has_changed);
        self.best[leaf] = next.map(|next| {
            self.given[leaf] = self.taken[leaf] + next;
            leaf
        });
        self.stand(tables, leaf);
    }

    fn refresh(&mut self, tables: &Tables, config: &Config, queue: QueueIdx) {
        let (last, runner_up) = self.last_two(config, tables.queues.children_of(queue));
        self.best[queue] = last.and_then(|child| self.best[child]);
        self.runner_up[queue] = runner_up;
        self.stand(tables, queue);
    }

    fn find_root_runner_up(&mut self, tables: &Tables, config: &Config) {
        self.root_runner_up = self.last_two(config, &tables.queues.roots).1;
    }

    /// How a queue stands with what the leaf in it that gives next would give.
    fn stand(&mut self, tables: &Tables, queue: QueueIdx) {
        let Some(leaf) = self.best[queue] else {
            self.standing[queue] = None;
            return;
        };
        let (held, given) = (self.held[queue], self.given[leaf]);
        match &mut self.standing[queue] {
            Some(standing) => standing.give(tables, held, given),
            unknown => *unknown = Some(Standing::of_victims(tables, queue, held, given)),
        }
    }

    /// The queue that would be served last among siblings, and the one before it; of equals the later one.
    fn last_two(&self, config: &Config, siblings: &[QueueIdx]) -> (Option<QueueIdx>, Option<QueueIdx>) {
        let (mut last, mut runner_up) = (None::<(QueueIdx, &Standing)>, None);
        for &queue in siblings {
            let Some(standing) = &self.standing[queue] else { continue };
            let later = |than: Option<(QueueIdx, &Standing)>| {
                than.is_none_or(|(_, than)| !config.plugins.proportion || standing.before(than) != Ordering::Less)
            };
            if later(last) {
                (last, runner_up) = (Some((queue, standing)), last);
            } else if later(runner_up) {
                runner_up = Some((queue, standing));
            }
        }
        (last.map(|(queue, _)| queue), runner_up.map(|(queue, _)| queue))
    }
}

/// What of a gang goes at once. Its pods are appended to `pods`.
fn take_unit(plan: &Plan<'_>, gang: GangIdx, pods: &mut Vec<PodIdx>) -> Unit {
    let start = pods.len();
    let part = unit_of(plan.tables, plan.config, plan.arena, gang, pods);
    Unit { pods: (start, pods.len()), core: part == Part::All, single: part == Part::Pod, ..Unit::none(gang) }
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
    let sorted;
    let members = match gangs.members(of) {
        only @ [_] => only,
        _ => {
            sorted = in_order(tables, config, of, arena);
            &sorted
        }
    };
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

/// Whether a pod can be told to leave: it has a place or is promised one, and no budget keeps it.
pub(crate) fn can_go(tables: &Tables, pod: PodIdx) -> bool {
    is_active(tables.pods.status[pod])
        && tables.pods.node[pod].is_some()
        && !tables.pods.kept[pod]
        && tables.pods.subgroup[pod].is_some()
}
