//! The division once more, slow and exact: fractions of 128-bit integers instead of `f64`, maps instead of sorted slices,
//! recursion instead of a list. For tests only; weights, usage and k are small whole numbers of fixed parts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::units::UNLIMITED;

/// Usage is given in eighths of the cluster, k in halves.
pub(super) const USAGE_PARTS: i64 = 8;
pub(super) const K_PARTS: i64 = 2;

/// A queue; the same numbers for every resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) parent: Option<usize>,
    pub(super) priority: i32,
    pub(super) quota: i64,
    pub(super) limit: i64,
    pub(super) weight: i64,
    pub(super) usage: i64,
    pub(super) request: i64,
}

/// A fraction with a positive denominator.
type Fraction = (i128, i128);

fn less(a: Fraction, b: Fraction) -> bool {
    a.0 * b.1 < b.0 * a.1
}

/// Shares of all rows of one resource, of which a row's 1 is `scale`.
pub(super) fn divide(rows: &[Row], pie: i64, scale: i64, unit: i64, k: i64) -> Vec<i64> {
    let mut shares = vec![0; rows.len()];
    below(rows, None, i128::from(pie), [scale, unit, k].map(i128::from), &mut shares);
    shares.into_iter().map(|share| i64::try_from(share).unwrap()).collect()
}

fn below(rows: &[Row], parent: Option<usize>, amount: i128, [scale, unit, k]: [i128; 3], shares: &mut [i128]) {
    let group: Vec<usize> = (0..rows.len()).filter(|&q| rows[q].parent == parent).collect();
    let scaled = |n: i64| i128::from(n) * scale;
    let requestable = |q: usize| {
        let Row { request, limit, .. } = rows[q];
        if limit == UNLIMITED { scaled(request) } else { scaled(request).min(scaled(limit)) }
    };
    let mut rest = amount;
    for &q in &group {
        let quota = if rows[q].quota == UNLIMITED { amount } else { scaled(rows[q].quota) };
        shares[q] = quota.min(requestable(q));
        rest -= shares[q];
    }
    if rest > 0 {
        let mut buckets: BTreeMap<Reverse<i32>, Vec<usize>> = BTreeMap::new();
        for &q in &group {
            buckets.entry(Reverse(rows[q].priority)).or_default().push(q);
        }
        let mut lines = Vec::new();
        for bucket in buckets.values() {
            let mut left = BTreeMap::new();
            while round(rows, bucket, &requestable, &mut rest, unit, k, shares, &mut left) && rest != 0 {}
            lines.push(left);
        }
        for mut left in lines {
            while rest > 0 && !left.is_empty() {
                // The first of the largest: maps iterate by index.
                let next = left.iter().fold(None, |best: Option<(usize, Fraction)>, (&q, &fraction)| match best {
                    Some((_, largest)) if !less(largest, fraction) => best,
                    _ => Some((q, fraction)),
                });
                let (q, _) = next.unwrap();
                left.remove(&q);
                let give = unit.min(rest);
                shares[q] += give;
                rest -= give;
            }
        }
    }
    for &q in &group {
        below(rows, Some(q), shares[q], [scale, unit, k], shares);
    }
}

/// One round of pass 2; whether there is another.
#[expect(clippy::too_many_arguments, reason = "the reference keeps the rule's own variables")]
fn round(
    rows: &[Row],
    bucket: &[usize],
    requestable: &impl Fn(usize) -> i128,
    rest: &mut i128,
    unit: i128,
    k: i128,
    shares: &mut [i128],
    left: &mut BTreeMap<usize, Fraction>,
) -> bool {
    let unsatisfied: Vec<usize> = bucket.iter().copied().filter(|&q| requestable(q) > shares[q]).collect();
    let weights: i128 = unsatisfied.iter().map(|&q| i128::from(rows[q].weight)).sum();
    if weights == 0 {
        return false;
    }
    // w(q) = n + k (n - u) with n = weight / W, times W, the parts of k and the parts of usage; W may be negative.
    let (k_parts, usage_parts) = (i128::from(K_PARTS), i128::from(USAGE_PARTS));
    let w = |q: usize| {
        let (weight, usage) = (i128::from(rows[q].weight), i128::from(rows[q].usage));
        (weights.signum() * (weight * (k_parts + k) * usage_parts - k * usage * weights)).max(0)
    };
    let total: i128 = unsatisfied.iter().map(|&q| w(q)).sum();
    if total == 0 {
        return false;
    }
    let (base, mut again) = (*rest, false);
    for q in unsatisfied {
        if *rest == 0 {
            break;
        }
        if rows[q].weight == 0 {
            continue;
        }
        let want = requestable(q) - shares[q];
        let proportion = (base * w(q), total);
        let give = if !less(proportion, (want, 1)) {
            left.remove(&q);
            want
        } else {
            let units = proportion.0 / (total * unit);
            let withheld = proportion.0 - units * total * unit;
            if withheld > 0 {
                left.insert(q, (withheld, total));
            }
            units * unit
        };
        if give > 0 {
            shares[q] += give;
            *rest -= give;
            again |= less((want, 1), proportion);
        }
    }
    again
}
