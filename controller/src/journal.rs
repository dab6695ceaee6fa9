//! Every eviction on disk, one JSON object a line: who, for whom, by which rule. Written before the pod is told to leave; what
//! cannot be recorded is not done.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// An open journal, or none.
#[derive(Debug, Default)]
pub struct Journal(Option<Mutex<File>>);

impl Journal {
    /// Opens it for appending; without a path nothing is recorded.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let open = |path: &Path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.map(Mutex::new).with_context(|| format!("the eviction journal {} cannot be written", path.display()))
        };
        Ok(Self(path.map(open).transpose()?))
    }

    /// Appends lines, all in one write so that other writers' lines do not come between.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn append(&self, records: &[Value]) -> io::Result<()> {
        let Some(file) = &self.0 else { return Ok(()) };
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        file.lock().unwrap_or_else(PoisonError::into_inner).write_all(lines.as_bytes())
    }
}
