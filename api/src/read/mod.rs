//! Bytes → [`Loaded`]: a snapshot of a scheduler, or manifests, whatever they are wrapped in.
//!
//! What an input is, its content says: zip, gzip, JSON or YAML; a JSON object with one of a snapshot's keys is a snapshot,
//! everything else is read as manifests. Objects are decoded one by one, in parallel, so that a bad one is one line and does not
//! stop the others. Where bytes come from and how they are packed is known here and below only.

mod decode;
mod manifest;
mod objects;
mod snapshot;
mod unpack;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use muster_core::snapshot::Snapshot;
use serde_json::Value;

use crate::assemble::{Facts, assemble};
use crate::names::Names;
use crate::problem::{Failure, Findings, Problem, Problems, Subject, show_json};
use crate::settings::Settings;
use objects::Sorted;

/// How to read.
#[derive(Default)]
pub struct Options<'a> {
    /// The clock; stands in for the input's own `now` and the wall clock.
    pub now: Option<Timestamp>,
    /// Actions to run instead of `config.actions`.
    pub actions: Option<Vec<String>>,
    /// Leave bad objects and settings out instead of refusing the input.
    pub lenient: bool,
    /// Told of progress: bytes done, bytes in all. Called from several threads.
    pub progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
}

/// Where an input is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A file, or a folder of manifests.
    Path(PathBuf),
    /// Standard input.
    Stdin,
}

/// A cluster, ready for a cycle.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    /// Rows.
    pub snapshot: Snapshot,
    /// Names of the rows.
    pub names: Names,
    /// The clock of the cycle.
    pub now: Timestamp,
    /// What is odd but legal; for a lenient reader also what was wrong. Sorted.
    pub warnings: Vec<Problem>,
    /// Kinds of objects that nothing was done with, with counts, sorted.
    pub skipped: Vec<(String, usize)>,
    /// Objects left out because they are bad (lenient only).
    pub left_out: usize,
}

/// Reads an input.
///
/// # Errors
/// [`Failure::Unreadable`] if the input as a whole cannot be read; [`Failure::Bad`] if objects or settings are wrong and
/// `options` are not lenient.
pub fn load(source: &Source, options: &Options<'_>) -> Result<Loaded, Failure> {
    let name = match source {
        Source::Stdin => "standard input".to_owned(),
        Source::Path(path) => path.display().to_string(),
    };
    let loaded = match source {
        Source::Stdin => {
            unpack::read_whole(&name, &mut std::io::stdin().lock(), 0).and_then(|bytes| load_text(&name, &bytes, options))
        }
        Source::Path(path) if path.is_dir() => load_folder(path, options),
        Source::Path(path) => read_file(path).and_then(|bytes| load_text(&name, &bytes, options)),
    };
    loaded.map_err(|failure| failure.summed_up(&name))
}

/// Reads an input that is in memory; `name` is for messages.
///
/// # Errors
/// As [`load`].
pub fn load_bytes(name: &str, bytes: &[u8], options: &Options<'_>) -> Result<Loaded, Failure> {
    load_text(name, bytes, options).map_err(|failure| failure.summed_up(name))
}

fn load_text(name: &str, bytes: &[u8], options: &Options<'_>) -> Result<Loaded, Failure> {
    let text = unpack::text_of(name, bytes, options.progress)?;
    let ticker = Ticker::new(options.progress, text.len() as u64);
    let (mut sorted, mut findings) = (Sorted::default(), Findings::default());
    match sort(name, &text, &mut sorted, &mut findings)? {
        Content::Nothing => Err(Failure::Unreadable(format!("{name}: the input is empty"))),
        Content::Snapshot(parts) => parts.load(name, options, &ticker),
        Content::Manifests if sorted.is_empty() && findings.bad.is_empty() => {
            Err(Failure::Unreadable(format!("{name}: no Kubernetes object in it")))
        }
        Content::Manifests => finish(name, options, Input { sorted, ..Input::manifests() }, &mut findings, &ticker),
    }
}

/// What a text turned out to be.
enum Content<'a> {
    Nothing,
    Snapshot(Box<snapshot::Parts<'a>>),
    /// Sorted already.
    Manifests,
}

/// Tells what a text is, and sorts its objects if it holds manifests.
fn sort<'a>(name: &str, text: &'a [u8], sorted: &mut Sorted<'a>, findings: &mut Findings) -> Result<Content<'a>, Failure> {
    match text.trim_ascii_start().first() {
        None => return Ok(Content::Nothing),
        Some(b'{') => match sort_json(name, text) {
            Ok(snapshot::Split::Snapshot(parts)) => return Ok(Content::Snapshot(parts)),
            Ok(snapshot::Split::Manifests(found)) => {
                sorted.append(found);
                return Ok(Content::Manifests);
            }
            // YAML may begin with an object in JSON's form.
            Err(_) if manifest::has_markers(text) => {}
            Err(failure) => return Err(failure),
        },
        Some(_) => {}
    }
    manifest::split_yaml(name, unpack::utf8(name, text)?, sorted, findings);
    Ok(Content::Manifests)
}

