//! The `packlight` command. Thin: arguments, progress and reports; the work is done in the crates it joins.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line talks: results on stdout, the rest on stderr"
)]

mod answer;
mod args;
mod cache;
mod calibration;
mod chat;
mod convert;
mod demo;
mod devices;
mod inspect;
mod interrupt;
mod pack;
mod page;
mod place;
mod probe;
mod progress;
mod publish;
mod report;
mod run;
mod serve;
mod sidecars;
mod verify;

use std::process::ExitCode;

use args::{Args, Command};
use clap::Parser as _;

/// 0: done. 1: a check failed. 2: an error.
fn main() -> ExitCode {
    // `packlight inspect BUNDLE | head` ends quietly, as other commands do.
    sigpipe::reset();
    let args = Args::parse();
    let result = match args.command {
        Command::Convert(args) => convert::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Publish(args) => publish::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Devices(args) => {
            devices::run(&args);
            Ok(true)
        }
        Command::Demo(args) => demo::run(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            report::print(&error);
            ExitCode::from(2)
        }
    }
}
