//! Every kernel equals its reference: all lengths around one and two mask words, all alignments, ordinary and extreme numbers.

use muster_kernels::{fit, mask, reference, scan, score, select};
use proptest::prelude::*;

const LENGTHS: std::ops::RangeInclusive<usize> = 0..=130;
const OFFSETS: std::ops::Range<usize> = 0..8;

/// A reproducible sequence (splitmix64): the plain loops need numbers, not distributions.
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Small numbers (many ties), large ones, and the ends of the range.
    fn cell(&mut self) -> i64 {
        let bits = self.next().cast_signed();
        match self.next() % 8 {
            0..=3 => bits.rem_euclid(10) - 2,
            4 => bits >> 20,
            5 => bits,
            6 => i64::MAX - bits.rem_euclid(2),
            _ => i64::MIN + bits.rem_euclid(2),
        }
    }

    fn column(&mut self, rows: usize) -> Vec<i64> {
        (0..rows).map(|_| self.cell()).collect()
    }

    /// Empty, full and mixed words; bits beyond the rows are noise on purpose.
    fn mask(&mut self, words: usize) -> Vec<u64> {
        let word = |seq: &mut Self| match seq.next() % 5 {
            0 => 0,
            1 => u64::MAX,
            2 => seq.next() & seq.next() & seq.next() & seq.next(),
            _ => seq.next(),
        };
        (0..words).map(|_| word(self)).collect()
    }
}

/// One set of arguments; all kernels are called with it.
#[derive(Debug, Clone)]
struct Case {
    column: Vec<i64>,
    out: Vec<i64>,
    masks: [Vec<u64>; 3],
    value: i64,
    worth: [i64; 2],
}

impl Case {
    fn check(&self, offset: usize) {
        let column = &self.column[offset..];
        let out = &self.out[offset..];
        let masks = self.masks.each_ref().map(|mask| &mask[mask.len() - mask::words(column.len())..]);
        self.check_masks(&masks, column.len());
        self.check_fit(column, out, masks[0]);
        self.check_select(column);
        self.check_score(column, out, &masks);
        assert_eq!(scan::sum(column), reference::sum(column));
    }

    fn check_masks(&self, [a, b, _]: &[&[u64]; 3], rows: usize) {
        assert_eq!(a.len(), mask::words(rows));
        let pair = |fast: fn(&mut [u64], &[u64]), slow: fn(bool, bool) -> bool| {
            let (mut is, mut expected) = (a.to_vec(), a.to_vec());
            fast(&mut is, b);
            reference::combine(&mut expected, b, slow);
            assert_eq!(is, expected);
        };
        pair(mask::and, |x, y| x && y);
        pair(mask::and_not, |x, y| x && !y);
        pair(mask::or, |x, y| x || y);
        let (mut is, mut expected) = (a.to_vec(), a.to_vec());
        mask::fill(&mut is, rows);
        reference::fill(&mut expected, rows);
        assert_eq!(is, expected);
        assert_eq!(mask::count(a), reference::count(a));
        assert_eq!(mask::count_and(a, b), reference::count_and(a, b));
        assert_eq!(mask::any(a), reference::first(a).is_some());
        assert_eq!(mask::first(a), reference::first(a));
        assert_eq!(mask::ones(a).collect::<Vec<_>>(), reference::ones(a));
        let (mut kept, mut wanted) = (a.to_vec(), a.to_vec());
        mask::retain(&mut kept, |i| i % 3 != 0);
        reference::retain(&mut wanted, |i| i % 3 != 0);
        assert_eq!(kept, wanted);
        for i in 0..rows {
            assert_eq!(mask::get(a, i), reference::get(a, i));
            for on in [false, true] {
                let (mut is, mut expected) = (a.to_vec(), a.to_vec());
                if on {
                    mask::set(&mut is, i)
                } else {
                    mask::clear(&mut is, i)
                }
                reference::put(&mut expected, i, on);
                assert_eq!(is, expected);
            }
        }
    }

    fn check_fit(&self, column: &[i64], out: &[i64], mask: &[u64]) {
        let (mut is, mut expected) = (mask.to_vec(), mask.to_vec());
        fit::at_least(&mut is, column, self.value);
        reference::at_least(&mut expected, column, self.value);
        assert_eq!(is, expected);

        let need = self.value.saturating_abs().max(1);
        let (mut is, mut expected) = (out.to_vec(), out.to_vec());
        fit::copies(&mut is, mask, column, need);
        reference::copies(&mut expected, mask, column, need);
        assert_eq!(is, expected);
    }

