//! Predicts the answers of seccomp filters, so that no filter kills a process for an injected system call.
//!
//! Filters are never suspended: others may write to the memory that a call comes from, and this process may be killed
//! just before the call. Instead, the filters of a thread are read (`PTRACE_SECCOMP_GET_FILTER`, Linux 4.4; needs
//! CAP_SYS_ADMIN and no filter on this process) and executed here for each call. Where they cannot be read, a child of
//! this process tries each call; it has the same filters if both processes have inherited all of theirs.

pub(crate) mod filter;
#[cfg(test)]
mod tests;

pub use filter::{Call, Instruction};

use crate::remote::arch::{self, numbers};
use crate::remote::requests;
use crate::remote::status::ThreadStatus;
use linux::text::text_of;
use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid};

/// Actions, the upper half of a filter's result (`linux/seccomp.h`).
const ACTION: u32 = 0xffff_0000;
const DATA: u32 = 0xffff;
const RET_ALLOW: u32 = 0x7fff_0000;
const RET_LOG: u32 = 0x7ffc_0000;
const RET_ERRNO: u32 = 0x0005_0000;
/// The kernel returns no larger error (`MAX_ERRNO`).
const LARGEST_ERRNO: u32 = 4095;

/// Name, number and arguments of a call.
pub type NamedCall = (&'static str, i64, [u64; 6]);

/// The call without which no lift can undo what it has begun.
pub const NEEDED: NamedCall = ("munmap", numbers::SYS_munmap, [0; 6]);

/// The calls that a lift at the start needs: [`NEEDED`] and those made by the code of `guest_code`.
pub const NEEDED_AT_START: [NamedCall; 4] = [
    NEEDED,
    ("getpid", libc::SYS_getpid, [0; 6]),
    ("tgkill", libc::SYS_tgkill, [0, 0, libc::SIGURG as u64, 0, 0, 0]),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as u64, 0, 0, 8, 0, 0]),
];

/// The calls that executors make, each with arguments for which it has no effect.
const CALLS: [NamedCall; 14] = [
    ("mmap", numbers::SYS_mmap, [0, 0, 0, 0, u64::MAX, 0]),
    ("munmap", numbers::SYS_munmap, [0, 0, 0, 0, 0, 0]),
    ("mprotect", numbers::SYS_mprotect, [0, 0, 0, 0, 0, 0]),
    ("mremap", numbers::SYS_mremap, [0, 0, 0, 0, 0, 0]),
    ("madvise", numbers::SYS_madvise, [0, 0, 0, 0, 0, 0]),
    ("openat", numbers::SYS_openat, [libc::AT_FDCWD as u64, 0, 0, 0, 0, 0]),
    ("close", numbers::SYS_close, [u32::MAX as u64, 0, 0, 0, 0, 0]),
    ("pread64", numbers::SYS_pread64, [u32::MAX as u64, 0, 0, 0, 0, 0]),
    ("prctl", numbers::SYS_prctl, [u64::MAX, 0, 0, 0, 0, 0]),
    ("process_vm_readv", numbers::SYS_process_vm_readv, [0, 0, 0, 0, 0, 0]),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as u64, 0, 0, 8, 0, 0]),
    ("getpid", libc::SYS_getpid, [0; 6]),
    ("gettid", libc::SYS_gettid, [0; 6]),
    ("tgkill", libc::SYS_tgkill, [0, 0, libc::SIGURG as u64, 0, 0, 0]),
];

/// The combined answer of all filters to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterAnswer {
    /// The call is made.
    Allowed,
    /// The call is not made and fails with this error.
    Fails(Errno),
    /// The call kills the process, sends it a signal, or asks another process; or the answer is unknown.
    Refused,
}

/// The seccomp filters of a thread, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Filters {
    /// It has none.
    #[default]
    None,
    /// It has these, the oldest first.
    Known(Vec<Vec<Instruction>>),
    /// They cannot be read, and are the same as this process's; a child has tried the calls.
    SameAsOurs,
}

impl Filters {
    /// Reads the filters of a stopped thread.
    ///
    /// # Errors
    /// A sentence that says why they are unknown.
    pub fn of(thread: Pid, status: &ThreadStatus) -> Result<Self, String> {
        match status.seccomp {
            Some(0) => Ok(Self::None),
            None => Err(format!(
                "it is unknown whether it has a seccomp filter; found: no /proc/{thread}/status that can be read; needed: /proc of \
                 its PID namespace, which shows it"
            )),
            Some(1) => Err("it is in seccomp's strict mode, which kills it for every call that a lift needs; needed: \
                      `pagelift run`, which lifts it before that"
                .to_owned()),
            _ => match read(thread) {
                Ok(filters) => Ok(Self::Known(filters)),
                Err(_) if are_ours(thread, status) => Ok(Self::SameAsOurs),
                Err(errno) => Err(format!(
                    "it has a seccomp filter of its own, which cannot be read ({}); needed: CAP_SYS_ADMIN, no filter on \
                     Pagelift itself (found: {}), and a kernel with CONFIG_CHECKPOINT_RESTORE",
                    errno.desc(),
                    if ThreadStatus::read(getpid()).seccomp == Some(0) { "none" } else { "one" }
                )),
            },
        }
    }

