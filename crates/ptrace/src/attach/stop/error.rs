//! Why a program cannot be stopped.

use crate::remote::arch;
use linux::text::text_of;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::io;

/// Why a program cannot be stopped for a lift.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// It has ended.
    #[error("the process has ended")]
    Gone,
    /// It has executed another program.
    #[error("it has executed another program, which was left alone; attach once more if that one is meant")]
    Executed,
    /// A thread has not returned from a call.
    #[error("thread {0} has not come back from a call that it was to make, and none of the others is stopped for more")]
    Lost(i32),
    /// ptrace is refused.
    #[error("{0}")]
    Refused(String),
    /// A thread does not stop.
    #[error("thread {0} does not stop: it is in vfork or in uninterruptible sleep; try again when that has ended")]
    DoesNotStop(i32),
    /// No thread is fit to make calls.
    #[error("every thread of it {}, so that none can be borrowed safely; try again", arch::UNFIT)]
    NoneFit,
    /// Its threads cannot be listed.
    #[error("its threads cannot be listed: {0}")]
    Listing(#[from] io::Error),
}

/// Returns a sentence that says why a thread cannot be traced.
pub(super) fn refusal(pid: Pid, errno: Errno) -> String {
    let status = text_of(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    if tracer != "0" {
        return format!("process {tracer} traces it already, and a process has one tracer at most");
    }
    format!(
        "ptrace is refused ({}); needed: root, or CAP_SYS_PTRACE, or the same user and kernel.yama.ptrace_scope = 0",
        errno.desc()
    )
}
