//! What the kernels share: blocks of 64 rows (one mask word), and the way from mask bits to lanes and back.

use wide::i64x4;

/// Rows in a block: the bits of one mask word.
pub(crate) const BLOCK: usize = 64;
/// Rows in a vector.
pub(crate) const LANES: usize = 4;
/// One block of a column.
pub(crate) type Block = [i64; BLOCK];

/// Panics unless `mask` is a mask of `rows` rows.
#[inline]
pub(crate) fn check_mask(mask: &[u64], rows: usize) {
    assert_eq!(mask.len(), rows.div_ceil(BLOCK), "a mask has one bit for each of the column's {rows} rows");
}

/// Panics unless a second column has as many rows as the first.
#[inline]
pub(crate) fn check_rows(column: &[i64], rows: usize) {
    assert_eq!(column.len(), rows, "columns of one table have one length");
}

/// The block as vectors, in row order.
#[inline]
pub(crate) fn vectors(block: &Block) -> impl Iterator<Item = i64x4> + '_ {
    block.as_chunks::<LANES>().0.iter().map(|&cells| i64x4::new(cells))
}

/// Fewer than 64 rows, filled up to a block.
#[inline]
pub(crate) fn padded(tail: &[i64], filler: i64) -> Block {
    let mut block = [filler; BLOCK];
    block[..tail.len()].copy_from_slice(tail);
    block
}

/// A word with the first `rows` bits set, for `rows` < 64.
#[inline]
pub(crate) const fn low_bits(rows: usize) -> u64 {
    (1 << rows) - 1
}

/// The bit of each row of a block, as vectors. Testing one word against this table costs two instructions a vector; shifting
/// the word into place instead made a sum of the set rows 1.5 times slower.
const ROW_BITS: [i64x4; BLOCK / LANES] = {
    let mut bits = [i64x4::ZERO; BLOCK / LANES];
    let mut group = 0;
    while group < bits.len() {
        let first = group * LANES;
        bits[group] = i64x4::new([1 << first, 1 << (first + 1), 1 << (first + 2), 1 << (first + 3)]);
        group += 1;
    }
    bits
};

/// For each vector of a block: all bits of a lane set where the mask bit is.
#[inline]
pub(crate) fn lanes_of(word: u64) -> impl Iterator<Item = i64x4> {
    let word = i64x4::splat(word.cast_signed());
    ROW_BITS.iter().map(move |&bits| (word & bits).simd_eq(bits))
}

/// Bit `i` set where lane `i` is.
#[inline]
pub(crate) fn bits_of(lanes: i64x4) -> u64 {
    u64::from(lanes.to_bitmask())
}
