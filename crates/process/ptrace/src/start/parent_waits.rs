//! Waits of a relative time that the end of a child interrupts, in programs that are followed.
//!
//! The kernel keeps signals that a process ignores for its tracer, SIGCHLD among them, and makes the thread that gets one stop.
//! Without a tracer its wait would continue. A child's end is reported to the tracer before the parent: the parent's waits
//! are read in between, since a stop does not show how long they have lasted.

use crate::remote::thread_list::user_threads;
use crate::remote::timed_wait::TimedWaits;
use crate::remote::wait;
use linux::text::text_of;
use nix::unistd::Pid;

/// Waits for the next report of any thread, which stays pending. If it reports an end, reads the waits of the parent's
/// threads. Those of threads that are no longer followed are forgotten.
pub fn look_before_an_end(waits: &mut TimedWaits, is_followed: impl Fn(i32) -> bool) {
    let Some(parent) = wait::next_to_end().and_then(parent_of) else { return };
    waits.retain(&is_followed);
    let Ok(listing) = user_threads(parent, is_followed) else { return };
    listing.threads.into_iter().for_each(|thread| waits.look_at(parent, thread));
}

fn parent_of(process: Pid) -> Option<Pid> {
    let text = text_of(format!("/proc/{process}/status")).ok()?;
    let parent = text.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    (parent != 0).then(|| Pid::from_raw(parent))
}
