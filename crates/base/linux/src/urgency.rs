//! Priority of a thread that must not wait for a CPU, or that others must not wait for (sched(7)).

/// The lowest real-time priority: above all ordinary threads and below every other real-time thread.
const PRIORITY: i32 = 1;

/// The nice value of the largest share (setpriority(2)).
const LARGEST_SHARE: i32 = -20;

/// The shortest slice that Linux gives, in nanoseconds.
const SHORTEST_SLICE: u64 = 100_000;

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
        Self::raise_to(|policy, _| is_ordinary(policy).then_some((libc::SCHED_FIFO, PRIORITY)))
    }

    /// Like [`Self::raise`], and raises a real-time thread above the others of its priority.
    pub fn raise_above_equals() -> Self {
        Self::raise_to(|policy, priority| match policy {
            libc::SCHED_FIFO | libc::SCHED_RR => Some((policy, priority + 1)),
            _ => is_ordinary(policy).then_some((libc::SCHED_FIFO, PRIORITY)),
        })
    }

    /// Sets the policy and the priority that `wanted` returns for the present ones of the calling thread.
    fn raise_to(wanted: impl Fn(i32, i32) -> Option<(i32, i32)>) -> Self {
        let policy = policy();
        let mut before = Parameters { priority: 0 };
        // SAFETY:
        // - 0 is the calling thread, and `before` has the layout of the kernel's structure and belongs to this
        //   function.
        let known = unsafe { libc::syscall(libc::SYS_sched_getparam, 0, &raw mut before) } == 0;
        // SCHED_RESET_ON_FORK is kept.
        let inherited = policy & libc::SCHED_RESET_ON_FORK;
        let wanted = wanted(policy & !inherited, before.priority).filter(|_| known);
        let raised = wanted.is_some_and(|(policy, priority)| set(policy | inherited, Parameters { priority }));
        Self { before: raised.then_some((policy, before)) }
    }
}

fn is_ordinary(policy: i32) -> bool {
    [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&policy)
}

impl Drop for Urgency {
    fn drop(&mut self) {
        if let Some((policy, parameters)) = self.before {
            // Lowering is always permitted.
            set(policy, parameters);
        }
    }
}

/// Returns the scheduling policy of the calling thread. Uses a raw system call, like the other functions here: musl's
/// functions with these names always fail, because Linux schedules threads, and POSIX processes.
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

/// The kernel's `struct sched_attr` (sched_setattr(2)) in its first version, which all kernels know.
#[repr(C)]
#[derive(Debug, Default, PartialEq, Eq)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// For an ordinary thread since Linux 6.12: the length of its slice in nanoseconds.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Lets the calling thread, if it is an ordinary one, run as soon as it wakes, even if threads of its priority are using its
/// CPU: the kernel interrupts a thread for one that asks for shorter slices. This is always permitted, and has no effect before
/// Linux 6.12.
pub fn take_short_slices() {
    change_ordinary(|before| Attributes { runtime: SHORTEST_SLICE, ..before });
}

/// Gives the calling thread, if it is an ordinary one, the largest share of a CPU that an ordinary thread can have (nice -20),
/// for as long as it lives. Others keep a share, which real-time priority would not leave them. Needs CAP_SYS_NICE or
/// RLIMIT_NICE; without them nothing changes.
pub fn take_largest_share() {
    change_ordinary(|before| Attributes { nice: LARGEST_SHARE, ..before });
}

/// Takes short slices and the largest share, for a short command: otherwise a thread that has slept waits behind all threads of a
/// program that uses every CPU. Threads that are started later inherit both.
pub fn hurry() {
    change_ordinary(|before| Attributes { runtime: SHORTEST_SLICE, nice: LARGEST_SHARE, ..before });
    // Without the right to the share.
    take_short_slices();
}

/// Gives the calling thread the largest share of a CPU, as [`take_largest_share`] does, until it is dropped.
pub struct LargestShare {
    /// The nice value before.
    before: Option<i32>,
}

impl LargestShare {
    /// Takes the largest share, if the calling thread is an ordinary one and the kernel permits it.
    pub fn take() -> Self {
        let before = attributes().map(|attributes| attributes.nice);
        take_largest_share();
        Self { before }
    }
}

impl Drop for LargestShare {
    fn drop(&mut self) {
        if let Some(nice) = self.before {
            // Lowering is always permitted.
            change_ordinary(|now| Attributes { nice, ..now });
        }
    }
}

/// Changes the attributes of the calling thread, if it is an ordinary one and the kernel permits it.
fn change_ordinary(change: impl Fn(Attributes) -> Attributes) {
    let Some(before) = attributes().filter(|attributes| is_ordinary(attributes.policy as i32)) else { return };
    let wanted = change(before);
    // SAFETY:
    // - 0 is the calling thread, and the kernel reads the structure, which has the size that it states.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) };
}

/// Returns the attributes of the calling thread.
fn attributes() -> Option<Attributes> {
    let size = size_of::<Attributes>() as u32;
    let mut attributes = Attributes::default();
    // SAFETY:
    // - 0 is the calling thread, and the kernel writes at most `size` bytes, which belong to this function.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } == 0;
    known.then_some(Attributes { size, ..attributes })
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

    #[test]
    fn short_slices_change_nothing_else() {
        std::thread::spawn(|| {
            let before = attributes().unwrap();
            take_short_slices();
            let after = attributes().unwrap();
            // Before Linux 6.12 there are no slices of a thread's own.
            assert!([SHORTEST_SLICE, before.runtime].contains(&after.runtime), "{after:?}");
            assert_eq!(Attributes { runtime: before.runtime, ..after }, before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_command_in_a_hurry_takes_what_it_may() {
        std::thread::spawn(|| {
            change_ordinary(|before| Attributes { nice: before.nice.max(5), ..before });
            let before = attributes().unwrap();
            hurry();
            let after = attributes().unwrap();
            assert!([LARGEST_SHARE, before.nice].contains(&after.nice), "{after:?}");
            assert!([SHORTEST_SLICE, before.runtime].contains(&after.runtime), "{after:?}");
            let inherited = std::thread::spawn(|| attributes().unwrap()).join().unwrap();
            assert_eq!(inherited, after);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_largest_share_ends_with_its_guard() {
        std::thread::spawn(|| {
            change_ordinary(|before| Attributes { nice: before.nice.max(5), ..before });
            let before = attributes().unwrap();
            let share = LargestShare::take();
            // A thread that may not have it keeps its share.
            assert!([LARGEST_SHARE, before.nice].contains(&attributes().unwrap().nice));
            drop(share);
            assert_eq!(attributes().unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_real_time_thread_is_raised_by_one() {
        std::thread::spawn(|| {
            let is_permitted = set(libc::SCHED_RR, Parameters { priority: 3 });
            let before = attributes().unwrap();
            let urgency = Urgency::raise_above_equals();
            let raised = attributes().unwrap();
            if is_permitted {
                assert_eq!((raised.policy as i32, raised.priority), (libc::SCHED_RR, 4));
            }
            drop(urgency);
            assert_eq!(attributes().unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
