//! Every eviction on disk, one JSON object a line: who, for whom, by which rule. Written before the pod is told to leave; what
//! cannot be recorded is not done.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
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
            let file = whole_lines(path);
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

/// Opens it. Whoever was killed while it wrote a record has not told that pod to leave: what there is of the record goes.
fn whole_lines(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let mut end = file.metadata()?.len();
    let mut piece = [0; 4096];
    while end > 0 {
        let from = end.saturating_sub(piece.len() as u64);
        let piece = &mut piece[..usize::try_from(end - from).unwrap_or(0)];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(piece)?;
        if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
            end = from + at as u64 + 1;
            break;
        }
        end = from;
    }
    if end < file.metadata()?.len() {
        tracing::warn!(journal = %path.display(), "ended in the middle of a record; that eviction was not carried out");
        file.set_len(end)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn half_a_record_goes_and_whole_ones_stay() {
        let folder = std::env::temp_dir().join(format!("muster-journal-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("journal");
        let long = "x".repeat(9000);
        for (before, kept) in [
            (String::new(), String::new()),
            ("{\"a\":1}\n".to_owned(), "{\"a\":1}\n".to_owned()),
            ("{\"a\":1}\n{\"b".to_owned(), "{\"a\":1}\n".to_owned()),
            (format!("{{\"a\":1}}\n{long}"), "{\"a\":1}\n".to_owned()),
            (format!("{long}\n{long}"), format!("{long}\n")),
            (long.clone(), String::new()),
        ] {
            fs::write(&path, &before).expect("written");
            let journal = Journal::open(Some(&path)).expect("open");
            journal.append(&[json!({"c": 2})]).expect("appended");
            assert_eq!(fs::read_to_string(&path).expect("read"), format!("{kept}{{\"c\":2}}\n"));
        }
        fs::remove_dir_all(&folder).expect("removed");
    }
}
