//! Keeps variants on one CPU, so that they meet the same caches and the same clock frequency.

use crate::MeasureError;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The last CPU that this process may use: the first ones serve most interrupts. `None` if it cannot be seen.
pub fn last_usable_cpu() -> Option<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).ok()?;
    (0..CpuSet::count()).rev().find(|&cpu| set.is_set(cpu).unwrap_or(false))
}

/// Runs `action` with this thread bound to `cpu`, so that its processes start there, and unbinds the thread.
///
/// # Errors
/// [`MeasureError::Pin`], or the error of `action`.
pub fn born_on<T>(cpu: Option<usize>, action: impl FnOnce() -> Result<T, MeasureError>) -> Result<T, MeasureError> {
    let Some(cpu) = cpu else { return action() };
    let this_thread = Pid::from_raw(0);
    let failed = |errno: nix::Error| MeasureError::Pin { cpu, source: errno.into() };
    let before = sched_getaffinity(this_thread).map_err(failed)?;
    let mut only = CpuSet::new();
    only.set(cpu).map_err(failed)?;
    sched_setaffinity(this_thread, &only).map_err(failed)?;
    let result = action();
    sched_setaffinity(this_thread, &before).map_err(failed)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binding_is_undone() {
        let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let cpu = last_usable_cpu().unwrap();
        let inside = born_on(Some(cpu), || Ok(sched_getaffinity(Pid::from_raw(0)).unwrap())).unwrap();
        assert!(inside.is_set(cpu).unwrap());
        assert_eq!((0..CpuSet::count()).filter(|&c| inside.is_set(c).unwrap()).count(), 1);
        assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), before);
        assert!(born_on(Some(CpuSet::count() + 1), || Ok(())).is_err());
    }
}
