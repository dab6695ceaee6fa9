//! Where things are, and how programs are started. Not known here: which programs, and why.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};

/// The work tree and what cargo says about it.
pub(crate) struct Repo {
    /// The root of the work tree.
    pub(crate) root: PathBuf,
    /// The workspace and all it depends on.
    pub(crate) metadata: Metadata,
    cargo: PathBuf,
}

impl Repo {
    /// The repository that this program was built from. Fails if cargo cannot read the workspace.
    pub(crate) fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let metadata = MetadataCommand::new().manifest_path(&manifest).exec().context("cargo metadata")?;
        let root = metadata.workspace_root.clone().into_std_path_buf();
        Ok(Self { root, metadata, cargo: std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()).into() })
    }

    /// A call of cargo in the root.
    pub(crate) fn cargo(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = self.program(&self.cargo);
        command.args(arguments);
        command
    }

    /// A call of any program in the root.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// A path below cargo's target folder.
    pub(crate) fn target(&self, path: &str) -> PathBuf {
        self.metadata.target_directory.join(path).into_std_path_buf()
    }

    /// The folder with specifications, corpus and tools that lies beside the repository on the project's machines.
    pub(crate) fn shared(&self, path: &str) -> PathBuf {
        self.root.join("../shared").join(path)
    }
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let variables = command.get_envs().filter_map(|(k, v)| Some(format!("{}={:?} ", k.to_string_lossy(), v?.to_string_lossy())));
    let arguments = command.get_args().map(|a| a.to_string_lossy().into_owned());
    variables.collect::<String>()
        + &std::iter::once(program.to_string_lossy().into_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Runs it with its output shown. Fails unless it exits with 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{status}: {}", shown(command));
    }
    Ok(())
}

/// Like [`run`], and gives every line of standard output to `see` as well.
pub(crate) fn run_watched(command: &mut Command, mut see: impl FnMut(&str)) -> Result<()> {
    println!("$ {}", shown(command));
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", shown(command)))?;
    let output = child.stdout.take().context("standard output was asked for")?;
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        see(&line);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{status}: {}", shown(command));
    }
    Ok(())
}

/// Whether a program can be started and answers with 0.
pub(crate) fn answers(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
