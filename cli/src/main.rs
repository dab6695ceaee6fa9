//! The `muster` binary: parses the command line and hands over. What the commands do is in their modules; this one knows the
//! allocator, the check of the processor, and exit codes.

#![forbid(unsafe_code)]

mod args;
mod cpu;
mod cycle;
mod demo;
mod explain;
mod fault;
mod generate;
mod group_names;
mod import;
mod input;
mod manifests;
mod plan;
#[cfg(feature = "controller")]
mod run;
mod sink;
mod text;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use args::{Args, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let started = Instant::now();
    if let Err(fault) = cpu::check() {
        return fault.report();
    }
    match run(Args::parse().command, started) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fault.report(),
    }
}

fn run(command: Command, started: Instant) -> Result<(), fault::Fault> {
    match command {
        Command::Plan(args) => plan::run(&args, started),
        Command::Explain(args) => explain::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Import { source: args::Import::Openb(args) } => import::run(&args),
        Command::Demo(args) => demo::run(&args, started),
        Command::Crds => manifests::print_crds(),
        Command::Manifests(args) => manifests::run(&args),
        #[cfg(feature = "controller")]
        Command::Run(args) => run::run(*args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut <Args as clap::CommandFactory>::command(), "muster", &mut script);
            sink::print(&script)
        }
    }
}
