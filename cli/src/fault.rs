//! Why a command ends early, and the exit code that says so. The codes are a promise; `muster --help` lists them.

use std::io::{self, Write};
use std::process::ExitCode;

use muster_api::problem::Failure;
use muster_api::sentences::visible;

/// A command that did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Fault {
    message: String,
    code: u8,
}

/// Something outside the input went wrong.
const FAILED: u8 = 1;
/// The input or the command line is wrong. The same code as clap's.
const BAD_INPUT: u8 = 2;

impl Fault {
    /// Exit code 1: output cannot be written, an invariant does not hold, the processor is too old.
    pub(crate) const fn failed(message: String) -> Self {
        Self { message, code: FAILED }
    }

    /// Exit code 2.
    pub(crate) const fn bad_input(message: String) -> Self {
        Self { message, code: BAD_INPUT }
    }

    /// Says it on standard error.
    pub(crate) fn report(&self) -> ExitCode {
        say(&self.message);
        ExitCode::from(self.code)
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::bad_input(failure.to_string())
    }
}

/// Lines on standard error, with nothing in them that steers a terminal. Nothing can be done if that is closed.
pub(crate) fn say(lines: &str) {
    let mut out = io::stderr().lock();
    for line in lines.split('\n') {
        let _ = writeln!(out, "{}", visible(line));
    }
}
