//! Why a thread cannot execute system calls.

use nix::errno::Errno;
use std::io;

/// Why no system call could be made in the process. Errors of the call itself are not among these.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// The process has no room for the code that makes the calls.
    #[error("making system calls in the process: {0}")]
    NoRoom(io::Error),
    /// The code that makes the calls could not be executed.
    #[error("making a system call in the process gave signal {0}")]
    Fault(i32),
    /// A seccomp filter of the thread refuses the call.
    #[error("a seccomp filter of the thread refuses the call")]
    Filtered,
    /// Another process or thread has changed the memory that the call comes from, or the thread's filters.
    #[error("the process was made to make another call than ours, by somebody who writes to its memory")]
    Interfered,
    /// The process has executed another program.
    #[error("it has executed another program")]
    Executed,
    /// ptrace refused a request.
    #[error("ptrace: {0}")]
    Ptrace(Errno),
    /// The process's memory could not be read or written.
    #[error("memory of the process: {0}")]
    Memory(#[from] io::Error),
}

impl From<Errno> for InjectError {
    fn from(errno: Errno) -> Self {
        if errno == Errno::ESRCH { Self::Gone } else { Self::Ptrace(errno) }
    }
}
