//! The `pagelift` program.
//!
//! It has a `main` of its own, not Rust's: the runtime would ignore SIGPIPE and open closed standard descriptors, and
//! `pagelift run` must hand both to the program just as they came.
#![cfg_attr(not(test), no_main)]

#[cfg(target_env = "musl")]
mod allocator;
mod arguments;
mod cli;
mod commands;
mod text;

use clap::{CommandFactory, Parser};
use cli::{Cli, Command, RunCli};
use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::new();

/// Exit status of Pagelift's own failures, as in env(1), nohup(1) and timeout(1).
const OWN_FAILURE: u8 = 125;

/// The C entry point. The words come from its arguments: Rust's runtime, which would have put them into `std::env`, has
/// not been started, and only glibc hands them to initialisers too.
///
/// # Safety
/// There must be `count` pointers, each to a string that ends with NUL.
// SAFETY:
// - the symbol `main` is what the C start-up code calls, once, with this signature.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn main(count: i32, arguments: *const *const c_char) -> i32 {
    // SAFETY:
    // - the caller's promise.
    let words = unsafe { words(count as usize, arguments) };
    let status = match parse(words) {
        Ok(cli) => run(cli),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { OWN_FAILURE } else { 0 }
        }
    };
    i32::from(status)
}

/// # Safety
/// There must be `count` pointers, each to a string that ends with NUL.
unsafe fn words(count: usize, arguments: *const *const c_char) -> Vec<OsString> {
    // SAFETY:
    // - the caller's promise.
    let word = |index| unsafe { CStr::from_ptr(*arguments.add(index)) };
    (0..count).map(|index| OsStr::from_bytes(word(index).to_bytes()).to_owned()).collect()
}

/// `run` is parsed without the definitions of the other commands: making those takes a quarter of a millisecond (tenth
/// percentile of 200 starts in turn: 1.02 ms with, 0.75 without).
fn parse(words: Vec<OsString>) -> Result<Cli, clap::Error> {
    if words.get(1).is_some_and(|word| word == "run") {
        return RunCli::try_parse_from(words.into_iter().skip(1)).map(Cli::from);
    }
    Cli::try_parse_from(words)
}

fn run(cli: Cli) -> u8 {
    let result = match &cli.command {
        Command::Run(args) => return commands::run::run(args),
        Command::Stat(args) => return finished(commands::stat::run(args)),
        Command::Attach(args) => commands::attach::attach(args),
        Command::Detach(args) => commands::attach::detach(args),
        Command::Doctor(args) => return commands::doctor::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Status(args) => commands::status::run(args),
        Command::PerfMap(args) => commands::perf_map::run(args),
        Command::Image(args) => commands::image::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Probe(args) => commands::probe::run(args),
        Command::Shootdowns(args) => commands::shootdowns::run(args),
        Command::Estimate(args) => commands::estimate::run(args),
        Command::Cache(args) => commands::cache::run(args),
        Command::Align(args) => commands::align::run(args),
        Command::Pool(args) => match commands::pool::run(args) {
            Ok(status) => return status,
            Err(error) => Err(error),
        },
        Command::Enable(args) => commands::service::enable(args),
        Command::Disable(args) => commands::service::disable(args),
        Command::Enabled(args) => commands::service::enabled(args),
        Command::Demo(args) => commands::demo::run(args),
        Command::Generate(args) => commands::generate::run(args, Cli::command()),
    };
    finished(result.map(|()| 0))
}

/// The status to exit with; a failure is said.
fn finished(result: anyhow::Result<u8>) -> u8 {
    match result {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            eprintln!("pagelift: {error:#}");
            OWN_FAILURE
        }
    }
}

/// A reader that closes the pipe, as in `pagelift status | head`, is not a failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is))
}
