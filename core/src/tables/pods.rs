//! Pods: to whom each belongs, what it asks for, and where it is.

use crate::index::{ClassIdx, Col, GangIdx, GroupIdx, Idx, NodeIdx, PodIdx, Span, SubgroupIdx};
use crate::snapshot::{PodRow, PodStatus, Snapshot, TaskPriority};

/// A position in [`Pods::queue_list`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TurnIdx(u32);

impl Idx for TurnIdx {
    fn new(i: usize) -> Self {
        Self(u32::try_from(i).expect("a table has at most u32::MAX rows"))
    }
    fn at(self) -> usize {
        self.0 as usize
    }
}

/// Where a pod is and what it does there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// What it does.
    pub status: PodStatus,
    /// Where.
    pub node: Option<NodeIdx>,
    /// The shared GPUs it has: a range of [`Pods::group_list`].
    pub groups: (u32, u32),
    /// Where it still is, if it is to move.
    pub leaves: Option<Left>,
}

/// A place that a pod is about to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// Where.
    pub node: NodeIdx,
    /// The shared GPUs it has there: a range of [`Pods::group_list`].
    pub groups: (u32, u32),
}

/// One row a pod.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Pods {
    /// Its gang. Fixed.
    pub gang: Col<PodIdx, Option<GangIdx>>,
    /// Its pod set. Fixed.
    pub subgroup: Col<PodIdx, Option<SubgroupIdx>>,
    /// What it asks for. Fixed.
    pub class: Col<PodIdx, ClassIdx>,
    /// May not be told to leave. Fixed.
    pub kept: Col<PodIdx, bool>,
    /// The node it would rather have. Fixed.
    pub nominated: Col<PodIdx, Option<NodeIdx>>,
    /// What it does. Written by the statement.
    pub status: Col<PodIdx, PodStatus>,
    /// Where it is or goes. Written by the statement.
    pub node: Col<PodIdx, Option<NodeIdx>>,
    /// Its shared GPUs: a range of `group_list`. Written by the statement.
    pub groups: Col<PodIdx, (u32, u32)>,
    /// Where it still is, if it is to move. Written by the statement.
    pub leaves: Col<PodIdx, Option<Left>>,
    /// Where it was before the turn that is being tried told it to leave. Written by the statement.
    pub evicted_from: Col<PodIdx, Option<Placement>>,
    /// Shared GPUs of all pods; grows during a cycle. Written by the statement.
    pub group_list: Vec<GroupIdx>,
    /// The pods of a pod set in the order in which they are served, a range of `queue_list`. Fixed.
    pub turns: Col<SubgroupIdx, Span<TurnIdx>>,
    /// Pods of a pod set before this turn do not wait. Written by the actions.
    pub waiting_from: Col<SubgroupIdx, u32>,
    /// Pods, pod set by pod set. Fixed.
    pub queue_list: Col<TurnIdx, PodIdx>,
}

impl Pods {
    pub(crate) fn load(&mut self, rows: &Snapshot) {
        for row in rows.pods.iter() {
            self.gang.push(row.gang);
            self.subgroup.push(row.subgroup);
            self.class.push(row.class);
            self.kept.push(row.kept);
            self.nominated.push(row.nominated);
            self.status.push(row.status);
            self.node.push(row.node);
            self.groups.push(row.groups);
            self.leaves.push(None);
            self.evicted_from.push(None);
        }
        self.group_list.clone_from(&rows.pod_groups);
        self.line_up(rows);
    }

    /// Sorts each pod set into the order of semantics.md §4.3.
    fn line_up(&mut self, rows: &Snapshot) {
        let plugins = &rows.config.plugins;
        let rank = |pod: PodIdx| {
            let row: &PodRow = &rows.pods[pod];
            let leader = plugins.kubeflow && row.leader;
            let head = plugins.ray && row.ray_head;
            let turn = if plugins.task_order { turn(row.task_priority) } else { (0, 0) };
            (!leader, !head, turn, pod)
        };
        let mut members: Vec<(SubgroupIdx, PodIdx)> = rows.pods.entries().filter_map(|(p, r)| Some((r.subgroup?, p))).collect();
        if !members.is_sorted_by_key(|&(subgroup, pod)| (subgroup, rank(pod))) {
            members.sort_by_key(|&(subgroup, pod)| (subgroup, rank(pod)));
        }
        self.queue_list = members.iter().map(|&(_, pod)| pod).collect();
        self.turns.reset(rows.subgroups.len(), Span::EMPTY);
        self.waiting_from.reset(rows.subgroups.len(), 0);
        let mut start = 0;
        for set in members.chunk_by(|a, b| a.0 == b.0) {
            self.turns[set[0].0] = Span::new(start, start + set.len());
            start += set.len();
        }
    }

