//! Errors of the use cases.

use lift_execution::CallError;
use process_view::{ObservationError, Unanswered};
use ptrace::InjectError;
use std::error::Error;
use std::io;

/// Why nothing, or not everything, was done. The process runs on unchanged, unless the variant's comment differs.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The process cannot be read.
    #[error(transparent)]
    Process(#[from] ObservationError),
    /// A file or directory cannot be used.
    #[error("{doing}")]
    Io {
        /// The action, as a present participle: "opening /proc/1/pagemap".
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A system call in the process failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The process cannot be made to execute system calls.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// An object of the process is not a sound ELF file.
    #[error("{path}: {reason}")]
    NotUnderstood {
        /// The file, as the kernel names it.
        path: String,
        /// The problem.
        reason: String,
    },
    /// The request is not possible, in words: the value found, the value needed, the fix.
    #[error("{0}")]
    Refused(String),
    /// The process does not answer.
    #[error("{0}")]
    Silent(Unanswered),
    /// Threads of the process could not be stopped at that moment: they were in uninterruptible sleep or in vfork. Another
    /// try may succeed.
    #[error("{0}")]
    NotNow(String),
}

impl SessionError {
    /// Returns the kernel's error with the failed operation.
    pub(crate) fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Io { doing: doing.into(), source }
    }

    /// A refusal by a process, whose threads can perhaps be stopped later.
    pub(crate) fn refused(why: String, may_work_later: bool) -> Self {
        if may_work_later { Self::NotNow(why) } else { Self::Refused(why) }
    }

    /// The error with all its causes, separated by colons.
    pub fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_error_names_its_causes() {
        let denied = || io::Error::from_raw_os_error(13);
        let error = SessionError::io("opening /proc/1/pagemap", denied());
        assert_eq!(error.in_full(), format!("opening /proc/1/pagemap: {}", denied()));
        assert_eq!(SessionError::Refused("no".to_owned()).in_full(), "no");
    }
}
