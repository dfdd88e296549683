//! `pagelift agent` as a library: lifts the programs of a machine by rules.
//!
//! - [`rules`]: the configuration, parsed and checked. Pure, except for the reader of its folder.
//! - [`decision`]: pure functions from facts and rules: which process is lifted, when, and why not.
//! - [`discovery`]: finds processes and reads facts about them.
//! - [`explanation`]: all decisions about one process, with the values behind them.
//! - `installation`: marks of the installations that have written to a folder of state.
//! - [`supervisor`]: the running agent: scans, state, budget, kill switch.
//! - [`journal`]: sends actions to the journal of systemd.
//! - [`worker`]: the short-lived process that plans, lifts or restores one program.
//! - [`measurement`]: runs a measurement and reads its decision.
//! - [`verdicts`]: results of measurements, by build of a program.
//! - [`metrics`]: counts and states for Prometheus.
//!
//! Nothing here prints: the command line prints what these functions return.
#![forbid(unsafe_code)]

pub mod decision;
pub mod discovery;
pub mod explanation;
mod installation;
pub mod journal;
pub mod measurement;
pub mod metrics;
pub mod rules;
pub mod supervisor;
pub mod verdicts;
pub mod worker;
