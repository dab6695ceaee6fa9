//! Gangs and their trees: who belongs to whom, what each member must have, and how many pods it has in which state.
//!
//! Not known here: nodes and queues' bounds.

use crate::index::{Col, GangIdx, Idx, PodIdx, QueueIdx, Span, SubgroupIdx};
use crate::snapshot::{GangTimes, NoQueue, PodStatus, Snapshot, SubgroupKind};
use crate::tables::is_active;

/// A position in [`Gangs::child_list`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ChildIdx(u32);

impl Idx for ChildIdx {
    fn new(i: usize) -> Self {
        Self(u32::try_from(i).expect("a table has at most u32::MAX rows"))
    }
    fn at(self) -> usize {
        self.0 as usize
    }
}

/// A node of a gang's tree: the gang itself or one of its members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Member {
    /// The root.
    Gang(GangIdx),
    /// A pod set or a set below it.
    Subgroup(SubgroupIdx),
}

/// Pods of a pod set by what they do. Written by `tables` and the statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Count for the minimum: have a node or the promise of one.
    pub active: u32,
    /// The part of `active` that only has a promise.
    pub pipelined: u32,
    /// Wait for a node.
    pub pending: u32,
    /// Were told to leave in the turn that is being tried, and look for another place.
    pub movable: u32,
    /// Wait for a scheduling gate to go.
    pub gated: u32,
    /// Ended well: they need no node any more and count as present (users.md, 9).
    pub succeeded: u32,
    /// All.
    pub pods: u32,
}

/// One row a gang, one row a member of a tree.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gangs {
    /// Where it is accounted. Fixed.
    pub queue: Col<GangIdx, Result<QueueIdx, NoQueue>>,
    /// Higher is served first. Fixed.
    pub priority: Col<GangIdx, i32>,
    /// May be evicted for others. Fixed.
    pub preemptible: Col<GangIdx, bool>,
    /// Not tried, though its pods count. Fixed.
    pub backed_off: Col<GangIdx, bool>,
    /// When things happened to it. Fixed.
    pub times: Col<GangIdx, GangTimes>,
    /// All its members. Fixed.
    pub subgroups: Col<GangIdx, Span<SubgroupIdx>>,
    /// How many of its top-level members must have their minimum. Fixed.
    pub required: Col<GangIdx, u32>,
    /// Its pods, also those of unknown sub-groups. Fixed.
    pub pods: Col<GangIdx, Span<PodIdx>>,
    /// Its top-level members, a range of `child_list`. Fixed.
    pub top: Col<GangIdx, Span<ChildIdx>>,
    /// The gang of a member. Fixed.
    pub gang: Col<SubgroupIdx, GangIdx>,
    /// Leaf with its minimum, or set with its requirement. Fixed.
    pub kind: Col<SubgroupIdx, SubgroupKind>,
    /// Members of a set, a range of `child_list`; empty for a leaf. Fixed.
    pub children: Col<SubgroupIdx, Span<ChildIdx>>,
    /// Members in index order (name order) inside a span. Fixed.
    pub child_list: Col<ChildIdx, SubgroupIdx>,
    /// Pods of a leaf; all 0 for a set. Written by `tables` and the statement.
    pub counts: Col<SubgroupIdx, Counts>,
}

impl Gangs {
    pub(crate) fn load(&mut self, rows: &Snapshot) {
        self.gang.reset(rows.subgroups.len(), GangIdx::new(0));
        self.children.reset(rows.subgroups.len(), Span::EMPTY);
        self.kind = rows.subgroups.iter().map(|row| row.kind).collect();
        self.counts.reset(rows.subgroups.len(), Counts::default());
        for (gang, row) in rows.gangs.entries() {
            self.queue.push(row.queue);
            self.priority.push(row.priority);
            self.preemptible.push(row.preemptible);
            self.backed_off.push(row.backed_off);
            self.times.push(row.times);
            self.subgroups.push(row.subgroups);
            self.required.push(row.required);
            self.pods.push(row.pods);
            let top = self.list_children(rows, row.subgroups, None);
            self.top.push(top);
            for subgroup in row.subgroups.iter() {
                self.gang[subgroup] = gang;
                if matches!(row_kind(rows, subgroup), SubgroupKind::Set { .. }) {
                    self.children[subgroup] = self.list_children(rows, row.subgroups, Some(subgroup));
                }
            }
        }
        for pod in rows.pods.iter() {
            if let Some(subgroup) = pod.subgroup {
                self.counts[subgroup].pods += 1;
            }
        }
    }

    fn list_children(&mut self, rows: &Snapshot, of: Span<SubgroupIdx>, parent: Option<SubgroupIdx>) -> Span<ChildIdx> {
        let start = self.child_list.len();
        for subgroup in of.iter().filter(|&s| rows.subgroups[s].parent == parent) {
            self.child_list.push(subgroup);
        }
        Span::new(start, self.child_list.len())
    }

    /// The members directly below, in name order.
    #[must_use]
    pub fn members(&self, of: Member) -> &[SubgroupIdx] {
        self.child_list.range(match of {
            Member::Gang(gang) => self.top[gang],
            Member::Subgroup(subgroup) => self.children[subgroup],
        })
    }

