//! The states of traced threads.

use crate::remote::tracee::Stopped;
use crate::start::entry_stop::AwaitedEntry;
use std::time::Instant;

/// How a program has come to its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// It begins there: it is at the stop after its exec, unless it has made calls for the helper since.
    ByExec,
    /// By the code of [`AwaitedEntry`].
    ByCode,
}

/// A thread that is held at its program's entry.
pub struct HeldThread {
    /// The thread.
    pub stopped: Stopped,
    /// How the program has come to its entry.
    pub came: Came,
    /// When it came.
    pub since: Instant,
}

/// The next stop that a traced thread will reach.
pub enum State {
    /// Its first stop.
    New,
    /// Its next exec.
    Plain,
    /// The program's entry.
    Entry {
        entry: AwaitedEntry,
        /// A stop has been requested.
        told: bool,
    },
    /// The mapping of a program by a dynamic linker that was started as one.
    Mapping,
    /// It is held at the program's entry: other threads have not stopped yet.
    Held(HeldThread),
    /// It is released at its next stop.
    Leaving,
}

impl State {
    /// True if a report of the thread is not enough to end the state.
    pub fn is_looked_after(&self) -> bool {
        matches!(self, Self::Entry { .. } | Self::Held(_))
    }
}
