//! Paired measurement: which of two (or more) ways to run the same work is faster, and with what confidence.
//!
//! Machines drift by tens of percent within seconds, so two runs one after the other show nothing. Here the variants
//! run side by side and take turns in bursts of a few milliseconds; only the ratio of adjacent bursts is used. Every
//! sample is kept and goes into the report.
//!
//! The parts that decide are pure: [`schedule`] (the next variant), [`sample`], [`statistics`] and [`comparison`]
//! (results from samples), [`toggle`] (one program in two states), [`decision`] (the advice), [`sequential`] (the time
//! to stop), [`machine`] (disturbances of a measurement), [`record`] (samples, as a file has them), [`protocol`] (the
//! words between runner and worker) and [`report`]. They do no I/O. The parts that act are [`machine_check`],
//! [`worker`], [`burst_run`] and [`start_up`].
#![forbid(unsafe_code)]

mod alone_run;
pub mod blocks;
pub mod burst_run;
pub mod comparison;
pub mod decision;
mod exchanged_run;
pub mod latency;
pub mod machine;
pub mod machine_check;
pub mod pinning;
pub mod protocol;
mod random;
pub mod record;
pub mod report;
pub mod sample;
pub mod schedule;
pub mod sequential;
pub mod signed_rank;
pub mod start_up;
pub mod statistics;
pub mod toggle;
mod variant;
pub mod worker;

/// Errors of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A variant could not be started.
    #[error("{variant} could not be started: {source}")]
    Start {
        /// The variant's name.
        variant: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A variant's needs were not met.
    #[error("{variant} cannot start: {problem}")]
    NotReady {
        /// The variant's name.
        variant: String,
        /// The unmet need.
        problem: String,
    },
    /// A variant ended while more work was wanted from it.
    #[error("{variant} ended in the middle of the measurement ({status}); run it separately to see why")]
    Died {
        /// The variant's name.
        variant: String,
        /// Its exit status, or a description.
        status: String,
    },
    /// A variant did not answer in time.
    #[error("{variant} gave no answer within {seconds} s")]
    Silent {
        /// The variant's name.
        variant: String,
        /// Seconds that the runner waited.
        seconds: u64,
    },
    /// A variant sent a line that is not in the protocol, or reported an error.
    #[error("{variant}: {problem}")]
    Protocol {
        /// The variant's name.
        variant: String,
        /// The problem.
        problem: String,
    },
    /// The variants were to do the same work and did not get the same result.
    #[error("{workload}: {variant} computed {found:#x} where {baseline} computed {expected:#x} from the same input")]
    ChecksumsDiffer {
        /// The workload.
        workload: String,
        /// The variant that differs.
        variant: String,
        /// The variant it was compared with.
        baseline: String,
        /// The first variant's result.
        expected: u64,
        /// The other's.
        found: u64,
    },
    /// The affinity could not be set.
    #[error("pinning to CPU {cpu} failed: {source}; measure without pinning")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// The observer requested the end.
    #[error("the measurement was interrupted")]
    Interrupted,
    /// The run was set up in a way that measures nothing.
    #[error("{0}")]
    Nothing(String),
}
