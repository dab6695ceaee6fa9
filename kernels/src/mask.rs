//! Sets of rows as dense words: fill, combine, count, walk.
//!
//! Plain loops over words: they are element-wise, and the compiler's vectors (AVX2, popcount by shuffle) leave nothing to win.

use crate::lanes::{BLOCK, low_bits};

/// Words of a mask of `rows` rows.
#[must_use]
pub const fn words(rows: usize) -> usize {
    rows.div_ceil(BLOCK)
}

/// Sets the first `rows` bits and clears the rest. Panics if the mask is shorter than that.
pub fn fill(mask: &mut [u64], rows: usize) {
    assert!(rows <= mask.len() * BLOCK, "a mask of {} words holds {rows} rows", mask.len());
    let (full, rest) = mask.split_at_mut(rows / BLOCK);
    full.fill(u64::MAX);
    rest.fill(0);
    if let Some(word) = rest.first_mut() {
        *word = low_bits(rows % BLOCK);
    }
}

/// `dst &= src`. Panics if the lengths differ, as do all functions of two masks.
pub fn and(dst: &mut [u64], src: &[u64]) {
    combine(dst, src, |a, b| a & b);
}

/// `dst &= !src`.
pub fn and_not(dst: &mut [u64], src: &[u64]) {
    combine(dst, src, |a, b| a & !b);
}

/// `dst |= src`.
pub fn or(dst: &mut [u64], src: &[u64]) {
    combine(dst, src, |a, b| a | b);
}

#[inline]
fn combine(dst: &mut [u64], src: &[u64], f: impl Fn(u64, u64) -> u64) {
    assert_eq!(dst.len(), src.len(), "masks of one table have one length");
    for (d, &s) in dst.iter_mut().zip(src) {
        *d = f(*d, s);
    }
}

/// How many rows are set.
#[must_use]
pub fn count(mask: &[u64]) -> usize {
    mask.iter().map(|word| word.count_ones() as usize).sum()
}

/// How many rows are set in both, without writing the intersection.
#[must_use]
pub fn count_and(a: &[u64], b: &[u64]) -> usize {
    assert_eq!(a.len(), b.len(), "masks of one table have one length");
    a.iter().zip(b).map(|(a, b)| (a & b).count_ones() as usize).sum()
}

/// Whether any row is set.
#[must_use]
pub fn any(mask: &[u64]) -> bool {
    mask.iter().any(|&word| word != 0)
}

/// The lowest set row.
#[must_use]
pub fn first(mask: &[u64]) -> Option<usize> {
    let at = mask.iter().position(|&word| word != 0)?;
    Some(at * BLOCK + mask[at].trailing_zeros() as usize)
}

/// Whether row `i` is set. Panics beyond the mask, as do [`set`] and [`clear`].
#[must_use]
#[inline]
pub fn get(mask: &[u64], i: usize) -> bool {
    mask[i / BLOCK] >> (i % BLOCK) & 1 == 1
}

/// Sets row `i`.
#[inline]
pub fn set(mask: &mut [u64], i: usize) {
    mask[i / BLOCK] |= 1 << (i % BLOCK);
}

/// Clears row `i`.
#[inline]
pub fn clear(mask: &mut [u64], i: usize) {
    mask[i / BLOCK] &= !(1 << (i % BLOCK));
}

/// The set rows, ascending.
pub fn ones(mask: &[u64]) -> impl Iterator<Item = usize> + '_ {
    mask.iter().enumerate().flat_map(|(at, &word)| WordOnes { word, base: at * BLOCK })
}

/// Clears the set rows that `good` refuses; it is asked once for each set row, ascending.
pub fn retain(mask: &mut [u64], mut good: impl FnMut(usize) -> bool) {
    for (at, word) in mask.iter_mut().enumerate() {
        for row in (WordOnes { word: *word, base: at * BLOCK }) {
            if !good(row) {
                *word &= !(1 << (row % BLOCK));
            }
        }
    }
}

/// The set bits of one word that starts at row `base`.
struct WordOnes {
    word: u64,
    base: usize,
}

impl Iterator for WordOnes {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.word == 0 {
            return None;
        }
        let bit = self.word.trailing_zeros() as usize;
        self.word &= self.word - 1;
        Some(self.base + bit)
    }
}
