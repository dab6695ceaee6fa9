//! Where output goes: standard output, which may be closed early (`muster plan … | head` is no error), or a file.

use std::fs::File;
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
/// output for `-` and for no name when it is not a terminal. `large`: more than 4 GiB are possible. The file appears under its
/// name only when it is complete.
pub(crate) fn write_snapshot(
    output: Option<&Path>,
    large: bool,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Fault> {
    let path = match output {
        Some(path) if path != Path::new("-") => path,
        None if io::stdout().is_terminal() => {
            return Err(Fault::bad_input("name a file with -o (cluster.zip, cluster.json), or - for standard output".to_owned()));
        }
        _ => {
            let mut out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
            let result = write(&mut out).and_then(|()| out.flush());
            return quiet(result).map_err(|error| unwritable("standard output", &error));
        }
    };
    let partial = partial_name(path);
    let result = write_file(&partial, path, large, write).and_then(|()| std::fs::rename(&partial, path));
    result.map_err(|error| {
        let _ = std::fs::remove_file(&partial);
        unwritable(&path.display().to_string(), &error)
    })
}

fn partial_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

fn write_file(partial: &Path, path: &Path, large: bool, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let file = BufWriter::with_capacity(BUFFER_BYTES, File::create(partial)?);
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let mut file = match extension {
        "zip" => {
            // Level 1: three times as fast as the default, and a third larger.
            let options = SimpleFileOptions::default().compression_level(Some(1)).large_file(large);
            let mut archive = ZipWriter::new(file);
            archive.start_file("snapshot.json", options)?;
            let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, archive);
            write(&mut buffered)?;
            buffered.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?
        }
        "gz" => {
            let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, GzEncoder::new(file, Compression::fast()));
            write(&mut buffered)?;
            buffered.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?
        }
        _ => {
            let mut file = file;
            write(&mut file)?;
            file
        }
    };
    file.flush()
}
