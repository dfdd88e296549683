//! Running programs: finding them, lifting them and putting them back.

mod attach;
mod detach;
mod targets;
mod watch;

pub use attach::{AttachOptions, Attached, attach, plan_attach};
pub use detach::{Detached, detach};
pub use ptrace::attach::Pause;
pub use targets::{Selected, processes_named};
pub use watch::Watch;

use crate::SessionError;
use address_space::{AddressSpace, LoadedObject};
use lift_execution::CallError;
use machine_facts::{Cgroups, System, base_page};
use ptrace::attach::{LiveExecutor, StopWaiter, Target};
use std::thread;

fn executor_for(target: Target, space: &AddressSpace, objects: &[LoadedObject]) -> Result<LiveExecutor, SessionError> {
    let pid = target.pid();
    // A thread of it would stop, but not come back from a call.
    if let Some(cgroup) = Cgroups::of(&System, &format!("/proc/{pid}")).frozen(&System) {
        return Err(SessionError::Refused(format!(
            "it is frozen by its cgroup {cgroup}, so that none of its threads can make calls; fix: thaw it (docker unpause, \
             systemctl thaw, or 0 in cgroup.freeze of the frozen cgroup) and try again"
        )));
    }
    let executor = LiveExecutor::new(target, space, objects, base_page());
    executor.map_err(|error| SessionError::refused(error.why, error.may_work_later))
}

/// Leaves a program in which nothing could be done because of `error`.
fn refused(executor: LiveExecutor, error: &CallError) -> SessionError {
    let why = executor.refusal().map_or_else(|| error.to_string(), str::to_owned);
    let may_work_later = executor.may_work_later();
    SessionError::refused(executor.finish().with_reason(why), may_work_later)
}

/// Runs `work` in a thread of its own, which ends with it. A thread of the program that was asked to stop and could
/// not, such as one in vfork, is then released by the kernel when it does stop; with a tracer that lives on, it would
/// stay stopped.
fn in_own_thread<T: Send>(work: impl FnOnce() -> Result<T, SessionError> + Send) -> Result<T, SessionError> {
    // The signals that report stops must not reach the calling thread.
    let _signals = StopWaiter::take();
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
