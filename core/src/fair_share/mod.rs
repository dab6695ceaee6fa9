//! Fair share: how much of the cluster each queue may count on, from quotas, weights, priorities and what it asks for.
//!
//! [`divide`] walks the tree from the roots and writes [`Queues::fair_share`]; the arithmetic of one group of siblings, one
//! resource at a time, is in `division`. [`allocatable_share`] is what order and reclaim compare with afterwards.
//!
//! Rules: semantics.md §3.2–§3.5. Not known here: nodes, gangs, how requests and usage were found out, or who is served next.

mod division;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::index::QueueIdx;
use crate::tables::queues::Queues;
use crate::units::{Amounts, Resource, UNLIMITED};
use division::Sibling;

/// Memory that divisions use again: a warm one allocates nothing. Its content never matters to a result.
#[derive(Default, Debug)]
pub struct Scratch {
    /// The tree, parents before children.
    order: Vec<QueueIdx>,
    /// The group that is divided now, highest priority first.
    siblings: Vec<Sibling>,
    /// Positions in one priority of `siblings`: those still in want, or in line for a leftover.
    line: Vec<usize>,
}

/// Divides `pie` among the root queues, and each queue's share among its children; all resources apart (semantics.md §3.3,
/// §3.4). Reads everything but the ledgers of `queues`, writes `fair_share`.
///
/// `k_value` weighs historical usage; negative counts as 0 (§3.5). A negative cell of `pie`, which foreign pods on a full node
/// can cause, counts as 0.
pub fn divide(queues: &mut Queues, pie: Amounts, k_value: f64, scratch: &mut Scratch) {
    let k_value = k_value.max(0.0);
    scratch.order.clear();
    scratch.order.extend_from_slice(&queues.roots);
    divide_group(queues, None, pie.zip(Amounts::ZERO, i64::max), k_value, scratch);
    let mut next = 0;
    while let Some(&queue) = scratch.order.get(next) {
        next += 1;
        if !queues.is_leaf(queue) {
            scratch.order.extend_from_slice(queues.children_of(queue));
            divide_group(queues, Some(queue), queues.fair_share[queue], k_value, scratch);
        }
    }
}

/// Divides `amounts` among the children of `parent`, or the roots.
fn divide_group(queues: &mut Queues, parent: Option<QueueIdx>, amounts: Amounts, k_value: f64, scratch: &mut Scratch) {
    let group = parent.map_or(&queues.roots[..], |queue| queues.children_of(queue));
    let siblings = &mut scratch.siblings;
    siblings.clear();
    siblings.extend(group.iter().map(|&queue| Sibling::new(queue, queues.priority[queue])));
    siblings.sort_unstable_by_key(Sibling::rank);
    for resource in Resource::ALL {
        for sibling in siblings.iter_mut() {
            sibling.load(queues, resource, amounts[resource]);
        }
        division::divide(siblings, amounts[resource], resource.share_unit(), k_value, &mut scratch.line);
        for sibling in siblings.iter() {
            queues.fair_share[sibling.queue()][resource] = sibling.share();
        }
    }
}

/// What a queue may hold before it counts as above its share: at least its quota, at most its limit (semantics.md §3.2).
#[must_use]
pub fn allocatable_share(quota: Amounts, limit: Amounts, fair_share: Amounts) -> Amounts {
    let deserved = quota.zip(fair_share, |quota, share| if quota == UNLIMITED { UNLIMITED } else { quota.max(share) });
    deserved.zip(limit, i64::min)
}
