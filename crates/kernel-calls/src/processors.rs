//! The processors that we may use.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// True where this thread may run on more than one processor (sched_getaffinity(2)), so that what it does need not keep
/// another from running. False where the kernel does not tell.
pub fn there_are_several() -> bool {
    let allowed = |set: CpuSet| (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).take(2).count();
    sched_getaffinity(Pid::from_raw(0)).is_ok_and(|set| allowed(set) > 1)
}
