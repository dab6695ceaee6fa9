//! One amount of one resource, divided among siblings in three passes: what is guaranteed, what is over by priority and weight,
//! and the leftovers of rounding (semantics.md §3.3).
//!
//! Amounts are integers in the resource's own unit; `f64` appears only in the share formula, whose result is turned into an
//! integer at once ([`Portion`]). Not known here: the tree, and which resource this is.

use std::cmp::Reverse;

use crate::index::QueueIdx;
use crate::tables::queues::Queues;
use crate::units::{Resource, UNLIMITED};

/// One queue of the group that is divided, with what counts for the resource at hand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sibling {
    queue: QueueIdx,
    priority: i32,
    guaranteed: i64,
    requestable: i64,
    weight: f64,
    usage: f64,
    share: i64,
    /// The part of a unit that rounding down withheld; `None` when nothing was.
    leftover: Option<Leftover>,
}

/// A fraction of a unit in steps of 2⁻³⁰: coarser than the noise of the formula, so that leftovers that are equal on paper are
/// equal here and go by index (semantics.md N13).
type Leftover = u32;

/// Relative error of one term of the share formula: each is rounded a few times, and the sum of weights once for each sibling.
const NOISE: f64 = 8.0 * f64::EPSILON;

/// How strongly a queue asks for its part, and by how much that number may be wrong. What usage cancels on paper is 0 here.
#[derive(Clone, Copy, Default)]
struct Claim {
    size: f64,
    noise: f64,
}

impl std::iter::Sum for Claim {
    fn sum<I: Iterator<Item = Self>>(claims: I) -> Self {
        claims.fold(Self::default(), |sum, claim| Self { size: sum.size + claim.size, noise: sum.noise + claim.noise })
    }
}

impl Sibling {
    pub(super) fn new(queue: QueueIdx, priority: i32) -> Self {
        Self { queue, priority, guaranteed: 0, requestable: 0, weight: 0.0, usage: 0.0, share: 0, leftover: None }
    }

    /// Highest priority first, then by index.
    pub(super) fn rank(&self) -> (Reverse<i32>, QueueIdx) {
        (Reverse(self.priority), self.queue)
    }

    /// Takes the queue's cells for `resource`, of which the group has `amount`.
    pub(super) fn load(&mut self, queues: &Queues, resource: Resource, amount: i64) {
        let queue = self.queue;
        let quota = queues.quota[queue][resource];
        self.guaranteed = if quota == UNLIMITED { amount } else { quota };
        self.requestable = queues.requested[queue][resource].min(queues.limit[queue][resource]);
        self.weight = queues.weight[queue][resource as usize];
        self.usage = queues.usage[queue][resource as usize];
        self.share = 0;
        self.leftover = None;
    }

    pub(super) fn queue(&self) -> QueueIdx {
        self.queue
    }

    pub(super) fn share(&self) -> i64 {
        self.share
    }

    /// What it could still use; not positive once it is satisfied.
    fn want(&self) -> i64 {
        self.requestable.saturating_sub(self.share)
    }

    /// Its claim on what is over; `weights` is the sum over the siblings still in want.
    fn claim(&self, weights: f64, k_value: f64) -> Claim {
        let normal = self.weight / weights;
        let size = normal + k_value * (normal - self.usage);
        let noise = NOISE * (normal.abs() + k_value * (normal.abs() + self.usage.abs()));
        Claim { size: if size > noise { size } else { 0.0 }, noise }
    }

    fn give(&mut self, amount: i64, remaining: &mut i64) {
        self.share = self.share.saturating_add(amount);
        *remaining = remaining.saturating_sub(amount);
    }
}

/// Divides `amount` among `siblings`, which are in the order of their [`Sibling::rank`] and freshly loaded. Shares over quota are
/// whole multiples of `unit`, unless they satisfy the queue. The guaranteed parts are given even if they exceed the amount.
pub(super) fn divide(siblings: &mut [Sibling], amount: i64, unit: i64, k_value: f64, line: &mut Vec<usize>) {
    let mut remaining = amount;
    for sibling in siblings.iter_mut() {
        sibling.give(sibling.guaranteed.min(sibling.requestable), &mut remaining);
    }
    if remaining <= 0 {
        return;
    }
    for bucket in siblings.chunk_by_mut(|a, b| a.priority == b.priority) {
        share_over_quota(bucket, &mut remaining, unit, k_value, line);
    }
    for bucket in siblings.chunk_by_mut(|a, b| a.priority == b.priority) {
        share_leftovers(bucket, &mut remaining, unit, line);
    }
}

