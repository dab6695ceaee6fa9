//! Victims in the order in which they go (semantics.md §4.4 reversed, §7.5): from the queue that would be served last, lowest
//! priority first, pods above a minimum first, youngest first.
//!
//! Each leaf has a list, made once for an action; gangs whose place changed meanwhile are put in a small list beside it. A unit
//! that its own rule protects is passed over, never a reason to stop.

use std::cmp::{Ordering, Reverse};

use crate::actions::Plan;
use crate::config::{Action, Config};
use crate::index::{Col, GangIdx, Idx, PodIdx, QueueIdx, SubgroupIdx};
use crate::order::{Standing, Turn, turn};
use crate::place::gang::in_order;
use crate::search::counting::Places;
use crate::search::rules::{self, Ledger};
use crate::search::{Asker, Unit};
use crate::tables::gangs::Member;
use crate::tables::{Tables, is_active};
use crate::units::Amounts;

/// Jobs that reclaim may move for one asker where consolidation has no bound of its own.
const MOVED_JOBS_MAX: u32 = 64;

#[derive(Clone, Debug, Default)]
struct Leaf {
    /// All that may be victims, first to go first: the order of service reversed.
    listed: Vec<Turn>,
    /// Those before it hold nothing any more.
    from: usize,
    /// Where this search is.
    at: usize,
    /// Gangs that come back with another place; few.
    again: Vec<Turn>,
    /// Reclaim looks at it at all.
    gives: bool,
}

/// The order of victims.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    leaves: Col<QueueIdx, Leaf>,
    best: Col<QueueIdx, Option<GangIdx>>,
    standing: Col<QueueIdx, Option<Standing>>,
    /// What this search took from the queue and those below it.
    taken: Col<QueueIdx, Amounts>,
    /// The leaf that gave last; it has to be looked at again.
    dirty: Option<QueueIdx>,
    /// Units that the rules of reclaim protect, given what was taken so far, are passed over.
    protect: bool,
    /// Some unit was passed over for that.
    passed_over: bool,
    jobs: u32,
    last_job: Option<GangIdx>,
}

