//! Running programs: finding them, lifting them and putting them back.

mod attach;
mod descendants;
mod detach;
mod suspended;
mod targets;
mod watch;

pub(crate) use attach::attach_opened;
pub use attach::{AttachOptions, Attached, attach, plan_attach};
pub use descendants::Descendants;
pub use detach::{Detached, detach};
pub use ptrace::attach::{Pause, leave_stops_to_waiters};
pub(crate) use suspended::Suspended;
pub use targets::{Chosen, Members, Selected, answering};
pub use watch::Watches;

use crate::SessionError;
use address_space::{AddressSpace, LoadedObject};
use lift_execution::CallError;
use linux::job_control::NotSuspended;
use linux::urgency::take_largest_share;
use linux::watch::with_same_limit;
use machine_facts::{Cgroups, System, base_page};
use nix::unistd::{Pid, gettid};
use process_view::{OneByOne, Unanswered};
use ptrace::attach::{LiveExecutor, StopWaiter, Target};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

fn executor_for(target: Target, space: &AddressSpace, objects: &[LoadedObject]) -> Result<LiveExecutor, SessionError> {
    let pid = target.pid();
    // A thread would stop, but not return from a call.
    if let Some(cgroup) = Cgroups::of(&System, &format!("/proc/{pid}")).frozen(&System) {
        return Err(SessionError::Refused(format!(
            "it is frozen by its cgroup {cgroup}, so that none of its threads can make calls; fix: thaw it (docker unpause, \
             systemctl thaw, or 0 in cgroup.freeze of the frozen cgroup) and try again"
        )));
    }
    // The program's own threads may be many, and each would get as much of the CPUs as what copies its memory.
    take_largest_share();
    let executor = LiveExecutor::new(target, space, objects, base_page());
    executor.map_err(|error| SessionError::refused(error.why, error.may_work_later))
}

/// Leaves a program in which nothing could be done because of `error`.
fn refused(executor: LiveExecutor, error: &CallError) -> SessionError {
    let why = executor.refusal().map_or_else(|| error.to_string(), str::to_owned);
    let may_work_later = executor.may_work_later();
    SessionError::refused(executor.finish().with_reason(why), may_work_later)
}

/// Runs `work` in a separate thread, which ends with it. A thread of the program that was interrupted and could not
/// stop, for example one in vfork, is then released by the kernel when it does stop; with a tracer that lives on, it
/// would stay stopped.
pub(crate) fn in_own_thread<T: Send>(work: impl FnOnce() -> Result<T, SessionError> + Send) -> Result<T, SessionError> {
    // The signals that report stops must not reach the calling thread.
    let _signals = StopWaiter::take();
    // Suspended by Ctrl-Z while the program's threads are stopped, this process would keep them stopped.
    let _not_suspended = NotSuspended::begin();
    let work = with_same_limit(work);
    let joined = thread::scope(|scope| {
        let started = thread::Builder::new().spawn_scoped(scope, || (gettid(), work()));
        started.map(thread::ScopedJoinHandle::join)
    });
    let joined = joined.map_err(|error| {
        SessionError::Refused(format!(
            "no thread could be started ({error}); fix: a higher limit of tasks (ulimit -u, TasksMax= of the unit, pids.max)"
        ))
    })?;
    let (worker, result) = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    await_end(worker);
    result
}

/// Makes another thread work on a process, and continues without it if the process stops answering.
///
/// # Errors
/// [`Unanswered`].
pub fn with_process<T: Send + 'static>(
    threads: &mut OneByOne,
    pid: i32,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unanswered> {
    // The signals that report stops must not reach this thread.
    let _signals = StopWaiter::take();
    threads.with(pid, work)
}

/// Waits until the kernel has ended a thread that was joined: only then it no longer traces what it could not release, and
/// another thread may.
pub(crate) fn await_end(thread: Pid) {
    let task = format!("/proc/self/task/{thread}");
    let deadline = Instant::now() + THREAD_END_TIMEOUT;
    while Path::new(&task).exists() && Instant::now() < deadline {
        thread::sleep(Duration::from_micros(100));
    }
}

/// Maximum wait for the kernel to end a thread.
const THREAD_END_TIMEOUT: Duration = Duration::from_secs(1);
