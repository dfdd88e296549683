//! The CPUs that a process may use.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Returns the number of CPUs on which a thread may run (sched_getaffinity(2)); 0 is the calling thread. `None` if the
/// kernel does not report it.
pub fn allowed_to(thread: i32) -> Option<usize> {
    let set = sched_getaffinity(Pid::from_raw(thread)).ok()?;
    Some((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).count())
}

/// True if this thread may run on more than one CPU, so that polling need not keep another thread from running. False
/// if the kernel does not report it.
pub fn several_are_allowed() -> bool {
    allowed_to(0).is_some_and(|cpus| cpus > 1)
}
