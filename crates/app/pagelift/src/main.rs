//! The `pagelift` program.
//!
//! It has its own `main`, not Rust's: the runtime would ignore SIGPIPE and open closed standard descriptors, and
//! `pagelift run` must pass both to the program unchanged.
#![cfg_attr(not(test), no_main)]

use cli::commands;
use cli::definition::{Cli, Command, RunCli};
use cli::exit::{OWN_FAILURE, finished};
use cli::help;
use cli::output::Output;
use cli::usual_run;
use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: cli::allocator::Allocator = cli::allocator::Allocator::new();

/// The C entry point. The words come from its arguments: Rust's runtime, which would have put them into `std::env`, has
/// not been started, and only glibc hands them to initialisers too.
///
/// # Safety
/// There must be `count` pointers, each to a string that ends with NUL.
// SAFETY:
// - the C start-up code calls the symbol `main`, once, with this signature.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn main(count: i32, arguments: *const *const c_char) -> i32 {
    // SAFETY:
    // - the caller's promise.
    let words = unsafe { words(count as usize, arguments) };
    cli::output::fit_screens();
    let status = match parse(&words) {
        Ok(cli) => run(cli, &words),
        Err(error) => {
            Output::print_usage(&error, &words);
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
/// percentile of 200 starts in turn: 1.02 ms with, 0.75 without). Its usual forms need no definition at all.
fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    if words.get(1).is_some_and(|word| word == "run") {
        if let Some(args) = usual_run::read(&words[2..]) {
            return Ok(Cli { command: Command::Run(args) });
        }
        return help::parse::<RunCli>(words[1..].iter().cloned()).map(Cli::from);
    }
    help::parse(words.iter().cloned())
}

fn run(cli: Cli, words: &[OsString]) -> u8 {
    let result = match &cli.command {
        Command::Run(args) => return commands::run::run(args),
        Command::Attach(args) => commands::attach::attach(args),
        Command::Detach(args) => commands::attach::detach(args),
        Command::Doctor(args) => return commands::doctor::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Status(args) => commands::status::run(args),
        Command::PerfMap(args) => commands::perf_map::run(args),
        Command::Image(args) => commands::image::run(args),
        Command::Measure(_) => Err(commands::measure::become_measure(words)),
        Command::Cache(args) => commands::cache::run(args),
        Command::Align(args) => commands::align::run(args),
        Command::Pool(args) => match commands::pool::run(args) {
            Ok(status) => return status,
            Err(error) => Err(error),
        },
        Command::Enable(args) => commands::service::enable(args),
        Command::Disable(args) => commands::service::disable(args),
        Command::Enabled(args) => commands::service::enabled(args),
        Command::Agent(args) => return commands::agent::run(args),
        Command::Generate(args) => commands::generate::run(args, help::definition::<Cli>()),
    };
    finished(result.map(|()| 0))
}
