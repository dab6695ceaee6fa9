//! The log of tentative operations: the only writer of the tables during a cycle.
//!
//! An operation moves one pod from one placement to another. Every table that a placement is charged to is additive, so undoing
//! is charging the other way round, and undoing everything since a mark is a loop. Property tests hold "apply, then roll back"
//! equal to "nothing" on every column.

use crate::config::Action;
use crate::index::{GroupIdx, Idx, NodeIdx, PodIdx};
use crate::outcome::{Batch, Eviction};
use crate::snapshot::PodStatus;
use crate::tables::pods::{Left, Placement};
use crate::tables::{Tables, holds_node, is_active};

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
    /// Reused by `settle_since`.
    scratch: Vec<Op>,
    evictions: Vec<Eviction>,
    batches: Vec<Batch>,
}

impl Statement {
    /// Forgets the log; what the tables hold now is the new start.
    pub fn begin(&mut self, tables: &Tables) {
        self.ops.clear();
        self.evictions.clear();
        self.batches.clear();
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

    /// For whom and why, one for each operation of a settled turn that tells a pod to leave, in their order.
    #[must_use]
    pub fn evictions(&self) -> &[Eviction] {
        &self.evictions
    }

    /// What was done for whom, in order.
    #[must_use]
    pub fn batches(&self) -> &[Batch] {
        &self.batches
    }

    /// Says for whom and why the next pod of a settled turn was told to leave.
    pub fn account(&mut self, eviction: Eviction) {
        self.evictions.push(eviction);
    }

    /// Says what a settled turn came to.
    pub fn close_batch(&mut self, batch: Batch) {
        self.batches.push(batch);
    }

    /// The operations since a mark, by their place in [`Statement::ops`].
    #[must_use]
    pub const fn positions_since(&self, mark: Mark) -> std::ops::Range<usize> {
        mark.ops..self.ops.len()
    }

    /// The operations since a mark, in order.
    #[must_use]
    pub fn since(&self, mark: Mark) -> &[Op] {
        &self.ops[mark.ops..]
    }

    /// Gives a waiting pod a node: at once (`Allocated`), or when what is leaving there is gone (`Pipelined`). A pod that was
    /// told to leave in this turn only ever waits; if it gets what it has, it stays and was never told (semantics.md §6.0).
    ///
    /// # Panics
    /// If the pod does not wait.
    pub fn place(&mut self, tables: &mut Tables, pod: PodIdx, node: NodeIdx, cards: Cards<'_>, waits: bool, action: Action) {
        assert!(tables.pods.is_waiting(pod), "only a waiting pod is placed");
        let evicted_from = tables.pods.evicted_from[pod];
        if let Some(home) = evicted_from.filter(|home| home.node == Some(node))
            && cards.opened == 0
            && cards.joined == tables.pods.groups_of(home)
        {
            self.push(tables, pod, home, action);
            return;
        }
        let start = tables.pods.group_list.len();
        tables.pods.group_list.extend_from_slice(cards.joined);
        for _ in 0..cards.opened {
            let group = tables.gpus.open(node);
            tables.pods.group_list.push(group);
        }
        let groups = (cut(start), cut(tables.pods.group_list.len()));
        let status = if waits || evicted_from.is_some() { PodStatus::Pipelined } else { PodStatus::Allocated };
        let leaves = evicted_from.and_then(leaves_when_evicted);
        self.push(tables, pod, Placement { status, node: Some(node), groups, leaves }, action);
    }

    /// Tells a pod to leave. One that only has a promise loses it at once; one that is moving loses the place that it was to get
    /// and still leaves the one it has.
    ///
    /// # Panics
    /// If the pod has neither a node nor the promise of one.
    pub fn evict(&mut self, tables: &mut Tables, pod: PodIdx, action: Action) {
        let before = tables.pods.placement(pod);
        assert!(is_active(before.status), "only a pod that has a place or is promised one is told to leave");
        let left = leaves_when_evicted(before);
        let (node, groups) = left.map_or((None, (0, 0)), |left| (Some(left.node), left.groups));
        tables.pods.evicted_from[pod] = Some(before);
        self.push(tables, pod, Placement { status: PodStatus::Releasing, node, groups, leaves: None }, action);
        if let Some(subgroup) = tables.pods.subgroup[pod] {
            tables.pods.line_up_set(subgroup);
        }
    }

    /// Takes back that a pod was told to leave.
    ///
    /// # Panics
    /// If it was not, in this turn.
    pub fn keep(&mut self, tables: &mut Tables, pod: PodIdx, action: Action) {
        let home = tables.pods.evicted_from[pod].expect("only a pod that was told to leave is kept");
        self.push(tables, pod, home, action);
    }

    /// Says what becomes of a pod that was decided on when the plan is carried out: logged like a decision, so that rolling back
    /// takes it back, too.
    pub(crate) fn correct(&mut self, tables: &mut Tables, pod: PodIdx, after: Placement, action: Action) {
        self.push(tables, pod, after, action);
    }

    fn push(&mut self, tables: &mut Tables, pod: PodIdx, after: Placement, action: Action) {
        let before = tables.pods.placement(pod);
        shift(tables, pod, before, after);
        self.ops.push(Op { pod, before, after, action });
    }

    /// Turns every pod that was given a node since the mark into one that waits for it (semantics.md §6.1: a gang starts as a
    /// whole).
    pub fn delay_since(&mut self, tables: &mut Tables, mark: Mark) {
        for op in &mut self.ops[mark.ops..] {
            // Who was told to leave and is where it was starts nothing.
            let stays = tables.pods.evicted_from[op.pod] == Some(op.after);
            if op.after.status == PodStatus::Allocated && !stays {
                let delayed = Placement { status: PodStatus::Pipelined, ..op.after };
                shift(tables, op.pod, op.after, delayed);
                op.after = delayed;
            }
        }
    }

    /// A turn stands: what cancels out in it is dropped, evictions come before the placements that they make possible, and
    /// nobody is movable any more.
    pub fn settle_since(&mut self, tables: &mut Tables, mark: Mark) {
        self.scratch.clear();
        for op in &self.ops[mark.ops..] {
            if let Some(home) = tables.pods.evicted_from[op.pod] {
                let stays = tables.pods.placement(op.pod) == home;
                if !stays && op.before == home {
                    self.scratch.push(*op);
                }
            }
        }
        for op in &self.ops[mark.ops..] {
            let last = tables.pods.placement(op.pod) == op.after;
            let evicted = tables.pods.evicted_from[op.pod];
            if last && op.after.status != PodStatus::Releasing && evicted != Some(op.after) {
                self.scratch.push(*op);
            }
        }
        let evicted = std::mem::take(&mut self.scratch);
        for op in self.ops.drain(mark.ops..) {
            count_movable(tables, op.pod, -1);
            tables.pods.evicted_from[op.pod] = None;
        }
        self.ops.extend_from_slice(&evicted);
        self.scratch = evicted;
    }

    /// Puts the evictions of a turn that was settled in order.
    pub fn order_evictions_since(&mut self, mark: Mark, place: impl Fn(PodIdx) -> usize) {
        let turn = &mut self.ops[mark.ops..];
        let evictions = turn.iter().take_while(|op| op.after.status == PodStatus::Releasing).count();
        turn[..evictions].sort_unstable_by_key(|op| place(op.pod));
    }

    /// Undoes everything since the mark, last first.
    pub fn rollback(&mut self, tables: &mut Tables, mark: Mark) {
        while self.ops.len() > mark.ops {
            let op = self.ops.pop().expect("the log is longer than the mark");
            shift(tables, op.pod, op.after, op.before);
            if tables.pods.evicted_from[op.pod] == Some(op.before) && op.after.status == PodStatus::Releasing {
                tables.pods.evicted_from[op.pod] = None;
            }
        }
        if mark.ops == 0 {
            self.evictions.clear();
            self.batches.clear();
        }
        while tables.gpus.node.len() > mark.cards {
            tables.gpus.close();
        }
        tables.pods.group_list.truncate(mark.group_list);
    }
}

/// What a pod gives up once it is gone that is told to leave a placement: the node it holds, or the one that it leaves already.
fn leaves_when_evicted(home: Placement) -> Option<Left> {
    let held = home.node.filter(|_| holds_node(home.status)).map(|node| Left { node, groups: home.groups });
    held.or(home.leaves)
}

/// Uncharges one placement of a pod and charges another, in every table.
fn shift(tables: &mut Tables, pod: PodIdx, from: Placement, to: Placement) {
    count_movable(tables, pod, -1);
    charge(tables, pod, from, -1);
    charge(tables, pod, to, 1);
    tables.pods.set_placement(pod, to);
    count_movable(tables, pod, 1);
}

/// Counts a pod that looks for another place in or out.
fn count_movable(tables: &mut Tables, pod: PodIdx, sign: i32) {
    if tables.pods.status[pod] == PodStatus::Releasing
        && tables.pods.evicted_from[pod].is_some()
        && let Some(subgroup) = tables.pods.subgroup[pod]
    {
        let movable = &mut tables.gangs.counts[subgroup].movable;
        *movable = movable.checked_add_signed(sign).expect("a pod is counted out only once");
    }
}

fn charge(tables: &mut Tables, pod: PodIdx, place: Placement, sign: i64) {
    let class = tables.pods.class[pod];
    let leaves = place.leaves.map(|left| (left.node, left.groups, PodStatus::Releasing));
    let stays = place.node.map(|node| (node, place.groups, place.status));
    for (node, groups, status) in leaves.into_iter().chain(stays) {
        let list = std::mem::take(&mut tables.pods.group_list);
        tables.charge_node(class, node, status, &list[groups.0 as usize..groups.1 as usize], false, sign);
        tables.pods.group_list = list;
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
