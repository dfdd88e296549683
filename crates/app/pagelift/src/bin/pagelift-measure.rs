//! `pagelift-measure`, which `pagelift` executes for the commands that measure.

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
    cli::output::fit_screens();
    match cli::help::parse::<MeasuringCli>(words.iter().cloned()) {
        Ok(cli) => ExitCode::from(finished(measure_cli::run(&cli.command))),
        Err(error) => {
            Output::print_usage(&error, &words);
            ExitCode::from(error.exit_code() as u8)
        }
    }
}