impl Stream {
    /// Lists everybody who could be a victim.
    pub fn begin(&mut self, tables: &Tables, config: &Config) {
        let queues = tables.queues.parent.len();
        while self.leaves.len() < queues {
            self.leaves.push(Leaf::default());
        }
        for leaf in self.leaves.as_mut_slice() {
            leaf.listed.clear();
            leaf.from = 0;
        }
        for gang in (0..tables.gangs.queue.len()).map(GangIdx::new) {
            let Ok(queue) = tables.gangs.queue[gang] else { continue };
            if tables.gangs.preemptible[gang] && tables.queues.is_leaf(queue) && tables.gangs.active(gang) > 0 {
                self.leaves[queue].listed.push(turn(tables, config, gang));
            }
        }
        for leaf in self.leaves.as_mut_slice() {
            leaf.listed.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    /// Back to the first victim, for an asker.
    pub fn rewind(&mut self, tables: &Tables, config: &Config, asker: &Asker, protect: bool) {
        let queues = tables.queues.parent.len();
        (self.protect, self.passed_over) = (protect, false);
        self.best.reset(queues, None);
        self.standing.reset(queues, None);
        self.taken.reset(queues, Amounts::ZERO);
        (self.jobs, self.last_job, self.dirty) = (0, None, None);
        for leaf in self.leaves.indices() {
            let gives = match asker.action {
                Action::Preempt => leaf == asker.queue,
                Action::Reclaim => {
                    leaf != asker.queue
                        && tables.queues.is_leaf(leaf)
                        && (!config.plugins.proportion || rules::leaf_gives(tables, asker, leaf))
                }
                _ => true,
            };
            let list = &mut self.leaves[leaf];
            list.again.clear();
            while list.listed.get(list.from).is_some_and(|&(.., gang)| tables.gangs.active(gang) == 0) {
                list.from += 1;
            }
            list.at = list.from;
            list.gives = gives;
        }
        for &root in &tables.queues.roots {
            self.line_up(tables, config, asker, root);
        }
    }

    fn line_up(&mut self, tables: &Tables, config: &Config, asker: &Asker, queue: QueueIdx) {
        for &child in tables.queues.children_of(queue) {
            self.line_up(tables, config, asker, child);
        }
        self.refresh(tables, config, asker, queue);
    }

    /// Whether the asker could start if everybody who may go went; if not, nobody has to be tried.
    pub(crate) fn could_help(&self, plan: &Plan<'_>, asker: &Asker, places: &mut Places) -> bool {
        let tables = &*plan.tables;
        places.could_do(tables, |add| {
            for leaf in self.leaves.iter().filter(|leaf| leaf.gives) {
                let gangs = leaf.listed[leaf.from..].iter().map(|&(.., gang)| gang);
                for gang in gangs.filter(|&gang| may_be_victim(tables, asker, gang)) {
                    tables.gangs.pods[gang].iter().filter(|&pod| can_go(tables, pod)).for_each(&mut *add);
                }
            }
        })
    }

    /// Whether the rules of reclaim kept somebody out since the last rewind.
    #[must_use]
    pub const fn passed_over(&self) -> bool {
        self.passed_over
    }

    /// The next unit that may go. Its pods are appended to `pods`.
    pub(crate) fn next(&mut self, plan: &Plan<'_>, asker: &Asker, ledger: &mut Ledger, pods: &mut Vec<PodIdx>) -> Option<Unit> {
        let (tables, config) = (&*plan.tables, plan.config);
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
            let start = pods.len();
            let part = unit_of(tables, config, plan.arena, gang, pods);
            let core = part == Part::All;
            let unit = Unit { gang, pods: (start, pods.len()), core, single: part == Part::Pod };
            let good = self.admits(plan, asker, ledger, queue, unit);
            if good {
                let amount = pods[start..].iter().fold(Amounts::ZERO, |sum, &pod| sum + rules::held_before(tables, pod));
                ledger.take(tables, queue, amount);
                for above in tables.queues.ancestors(queue) {
                    self.taken[above] += amount;
                }
                let left = tables.gangs.active(gang) > u32::try_from(pods.len() - start).unwrap_or(u32::MAX);
                if left && !core {
                    // Its place is looked up at the next call: the unit is not gone yet.
                    self.leaves[queue].again.push((Reverse(i32::MIN), u8::MAX, gang));
                }
            } else {
                pods.truncate(start);
            }
            self.dirty = Some(queue);
            if good {
                return Some(unit);
            }
        }
    }

    fn admits(&mut self, plan: &Plan<'_>, asker: &Asker, ledger: &Ledger, leaf: QueueIdx, unit: Unit) -> bool {
        if unit.pods.0 == unit.pods.1 || !unit.single && rules::is_protected(plan, asker, unit.gang) {
            return false;
        }
        match asker.action {
            Action::Reclaim if plan.config.plugins.proportion && self.protect => {
                let may = ledger.may_take(plan.tables, asker, leaf);
                if !may {
                    // What is left only shrinks: nobody else of this leaf may be taken either.
                    self.leaves[leaf].gives = false;
                    self.passed_over = true;
                }
                may
            }
            Action::Consolidation => self.one_job_more(unit.gang, plan.config.victims.consolidation_jobs_max),
            // Those who may only move are as many as consolidation may move.
            Action::Reclaim if !self.protect => {
                self.one_job_more(unit.gang, plan.config.victims.consolidation_jobs_max.or(Some(MOVED_JOBS_MAX)))
            }
            _ => true,
        }
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
        self.standing[queue] =
            self.best[queue].map(|gang| Standing::of_victims(tables, queue, self.taken[queue], held_by(tables, gang)));
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
    pods.extend(tables.gangs.pods[gang].iter().filter(|&pod| can_go(tables, pod)));
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
        collect_active(tables, member, pods);
        if pods.len() > start {
            return Some(Part::Member);
        }
    }
    None
}

fn collect_active(tables: &Tables, of: SubgroupIdx, pods: &mut Vec<PodIdx>) {
    if tables.gangs.is_pod_set(of) {
        pods.extend(tables.pods.last_first(of).filter(|&pod| can_go(tables, pod)));
    }
    for &member in tables.gangs.members(Member::Subgroup(of)) {
        collect_active(tables, member, pods);
    }
}

/// Whether a pod can be told to leave: it has a place and is not moving already.
pub(crate) fn can_go(tables: &Tables, pod: PodIdx) -> bool {
    is_active(tables.pods.status[pod])
        && tables.pods.node[pod].is_some()
        && tables.pods.leaves[pod].is_none()
        && tables.pods.subgroup[pod].is_some()
}
