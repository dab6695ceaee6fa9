//! Where output goes: standard output, which may be closed early (`muster plan … | head` is no error), or a file, which is
//! replaced whole if it is a regular one, and never by anything else than what it was.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::fault::Fault;

/// What is written at once.
const BUFFER_BYTES: usize = 1 << 20;

/// Prints bytes on standard output. A reader that went away is no fault.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Fault> {
    let mut out = io::stdout().lock();
    quiet(out.write_all(bytes).and_then(|()| out.flush())).map_err(|error| unwritable("standard output", &error))
}

fn quiet(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn unwritable(what: &str, error: &io::Error) -> Fault {
    Fault::failed(format!("{what}: cannot be written: {error}"))
}

/// Writes a snapshot to `output` in the format of its name (`.zip`, `.json.gz` or `.gz`, else plain JSON), or to standard
/// output for `-` and for no name when it is not a terminal. `large`: more than 4 GiB are possible. A regular file appears
/// under its name only when it is complete, with the mode of the one that it replaces; links are followed; whatever else is
/// there (device, pipe) is written to and stays what it is.
pub(crate) fn write_snapshot(
    output: Option<&Path>,
    large: bool,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Fault> {
    let path = match output {
        Some(path) if !STANDARD_OUTPUT.iter().any(|name| path == Path::new(name)) => path,
        None if io::stdout().is_terminal() => {
            return Err(Fault::bad_input("name a file with -o (cluster.zip, cluster.json), or - for standard output".to_owned()));
        }
        _ => {
            let mut out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
            let result = write(&mut out).and_then(|()| out.flush());
            return quiet(result).map_err(|error| unwritable("standard output", &error));
        }
    };
    let format = Format::of(path, large);
    let result = match target(path) {
        Ok(Target::Straight(file)) => quiet(format.encode(file, write)),
        Ok(Target::Replace { path, existing }) => replace(&path, existing, |file| format.encode(file, write)),
        Err(error) => Err(error),
    };
    result.map_err(|error| unwritable(&path.display().to_string(), &error))
}

/// The names of standard output. By its device it would be truncated where it is a file that something appends to.
const STANDARD_OUTPUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// How a file is written.
enum Target {
    /// As it is: it is no regular file, or a link to what does not exist yet.
    Straight(File),
    /// A new file takes the place of what is at `path`, if anything is.
    Replace { path: PathBuf, existing: Option<Metadata> },
}

fn target(path: &Path) -> io::Result<Target> {
    match std::fs::metadata(path) {
        Ok(existing) if existing.is_file() => {
            // Replacing needs no right to write the file itself; who took that right away meant it.
            drop(OpenOptions::new().write(true).open(path)?);
            Ok(Target::Replace { path: path.canonicalize()?, existing: Some(existing) })
        }
        Ok(_) => Ok(Target::Straight(OpenOptions::new().write(true).open(path)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => match std::fs::symlink_metadata(path) {
            Ok(_) => Ok(Target::Straight(File::create(path)?)),
            Err(_) => Ok(Target::Replace { path: path.to_owned(), existing: None }),
        },
        Err(error) => Err(error),
    }
}

/// Writes a file beside `path`, which then takes its name.
fn replace(path: &Path, existing: Option<Metadata>, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
    let (partial, file) = new_partial(path)?;
    let mode = existing.map_or(Ok(()), |existing| file.set_permissions(existing.permissions()));
    let result = mode.and_then(|()| write(file)).and_then(|()| std::fs::rename(&partial, path));
    if result.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    result
}

/// A new file beside `path`, under a name that nothing had.
fn new_partial(path: &Path) -> io::Result<(PathBuf, File)> {
    const ATTEMPTS: u32 = 1000;
    let mut attempt = 0;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}-{attempt}.partial", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Ok(file) => return Ok((name.into(), file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// What a snapshot is packed in.
#[derive(Clone, Copy)]
enum Format {
    Zip { large: bool },
    Gzip,
    Plain,
}

impl Format {
    fn of(path: &Path, large: bool) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("zip") => Self::Zip { large },
            Some("gz") => Self::Gzip,
            _ => Self::Plain,
        }
    }

    /// Never seeks: `file` may be a pipe.
    fn encode(self, file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
        match self {
            Self::Zip { large } => {
                // Level 1: three times as fast as the default, and a third larger.
                let options = SimpleFileOptions::default().compression_level(Some(1)).large_file(large);
                let mut archive = ZipWriter::new_stream(file);
                archive.start_file("snapshot.json", options)?;
                let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, archive);
                write(&mut buffered)?;
                buffered.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?.into_inner().flush()
            }
            Self::Gzip => {
                let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, GzEncoder::new(file, Compression::fast()));
                write(&mut buffered)?;
                buffered.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?.flush()
            }
            Self::Plain => {
                write(&mut file)?;
                file.flush()
            }
        }
    }
}