fn sort_json<'a>(name: &str, text: &'a [u8]) -> Result<snapshot::Split<'a>, Failure> {
    let mut split = snapshot::split(name, text)?;
    if let snapshot::Split::Manifests(sorted) = &mut split {
        manifest::split_json(name, text, sorted)?;
    }
    Ok(split)
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let unreadable = |error: std::io::Error| Failure::Unreadable(format!("{}: {error}", path.display()));
    let mut file = std::fs::File::open(path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    unpack::read_whole(&path.display().to_string(), &mut file, bytes)
}

fn load_folder(folder: &Path, options: &Options<'_>) -> Result<Loaded, Failure> {
    let name = folder.display().to_string();
    let mut paths = Vec::new();
    manifest_files(folder, 0, &mut paths)?;
    if paths.is_empty() {
        return Err(Failure::Unreadable(format!("{name}: no .yaml, .yml or .json file in this folder")));
    }
    let mut texts = Vec::new();
    for path in &paths {
        let file = path.display().to_string();
        texts.push((unpack::text_of(&file, &read_file(path)?, None)?.into_owned(), file));
    }
    let (mut sorted, mut findings) = (Sorted::default(), Findings::default());
    for (text, file) in &texts {
        if let Content::Snapshot(_) = sort(file, text, &mut sorted, &mut findings)? {
            let message = format!("{file}: a snapshot inside a folder of manifests; name the file itself");
            return Err(Failure::Unreadable(message));
        }
    }
    let bytes = texts.iter().map(|(text, _)| text.len() as u64).sum();
    let ticker = Ticker::new(options.progress, bytes);
    finish(&name, options, Input { sorted, ..Input::manifests() }, &mut findings, &ticker)
}

/// Manifest files below a folder, sorted by path. Hidden ones are left alone, and folders that are links.
fn manifest_files(folder: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> Result<(), Failure> {
    const MAX_DEPTH: usize = 32;
    let unreadable = |error: std::io::Error| Failure::Unreadable(format!("{}: {error}", folder.display()));
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        entries.push(entry.map_err(unreadable)?);
    }
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let is_folder = entry.file_type().map_err(unreadable)?.is_dir();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if is_folder && !hidden && depth < MAX_DEPTH {
            manifest_files(&path, depth + 1, paths)?;
        } else if !is_folder && !hidden && matches!(extension, "yaml" | "yml" | "json") && path.is_file() {
            paths.push(path);
        }
    }
    Ok(())
}

/// Objects by kind with what else an input says.
struct Input<'a> {
    sorted: Sorted<'a>,
    config: Option<Value>,
    params: Option<Value>,
    now: Option<Value>,
    /// Manifests are rarely a whole cluster: what is not among them is not missing.
    manifests: bool,
}

impl Input<'_> {
    fn manifests() -> Self {
        Self { sorted: Sorted::default(), config: None, params: None, now: None, manifests: true }
    }
}

/// Everything after splitting: settings, objects, rows.
fn finish(
    name: &str,
    options: &Options<'_>,
    input: Input<'_>,
    findings: &mut Findings,
    ticker: &Ticker<'_>,
) -> Result<Loaded, Failure> {
    let unparsed = findings.bad.len();
    let settings = Settings::read(input.config.as_ref(), input.params.as_ref(), options.actions.as_deref(), findings);
    let now = clock(options, input.now.as_ref(), findings);
    if input.manifests {
        input.sorted.warn_of_nothing_known(findings);
    }
    let mut facts = Facts::default();
    let mut left_out = unparsed + input.sorted.read(&settings, &mut facts, findings, ticker);
    if input.manifests && facts.config_maps.as_ref().is_some_and(|maps| maps.is_empty()) {
        facts.config_maps = None;
    }
    let assembled = assemble(facts, &settings, now, findings);
    left_out += assembled.left_out;
    let mut warnings = std::mem::take(&mut findings.warnings);
    if options.lenient {
        warnings.append(&mut findings.bad);
    } else if !findings.bad.is_empty() {
        return Err(Failure::Bad(Problems::new(std::mem::take(&mut findings.bad), name)));
    }
    warnings.sort();
    Ok(Loaded {
        snapshot: assembled.snapshot,
        names: assembled.names,
        now,
        warnings,
        skipped: input.sorted.skipped.into_iter().collect(),
        left_out,
    })
}

fn clock(options: &Options<'_>, given: Option<&Value>, findings: &mut Findings) -> Timestamp {
    if let Some(now) = options.now {
        return now;
    }
    match given {
        None | Some(Value::Null) => Timestamp::now(),
        Some(value) => value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
            findings.bad(Subject::setting("now"), "", show_json(value), "a time such as 2026-01-01T00:00:00Z (RFC 3339)");
            Timestamp::now()
        }),
    }
}

/// Counts bytes for [`Options::progress`].
struct Ticker<'a> {
    progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
    done: AtomicU64,
    total: u64,
}

impl<'a> Ticker<'a> {
    fn new(progress: Option<&'a (dyn Fn(u64, u64) + Sync)>, total: u64) -> Self {
        Self { progress, done: AtomicU64::new(0), total }
    }

    fn tick(&self, bytes: usize) {
        if let Some(progress) = self.progress {
            let done = self.done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
            progress(done.min(self.total), self.total);
        }
    }
}
