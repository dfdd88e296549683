//! Waits of a relative time that the end of a child interrupts, in programs that are followed.
//!
//! The kernel keeps signals that a process ignores for its tracer, SIGCHLD among them, and makes the thread that gets one stop.
//! Without a tracer its wait would continue. A child's end is reported to the tracer before the parent: the parent's waits
//! are read in between, since a stop does not show how long they have lasted.

use crate::remote::thread_list::user_threads;
use crate::remote::timed_wait::TimedWait;
use crate::remote::wait;
use linux::sleep_clock::SleepClock;
use linux::text::text_of;
use nix::unistd::Pid;
use std::collections::HashMap;

/// The waits in which followed threads were seen before the end of a child.
#[derive(Default)]
pub struct ParentWaits {
    waits: HashMap<i32, TimedWait>,
    clock: SleepClock,
}

impl ParentWaits {
    /// Waits for the next report of any thread, which stays pending. If it reports an end, reads the waits of the
    /// parent's threads.
    pub fn look_before_an_end(&mut self, is_followed: impl Fn(i32) -> bool) {
        let Some(parent) = wait::next_to_end().and_then(parent_of) else { return };
        let Ok(listing) = user_threads(parent, is_followed) else { return };
        for thread in listing.threads {
            let earlier = self.waits.remove(&thread);
            let wait = TimedWait::of(parent, thread, &mut self.clock, earlier.as_ref());
            self.waits.extend(wait.map(|wait| (thread, wait)));
        }
    }

    /// The wait in which a thread was last seen.
    pub fn of(&mut self, thread: Pid) -> Option<&mut TimedWait> {
        self.waits.get_mut(&thread.as_raw())
    }

    /// Forgets a thread that has ended.
    pub fn forget(&mut self, thread: Pid) {
        self.waits.remove(&thread.as_raw());
    }
}

fn parent_of(process: Pid) -> Option<Pid> {
    let text = text_of(format!("/proc/{process}/status")).ok()?;
    let parent = text.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    (parent != 0).then(|| Pid::from_raw(parent))
}
