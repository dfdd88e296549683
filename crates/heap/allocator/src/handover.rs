//! A parent's wait until its child has left the pool, by a pipe whose other end the child closes, at the latest when it
//! ends.

use crate::sys::{close, read, write};
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// No descriptor.
const NONE: c_int = -1;

pub struct Handover {
    from_child: AtomicI32,
    to_parent: AtomicI32,
}

impl Handover {
    pub const fn new() -> Self {
        Self { from_child: AtomicI32::new(NONE), to_parent: AtomicI32::new(NONE) }
    }

    /// Opens the pipe. Called before the fork; false if no descriptor is left.
    pub fn begin(&self) -> bool {
        let mut ends = [NONE; 2];
        // SAFETY:
        // - the kernel writes two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return false;
        }
        self.from_child.store(ends[0], Relaxed);
        self.to_parent.store(ends[1], Relaxed);
        true
    }

    pub fn is_under_way(&self) -> bool {
        self.to_parent.load(Relaxed) != NONE
    }

    /// Waits until the child has left the pool or has ended. Returns at once if there is no child.
    pub fn await_child(&self) {
        self.close_end(&self.to_parent);
        let from = self.from_child.load(Relaxed);
        // A byte, the end of the pipe, or an error: nothing more is to come in any case.
        let _ = read(from, &mut [0]);
        self.close_end(&self.from_child);
    }

    /// Closes the pipe in a child of another fork, which has only inherited it.
    pub fn give_up(&self) {
        self.close_end(&self.to_parent);
        self.close_end(&self.from_child);
    }

    /// Ends the parent's wait, in the child.
    pub fn end_in_child(&self) {
        // Written while this process still holds a reader: if the parent has been killed, writing without a reader
        // would end this process (SIGPIPE).
        write(self.to_parent.load(Relaxed), &[0]);
        self.close_end(&self.to_parent);
        self.close_end(&self.from_child);
    }

    fn close_end(&self, end: &AtomicI32) {
        let end = end.swap(NONE, Relaxed);
        if end != NONE {
            // SAFETY:
            // - `begin` has opened it, and it is taken out here, once.
            unsafe { close(end) };
        }
    }
}
