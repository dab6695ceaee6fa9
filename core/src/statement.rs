//! The log of tentative operations: the only writer of the tables during a cycle.
//!
//! An operation moves one pod from one placement to another. Every table that a placement is charged to is additive, so undoing
//! is charging the other way round, and undoing everything since a mark is a loop. Property tests hold "apply, then roll back"
//! equal to "nothing" on every column.

use crate::config::Action;
use crate::index::{GroupIdx, Idx, NodeIdx, PodIdx};
use crate::snapshot::PodStatus;
use crate::tables::Tables;
use crate::tables::pods::Placement;

/// One pod, moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// Which pod.
    pub pod: PodIdx,
    /// Where it was.
    pub before: Placement,
    /// Where it is now.
    pub after: Placement,
    /// The action that moved it.
    pub action: Action,
}

/// A place in the log to roll back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    ops: usize,
    cards: usize,
    group_list: usize,
}

/// What a shared pod takes on its node.
#[derive(Clone, Copy, Debug)]
pub struct Cards<'a> {
    /// Cards that are shared already.
    pub joined: &'a [GroupIdx],
    /// How many whole GPUs are to be shared from now on.
    pub opened: u32,
}

impl Cards<'_> {
    /// No cards: the pod shares none.
    pub const NONE: Self = Self { joined: &[], opened: 0 };
}

/// The log. Operations before the last `Mark` that nobody rolls back to are what the cycle decided.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Statement {
    ops: Vec<Op>,
    cards_at_start: usize,
    group_list_at_start: usize,
}

impl Statement {
    /// Forgets the log; what the tables hold now is the new start.
    pub fn begin(&mut self, tables: &Tables) {
        self.ops.clear();
        self.cards_at_start = tables.gpus.node.len();
        self.group_list_at_start = tables.pods.group_list.len();
    }

    /// The start of the cycle.
    #[must_use]
    pub const fn start(&self) -> Mark {
        Mark { ops: 0, cards: self.cards_at_start, group_list: self.group_list_at_start }
    }

    /// Here.
    #[must_use]
    pub fn mark(&self, tables: &Tables) -> Mark {
        Mark { ops: self.ops.len(), cards: tables.gpus.node.len(), group_list: tables.pods.group_list.len() }
    }

    /// All operations that stand, in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The operations since a mark, in order.
    #[must_use]
    pub fn since(&self, mark: Mark) -> &[Op] {
        &self.ops[mark.ops..]
    }

    /// Gives a waiting pod a node: at once (`Allocated`), or when what is leaving there is gone (`Pipelined`).
    ///
    /// # Panics
    /// If the pod does not wait.
    pub fn place(&mut self, tables: &mut Tables, pod: PodIdx, node: NodeIdx, cards: Cards<'_>, waits: bool, action: Action) {
        let before = tables.pods.placement(pod);
        assert_eq!(before.status, PodStatus::Pending, "only a waiting pod is placed");
        let start = tables.pods.group_list.len();
        tables.pods.group_list.extend_from_slice(cards.joined);
        for _ in 0..cards.opened {
            let group = tables.gpus.open(node);
            tables.pods.group_list.push(group);
        }
        let groups = (cut(start), cut(tables.pods.group_list.len()));
        let status = if waits { PodStatus::Pipelined } else { PodStatus::Allocated };
        let after = Placement { status, node: Some(node), groups };
        shift(tables, pod, before, after);
        self.ops.push(Op { pod, before, after, action });
    }

    /// Turns every pod that was given a node since the mark into one that waits for it (semantics.md §6.1: a gang starts as a
    /// whole).
    pub fn delay_since(&mut self, tables: &mut Tables, mark: Mark) {
        for op in &mut self.ops[mark.ops..] {
            if op.after.status == PodStatus::Allocated {
                let delayed = Placement { status: PodStatus::Pipelined, ..op.after };
                shift(tables, op.pod, op.after, delayed);
                op.after = delayed;
            }
        }
    }

    /// Undoes everything since the mark, last first.
    pub fn rollback(&mut self, tables: &mut Tables, mark: Mark) {
        while self.ops.len() > mark.ops {
            let op = self.ops.pop().expect("the log is longer than the mark");
            shift(tables, op.pod, op.after, op.before);
        }
        while tables.gpus.node.len() > mark.cards {
            tables.gpus.close();
        }
        tables.pods.group_list.truncate(mark.group_list);
    }
}

/// Uncharges one placement of a pod and charges another, in every table.
fn shift(tables: &mut Tables, pod: PodIdx, from: Placement, to: Placement) {
    charge(tables, pod, from, -1);
    charge(tables, pod, to, 1);
    tables.pods.set_placement(pod, to);
}

fn charge(tables: &mut Tables, pod: PodIdx, place: Placement, sign: i64) {
    if let Some(node) = place.node {
        let class = tables.pods.class[pod];
        let groups = std::mem::take(&mut tables.pods.group_list);
        let held = &groups[place.groups.0 as usize..place.groups.1 as usize];
        tables.charge_node(class, node, place.status, held, false, sign);
        tables.pods.group_list = groups;
    }
    if let Some(subgroup) = tables.pods.subgroup[pod] {
        tables.gangs.count(subgroup, place.status, sign);
        tables.charge_queues(pod, place.node, place.status, sign);
    }
}

fn cut(i: usize) -> u32 {
    // `PodIdx` has the range of every list of the tables.
    u32::try_from(PodIdx::new(i).at()).expect("an index is a u32")
}
