//! The CPUs that this process may use.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// True where this thread may run on more than one CPU (sched_getaffinity(2)), so that polling need not keep another
/// thread from running. False where the kernel does not report it.
pub fn several_are_allowed() -> bool {
    let allowed = |set: CpuSet| (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).take(2).count();
    sched_getaffinity(Pid::from_raw(0)).is_ok_and(|set| allowed(set) > 1)
}
