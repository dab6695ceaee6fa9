//! Limits and quotas of queues: may a gang hold this much more (semantics.md §6.3)?

use crate::explain::{Bound, Reason};
use crate::index::GangIdx;
use crate::tables::Tables;
use crate::units::{Amounts, Resource, UNLIMITED};

/// Every bound on the gang's path that `asked` more would break, from the leaf up: limits, and for a gang that may not be
/// evicted quotas. A resource that is not asked for breaks nothing.
pub fn broken(tables: &Tables, gang: GangIdx, asked: Amounts, mut found: impl FnMut(Reason)) {
    let Ok(queue) = tables.gangs.queue[gang] else { return };
    let queues = &tables.queues;
    for queue in queues.ancestors(queue) {
        for resource in Resource::ALL.into_iter().filter(|&r| asked[r] > 0) {
            let bound = |bound: i64, held: i64| Bound { queue, resource, bound, held, asked: asked[resource] };
            let limit = bound(queues.limit[queue][resource], queues.allocated[queue][resource]);
            if limit.bound != UNLIMITED && limit.excess() > 0 {
                found(Reason::OverLimit(limit));
            }
            let quota = bound(queues.quota[queue][resource], queues.non_preemptible[queue][resource]);
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
