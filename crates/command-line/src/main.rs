//! The `pagelift` program.
//!
//! It has a `main` of its own, not Rust's: the runtime would ignore SIGPIPE and open closed standard descriptors, and
//! `pagelift run` must hand both to the program just as they came.
#![cfg_attr(not(test), no_main)]

mod cli;
mod commands;
mod lifting;

use clap::Parser;
use cli::{Cli, Command, RunCli};

/// Exit status of Pagelift's own failures, as env(1), nohup(1) and timeout(1) have it.
const OWN_FAILURE: u8 = 125;

/// The C entry point; arguments reach `std::env` without it on Linux with glibc, whose start-up hands them to
/// initialisers too.
// SAFETY:
// - the symbol `main` is what the C start-up code calls, once, with this signature.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn main(_count: i32, _arguments: *const *const u8) -> i32 {
    let status = match parse() {
        Ok(cli) => run(cli),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { OWN_FAILURE } else { 0 }
        }
    };
    i32::from(status)
}

/// `run` is parsed without the definitions of the other commands: making those takes a
/// quarter of a millisecond (tenth percentile of 200 starts in turn: 1.02 ms with, 0.75 without).
fn parse() -> Result<Cli, clap::Error> {
    if std::env::args_os().nth(1).is_some_and(|word| word == "run") {
        return RunCli::try_parse().map(Cli::from);
    }
    Cli::try_parse()
}

fn run(cli: Cli) -> u8 {
    let result = match &cli.command {
        Command::Run(args) => return commands::run::run(args),
        Command::Attach(args) => commands::attach::attach(args),
        Command::Detach(args) => commands::attach::detach(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Status(args) => commands::status::run(args),
        Command::PerfMap(args) => commands::perf_map::run(args),
        Command::Image(args) => commands::image::run(args),
        Command::Demo(args) => commands::demo::run(args),
        Command::Generate(args) => commands::generate::run(args),
    };
    match result {
        Ok(()) => 0,
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            eprintln!("pagelift: {error:#}");
            OWN_FAILURE
        }
    }
}

/// A reader that has seen enough, as in `pagelift status | head`, is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is))
}
