//! The rules of the house that no compiler checks. Each rule is a function from text, or from cargo's metadata, to offences;
//! this file only feeds them and sorts what they find. `CONTRIBUTING.md` says why the rules are there.

mod docs;
mod edges;
mod ratchet;
mod source;
mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use self::ratchet::Ratchet;
use crate::repo::Repo;

/// Something that has to change before a commit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Offence {
    /// Relative to the root.
    pub(crate) path: String,
    /// From 1.
    pub(crate) line: usize,
    /// What is wrong, and what to do.
    pub(crate) message: String,
}

impl Offence {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

/// The files whose long functions and long files are tolerated up to a size.
const RATCHET: &str = "xtask/tidy-ratchet.txt";

/// All offences in the work tree, sorted. Fails if something cannot be read.
pub(crate) fn check(repo: &Repo) -> Result<Vec<Offence>> {
    let mut offences = edges::check(&repo.metadata);
    let ratchet_text = fs::read_to_string(repo.root.join(RATCHET)).with_context(|| format!("cannot read {RATCHET}"))?;
    let mut ratchet = Ratchet::parse(RATCHET, &ratchet_text, &mut offences);
    let roots = crate_roots(repo);
    let paths = files(&repo.root)?;
    let mut sources = Vec::new();
    for path in &paths {
        let name = relative(&repo.root, path);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => sources.push((name, read(path)?)),
            Some("md") => docs::check_links(&repo.root, &name, &read(path)?, &mut offences),
            Some("py" | "sh" | "toml") => text::check_marks(&name, &read(path)?, &mut offences),
            _ => {}
        }
    }
    let tests = source::test_files(&sources);
    for (name, text) in &sources {
        text::check_rust(name, text, &mut ratchet, &mut offences);
        text::check_marks(name, text, &mut offences);
        let file = source::File { path: name, text, is_root: roots.contains(name), is_test: tests.contains(name) };
        source::check(&file, &mut ratchet, &mut offences);
    }
    ratchet.finish(&mut offences);
    docs::check_dependencies(&repo.root, &repo.metadata, &mut offences)?;
    docs::check_quirks(&repo.root, &mut offences)?;
    offences.sort();
    offences.dedup();
    Ok(offences)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Prints offences one a line, then their number.
pub(crate) fn print(offences: &[Offence]) {
    for Offence { path, line, message } in offences {
        println!("{path}:{line}: {message}");
    }
    println!("tidy: {} offences", offences.len());
}

/// `cargo xtask tidy`.
pub(crate) fn report(repo: &Repo) -> Result<ExitCode> {
    let offences = check(repo)?;
    print(&offences);
    Ok(if offences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All files of the work tree, sorted, but those in hidden folders and in `target`.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            if kind.is_dir() && !name.starts_with('.') && name != "target" {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
}

/// The files with which libraries and programs of the workspace begin.
fn crate_roots(repo: &Repo) -> Vec<String> {
    let packages = repo.metadata.workspace_packages();
    let targets = packages.iter().flat_map(|package| &package.targets);
    let roots = targets.filter(|target| target.is_lib() || target.is_bin() || target.is_proc_macro());
    roots.map(|target| relative(&repo.root, target.src_path.as_std_path())).collect()
}
