//! Which gang is next: a tree of queues with a heap of gangs in each leaf (semantics.md §4.1, §4.2, §4.4).
//!
//! A queue is compared with its siblings by its own ledger and by its best gang, so after a decision only the queues on one path
//! have to be looked at again. Where KAI's order depends on the layout of its heaps, the first queue wins (creation, name).

use std::cmp::{Ordering, Reverse};

use crate::config::Config;
use crate::fair_share::allocatable_share;
use crate::index::{Col, GangIdx, QueueIdx};
use crate::tables::Tables;
use crate::tables::queues::Queues;
use crate::units::{Amounts, MICRO_PER_GPU, Resource, UNLIMITED};

/// A gang's place in its leaf; smaller is first.
pub(crate) type Turn = (Reverse<i32>, u8, GangIdx);

/// What a queue is compared by; see [`Standing::before`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Semantics.md §4.1, steps 1 to 4, from the highest bits down; less is first.
    class: u64,
    share_with_next: f64,
    share: f64,
    allocatable: Amounts,
}

/// The gangs that wait for their turn.
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// Waiting gangs of each leaf, a min-heap.
    heaps: Col<QueueIdx, Vec<Turn>>,
    /// The best gang of the queue or of any queue below it, and what it would take next.
    best: Col<QueueIdx, Option<(GangIdx, Amounts)>>,
    standing: Col<QueueIdx, Option<Standing>>,
    /// Whose turn it is.
    turn: Option<GangIdx>,
}

impl Order {
    /// Whose turn it is.
    #[must_use]
    pub const fn at_turn(&self) -> Option<GangIdx> {
        self.turn
    }

    /// Lines up `gangs`, each in its leaf queue. `next` is what a gang would take at its next turn.
    pub fn begin(
        &mut self,
        tables: &Tables,
        config: &Config,
        gangs: impl Iterator<Item = GangIdx>,
        next: impl Fn(GangIdx) -> Amounts,
    ) {
        let queues = tables.queues.parent.len();
        for heap in self.heaps.as_mut_slice() {
            heap.clear();
        }
        while self.heaps.len() < queues {
            self.heaps.push(Vec::new());
        }
        self.best.reset(queues, None);
        self.standing.reset(queues, None);
        for gang in gangs {
            let queue = tables.gangs.queue[gang].expect("only gangs with a queue are lined up");
            self.heaps[queue].push(turn(tables, config, gang));
        }
        for &root in &tables.queues.roots {
            self.line_up(tables, config, root, &next);
        }
    }

    fn line_up(&mut self, tables: &Tables, config: &Config, queue: QueueIdx, next: &impl Fn(GangIdx) -> Amounts) {
        for &child in tables.queues.children_of(queue) {
            self.line_up(tables, config, child, next);
        }
        // A sorted list is a heap.
        self.heaps[queue].sort_unstable();
        self.refresh(tables, config, queue, next);
    }

    /// Keeps the first `depth` gangs of each leaf; the others are given to `dropped`.
    pub fn cut(&mut self, depth: usize, mut dropped: impl FnMut(QueueIdx, GangIdx)) {
        for queue in self.heaps.indices() {
            let heap = &mut self.heaps[queue];
            while heap.len() > depth {
                let (.., gang) = heap.pop().expect("the heap is longer than its bound");
                dropped(queue, gang);
            }
        }
    }

    /// The gang whose turn it is; it leaves the line. Its path must be refreshed with [`Order::settle`] before the next `pop`.
    pub fn pop(&mut self, tables: &Tables, config: &Config) -> Option<GangIdx> {
        self.turn = None;
        let mut queue = self.first(config, &tables.queues.roots)?;
        while !tables.queues.is_leaf(queue) {
            queue = self.first(config, tables.queues.children_of(queue)).expect("a queue in line has one below it in line");
        }
        let heap = &mut self.heaps[queue];
        let (.., gang) = heap.first().copied()?;
        let last = heap.len() - 1;
        heap.swap(0, last);
        heap.pop();
        sift_down(heap);
        self.turn = Some(gang);
        Some(gang)
    }

    /// Puts a gang back in line, with the place that it has now.
    pub fn push(&mut self, tables: &Tables, config: &Config, gang: GangIdx) {
        let queue = tables.gangs.queue[gang].expect("only gangs with a queue are lined up");
        let heap = &mut self.heaps[queue];
        heap.push(turn(tables, config, gang));
        sift_up(heap);
    }

    /// Looks again at the queues above a gang, after it had its turn.
    pub fn settle(&mut self, tables: &Tables, config: &Config, gang: GangIdx, next: impl Fn(GangIdx) -> Amounts) {
        let queue = tables.gangs.queue[gang].expect("only gangs with a queue are lined up");
        for queue in tables.queues.ancestors(queue) {
            self.refresh(tables, config, queue, &next);
        }
    }

    fn refresh(&mut self, tables: &Tables, config: &Config, queue: QueueIdx, next: &impl Fn(GangIdx) -> Amounts) {
        self.best[queue] = if tables.queues.is_leaf(queue) {
            self.heaps[queue].first().map(|&(.., gang)| (gang, next(gang)))
        } else {
            self.first(config, tables.queues.children_of(queue)).and_then(|child| self.best[child])
        };
        self.standing[queue] = self.best[queue].map(|(_, asks)| Standing::of(tables, queue, asks));
    }

