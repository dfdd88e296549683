//! Priority of a thread that must not wait for a CPU, or that others must not wait for (sched(7)).

/// The lowest real-time priority: above all ordinary threads and below every other real-time thread.
const PRIORITY: i32 = 1;

/// Schedules the calling thread before all ordinary threads until it is dropped.
///
/// A thread that keeps another program stopped and waits for a CPU behind that program's clients makes the pause as
/// long as the queue. Needs CAP_SYS_NICE or RLIMIT_RTPRIO; without them nothing changes.
pub struct Urgency {
    before: Option<(i32, Parameters)>,
}

/// The kernel's `struct sched_param`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    priority: i32,
}

impl Urgency {
    /// Raises the calling thread, if it is an ordinary thread and the kernel permits it.
    pub fn raise() -> Self {
        let policy = policy();
        let mut before = Parameters { priority: 0 };
        // SAFETY:
        // - 0 is the calling thread, and `before` has the layout of the kernel's structure and belongs to this
        //   function.
        let known = unsafe { libc::syscall(libc::SYS_sched_getparam, 0, &raw mut before) } == 0;
        let ordinary = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&policy);
        let raised = known && ordinary && set(libc::SCHED_FIFO, Parameters { priority: PRIORITY });
        Self { before: raised.then_some((policy, before)) }
    }
}

impl Drop for Urgency {
    fn drop(&mut self) {
        if let Some((policy, parameters)) = self.before {
            // Lowering is always permitted.
            set(policy, parameters);
        }
    }
}

/// Returns the scheduling policy of the calling thread. Uses a raw system call, as do the others here: musl's functions
/// of these names always fail, since Linux schedules threads where POSIX has processes.
fn policy() -> i32 {
    // SAFETY:
    // - 0 is the calling thread, and the call takes no pointer.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) as i32 }
}

fn set(policy: i32, parameters: Parameters) -> bool {
    // SAFETY:
    // - 0 is the calling thread, and `parameters` has the layout of the kernel's structure and outlives the call.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const parameters) == 0 }
}

/// Schedules the calling thread after all ordinary threads (SCHED_IDLE), for as long as it lives: it has nothing to do but to
/// end. This is always permitted.
pub fn be_last() {
    set(libc::SCHED_IDLE, Parameters { priority: 0 });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_is_the_last() {
        std::thread::spawn(|| {
            be_last();
            assert_eq!(policy(), libc::SCHED_IDLE);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_thread_is_afterwards_what_it_was() {
        let before = policy();
        let urgency = Urgency::raise();
        // A thread that may not be raised keeps its policy.
        assert!([before, libc::SCHED_FIFO].contains(&policy()));
        drop(urgency);
        assert_eq!(policy(), before);
    }
}
