//! Whole cycles of all five actions on full clusters, warm: from tables to the finished plan, and back. Every run is held to what
//! its scenario must decide. Figures: docs/perf/README.md.

use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};
use muster_benches::short;
use muster_benches::victims::{Scenario, frag, hopeless, large, many, preempt, reclaim};
use muster_core::cycle::Scheduler;

/// Makes a scenario with so many nodes.
type Make = fn(usize) -> Scenario;

fn cycles(c: &mut Criterion) {
    let mut group = c.benchmark_group("victims");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    let scenarios: [(Make, [usize; 2]); 6] = [
        (large, [125, 1250]),
        (many, [125, 500]),
        (hopeless, [125, 1250]),
        (reclaim, [125, 1250]),
        (preempt, [125, 1250]),
        (frag, [125, 1250]),
    ];
    for (scenario, sizes) in scenarios {
        for scenario in sizes.map(scenario) {
            let rows = &scenario.rows;
            let mut scheduler = Scheduler::new(rows);
            let first = scenario.judge(scheduler.run(&rows.config, &mut |_| {}));
            scheduler.rewind();
            println!("{}: {} placed, {} evicted, {} moved", scenario.name, first.placed, first.evicted, first.moved);
            group.bench_with_input(BenchmarkId::from_parameter(&scenario.name), &scenario, |b, scenario| {
                b.iter(|| {
                    let decided = scenario.judge(scheduler.run(&rows.config, &mut |_| {}));
                    assert_eq!(decided, first, "{}: a warm cycle decides as the first did", scenario.name);
                    scheduler.rewind();
                });
            });
        }
    }
    group.finish();
}

criterion_group! { name = benches; config = short(); targets = cycles }
criterion_main!(benches);
