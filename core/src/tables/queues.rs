//! Queues: the tree, its bounds, and the ledger of what each queue holds.
//!
//! Not known here: nodes, pods, gangs. Charges come in as [`Amounts`].

use crate::index::{Col, Idx, QueueIdx, Span};
use crate::snapshot::QueueRow;
use crate::units::Amounts;

/// A position in [`Queues::members`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MemberIdx(u32);

impl Idx for MemberIdx {
    fn new(i: usize) -> Self {
        Self(u32::try_from(i).expect("a table has at most u32::MAX rows"))
    }
    fn at(self) -> usize {
        self.0 as usize
    }
}

/// One row a queue. All amounts: millicores, bytes, micro-GPU.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Queues {
    /// The queue above. Fixed.
    pub parent: Col<QueueIdx, Option<QueueIdx>>,
    /// The queues below, a range of `members`; empty for a leaf. Fixed.
    pub children: Col<QueueIdx, Span<MemberIdx>>,
    /// Children of all queues, in index order inside a span. Fixed.
    pub members: Col<MemberIdx, QueueIdx>,
    /// Queues without parent, in index order. Fixed.
    pub roots: Vec<QueueIdx>,
    /// Higher is served first. Fixed.
    pub priority: Col<QueueIdx, i32>,
    /// What the queue deserves; may be unlimited. Fixed.
    pub quota: Col<QueueIdx, Amounts>,
    /// What it may hold at most; may be unlimited. Fixed.
    pub limit: Col<QueueIdx, Amounts>,
    /// Over-quota weight (cpu, memory, gpu). Fixed.
    pub weight: Col<QueueIdx, [f64; 3]>,
    /// Historical usage, a share of the cluster (cpu, memory, gpu). Fixed.
    pub usage: Col<QueueIdx, [f64; 3]>,
    /// How long gangs are not preempted after they started, in nanoseconds. Fixed.
    pub preempt_min_runtime: Col<QueueIdx, Option<i64>>,
    /// How long gangs are not reclaimed after they started, in nanoseconds. Fixed.
    pub reclaim_min_runtime: Col<QueueIdx, Option<i64>>,
    /// Held or waited for, by the queue and all below it, at the start of the cycle. Written by `tables`.
    pub requested: Col<QueueIdx, Amounts>,
    /// Result of the division. Written by `fair_share`.
    pub fair_share: Col<QueueIdx, Amounts>,
    /// Held, by the queue and all below it. Written by `tables` and by the statement.
    pub allocated: Col<QueueIdx, Amounts>,
    /// The part of `allocated` that may not be evicted. Written by `tables` and by the statement.
    pub non_preemptible: Col<QueueIdx, Amounts>,
}

impl Queues {
    /// The tree and its bounds; nothing held yet. Panics if a parent is no row or the rows are cyclic.
    pub fn load(&mut self, rows: &Col<QueueIdx, QueueRow>) {
        let n = rows.len();
        self.parent.clear();
        self.priority.clear();
        self.quota.clear();
        self.limit.clear();
        self.weight.clear();
        self.usage.clear();
        for row in rows.iter() {
            self.parent.push(row.parent);
            self.priority.push(row.priority);
            self.quota.push(row.quota);
            self.limit.push(row.limit);
            self.weight.push(row.weight);
            self.usage.push(row.usage);
            self.preempt_min_runtime.push(row.preempt_min_runtime);
            self.reclaim_min_runtime.push(row.reclaim_min_runtime);
        }
        for column in [&mut self.requested, &mut self.fair_share, &mut self.allocated, &mut self.non_preemptible] {
            column.reset(n, Amounts::ZERO);
        }
        self.link();
    }

    /// Lists every queue's children in index order: counts, prefix sums, fill.
    fn link(&mut self) {
        let n = self.parent.len();
        let mut next = vec![0; n + 1];
        self.roots.clear();
        for (q, parent) in self.parent.entries() {
            assert!(self.ancestors(q).take(n + 1).count() <= n, "queues are acyclic");
            match parent {
                Some(p) => next[p.at() + 1] += 1,
                None => self.roots.push(q),
            }
        }
        for i in 0..n {
            next[i + 1] += next[i];
        }
        self.children = (0..n).map(|i| Span::new(next[i], next[i + 1])).collect();
        self.members.reset(next[n], QueueIdx::new(0));
        for q in (0..n).map(QueueIdx::new) {
            if let Some(p) = self.parent[q] {
                self.members[MemberIdx::new(next[p.at()])] = q;
                next[p.at()] += 1;
            }
        }
    }

    /// The queues directly below, in index order.
    #[must_use]
    pub fn children_of(&self, queue: QueueIdx) -> &[QueueIdx] {
        self.members.range(self.children[queue])
    }

    /// Whether gangs can be served in it.
    #[must_use]
    pub fn is_leaf(&self, queue: QueueIdx) -> bool {
        self.children[queue].is_empty()
    }

    /// How many queues are above it.
    #[must_use]
    pub fn level(&self, queue: QueueIdx) -> usize {
        self.ancestors(queue).count() - 1
    }

    /// The two queues where the paths from the roots to `a` and `b` part; where one path ends on the other, the deepest common
    /// level of both (semantics.md §6.6.2).
    #[must_use]
    pub fn parting(&self, a: QueueIdx, b: QueueIdx) -> (QueueIdx, QueueIdx) {
        let (level_a, level_b) = (self.level(a), self.level(b));
        let common = level_a.min(level_b);
        let lift = |queue, levels: usize| self.ancestors(queue).nth(levels).unwrap_or(queue);
        let (mut a, mut b) = (lift(a, level_a - common), lift(b, level_b - common));
        while let (Some(above_a), Some(above_b)) = (self.parent[a], self.parent[b]) {
            if above_a == above_b {
                break;
            }
            (a, b) = (above_a, above_b);
        }
        (a, b)
    }

    /// The queue itself, then the ones above it up to its root.
    pub fn ancestors(&self, queue: QueueIdx) -> impl Iterator<Item = QueueIdx> + '_ {
        std::iter::successors(Some(queue), |&q| self.parent[q])
    }
}
