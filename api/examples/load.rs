//! Loads an input several times and prints the fastest time: `cargo run --release -p muster-api --example load -- FILE [TIMES]`.

use std::path::PathBuf;
use std::time::Instant;

use muster_api::read::{Options, Source, load};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().expect("a file"));
    let times: u32 = arguments.next().map_or(5, |text| text.parse().expect("a number"));
    let mut best = f64::INFINITY;
    for _ in 0..times {
        let start = Instant::now();
        let loaded = load(&Source::Path(path.clone()), &Options { lenient: true, ..Options::default() });
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        best = best.min(milliseconds);
        match loaded {
            Err(failure) => return println!("{failure}"),
            Ok(loaded) if best >= milliseconds => {
                let snapshot = &loaded.snapshot;
                println!(
                    "{milliseconds:.1} ms: {} nodes, {} pods, {} gangs, {} queues, {} classes, {} labels",
                    snapshot.nodes.len(),
                    snapshot.pods.len(),
                    snapshot.gangs.len(),
                    snapshot.queues.len(),
                    snapshot.classes.len(),
                    snapshot.labels.len(),
                );
                for warning in loaded.warnings.iter().take(5) {
                    println!("  {warning}");
                }
            }
            Ok(_) => {}
        }
    }
}
