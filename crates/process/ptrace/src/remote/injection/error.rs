//! Why a thread cannot execute system calls.

use crate::remote::arch::numbers;
use nix::errno::Errno;
use std::io;
use std::time::Duration;

/// Why no system call could be made in the process. Errors of the call itself are not among these.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// The process did not return from a call that it was made to make.
    #[error(
        "the process did not return from {call} within {seconds} s: it completes the call and then runs on, not lifted; fix: \
         end what holds a lock of its memory, or serves a file system that does not answer"
    )]
    NoReturn {
        /// Name of the call.
        call: &'static str,
        /// The limit, in seconds.
        seconds: u64,
    },
    /// The process has no room for the code that makes the calls.
    #[error("making system calls in the process: {0}")]
    NoRoom(io::Error),
    /// The code that makes the calls could not be executed.
    #[error("making a system call in the process gave signal {0}")]
    Fault(i32),
    /// A seccomp filter of the thread refuses the call.
    #[error("a seccomp filter of the thread refuses the call")]
    Filtered,
    /// Calls that come from the thread raise SIGSYS.
    #[error("it handles its system calls itself (Syscall User Dispatch, as Wine does), so that it is left alone")]
    Dispatched,
    /// Another process or thread has changed the memory that the call comes from, or the thread's filters.
    #[error("the process made another call than the injected one: another program writes to its memory")]
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

impl InjectError {
    /// The error of a call of this number that did not return within `limit`.
    pub(super) fn no_return(number: i64, limit: Duration) -> Self {
        let call = match number {
            numbers::SYS_openat => "openat",
            numbers::SYS_pread64 => "pread64",
            numbers::SYS_close => "close",
            numbers::SYS_mmap => "mmap",
            numbers::SYS_munmap => "munmap",
            numbers::SYS_mremap => "mremap",
            numbers::SYS_mprotect => "mprotect",
            numbers::SYS_madvise => "madvise",
            numbers::SYS_mbind => "mbind",
            numbers::SYS_process_vm_readv => "process_vm_readv",
            numbers::SYS_exit_group => "exit_group",
            _ => "its calls",
        };
        Self::NoReturn { call, seconds: limit.as_secs() }
    }
}

impl From<Errno> for InjectError {
    fn from(errno: Errno) -> Self {
        if errno == Errno::ESRCH { Self::Gone } else { Self::Ptrace(errno) }
    }
}
