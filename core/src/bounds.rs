//! Limits and quotas of queues: may a gang hold this much more (semantics.md §6.3)?

use crate::explain::{Bound, Reason};
use crate::index::{GangIdx, QueueIdx};
use crate::tables::{Tables, add_signed};
use crate::units::{Amounts, Resource, UNLIMITED};

/// What a queue and all below it hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// All of it.
    pub allocated: Amounts,
    /// The part that may not be evicted.
    pub non_preemptible: Amounts,
}

impl Held {
    /// What counts for a queue as decided: promises do, what is leaving does not.
    #[must_use]
    pub fn of(tables: &Tables, queue: QueueIdx) -> Self {
        let queues = &tables.queues;
        Self { allocated: queues.allocated[queue], non_preemptible: queues.non_preemptible[queue] }
    }

    /// Counts a pod in (`sign` 1) or out (-1).
    pub(crate) fn add(&mut self, charge: Amounts, preemptible: bool, sign: i64) {
        add_signed(&mut self.allocated, charge, sign);
        if !preemptible {
            add_signed(&mut self.non_preemptible, charge, sign);
        }
    }
}

/// Every bound on the gang's path that `asked` more would break, from the leaf up: limits, and for a gang that may not be
/// evicted quotas. A resource that is not asked for breaks nothing.
pub fn broken(tables: &Tables, gang: GangIdx, asked: Amounts, found: impl FnMut(Reason)) {
    broken_beside(tables, gang, asked, |queue| Held::of(tables, queue), found);
}

/// The same beside what the queues are said to hold.
fn broken_beside(tables: &Tables, gang: GangIdx, asked: Amounts, held: impl Fn(QueueIdx) -> Held, mut found: impl FnMut(Reason)) {
    let Ok(queue) = tables.gangs.queue[gang] else { return };
    let queues = &tables.queues;
    for queue in queues.ancestors(queue) {
        let now = held(queue);
        for resource in Resource::ALL.into_iter().filter(|&r| asked[r] > 0) {
            let bound = |bound: i64, held: i64| Bound { queue, resource, bound, held, asked: asked[resource] };
            let limit = bound(queues.limit[queue][resource], now.allocated[resource]);
            if limit.bound != UNLIMITED && limit.excess() > 0 {
                found(Reason::OverLimit(limit));
            }
            let quota = bound(queues.quota[queue][resource], now.non_preemptible[resource]);
            if !tables.gangs.preemptible[gang] && quota.bound != UNLIMITED && quota.excess() > 0 {
                found(Reason::OverQuota(quota));
            }
        }
    }
}

/// Whether no bound would break.
#[must_use]
pub fn allow(tables: &Tables, gang: GangIdx, asked: Amounts) -> bool {
    let mut good = true;
    broken(tables, gang, asked, |_| good = false);
    good
}

/// Whether no bound would break beside what the queues are said to hold.
#[must_use]
pub(crate) fn allow_beside(tables: &Tables, gang: GangIdx, asked: Amounts, held: impl Fn(QueueIdx) -> Held) -> bool {
    let mut good = true;
    broken_beside(tables, gang, asked, held, |_| good = false);
    good
}