    /// Where a pod is.
    #[must_use]
    pub fn placement(&self, pod: PodIdx) -> Placement {
        let (status, node, groups, leaves) = (self.status[pod], self.node[pod], self.groups[pod], self.leaves[pod]);
        Placement { status, node, groups, leaves }
    }

    pub(crate) fn set_placement(&mut self, pod: PodIdx, to: Placement) {
        self.status[pod] = to.status;
        self.node[pod] = to.node;
        self.groups[pod] = to.groups;
        self.leaves[pod] = to.leaves;
    }

    /// The shared GPUs of a placement.
    #[must_use]
    pub fn groups_of(&self, placement: Placement) -> &[GroupIdx] {
        &self.group_list[placement.groups.0 as usize..placement.groups.1 as usize]
    }

    /// The pods of a pod set that wait, first to be served first.
    pub fn waiting(&self, subgroup: SubgroupIdx) -> impl Iterator<Item = PodIdx> + '_ {
        let line = self.queue_list.range(self.turns[subgroup]);
        let from = self.waiting_from[subgroup] as usize;
        line[from..].iter().copied().filter(|&pod| self.is_waiting(pod))
    }

    /// The node where a pod was when the turn began that is being tried.
    #[must_use]
    pub fn home(&self, pod: PodIdx) -> Option<NodeIdx> {
        self.evicted_from[pod].map_or(self.node[pod], |home| home.node)
    }

    /// Whether a pod that was told to leave in this turn has its own place again.
    #[must_use]
    pub fn is_home(&self, pod: PodIdx) -> bool {
        self.evicted_from[pod] == Some(self.placement(pod))
    }

    /// Whether a pod is promised the very place that it was told to leave earlier in the cycle.
    #[must_use]
    pub fn goes_in_circles(&self, pod: PodIdx) -> bool {
        let cards = |groups: (u32, u32)| &self.group_list[groups.0 as usize..groups.1 as usize];
        let same = |left: Left| Some(left.node) == self.node[pod] && cards(left.groups) == cards(self.groups[pod]);
        self.status[pod] == PodStatus::Pipelined && self.leaves[pod].is_some_and(same)
    }

    /// Whether a pod looks for a place: it has none, or it was told to leave the one it had in the turn that is being tried.
    #[must_use]
    pub fn is_waiting(&self, pod: PodIdx) -> bool {
        match self.status[pod] {
            PodStatus::Pending => true,
            PodStatus::Releasing => self.evicted_from[pod].is_some(),
            _ => false,
        }
    }

    /// The pods of a pod set, last to be served first.
    pub fn last_first(&self, subgroup: SubgroupIdx) -> impl Iterator<Item = PodIdx> + '_ {
        self.queue_list.range(self.turns[subgroup]).iter().rev().copied()
    }

    /// Pods at the head of a pod set's line that got a node need not be looked at again in this cycle.
    pub(crate) fn move_up(&mut self, subgroup: SubgroupIdx) {
        let line = self.queue_list.range(self.turns[subgroup]);
        let from = self.waiting_from[subgroup] as usize;
        let served = line[from..].iter().take_while(|&&pod| !self.is_waiting(pod)).count();
        self.waiting_from[subgroup] += u32::try_from(served).expect("pods are counted in u32");
    }

    /// Somebody in a pod set looks for a place again.
    pub(crate) fn line_up_set(&mut self, subgroup: SubgroupIdx) {
        self.waiting_from[subgroup] = 0;
    }

    /// A cycle begins: everybody has to be looked at.
    pub(crate) fn line_up_again(&mut self) {
        self.waiting_from.as_mut_slice().fill(0);
    }
}

/// Sort key of a task priority: numbers before none before nonsense, larger numbers first.
fn turn(priority: TaskPriority) -> (u8, i128) {
    match priority {
        TaskPriority::Number(n) => (0, -i128::from(n)),
        TaskPriority::Absent => (1, 0),
        TaskPriority::Unparsable => (2, 0),
    }
}
