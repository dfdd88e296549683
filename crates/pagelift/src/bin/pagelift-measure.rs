//! `pagelift-measure`, which `pagelift` executes for the commands that measure.

use clap::Parser;
use cli::definition::MeasuringCli;
use cli::exit::finished;
use std::process::ExitCode;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: cli::allocator::Allocator = cli::allocator::Allocator::new();

fn main() -> ExitCode {
    let cli = MeasuringCli::parse();
    ExitCode::from(finished(measure_cli::run(&cli.command)))
}
