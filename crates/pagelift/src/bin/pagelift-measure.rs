//! `pagelift-measure`, which `pagelift` executes for the commands that measure.

use clap::Parser;
use cli::definition::MeasuringCli;
use cli::exit::finished;
use cli::output::Output;
use std::process::ExitCode;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: cli::allocator::Allocator = cli::allocator::Allocator::new();

fn main() -> ExitCode {
    match MeasuringCli::try_parse() {
        Ok(cli) => ExitCode::from(finished(measure_cli::run(&cli.command))),
        Err(error) => {
            Output::print_usage(&error);
            ExitCode::from(error.exit_code() as u8)
        }
    }
}
