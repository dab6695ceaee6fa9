//! Loading: bytes to rows, whatever has to be decided. Figures: docs/perf/README.md.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use muster_api::read::{Options, load_bytes};
use muster_benches::short;
use muster_testkit::generate::{Cluster, Shape};

/// A cluster as the bytes of a snapshot.
fn snapshot(nodes: u32, fill: f64, pending: u32) -> Vec<u8> {
    let shape = Shape { nodes, racks: nodes.div_ceil(16), fill, pending, ..Shape::default() };
    let cluster = Cluster::new(&shape).expect("the shapes of a bench are legal");
    cluster.write(Vec::new()).expect("memory takes every write")
}

fn loads(c: &mut Criterion) {
    let mut group = c.benchmark_group("load");
    for (name, bytes) in [
        ("empty/1250x2000", snapshot(1250, 0.0, 2000)),
        ("busy/1250x2000", snapshot(1250, 0.85, 2000)),
        ("empty/12500x2000", snapshot(12_500, 0.0, 2000)),
    ] {
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_with_input(BenchmarkId::from_parameter(name), &bytes, |b, bytes| {
            let options = Options { now: None, actions: None, lenient: false, progress: None };
            b.iter(|| black_box(load_bytes("bench", bytes, &options).expect("a generated snapshot is good").names.pods.len()));
        });
    }
    group.finish();
}

criterion_group! { name = benches; config = short(); targets = loads }
criterion_main!(benches);
