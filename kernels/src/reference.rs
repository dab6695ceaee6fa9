//! The obviously right version of every kernel: one row after the other, nothing clever.
//!
//! For tests and benches. Where a kernel differs from the function of the same name here, the kernel is wrong.

/// Whether row `i` is set.
#[must_use]
pub fn get(mask: &[u64], i: usize) -> bool {
    (mask[i / 64] >> (i % 64)) % 2 == 1
}

/// See [`crate::mask::fill`].
pub fn fill(mask: &mut [u64], rows: usize) {
    for i in 0..mask.len() * 64 {
        put(mask, i, i < rows);
    }
}

/// Sets or clears row `i`.
pub fn put(mask: &mut [u64], i: usize, on: bool) {
    let bit = 1 << (i % 64);
    mask[i / 64] = mask[i / 64] & !bit | if on { bit } else { 0 };
}

/// See [`crate::mask::and`], [`crate::mask::or`], [`crate::mask::and_not`]: row by row with `f`.
pub fn combine(dst: &mut [u64], src: &[u64], f: impl Fn(bool, bool) -> bool) {
    for i in 0..dst.len() * 64 {
        let on = f(get(dst, i), get(src, i));
        put(dst, i, on);
    }
}

/// See [`crate::mask::ones`].
#[must_use]
pub fn ones(mask: &[u64]) -> Vec<usize> {
    (0..mask.len() * 64).filter(|&i| get(mask, i)).collect()
}

/// See [`crate::mask::retain`].
pub fn retain(mask: &mut [u64], mut good: impl FnMut(usize) -> bool) {
    for i in 0..mask.len() * 64 {
        let on = get(mask, i) && good(i);
        put(mask, i, on);
    }
}

/// See [`crate::mask::count`].
#[must_use]
pub fn count(mask: &[u64]) -> usize {
    (0..mask.len() * 64).filter(|&i| get(mask, i)).count()
}

/// See [`crate::mask::count_and`].
#[must_use]
pub fn count_and(a: &[u64], b: &[u64]) -> usize {
    (0..a.len() * 64).filter(|&i| get(a, i) && get(b, i)).count()
}

/// See [`crate::mask::first`].
#[must_use]
pub fn first(mask: &[u64]) -> Option<usize> {
    (0..mask.len() * 64).find(|&i| get(mask, i))
}

/// See [`crate::fit::at_least`].
pub fn at_least(mask: &mut [u64], column: &[i64], need: i64) {
    for i in 0..mask.len() * 64 {
        let on = i < column.len() && get(mask, i) && column[i] >= need;
        put(mask, i, on);
    }
}

/// See [`crate::fit::copies`].
pub fn copies(out: &mut [i64], mask: &[u64], column: &[i64], need: i64) {
    for i in 0..column.len() {
        let fits = if column[i] >= need { column[i] / need } else { 0 };
        out[i] = if get(mask, i) { out[i].min(fits) } else { 0 };
    }
}

/// See [`crate::select::max`].
#[must_use]
pub fn max(column: &[i64]) -> i64 {
    column.iter().copied().max().unwrap_or(i64::MIN)
}

/// See [`crate::select::first_equal`].
#[must_use]
pub fn first_equal(column: &[i64], value: i64) -> Option<usize> {
    column.iter().position(|&cell| cell == value)
}

/// See [`crate::score::keys`].
pub fn keys(out: &mut [i64], feasible: &[u64], flags: &[(&[u64], i64)], level: &[i64]) {
    for i in 0..level.len() {
        out[i] = 0;
        if get(feasible, i) {
            out[i] = level[i];
            for &(flag, value) in flags {
                if get(flag, i) {
                    out[i] = out[i].wrapping_add(value);
                }
            }
        }
    }
}

/// See [`crate::score::pack_levels`].
pub fn pack_levels(out: &mut [i64], x: &[i64], top: i64) {
    for i in 0..x.len() {
        out[i] = if x[i] < 0 {
            top
        } else if x[i] > top - 1 {
            1
        } else {
            top - x[i]
        };
    }
}

/// See [`crate::scan::sum`].
#[must_use]
pub fn sum(column: &[i64]) -> i64 {
    crate::scan::saturate(column.iter().map(|&cell| i128::from(cell)).sum())
}
