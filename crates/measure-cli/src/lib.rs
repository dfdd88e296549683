//! `pagelift bench` and `pagelift report`, the commands of the program `pagelift-measure`.
//!
//! They need clients of databases, TLS and charts. Linked into `pagelift` these would make each start of `pagelift run`
//! 0.4 ms slower: their constants are relocated before `main`, page by page.

mod answer;
mod bench;
mod report;

use cli::definition::MeasuringCommand;

/// Runs one of the commands.
///
/// # Errors
/// What the command could not do, in words for the user.
pub fn run(command: &MeasuringCommand) -> anyhow::Result<()> {
    match command {
        MeasuringCommand::Bench(args) => bench::run(args),
        MeasuringCommand::Report(args) => report::run(args),
    }
}
