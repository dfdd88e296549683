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
    #[error("it has executed another program, which was not changed; fix: attach again for that program")]
    Executed,
    /// A thread has not returned from a call.
    #[error(
        "thread {0} did not return in time from an injected call: it completes the call and then runs on; no more calls are made; \
         fix: end what holds a lock of the process's memory, or serves a file system that does not answer"
    )]
    Lost(i32),
    /// A read took too long.
    #[error("it did not answer in time, and is left alone")]
    GivenUp,
    /// ptrace is refused.
    #[error("{0}")]
    Refused(String),
    /// A thread does not stop.
    #[error("thread {0} does not stop: it is in vfork or in uninterruptible sleep; fix: try again when that has ended")]
    DoesNotStop(i32),
    /// No thread is fit to make calls.
    #[error(
        "every thread {} or handles its system calls itself (Syscall User Dispatch), so that none can make calls safely; fix: \
         try again",
        arch::UNFIT
    )]
    NoneFit,
    /// Its threads cannot be listed.
    #[error("its threads cannot be listed: {0}")]
    Listing(#[from] io::Error),
}

impl StopError {
    /// True where another try may succeed without a change by anybody.
    pub fn is_for_the_moment(&self) -> bool {
        matches!(self, Self::DoesNotStop(_) | Self::NoneFit)
    }
}

/// Why a program cannot be worked on, as a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct NotPrepared {
    /// The sentence.
    pub why: String,
    /// Another try may succeed without a change by anybody.
    pub may_work_later: bool,
}

impl From<String> for NotPrepared {
    fn from(why: String) -> Self {
        Self { why, may_work_later: false }
    }
}

impl From<StopError> for NotPrepared {
    fn from(error: StopError) -> Self {
        Self { why: error.to_string(), may_work_later: error.is_for_the_moment() }
    }
}
