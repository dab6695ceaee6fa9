//! One turn of a gang: what it takes at once, and placing that as a whole or not at all (semantics.md §7).
//!
//! A gang below its minimum takes all that is missing; one that has it takes one pod more, or one whole optional member.
//! Where KAI differs: members that already have their minimum are not asked for again (quirk Q15), members that lack pods are
//! passed over, and if a member finds no place the next one that could serve is tried instead (users.md, 9).

use std::cmp::Ordering;

use bumpalo::Bump;
use bumpalo::collections::Vec as BumpVec;

use crate::bounds;
use crate::config::{Action, Config};
use crate::index::{ClassIdx, GangIdx, PodIdx, SubgroupIdx};
use crate::place::NodeSearch;
use crate::statement::{Mark, Statement};
use crate::tables::Tables;
use crate::tables::gangs::Member;
use crate::units::Amounts;

/// Members of a set in the order of semantics.md §7.2: those below their minimum, then those with a minimum, then optional
/// ones, by what they have of it; then by name.
pub(crate) fn in_order<'b>(tables: &Tables, config: &Config, of: Member, arena: &'b Bump) -> BumpVec<'b, SubgroupIdx> {
    let mut members = BumpVec::from_iter_in(tables.gangs.members(of).iter().copied(), arena);
    if config.plugins.subgroup_order && members.len() > 1 {
        // Members are in name order and few; an insertion sort is stable and needs no memory.
        for end in 1..members.len() {
            let mut at = end;
            while at > 0 && before(tables, members[at], members[at - 1]) == Ordering::Less {
                members.swap(at, at - 1);
                at -= 1;
            }
        }
    }
    members
}

fn before(tables: &Tables, a: SubgroupIdx, b: SubgroupIdx) -> Ordering {
    let [a, b] = [a, b].map(Member::Subgroup);
    let gangs = &tables.gangs;
    let satisfied = gangs.satisfied(a).cmp(&gangs.satisfied(b));
    if satisfied != Ordering::Equal || !gangs.satisfied(a) {
        return satisfied;
    }
    let [(need_a, has_a), (need_b, has_b)] = [a, b].map(|m| (u64::from(gangs.threshold(m)), u64::from(gangs.attained(m))));
    match (need_a == 0, need_b == 0) {
        (true, true) => has_a.cmp(&has_b),
        // has / need, compared without dividing.
        (false, false) => (has_a * need_b).cmp(&(has_b * need_a)),
        (optional_a, optional_b) => optional_a.cmp(&optional_b),
    }
}

/// How many pods a pod set takes at once.
fn step(tables: &Tables, subgroup: SubgroupIdx) -> usize {
    let member = Member::Subgroup(subgroup);
    let missing = tables.gangs.threshold(member).saturating_sub(tables.gangs.attained(member));
    missing.max(1) as usize
}

/// Whether a member has something to place: pods that wait, and enough of them.
fn can_step(tables: &Tables, member: SubgroupIdx) -> bool {
    let gangs = &tables.gangs;
    if gangs.is_pod_set(member) {
        gangs.counts[member].pending + gangs.counts[member].movable > 0 && gangs.ready(Member::Subgroup(member))
    } else {
        let of = Member::Subgroup(member);
        gangs.ready(of) && gangs.members(of).iter().any(|&child| can_step(tables, child))
    }
}

/// The pods that a gang takes at its next turn if everything finds a place at once.
pub fn next_pods(tables: &Tables, config: &Config, gang: GangIdx, arena: &Bump, mut visit: impl FnMut(PodIdx)) {
    visit_member(tables, config, Member::Gang(gang), arena, &mut visit);
}

fn visit_member(tables: &Tables, config: &Config, of: Member, arena: &Bump, visit: &mut impl FnMut(PodIdx)) {
    if let Member::Subgroup(subgroup) = of
        && tables.gangs.is_pod_set(subgroup)
    {
        tables.pods.waiting(subgroup).take(step(tables, subgroup)).for_each(visit);
        return;
    }
    let (missing, members) = candidates(tables, config, of, arena);
    for member in members.into_iter().take(missing) {
        visit_member(tables, config, Member::Subgroup(member), arena, visit);
    }
}

