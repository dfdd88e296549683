//! Paired measurement: which of two (or more) ways to run the same work is faster, and how sure is that?
//!
//! Machines drift by tens of percent within seconds, so two runs one after the other say nothing. Here the contestants
//! live side by side and take turns in bursts of a few milliseconds; only the ratio of bursts that stand beside each
//! other is used. Every sample is kept and goes into the report.
//!
//! The parts that decide are pure: [`schedule`] (who is next), [`sample`], [`statistics`] and [`comparison`] (what the
//! samples say), [`machine`] (what may spoil a measurement), [`protocol`] (the words between runner and worker) and
//! [`report`]. They do no I/O. The parts that act are [`machine_check`], [`worker`], [`burst_run`] and [`start_up`].
#![forbid(unsafe_code)]

mod alone_run;
pub mod burst_run;
pub mod comparison;
mod contestant;
mod exchanged_run;
pub mod machine;
pub mod machine_check;
pub mod pinning;
pub mod protocol;
mod random;
pub mod report;
pub mod sample;
pub mod schedule;
pub mod start_up;
pub mod statistics;
pub mod worker;

/// What can go wrong while measuring.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A contestant could not be started.
    #[error("{contestant} could not be started: {source}")]
    Start {
        /// The contestant's name.
        contestant: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// What a contestant needs could not be had.
    #[error("{contestant} cannot start: {problem}")]
    NotReady {
        /// The contestant's name.
        contestant: String,
        /// What is missing.
        problem: String,
    },
    /// A contestant ended while more work was wanted from it.
    #[error("{contestant} ended in the middle of the measurement ({status}); run it by hand to see why")]
    Died {
        /// The contestant's name.
        contestant: String,
        /// Its exit status, or what is known of it.
        status: String,
    },
    /// A contestant did not answer in time.
    #[error("{contestant} gave no answer within {seconds} s")]
    Silent {
        /// The contestant's name.
        contestant: String,
        /// How long the runner waited.
        seconds: u64,
    },
    /// A contestant said something that is not in the protocol, or reported an error of its own.
    #[error("{contestant}: {problem}")]
    Protocol {
        /// The contestant's name.
        contestant: String,
        /// What was wrong.
        problem: String,
    },
    /// The contestants were to do the same work and did not get the same result.
    #[error("{workload}: {contestant} computed {found:#x} where {baseline} computed {expected:#x} from the same input")]
    ChecksumsDiffer {
        /// The workload.
        workload: String,
        /// The contestant that differs.
        contestant: String,
        /// The contestant it was compared with.
        baseline: String,
        /// The first contestant's result.
        expected: u64,
        /// The other's.
        found: u64,
    },
    /// The affinity could not be set.
    #[error("pinning to CPU {cpu} failed: {source}; measure without pinning")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// The observer asked for the end.
    #[error("the measurement was interrupted")]
    Interrupted,
    /// The run was set up in a way that measures nothing.
    #[error("{0}")]
    Nothing(String),
}
