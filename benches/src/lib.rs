//! What the benches share: short settings, and a sampling profiler for `--profile-time`.
//!
//! `cargo bench -p muster-benches --bench kernels -- --profile-time 5 at_least` writes `profile.pb` (for `go tool pprof -top`)
//! and `flame.svg` under `target/criterion/<bench>/profile/`. Not known here: what is measured.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod shapes;
pub mod victims;

use std::error::Error;
use std::ffi::c_int;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use criterion::Criterion;
use criterion::profiler::Profiler;
use pprof::protos::Message;
use pprof::{ProfilerGuard, ProfilerGuardBuilder};

/// Samples a second; kernel timers give few more (measured: 174 where 997 were asked for).
const SAMPLES_PER_SECOND: c_int = 199;

/// Criterion with short times (a bench takes under a second) and the profiler.
#[must_use]
pub fn short() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .with_profiler(Sampler::default())
}

/// Samples stacks while criterion runs a bench with `--profile-time`.
#[derive(Default)]
pub struct Sampler {
    running: Option<ProfilerGuard<'static>>,
}

impl Profiler for Sampler {
    fn start_profiling(&mut self, bench: &str, _folder: &Path) {
        match ProfilerGuardBuilder::default().frequency(SAMPLES_PER_SECOND).build() {
            Ok(guard) => self.running = Some(guard),
            Err(error) => eprintln!("no profile of {bench}: {error}"),
        }
    }

    fn stop_profiling(&mut self, bench: &str, folder: &Path) {
        if let Some(guard) = self.running.take()
            && let Err(error) = write(&guard, folder)
        {
            eprintln!("no profile of {bench} in {}: {error}", folder.display());
        }
    }
}

fn write(guard: &ProfilerGuard, folder: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let report = guard.report().build()?;
    fs::write(folder.join("profile.pb"), report.pprof()?.encode_to_vec())?;
    report.flamegraph(File::create(folder.join("flame.svg"))?)?;
    Ok(())
}