/// Rounds over one priority, by weight, until nobody gets less than its proportion for want of want. What a queue does not want
/// goes to the others in the next round; what rounding withholds stays in `remaining`, for lower priorities first.
fn share_over_quota(bucket: &mut [Sibling], remaining: &mut i64, unit: i64, k_value: f64, in_want: &mut Vec<usize>) {
    in_want.clear();
    in_want.extend(0..bucket.len());
    loop {
        in_want.retain(|&i| bucket[i].want() > 0);
        let weights: f64 = in_want.iter().map(|&i| bucket[i].weight).sum();
        if weights == 0.0 {
            return;
        }
        let total: Claim = in_want.iter().map(|&i| bucket[i].claim(weights, k_value)).sum();
        if total.size == 0.0 {
            return;
        }
        let base = *remaining;
        let mut again = false;
        for &i in in_want.iter() {
            let sibling = &mut bucket[i];
            if sibling.weight == 0.0 {
                continue;
            }
            let portion = Portion::new(base, sibling.claim(weights, k_value), total, unit, sibling.want());
            if portion.satisfies {
                sibling.leftover = None;
            } else if portion.leftover.is_some() {
                sibling.leftover = portion.leftover;
            }
            if portion.give > 0 {
                sibling.give(portion.give.min(*remaining), remaining);
                again |= portion.exceeds;
            }
            if *remaining == 0 {
                return;
            }
        }
        if !again {
            return;
        }
    }
}

/// One unit, or what remains, to each queue of one priority that rounding withheld something from: the largest leftover first,
/// then by index.
fn share_leftovers(bucket: &mut [Sibling], remaining: &mut i64, unit: i64, line: &mut Vec<usize>) {
    line.clear();
    line.extend((0..bucket.len()).filter(|&i| bucket[i].leftover.is_some()));
    line.sort_unstable_by_key(|&i| (Reverse(bucket[i].leftover), i));
    for &i in line.iter() {
        if *remaining <= 0 {
            return;
        }
        bucket[i].give(unit.min(*remaining), remaining);
    }
}

/// What a queue's proportion of an amount comes to.
struct Portion {
    /// All of the want, or whole units.
    give: i64,
    /// The proportion covers the want.
    satisfies: bool,
    /// The proportion is more than the want.
    exceeds: bool,
    leftover: Option<Leftover>,
}

impl Portion {
    /// The part of `base` that `claim` is of `total`, for a queue that wants `want` > 0. A proportion within noise of the want,
    /// or of a whole number of units, counts as that number (semantics.md N13).
    fn new(base: i64, claim: Claim, total: Claim, unit: i64, want: i64) -> Self {
        if claim.size == 0.0 {
            return Self { give: 0, satisfies: false, exceeds: false, leftover: None };
        }
        let part = claim.size / total.size;
        let proportion = base as f64 * part;
        let noise = base as f64 * (NOISE * part + (claim.noise + part * total.noise) / total.size);
        let difference = proportion - want as f64;
        let close = difference.abs() <= noise;
        if close || difference > 0.0 {
            return Self { give: want, satisfies: true, exceeds: !close, leftover: None };
        }
        let (units, noise) = (proportion / unit as f64, noise / unit as f64);
        let nearest = units.round();
        if (units - nearest).abs() <= noise {
            return Self { give: whole(nearest).saturating_mul(unit), satisfies: false, exceeds: false, leftover: None };
        }
        let full = units.floor();
        let leftover = (units > full).then(|| steps(units - full));
        Self { give: whole(full).saturating_mul(unit), satisfies: false, exceeds: false, leftover }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "integral already; what an i64 cannot hold is cut to its ends, NaN to 0")]
fn whole(units: f64) -> i64 {
    units as i64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1 in steps of 2⁻³⁰ is 0 to 2³⁰")]
fn steps(fraction: f64) -> Leftover {
    (fraction * f64::from(1_u32 << 30)).round() as Leftover
}