/// How many members of a set have to take a step, and those that can, first to be tried first.
pub(crate) fn candidates<'b>(tables: &Tables, config: &Config, of: Member, arena: &'b Bump) -> (usize, BumpVec<'b, SubgroupIdx>) {
    let missing = tables.gangs.threshold(of).saturating_sub(tables.gangs.attained(of)) as usize;
    let mut members = in_order(tables, config, of, arena);
    let below = |member: SubgroupIdx| !tables.gangs.satisfied(Member::Subgroup(member));
    members.retain(|&member| can_step(tables, member) && (missing == 0 || below(member)));
    (missing.max(1), members)
}

/// What a gang would take at its next turn, MiB counted by the given card size (semantics.md §2.6).
#[must_use]
pub fn next_request(tables: &Tables, config: &Config, gang: GangIdx, card_mib: i64, arena: &Bump) -> Amounts {
    let mut sum = Amounts::ZERO;
    next_pods(tables, config, gang, arena, |pod| sum += tables.classes.charge_at(tables.pods.class[pod], card_mib));
    sum
}

/// Why a turn failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Miss {
    /// The first pod that could not be placed.
    pub pod: PodIdx,
    /// Pods that were placed before it, and after it as far as they were tried.
    pub placed: u32,
    /// A queue's bound was in the way, not a lack of nodes.
    pub bound: bool,
}

/// One turn of one gang, being tried.
pub struct Attempt<'a> {
    /// What is free and who waits.
    pub tables: &'a mut Tables,
    /// Where the tries are logged.
    pub statement: &'a mut Statement,
    /// Finds nodes.
    pub search: &'a mut NodeSearch,
    /// Settings.
    pub config: &'a Config,
    /// Scratch memory of the cycle.
    pub arena: &'a Bump,
    /// On whose behalf.
    pub action: Action,
    /// The gang.
    pub gang: GangIdx,
    /// The log where the turn began.
    pub mark: Mark,
    /// The first failure, if any.
    pub miss: Option<Miss>,
}

impl Attempt<'_> {
    /// Places everything that the gang takes at this turn. `false`: something found no place (see [`Attempt::miss`]); what was
    /// placed is still there for the caller to look at and to roll back.
    pub fn place(&mut self) -> bool {
        self.place_member(Member::Gang(self.gang))
    }

    fn place_member(&mut self, of: Member) -> bool {
        if let Member::Subgroup(subgroup) = of
            && self.tables.gangs.is_pod_set(subgroup)
        {
            return self.place_pods(subgroup);
        }
        let (mut missing, members) = candidates(self.tables, self.config, of, self.arena);
        for (tried, member) in members.iter().enumerate() {
            let mark = self.statement.mark(self.tables);
            if self.place_member(Member::Subgroup(*member)) {
                missing -= 1;
                if missing == 0 {
                    return true;
                }
            } else if members.len() - tried > missing {
                self.statement.rollback(self.tables, mark);
            } else {
                return false;
            }
        }
        false
    }

    fn place_pods(&mut self, subgroup: SubgroupIdx) -> bool {
        let wanted = step(self.tables, subgroup);
        let pods = BumpVec::from_iter_in(self.tables.pods.waiting(subgroup).take(wanted), self.arena);
        let first_try = self.miss.is_none();
        let mut hopeless: Option<ClassIdx> = None;
        let mut good = pods.len() == wanted || self.tables.gangs.satisfied(Member::Subgroup(subgroup));
        for &pod in &pods {
            let class = self.tables.pods.class[pod];
            if hopeless == Some(class) {
                continue;
            }
            let bound = !self.within_bounds(pod);
            if bound || !self.search.place(self.tables, self.statement, self.config, pod, self.action) {
                // The others are still tried: how many fit at once is worth knowing.
                good = false;
                hopeless = Some(class);
                self.miss.get_or_insert(Miss { pod, placed: 0, bound });
            }
        }
        // A member that is tried instead of one that failed says nothing of that failure.
        if first_try && let Some(miss) = &mut self.miss {
            let placed = self.statement.since(self.mark).len();
            miss.placed = u32::try_from(placed).expect("pods are counted in u32");
        }
        good
    }

    fn within_bounds(&self, pod: PodIdx) -> bool {
        if !self.config.plugins.proportion {
            return true;
        }
        let charge = self.tables.classes.charge_at(self.tables.pods.class[pod], self.tables.nodes.largest_card);
        bounds::allow(self.tables, self.gang, charge)
    }
}
