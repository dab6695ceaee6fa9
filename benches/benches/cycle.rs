//! Whole cycles and their stages, from rows to the finished plan. Figures: docs/perf/README.md.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use muster_benches::shapes::{Shape, add_pending, empty, nested_queues};
use muster_benches::short;
use muster_core::config::Action;
use muster_core::cycle::Scheduler;
use muster_core::fair_share::{Scratch, divide};
use muster_core::snapshot::{GpuRequest, Snapshot};
use muster_core::tables::Tables;
use muster_core::units::{Amounts, MICRO_PER_GPU};

fn singles(nodes: usize, pending: usize) -> Snapshot {
    let mut rows = empty(nodes);
    add_pending(&mut rows, &[Shape { gpu: GpuRequest::Whole(1), pods: 1 }], pending);
    rows
}

fn mixed(nodes: usize, pending: usize) -> Snapshot {
    let mut rows = empty(nodes);
    let gang = |pods| Shape { gpu: GpuRequest::Whole(8), pods };
    let part = |portion| Shape { gpu: GpuRequest::Fraction { portion, devices: 1 }, pods: 1 };
    let single = |n| Shape { gpu: GpuRequest::Whole(n), pods: 1 };
    let shapes = [single(1), gang(4), part(500_000), single(2), gang(16), part(250_000), single(4)];
    add_pending(&mut rows, &shapes, pending);
    // The actions that evict have a program of their own (victims.rs).
    rows.config.actions = vec![Action::Allocate];
    rows
}

fn cycles(c: &mut Criterion) {
    let mut group = c.benchmark_group("cycle");
    let cases: [(&str, Snapshot); 6] = [
        ("singles/1250x2000", singles(1250, 2000)),
        ("singles/12500x2000", singles(12_500, 2000)),
        ("fill/1250x10000", singles(1250, 10_000)),
        ("overfull/1250x12000", singles(1250, 12_000)),
        ("mixed/1250x2000", mixed(1250, 2000)),
        ("mixed/12500x20000", mixed(12_500, 20_000)),
    ];
    for (name, rows) in &cases {
        group.bench_with_input(BenchmarkId::new("cold", name), rows, |b, rows| {
            b.iter(|| black_box(Scheduler::new(rows).run(&rows.config, &mut |_| {}).decisions.len()));
        });
        let mut scheduler = Scheduler::new(rows);
        group.bench_with_input(BenchmarkId::new("warm", name), rows, |b, rows| {
            b.iter(|| {
                let decisions = scheduler.run(&rows.config, &mut |_| {}).decisions.len();
                scheduler.rewind();
                black_box(decisions)
            });
        });
        group.bench_with_input(BenchmarkId::new("tables", name), rows, |b, rows| b.iter(|| black_box(Tables::load(rows))));
    }
    group.finish();
}

/// The division of the cluster among flat and nested queues, warm.
fn shares(c: &mut Criterion) {
    let mut group = c.benchmark_group("fair share");
    for (roots, below) in [(4, 8), (10, 100), (1000, 0), (100, 100)] {
        let mut queues = nested_queues(roots, below);
        let pie = Amounts::new(1 << 40, 1 << 50, 80_000 * MICRO_PER_GPU);
        let mut scratch = Scratch::default();
        group.bench_function(BenchmarkId::from_parameter(format!("{roots}x{below}")), |b| {
            b.iter(|| divide(black_box(&mut queues), pie, 1.0, &mut scratch));
        });
    }
    group.finish();
}

criterion_group! { name = benches; config = short(); targets = cycles, shares }
criterion_main!(benches);
