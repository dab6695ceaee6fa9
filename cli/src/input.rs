//! Reading a snapshot: progress while it takes long, then warnings, all on standard error.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use muster_api::read::{self, Loaded, Options, Source};

use crate::args::{Input, Victims};
use crate::fault::{Fault, say};

/// Quicker reads show no progress.
const PATIENCE: Duration = Duration::from_millis(300);
/// More warnings than these are counted only.
const WARNINGS_SHOWN: usize = 50;

/// Loads what the command line names, and says what was odd about it.
pub(crate) fn load(input: &Input) -> Result<Loaded, Fault> {
    let source = match input.snapshot.as_path() {
        path if path == Path::new("-") => Source::Stdin,
        path => Source::Path(PathBuf::from(path)),
    };
    let started = Instant::now();
    let bar = OnceLock::new();
    let show = std::io::stderr().is_terminal();
    let progress = |done: u64, total: u64| {
        if show && started.elapsed() > PATIENCE {
            bar.get_or_init(|| new_bar(total)).set_position(done);
        }
    };
    let options = Options { now: input.now, actions: input.actions.clone(), lenient: input.lenient, progress: Some(&progress) };
    let loaded = read::load(&source, &options);
    if let Some(bar) = bar.get() {
        bar.finish_and_clear();
    }
    let mut loaded = loaded?;
    let victims = &mut loaded.snapshot.config.victims;
    victims.evictions_max = input.max_evictions.or(victims.evictions_max);
    victims.queue_evictions_max = input.max_evictions_per_queue.or(victims.queue_evictions_max);
    victims.fewest = input.victims.map_or(victims.fewest, |policy| policy == Victims::Fewest);
    tell(&loaded);
    Ok(loaded)
}

fn new_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("reading {bar:40} {bytes}/{total_bytes}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Warnings, skipped kinds, objects left out.
pub(crate) fn tell(loaded: &Loaded) {
    for warning in loaded.warnings.iter().take(WARNINGS_SHOWN) {
        say(&format!("warning: {warning}"));
    }
    if let Some(rest) = loaded.warnings.len().checked_sub(WARNINGS_SHOWN).filter(|&rest| rest > 0) {
        say(&format!("warning: … and {rest} more"));
    }
    if !loaded.skipped.is_empty() {
        let kinds: Vec<String> = loaded.skipped.iter().map(|(kind, objects)| format!("{objects} {kind}")).collect();
        say(&format!("skipped kinds that do not matter here: {}", kinds.join(", ")));
    }
    if loaded.left_out > 0 {
        say(&format!("left out (--lenient): {} bad objects or settings", loaded.left_out));
    }
}