    /// What a member must have: pods of a leaf, satisfied members of a set.
    #[must_use]
    pub fn threshold(&self, of: Member) -> u32 {
        match of {
            Member::Gang(gang) => self.required[gang],
            Member::Subgroup(subgroup) => match self.kind[subgroup] {
                SubgroupKind::PodSet { min } => min,
                SubgroupKind::Set { required } => required,
            },
        }
    }

    /// What a member has of it. Pods that succeeded count (users.md, 9).
    #[must_use]
    pub fn attained(&self, of: Member) -> u32 {
        match of {
            Member::Subgroup(subgroup) if self.is_pod_set(subgroup) => {
                self.counts[subgroup].active + self.counts[subgroup].succeeded
            }
            _ => self.count_members(of, |member| self.satisfied(member)),
        }
    }

    /// Whether a member has its minimum (semantics.md §7.1).
    #[must_use]
    pub fn satisfied(&self, of: Member) -> bool {
        self.attained(of) >= self.threshold(of)
    }

    /// How much of its threshold a member could have if every pod that waits had a node.
    #[must_use]
    pub fn attainable(&self, of: Member) -> u32 {
        match of {
            Member::Subgroup(subgroup) if self.is_pod_set(subgroup) => {
                let counts = self.counts[subgroup];
                counts.active + counts.succeeded + counts.pending + counts.movable
            }
            _ => self.count_members(of, |member| self.ready(member)),
        }
    }

    /// Whether a member has the pods it needs (semantics.md §7.1).
    #[must_use]
    pub fn ready(&self, of: Member) -> bool {
        self.attainable(of) >= self.threshold(of)
    }

    /// Whether a member is a leaf.
    #[must_use]
    pub fn is_pod_set(&self, subgroup: SubgroupIdx) -> bool {
        matches!(self.kind[subgroup], SubgroupKind::PodSet { .. })
    }

    fn count_members(&self, of: Member, good: impl Fn(Member) -> bool) -> u32 {
        let good = self.members(of).iter().filter(|&&member| good(Member::Subgroup(member))).count();
        u32::try_from(good).expect("a table has at most u32::MAX rows")
    }

    /// Pods of all leaves of a gang that wait for a node.
    #[must_use]
    pub fn pending(&self, gang: GangIdx) -> u32 {
        self.subgroups[gang].iter().map(|subgroup| self.counts[subgroup].pending).sum()
    }

    /// KAI's "elastic" order (semantics.md §4.2): 0 below a minimum, 1 exactly at all of them, 2 above some.
    #[must_use]
    pub fn elastic_rank(&self, gang: GangIdx) -> u8 {
        let mut rank = 1;
        for subgroup in self.subgroups[gang].iter().filter(|&s| self.is_pod_set(s)) {
            let (active, min) = (self.counts[subgroup].active, self.threshold(Member::Subgroup(subgroup)));
            if active < min {
                return 0;
            }
            if active > min {
                rank = 2;
            }
        }
        rank
    }

    /// Whether no pod set waits for promises while it lacks pods that start now (semantics.md §6.1).
    #[must_use]
    pub fn starts_whole(&self, gang: GangIdx) -> bool {
        self.subgroups[gang].iter().filter(|&subgroup| self.is_pod_set(subgroup)).all(|subgroup| {
            let counts = self.counts[subgroup];
            let starting = counts.active - counts.pipelined + counts.succeeded;
            counts.pipelined == 0 || starting >= self.threshold(Member::Subgroup(subgroup))
        })
    }

    /// Pods of all leaves of a gang that have a node or the promise of one.
    #[must_use]
    pub fn active(&self, gang: GangIdx) -> u32 {
        self.subgroups[gang].iter().map(|subgroup| self.counts[subgroup].active).sum()
    }

    /// Whether any pod of a gang has a node or the promise of one.
    #[must_use]
    pub fn is_active(&self, gang: GangIdx) -> bool {
        self.subgroups[gang].iter().any(|subgroup| self.counts[subgroup].active > 0)
    }

    /// Whether some pod set has more pods than its minimum (semantics.md §7.1).
    #[must_use]
    pub fn elastic(&self, gang: GangIdx) -> bool {
        let sets = self.subgroups[gang].iter().filter(|&s| self.is_pod_set(s));
        sets.into_iter().any(|s| self.threshold(Member::Subgroup(s)) < self.counts[s].pods)
    }

    /// Counts a pod of a leaf in (`sign` 1) or out (-1).
    pub(crate) fn count(&mut self, subgroup: SubgroupIdx, status: PodStatus, sign: i64) {
        let counts = &mut self.counts[subgroup];
        let mut step = |cell: fn(&mut Counts) -> &mut u32| {
            let cell = cell(counts);
            *cell = cell.checked_add_signed(if sign > 0 { 1 } else { -1 }).expect("a pod is counted out only once");
        };
        if is_active(status) {
            step(|c| &mut c.active);
        }
        match status {
            PodStatus::Pipelined => step(|c| &mut c.pipelined),
            PodStatus::Pending => step(|c| &mut c.pending),
            PodStatus::Gated => step(|c| &mut c.gated),
            PodStatus::Succeeded => step(|c| &mut c.succeeded),
            _ => {}
        }
    }
}

fn row_kind(rows: &Snapshot, subgroup: SubgroupIdx) -> SubgroupKind {
    rows.subgroups[subgroup].kind
}
