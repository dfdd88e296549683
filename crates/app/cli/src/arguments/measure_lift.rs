//! `pagelift measure-lift`, which the agent executes.

use super::policy::PolicyArgs;
use super::process::process_number;
use super::time::{DAY, SECOND, milliseconds, seconds};
use clap::Args;
use std::time::Duration;

/// `pagelift measure-lift`.
#[derive(Args, Clone, Debug)]
pub struct MeasureLiftArgs {
    /// Memory to lift, and the source of its huge pages.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Number of the process.
    #[arg(value_name = "PID|NAME", value_parser = process_number)]
    pub pid: i32,
    /// Measure of work, as for bench --toggle.
    #[arg(long, value_name = "WORK", default_value = "auto")]
    pub work: String,
    /// Switch by two shell commands instead of a lift: to the compared state, and back to plain.
    #[arg(long, num_args = 2, value_names = ["ON", "OFF"])]
    pub toggle_with: Vec<String>,
    /// Leave the process plain even if it was lifted before; a later decision lifts it.
    #[arg(long)]
    pub leave_plain: bool,
    /// Leave descendants alone that have executed the same program again: another decision lifts them, or none.
    #[arg(long)]
    pub only_forks: bool,
    /// Length of a window, of which a block has four.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = milliseconds(10, 60_000))]
    pub window: Duration,
    /// Time after each switch that is not measured.
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = milliseconds(0, 60_000))]
    pub settle: Duration,
    /// Time after which the measurement ends undecided.
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = seconds(SECOND, DAY))]
    pub time: Duration,
    /// Seed of the random order [default: a random number].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
}
