//! Sums, extremes and counts of whole columns.

use wide::i64x4;

use crate::lanes::{BLOCK, check_mask, lanes_of, low_bits, padded, vectors};

/// The exact sum, cut to `i64::MIN..=i64::MAX` at the very end: independent of the order of the rows.
/// Measured: 0.15 ns a row, 3.4 times the reference.
#[must_use]
pub fn sum(column: &[i64]) -> i64 {
    let (blocks, tail) = column.as_chunks::<BLOCK>();
    let mut total = WideSum::default();
    for block in blocks {
        vectors(block).for_each(|cells| total.add(cells));
    }
    total.finish(tail.iter().map(|&cell| i128::from(cell)).sum())
}

/// As [`sum`], of the set rows only.
/// Measured: 0.25 ns a row, 20 times the reference (4 times where its branches are predicted).
#[must_use]
pub fn sum_masked(column: &[i64], mask: &[u64]) -> i64 {
    check_mask(mask, column.len());
    let (blocks, tail) = column.as_chunks::<BLOCK>();
    let mut total = WideSum::default();
    for (block, &word) in blocks.iter().zip(mask) {
        if word != 0 {
            vectors(block).zip(lanes_of(word)).for_each(|(cells, on)| total.add(cells & on));
        }
    }
    if let ([.., word], [_, ..]) = (mask, tail) {
        let word = word & low_bits(tail.len());
        let cells = padded(tail, 0);
        vectors(&cells).zip(lanes_of(word)).for_each(|(cells, on)| total.add(cells & on));
    }
    total.finish(0)
}

/// A sum that cannot overflow, in lanes: with the sign bit flipped a cell is an unsigned number 2^63 too large; its two halves
/// are summed apart, which has room for 2^32 cells a lane (a table has fewer rows), and put together in 128 bits.
#[derive(Default)]
struct WideSum {
    low: i64x4,
    high: i64x4,
    cells: i64,
}

impl WideSum {
    #[inline]
    fn add(&mut self, cells: i64x4) {
        let raised = (cells ^ i64x4::splat(i64::MIN)).cast_unsigned();
        self.low += (raised & wide::u64x4::splat(u64::from(u32::MAX))).cast_signed();
        self.high += (raised >> 32_u32).cast_signed();
        self.cells += 4;
    }

    fn finish(self, more: i128) -> i64 {
        let lanes = |lanes: i64x4| lanes.to_array().into_iter().map(i128::from).sum::<i128>();
        let total = (lanes(self.high) << 32) + lanes(self.low) - (i128::from(self.cells) << 63) + more;
        saturate(total)
    }
}

/// Cut to what an `i64` holds.
pub(crate) fn saturate(total: i128) -> i64 {
    i64::try_from(total).unwrap_or(if total < 0 { i64::MIN } else { i64::MAX })
}

/// The smallest and the largest cell; `None` for an empty column.
///
/// A plain loop: the compiler's vectors were 1.3 times as fast as lanes of `wide`.
#[must_use]
pub fn min_max(column: &[i64]) -> Option<(i64, i64)> {
    let &first = column.first()?;
    Some(column.iter().fold((first, first), |(low, high), &cell| (low.min(cell), high.max(cell))))
}

/// How many rows have `column[i] >= need`.
/// Measured: 0.12 ns a row, 1.1 times the reference, which the compiler vectorises too.
#[must_use]
pub fn count_at_least(column: &[i64], need: i64) -> usize {
    let need_lanes = i64x4::splat(need);
    let (blocks, tail) = column.as_chunks::<BLOCK>();
    // A lane that is too small counts -1.
    let mut short = [i64x4::ZERO; 2];
    for block in blocks {
        for (i, cells) in vectors(block).enumerate() {
            short[i % 2] += need_lanes.simd_gt(cells);
        }
    }
    let short = usize::try_from(-(short[0] + short[1]).reduce_add()).expect("a count is not negative");
    blocks.len() * BLOCK - short + tail.iter().filter(|&&cell| cell >= need).count()
}
