//! Programs that run beside a test: started with a log file, stopped by their own process id, never by name.
//!
//! What runs is also noted in one place for the whole process, so that a signal can stop it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Ids of all that runs.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// A program that runs until it is told to stop, or dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts it in a process group of its own (an interrupt at the terminal is for the test, which then stops this one).
    ///
    /// # Errors
    /// If it cannot be started or its log cannot be written.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;

        stop_on_signals()?;
        let out = File::options().create(true).append(true).open(log);
        let out = out.with_context(|| format!("cannot write {}", log.display()))?;
        let errors = out.try_clone()?;
        let command = command.stdin(Stdio::null()).stdout(out).stderr(errors).process_group(0);
        let mut running = running();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        running.push(child.id());
        Ok(Self { name: name.to_owned(), log: log.to_path_buf(), child })
    }

    /// For messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it writes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The id of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Processor time that it has used, all threads together.
    ///
    /// # Errors
    /// If it is gone.
    pub fn processor_time(&self) -> Result<Duration> {
        let text = self.proc("stat")?;
        // The name, in parentheses, may hold anything; what follows it are fields 3, 4 …
        let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11);
        let ticks: Vec<u64> = fields.take(2).filter_map(|field| field.parse().ok()).collect();
        let [user, system] = ticks[..] else { bail!("/proc/{}/stat is {text:?}", self.id()) };
        Ok(Duration::from_millis((user + system) * 1000 / rustix::param::clock_ticks_per_second()))
    }

    /// Memory that it has in use: the line of this name in `/proc/…/status`, bytes. `VmRSS` is all of it, `RssAnon` without the
    /// pages of files, `VmHWM` the most that it ever had.
    ///
    /// # Errors
    /// If it is gone.
    pub fn memory(&self, line: &str) -> Result<u64> {
        let text = self.proc("status")?;
        let kibibytes = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':')?.trim().strip_suffix(" kB"));
        let kibibytes: u64 = kibibytes.and_then(|text| text.parse().ok()).with_context(|| format!("no {line} in {text}"))?;
        Ok(kibibytes * 1024)
    }

    fn proc(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.id());
        std::fs::read_to_string(&path).with_context(|| format!("{path} of {}", self.name))
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// If the operating system does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Stops it where it is; [`Process::thaw`] lets it go on.
    ///
    /// # Errors
    /// If it is gone.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// If it is gone.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Asks it to stop.
    ///
    /// # Errors
    /// If it is gone.
    pub fn ask_to_stop(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Ends it at once, as a failing machine would, and waits until it is gone.
    ///
    /// # Errors
    /// If the operating system does not say how it ended.
    pub fn kill(&mut self) -> Result<()> {
        // One that ended by itself cannot be killed, and need not be.
        let _ = self.child.kill();
        self.child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
        running().retain(|id| *id != self.child.id());
        Ok(())
    }

    /// Leaves it running after this process has ended; it is stopped by hand.
    pub fn leave_running(self) {
        running().retain(|id| *id != self.child.id());
        std::mem::forget(self);
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process id")?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn running() -> std::sync::MutexGuard<'static, Vec<u32>> {
    // A list of numbers is whole even if somebody panicked while holding it.
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From the first call on, SIGINT and SIGTERM end what runs before they end this process.
fn stop_on_signals() -> Result<()> {
    static WATCHED: OnceLock<Result<(), String>> = OnceLock::new();
    let watched = WATCHED.get_or_init(|| {
        let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
        let mut signals = signal_hook::iterator::Signals::new(signals).map_err(|error| error.to_string())?;
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let running = running();
                eprintln!("\ne2e: signal {signal}: stopping {} processes", running.len());
                for pid in running.iter().filter_map(|id| i32::try_from(*id).ok().and_then(Pid::from_raw)) {
                    let _ = kill_process(pid, Signal::KILL);
                }
                std::process::exit(128 + signal);
            }
        });
        Ok(())
    });
    watched.clone().map_err(|error| anyhow::anyhow!("cannot watch for signals: {error}"))
}
