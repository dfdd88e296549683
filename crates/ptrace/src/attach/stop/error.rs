//! Why a program cannot be stopped.

use crate::remote::arch;
use std::io;

/// Why a program cannot be stopped for a lift.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// It has ended.
    #[error("the process has ended")]
    Gone,
    /// It has executed another program.
    #[error("it has executed another program, which was left alone; fix: attach again if that one is meant")]
    Executed,
    /// A thread has not returned from a call.
    #[error("thread {0} has not come back from a call that it was to make, and none of the others is stopped for more")]
    Lost(i32),
    /// ptrace is refused.
    #[error("{0}")]
    Refused(String),
    /// A thread does not stop.
    #[error("thread {0} does not stop: it is in vfork or in uninterruptible sleep; fix: try again when that has ended")]
    DoesNotStop(i32),
    /// No thread is fit to make calls.
    #[error("every thread of it {}, so that none can be borrowed safely; fix: try again", arch::UNFIT)]
    NoneFit,
    /// Its threads cannot be listed.
    #[error("its threads cannot be listed: {0}")]
    Listing(#[from] io::Error),
}
