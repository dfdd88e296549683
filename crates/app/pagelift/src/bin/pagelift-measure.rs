//! `pagelift-measure`, which `pagelift` executes for the commands that measure.

use clap::Parser;
use cli::definition::MeasuringCli;
use cli::exit::finished;
use cli::output::Output;
use std::ffi::OsString;
use std::process::ExitCode;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: cli::allocator::Allocator = cli::allocator::Allocator::new();

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    match MeasuringCli::try_parse_from(&words) {
        Ok(cli) => ExitCode::from(finished(measure_cli::run(&cli.command))),
        Err(error) => {
            Output::print_usage(&error, &words);
            ExitCode::from(error.exit_code() as u8)
        }
    }
}
