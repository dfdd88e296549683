//! The commands of the program `pagelift-measure`: here `bench` and `report`, in the crate `cli` the others.
//!
//! They need clients of databases, TLS, charts and symbols. Linked into `pagelift` these would make each start of `pagelift
//! run` 0.4 ms slower: their constants are relocated before `main`, page by page.

mod answer;
mod bench;
mod report;

use cli::commands;
use cli::definition::MeasuringCommand;

/// Runs one of the commands and returns its exit status.
///
/// # Errors
/// The failure of the command, in words for the user.
pub fn run(command: &MeasuringCommand) -> anyhow::Result<u8> {
    match command {
        MeasuringCommand::Bench(args) => bench::run(args)?,
        MeasuringCommand::MeasureLift(args) => bench::measure_lift(args)?,
        MeasuringCommand::Report(args) => report::run(args)?,
        MeasuringCommand::Stat(args) => return commands::stat::run(args),
        MeasuringCommand::Probe(args) => commands::probe::run(args)?,
        MeasuringCommand::Shootdowns(args) => commands::shootdowns::run(args)?,
        MeasuringCommand::Estimate(args) => commands::estimate::run(args)?,
        MeasuringCommand::Demo(args) => commands::demo::run(args)?,
    }
    Ok(0)
}