    fn check_select(&self, column: &[i64]) {
        assert_eq!(select::max(column), reference::max(column));
        for value in column.iter().copied().chain([self.value, i64::MIN, i64::MAX]) {
            assert_eq!(select::first_equal(column, value), reference::first_equal(column, value));
        }
    }

    fn check_score(&self, column: &[i64], out: &[i64], [feasible, a, b]: &[&[u64]; 3]) {
        let flags = [(*a, self.worth[0]), (*b, self.worth[1])];
        let level: Vec<_> = column.iter().map(|cell| cell / 4).collect();
        for flags in [&flags[..], &flags[..1], &[]] {
            let (mut is, mut expected) = (out.to_vec(), out.to_vec());
            score::keys(&mut is, feasible, flags, &level);
            reference::keys(&mut expected, feasible, flags, &level);
            assert_eq!(is, expected);
        }
        let top = self.value.saturating_abs().max(1);
        let (mut is, mut expected) = (out.to_vec(), out.to_vec());
        score::pack_levels(&mut is, column, top);
        reference::pack_levels(&mut expected, column, top);
        assert_eq!(is, expected);
    }
}

#[test]
fn every_length_and_alignment() {
    for seed in 0..3 {
        for length in LENGTHS {
            for offset in OFFSETS {
                let mut seq = Sequence(seed << 32 | (length as u64) << 8 | offset as u64);
                let rows = length + offset;
                let case = Case {
                    column: seq.column(rows),
                    out: seq.column(rows),
                    masks: [(); 3].map(|()| seq.mask(mask::words(rows))),
                    value: seq.cell(),
                    worth: [seq.cell(), seq.cell()],
                };
                case.check(offset);
            }
        }
    }
}

/// The best cell in every position of a column that is otherwise flat, and a tie behind it.
#[test]
fn the_lowest_row_wins_ties() {
    for length in LENGTHS {
        for at in 0..length {
            let mut column = vec![i64::MIN; length];
            column[at..].fill(7);
            assert_eq!(select::max(&column), 7);
            assert_eq!(select::first_equal(&column, 7), Some(at));
        }
    }
}

/// All quotients near all powers of two, where a reciprocal that is one off would show.
#[test]
fn copies_divides_exactly() {
    let edges: Vec<i64> =
        (0..63).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]).chain([i64::MAX - 1, i64::MAX]).collect();
    for &need in edges.iter().filter(|&&need| need > 0) {
        let multiple = i64::MAX / need * need;
        let column: Vec<i64> = edges.iter().copied().chain([multiple - 1, multiple, multiple / 2]).collect();
        let mut mask = vec![0; mask::words(column.len())];
        mask::fill(&mut mask, column.len());
        let mut out = vec![i64::MAX; column.len()];
        fit::copies(&mut out, &mask, &column, need);
        for (&out, &cell) in out.iter().zip(&column) {
            assert_eq!(out, cell / need, "{cell} / {need}");
        }
    }
}

#[test]
fn the_level_is_named() {
    assert!(["avx2", "sse2", "neon", "simd128", "scalar"].contains(&muster_kernels::level()));
}

fn cells(rows: usize) -> impl Strategy<Value = Vec<i64>> {
    let cell = prop_oneof![4 => -3..9_i64, 2 => any::<i64>(), 1 => Just(i64::MAX), 1 => Just(i64::MIN)];
    proptest::collection::vec(cell, rows)
}

fn words(rows: usize) -> impl Strategy<Value = Vec<u64>> {
    let word = prop_oneof![3 => any::<u64>(), 1 => Just(0), 1 => Just(u64::MAX), 1 => (0..64_u32).prop_map(|bit| 1 << bit)];
    proptest::collection::vec(word, mask::words(rows))
}

fn cases() -> impl Strategy<Value = Case> {
    (0..400_usize).prop_flat_map(|rows| {
        let value = prop_oneof![-3..9_i64, any::<i64>(), Just(i64::MAX), Just(i64::MIN)];
        let masks = [words(rows), words(rows), words(rows)];
        (cells(rows), cells(rows), masks, value, any::<[i64; 2]>()).prop_map(|(column, out, masks, value, worth)| Case {
            column,
            out,
            masks,
            value,
            worth,
        })
    })
}

proptest! {
    #[test]
    fn any_arguments(case in cases()) {
        case.check(0);
    }
}
