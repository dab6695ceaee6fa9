//! What an earlier run left behind because it was killed with SIGKILL: its processes and its folder.
//!
//! A folder names the process that owns it. Of a folder whose owner is gone, exactly those processes are ended that were started
//! with this folder on their command line.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Name of the file with the owner's process id.
const OWNER: &str = "owner";
/// Such a folder stays although nobody owns it.
const KEPT: &str = "kept";

/// Makes a folder below `parent` that belongs to this process.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn own_folder(parent: &Path) -> Result<PathBuf> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = parent.join(format!("run-{}-{number}", std::process::id()));
    if folder.exists() {
        // Of an earlier process that had the same id.
        clear(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(folder.join(OWNER), std::process::id().to_string())?;
    Ok(folder)
}

/// Marks a folder as one to leave alone.
pub(crate) fn keep(folder: &Path) -> Result<()> {
    Ok(fs::write(folder.join(KEPT), "")?)
}

/// Ends and removes what runs of owners that are gone have left below `parent`. Returns the folders.
///
/// # Errors
/// If a folder cannot be read or removed.
pub fn clear_all(parent: &Path) -> Result<Vec<PathBuf>> {
    let mut cleared = Vec::new();
    let Ok(entries) = fs::read_dir(parent) else { return Ok(cleared) };
    for entry in entries {
        let folder = entry?.path();
        let Ok(owner) = fs::read_to_string(folder.join(OWNER)) else { continue };
        let alive = Path::new("/proc").join(owner.trim()).exists();
        if !alive && !folder.join(KEPT).exists() {
            clear(&folder)?;
            cleared.push(folder);
        }
    }
    Ok(cleared)
}

/// Ends what runs with this folder on its command line and removes it.
///
/// # Errors
/// If the folder cannot be removed.
pub fn clear(folder: &Path) -> Result<()> {
    for pid in users_of(folder) {
        let _ = kill_process(pid, Signal::KILL);
    }
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

fn users_of(folder: &Path) -> Vec<Pid> {
    let needle = format!("{}/", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else { continue };
        let own = u32::try_from(pid.as_raw_nonzero().get()).is_ok_and(|id| id == std::process::id());
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if !own && String::from_utf8_lossy(&line).contains(&needle) {
            found.push(pid);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_what_belongs_to_an_owner_that_is_gone_is_ended() {
        let parent = std::env::temp_dir().join(format!("muster-leftover-{}", std::process::id()));
        let mine = own_folder(&parent).expect("a folder");
        let stale = parent.join("run-of-nobody");
        fs::create_dir_all(&stale).expect("a folder");
        let mut gone = Command::new("true").spawn().expect("true");
        gone.wait().expect("an end");
        fs::write(stale.join(OWNER), gone.id().to_string()).expect("a file");
        let sleeper = |folder: &Path| {
            let script = format!("sleep 60; : {}/x", folder.display());
            Command::new("sh").args(["-c", &script]).spawn().expect("sh")
        };
        let (mut left, mut own) = (sleeper(&stale), sleeper(&mine));
        assert_eq!(clear_all(&parent).expect("clearing"), [stale]);
        assert!(!left.wait().expect("an end").success());
        assert!(own.try_wait().expect("a state").is_none(), "what an owner that lives started goes on");
        own.kill().expect("kill");
        own.wait().expect("an end");
        fs::remove_dir_all(&parent).expect("removal");
    }
}