    /// The queue that is served first among siblings; `None` if none of them has a gang in line.
    fn first(&self, config: &Config, siblings: &[QueueIdx]) -> Option<QueueIdx> {
        first(&self.standing, config, siblings)
    }
}

/// The queue that is served first among siblings of which some stand in line; without plugin `proportion` the first one.
pub(crate) fn first(standing: &Col<QueueIdx, Option<Standing>>, config: &Config, siblings: &[QueueIdx]) -> Option<QueueIdx> {
    let mut first: Option<(QueueIdx, &Standing)> = None;
    for &queue in siblings {
        let Some(standing) = &standing[queue] else { continue };
        if first.is_none_or(|(_, best)| config.plugins.proportion && standing.before(best) == Ordering::Less) {
            first = Some((queue, standing));
        }
    }
    first.map(|(queue, _)| queue)
}

pub(crate) fn turn(tables: &Tables, config: &Config, gang: GangIdx) -> Turn {
    let priority = if config.plugins.priority { tables.gangs.priority[gang] } else { 0 };
    let elastic = if config.plugins.elastic { tables.gangs.elastic_rank(gang) } else { 0 };
    (Reverse(priority), elastic, gang)
}

impl Standing {
    /// How a queue stands as a giver that held `held` when the search began; `given` is what the leaf in it that would give next
    /// gave so far, and what it would give next (semantics.md §4.4, victim mode).
    pub(crate) fn of_victims(tables: &Tables, queue: QueueIdx, held: Amounts, given: Amounts) -> Self {
        let mut standing = Self::of_holder(tables, queue, held, Amounts::ZERO);
        standing.give(tables, held, given);
        standing
    }

    /// The queue would have given something else.
    pub(crate) fn give(&mut self, tables: &Tables, held: Amounts, given: Amounts) {
        self.share_with_next = dominant_share(held - given, self.allocatable, tables.pie);
    }

    pub(crate) fn of(tables: &Tables, queue: QueueIdx, asks: Amounts) -> Self {
        Self::of_holder(tables, queue, tables.queues.allocated[queue], asks)
    }

    fn of_holder(tables: &Tables, queue: QueueIdx, held: Amounts, asks: Amounts) -> Self {
        let Queues { fair_share, quota, limit, priority, .. } = &tables.queues;
        let deserved = quota[queue];
        let with_next = held + asks;
        let allocatable = allocatable_share(deserved, limit[queue], fair_share[queue]);
        let over_utilised = Resource::ALL.iter().all(|&r| fair_share[queue][r] < held[r]);
        let starved = with_next.fits(deserved);
        let takes_what_it_has_no_share_of = Resource::ALL.iter().any(|&r| allocatable[r] == 0 && with_next[r] > 0);
        // Higher priorities are first: as an unsigned number, counted down.
        let priority = u64::from(priority[queue].cast_unsigned() ^ i32::MIN.cast_unsigned());
        Self {
            class: u64::from(over_utilised) << 34
                | u64::from(!starved) << 33
                | (u64::from(u32::MAX) - priority) << 1
                | u64::from(takes_what_it_has_no_share_of),
            share_with_next: dominant_share(with_next, allocatable, tables.pie),
            share: dominant_share(held, allocatable, tables.pie),
            allocatable,
        }
    }

    /// Semantics.md §4.1, steps 1 to 7; `Equal` leaves it to the order of the queues.
    pub(crate) fn before(&self, other: &Self) -> Ordering {
        self.class
            .cmp(&other.class)
            .then_with(|| self.share_with_next.total_cmp(&other.share_with_next))
            .then_with(|| self.share.total_cmp(&other.share))
            .then_with(|| match (self.allocatable.fits(other.allocatable), other.allocatable.fits(self.allocatable)) {
                (true, false) => Ordering::Less,
                (false, true) => Ordering::Greater,
                _ => Ordering::Equal,
            })
    }
}

/// The largest part of its share that a queue holds of any resource: no share counts a thousandfold, an unlimited one is the
/// whole pie (semantics.md §4.1, step 5). The result is a ratio ≥ 0.
fn dominant_share(held: Amounts, allocatable: Amounts, pie: Amounts) -> f64 {
    Resource::ALL.iter().fold(0.0, |largest: f64, &r| {
        let unit = if r == Resource::Gpu { MICRO_PER_GPU } else { 1 };
        let of = if allocatable[r] == UNLIMITED { pie[r] } else { allocatable[r] };
        #[expect(clippy::cast_precision_loss, reason = "KAI's rule is a ratio of floats")]
        let (held, of) = (held[r] as f64 / unit as f64, of as f64 / unit as f64);
        largest.max(if of == 0.0 { held * 1000.0 } else { held / of })
    })
}

fn sift_down(heap: &mut [Turn]) {
    let mut at = 0;
    loop {
        let Some(child) = (2 * at + 1..heap.len().min(2 * at + 3)).min_by_key(|&i| heap[i]) else { return };
        if heap[at] <= heap[child] {
            return;
        }
        heap.swap(at, child);
        at = child;
    }
}

fn sift_up(heap: &mut [Turn]) {
    let mut at = heap.len() - 1;
    while at > 0 && heap[at] < heap[(at - 1) / 2] {
        heap.swap(at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
}
