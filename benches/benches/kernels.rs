//! Each kernel against its reference, at 1,024, 16,384 and 131,072 rows.
//!
//! Not known here: whether the results are right (that is `kernels/tests`). Times are for whole columns; the throughput line
//! is rows a second.

#![forbid(unsafe_code)]

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use muster_kernels::{fit, mask, reference, scan, score, select};

const ROWS: [usize; 3] = [1_024, 16_384, 131_072];

/// Columns as a cluster has them: a few hundred distinct values, masks of which about half of the rows are set.
struct Data {
    column: Vec<i64>,
    masks: [Vec<u64>; 3],
    sparse: Vec<u64>,
}

impl Data {
    fn new(rows: usize) -> Self {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut column = || (0..rows).map(|_| (next() % 400).cast_signed() * 1_000).collect::<Vec<_>>();
        let column = column();
        let mut word = || next() << 33 ^ next() << 11 ^ next();
        let mut words = || (0..mask::words(rows)).map(|_| word()).collect::<Vec<_>>();
        let masks = [words(), words(), words()];
        let sparse = words().iter().map(|word| if word % 8 == 0 { *word } else { 0 }).collect();
        Self { column, masks, sparse }
    }
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// The kernel and its reference, side by side.
fn pair<A, B>(group: &mut Group, name: &str, mut kernel: impl FnMut() -> A, mut slow: impl FnMut() -> B) {
    group.bench_function(format!("{name}/kernel"), |b| b.iter(&mut kernel));
    group.bench_function(format!("{name}/reference"), |b| b.iter(&mut slow));
}

fn kernels(c: &mut Criterion) {
    println!("vectors: {}", muster_kernels::level());
    for rows in ROWS {
        let data = Data::new(rows);
        let mut group = c.benchmark_group(rows.to_string());
        group.throughput(Throughput::Elements(rows as u64));
        masks(&mut group, &data);
        fits(&mut group, &data);
        selections(&mut group, &data);
        scores(&mut group, &data);
        scans(&mut group, &data);
        group.finish();
    }
}

fn masks(group: &mut Group, data: &Data) {
    let [a, b, _] = &data.masks;
    let (mut x, mut y) = (a.clone(), a.clone());
    pair(group, "mask_and", || mask::and(&mut x, black_box(b)), || reference::combine(&mut y, black_box(b), |p, q| p && q));
    pair(group, "mask_count", || mask::count(black_box(a)), || reference::count(black_box(a)));
    let total = |rows: &mut dyn Iterator<Item = usize>| rows.sum::<usize>();
    let sparse = &data.sparse;
    pair(group, "mask_ones", || total(&mut mask::ones(black_box(a))), || total(&mut reference::ones(black_box(a)).into_iter()));
    let slow = || total(&mut reference::ones(black_box(sparse)).into_iter());
    pair(group, "mask_ones_sparse", || total(&mut mask::ones(black_box(sparse))), slow);
}

fn fits(group: &mut Group, data: &Data) {
    // The mask is copied first, or there would be nothing left to look at the second time.
    let (column, [a, ..]) = (&data.column, &data.masks);
    let (mut x, mut y) = (a.clone(), a.clone());
    let fast = || {
        x.copy_from_slice(a);
        fit::at_least(&mut x, black_box(column), 200_000);
    };
    let slow = || {
        y.copy_from_slice(a);
        reference::at_least(&mut y, black_box(column), 200_000);
    };
    pair(group, "at_least", fast, slow);
    let (mut x, mut y) = (vec![i64::MAX; column.len()], vec![i64::MAX; column.len()]);
    let fast = || fit::copies(&mut x, a, black_box(column), 7_000);
    pair(group, "copies", fast, || reference::copies(&mut y, a, black_box(column), black_box(7_000)));
}

fn selections(group: &mut Group, data: &Data) {
    let c = || black_box(&data.column);
    pair(group, "max", || select::max(c()), || reference::max(c()));
    pair(group, "first_equal", || select::first_equal(c(), -1), || reference::first_equal(c(), -1));
}

fn scores(group: &mut Group, data: &Data) {
    let (column, [feasible, a, b], mut x) = (&data.column, &data.masks, vec![0; data.column.len()]);
    let mut y = x.clone();
    let full = vec![u64::MAX; a.len()];
    for (name, flags) in [
        ("keys_2_mixed", [(&a[..], 1 << 40), (&b[..], 1 << 41)]),
        ("keys_2_uniform", [(&full[..], 1 << 40), (&full[..], 1 << 41)]),
    ] {
        let slow = || reference::keys(&mut y, feasible, black_box(&flags), column);
        pair(group, name, || score::keys(&mut x, feasible, black_box(&flags), column), slow);
    }
    let slow = || reference::pack_levels(&mut y, black_box(column), 300_000);
    pair(group, "pack_levels", || score::pack_levels(&mut x, black_box(column), 300_000), slow);
}

fn scans(group: &mut Group, data: &Data) {
    let c = || black_box(&data.column);
    pair(group, "sum", || scan::sum(c()), || reference::sum(c()));
}

criterion_group! {
    name = benches;
    config = muster_benches::short();
    targets = kernels
}
criterion_main!(benches);
