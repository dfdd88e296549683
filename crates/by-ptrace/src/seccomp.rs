//! Makes sure that no seccomp filter kills a process for a system call that we let it make.
//!
//! A filter may answer with an error, which is a refusal like any other, or with the death of the process. With
//! CAP_SYS_ADMIN the filters are suspended while we act. Without, each call is first tried by a child of ours, which has
//! the same filters when the process has inherited them all, as we have.

use crate::arch::numbers;
use crate::requests;
use crate::status::ThreadStatus;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid};

/// The calls that executors make, each with arguments for which it does nothing.
const CALLS: [(&str, i64, [u64; 6]); 11] = [
    ("mmap", numbers::SYS_mmap, [0, 0, 0, 0, u64::MAX, 0]),
    ("munmap", numbers::SYS_munmap, [0, 0, 0, 0, 0, 0]),
    ("mprotect", numbers::SYS_mprotect, [0, 0, 0, 0, 0, 0]),
    ("mremap", numbers::SYS_mremap, [0, 0, 0, 0, 0, 0]),
    ("madvise", numbers::SYS_madvise, [0, 0, 0, 0, 0, 0]),
    ("prctl", numbers::SYS_prctl, [u64::MAX, 0, 0, 0, 0, 0]),
    // What the code of `guest_code` makes.
    ("getpid", libc::SYS_getpid, [0; 6]),
    ("gettid", libc::SYS_gettid, [0; 6]),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask, [u64::MAX, 0, 0, 8, 0, 0]),
    ("tgkill", libc::SYS_tgkill, [0; 6]),
    ("process_vm_readv", numbers::SYS_process_vm_readv, [0, 0, 0, 0, 0, 0]),
];

/// Makes it safe to let a stopped thread make system calls, or tells why it is not.
///
/// # Errors
/// A sentence that says what was found and what is needed.
pub fn permit(pid: Pid, status: &ThreadStatus, options: i32) -> Result<(), String> {
    match status.seccomp {
        0 => Ok(()),
        2 if requests::set_options(pid, options | libc::PTRACE_O_SUSPEND_SECCOMP).is_ok() => Ok(()),
        2 if status.seccomp_filters == ThreadStatus::read(getpid()).seccomp_filters => match killed_for() {
            None => Ok(()),
            Some(call) => Err(format!("its seccomp filter kills it for {call}; needed: a filter that allows {call}")),
        },
        1 => Err("it is in seccomp's strict mode, which kills it for every call that a lift needs; needed: \
                  `pagelift run`, which lifts it before that"
            .to_owned()),
        _ => Err("it has a seccomp filter of its own, which may kill it for our calls; needed: root".to_owned()),
    }
}

/// The first call for which a child of ours is killed.
fn killed_for() -> Option<&'static str> {
    CALLS.iter().find(|(_, number, arguments)| is_killed(*number, *arguments)).map(|(name, ..)| *name)
}

fn is_killed(number: i64, a: [u64; 6]) -> bool {
    // SAFETY:
    // - other threads may hold locks that the child has copied: between its fork and its end the child only makes two raw
    //   system calls, which take none.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            // SAFETY:
            // - the arguments name no memory of ours and are refused or do nothing; _exit ends the child.
            unsafe {
                libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
                libc::_exit(0)
            }
        }
        Ok(ForkResult::Parent { child }) => {
            matches!(waitpid(child, Some(WaitPidFlag::__WALL)), Ok(WaitStatus::Signaled(..)))
        }
        // Nothing can be said; the kernel's refusal of a process is a shortage that a lift should not add to.
        Err(_) => true,
    }
}