    /// Returns the verdict on a call that is made by the instruction before `behind`.
    pub fn judge(&self, number: i64, arguments: [u64; 6], behind: u64) -> FilterAnswer {
        let Self::Known(filters) = self else { return FilterAnswer::Allowed };
        let call = Call { number: number as i32, architecture: arch::AUDIT_ARCHITECTURE, behind, arguments };
        // The kernel asks the newest filter first and takes the strictest action, the smallest signed number; where several
        // filters take it, the newest one's data (`seccomp_run_filters`).
        let answers = filters.iter().rev().map(|filter| filter::run(filter, &call));
        let action = |answer: u32| (answer & ACTION) as i32;
        let strictest = answers.reduce(|a, b| Some(if action(b?) < action(a?) { b? } else { a? }));
        match strictest {
            None => FilterAnswer::Allowed,
            Some(answer) => answer.map_or(FilterAnswer::Refused, verdict_of),
        }
    }

    /// Returns the number of a call that has no effect and is not refused, to replace a call that the thread is about
    /// to make; -1, which is no call at all, where possible.
    pub fn harmless_call(&self, arguments: [u64; 6], behind: u64) -> i64 {
        let candidates = [-1, libc::SYS_getpid, libc::SYS_gettid, libc::SYS_sched_yield, libc::SYS_getuid];
        let harmless = |number: &i64| self.judge(*number, arguments, behind) != FilterAnswer::Refused;
        candidates.into_iter().find(harmless).unwrap_or(-1)
    }

    /// True if the thread has received another filter since.
    pub fn have_grown(&self, thread: Pid) -> bool {
        let index = match self {
            Self::None => 0,
            Self::Known(filters) => filters.len(),
            Self::SameAsOurs => return false,
        };
        requests::seccomp_filter(thread, index).is_ok()
    }
}

fn verdict_of(answer: u32) -> FilterAnswer {
    match answer & ACTION {
        RET_ALLOW | RET_LOG => FilterAnswer::Allowed,
        RET_ERRNO => FilterAnswer::Fails(Errno::from_raw((answer & DATA).min(LARGEST_ERRNO) as i32)),
        _ => FilterAnswer::Refused,
    }
}

fn read(thread: Pid) -> Result<Vec<Vec<Instruction>>, Errno> {
    let mut filters = Vec::new();
    loop {
        match requests::seccomp_filter(thread, filters.len()) {
            Ok(filter) => filters.push(filter),
            // After the last filter. In filter mode there is at least one.
            Err(Errno::ENOENT) if !filters.is_empty() => return Ok(filters),
            Err(errno) => return Err(errno),
        }
    }
}

/// True if a process has as many filters as this one and belongs to the same container or service, which gives its
/// filters to all its processes.
fn are_ours(thread: Pid, status: &ThreadStatus) -> bool {
    let group = |of: &str| text_of(format!("/proc/{of}/cgroup")).ok();
    let mounts = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    let (its, ours) = (thread.to_string(), "self");
    status.seccomp_filters == ThreadStatus::read(getpid()).seccomp_filters
        && group(&its) == group(ours)
        && mounts(&its) == mounts(ours)
}

/// Reads the filters of a stopped thread and checks that they allow the `needed` calls. Every other call is judged when
/// it is to be made.
///
/// # Errors
/// A sentence that says why the process cannot be lifted: what was found and what is needed.
pub fn permit(thread: Pid, status: &ThreadStatus, needed: &[NamedCall]) -> Result<Filters, String> {
    let filters = Filters::of(thread, status)?;
    check(&filters, needed).map(|()| filters)
}

/// Checks that filters allow the `needed` calls.
///
/// # Errors
/// As for [`permit`].
pub fn check(filters: &Filters, needed: &[NamedCall]) -> Result<(), String> {
    let refused = match filters {
        Filters::SameAsOurs => killed_for(),
        // The address 0 has no code, so that no filter makes an exception for it.
        _ => needed
            .iter()
            .find(|(_, number, a)| filters.judge(*number, *a, 0) != FilterAnswer::Allowed)
            .map(|call| call.0),
    };
    refused.map_or(Ok(()), |call| Err(refusal(call)))
}

/// Returns the sentence for a call that the filters of a thread refuse.
pub fn refusal(call: &str) -> String {
    format!("its seccomp filter does not let it call {call}; needed: a filter that allows {call}")
}

/// Returns the name of the first call for which a child of this process is killed.
fn killed_for() -> Option<&'static str> {
    // In most cases there is none: one child tries all calls.
    if !is_killed(&CALLS) {
        return None;
    }
    CALLS.iter().find(|call| is_killed(std::slice::from_ref(*call))).map(|call| call.0)
}

fn is_killed(calls: &[NamedCall]) -> bool {
    // If SIGCHLD is ignored, which may be inherited, the kernel keeps no status of a child.
    // SAFETY:
    // - no handler is installed, and the disposition is restored.
    let before = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    let killed = is_killed_as_child(calls);
    if let Ok(before) = before {
        // SAFETY:
        // - the disposition that was in force until now.
        let _ = unsafe { signal(Signal::SIGCHLD, before) };
    }
    killed
}

fn is_killed_as_child(calls: &[NamedCall]) -> bool {
    // SAFETY:
    // - other threads may hold locks that the child has copied: between its fork and its end the child only makes raw
    //   system calls, which take none.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            for (_, number, a) in calls {
                // SAFETY:
                // - the arguments refer to no memory of this process, and are refused or have no effect.
                unsafe { libc::syscall(*number, a[0], a[1], a[2], a[3], a[4], a[5]) };
            }
            // SAFETY:
            // - ends the child without running any code of this program.
            unsafe { libc::_exit(0) }
        }
        Ok(ForkResult::Parent { child }) => {
            // A child of this process that is not traced.
            !matches!(waitpid(child, Some(WaitPidFlag::__WALL)), Ok(WaitStatus::Exited(..)))
        }
        // The answer is unknown. The kernel refuses a new process on a shortage, to which a lift should not add.
        Err(_) => true,
    }
}
