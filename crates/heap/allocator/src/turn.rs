//! The thread whose turn it is to fork with the heap's locks held, and the locks that it holds. State only: `fork`
//! takes the turn and ends it; `large` and `small` check whether the calling thread holds a lock already.

use crate::handover::Handover;
use crate::locks;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The thread that forks and holds the heap's locks; 0 if there is none. Fork handlers run in several threads at once
/// (glibc 2.36). A thread that does not get the turn in time takes no lock and changes no lock of the thread that has
/// it.
pub static TURN: AtomicUsize = AtomicUsize::new(0);

/// State of the thread whose turn it is.
pub struct Turn {
    /// Its preparations are complete: the heap does not change until the fork has ended.
    pub is_settled: AtomicBool,
    /// Number of forks that it has begun since then, in handlers of the program's.
    pub nested: AtomicUsize,
    /// Which of the two locks it holds.
    pub holds_growing: AtomicBool,
    pub holds_shared: AtomicBool,
    /// Begun before the fork, awaited and ended after it.
    pub handover: Handover,
}

pub static OF_TURN: Turn = Turn {
    is_settled: AtomicBool::new(false),
    nested: AtomicUsize::new(0),
    holds_growing: AtomicBool::new(false),
    holds_shared: AtomicBool::new(false),
    handover: Handover::new(),
};

/// True if it is the calling thread's turn.
pub fn is_own_turn() -> bool {
    TURN.load(SeqCst) == locks::this_thread()
}

/// True in a fork that was begun in a handler around another fork of this thread.
pub fn is_nested() -> bool {
    is_own_turn() && OF_TURN.nested.load(SeqCst) > 0
}

/// True in a handler of the program's around a fork of this thread, if this thread holds `GROWING` already.
pub fn holds_growing() -> bool {
    is_own_turn() && OF_TURN.is_settled.load(SeqCst) && OF_TURN.holds_growing.load(SeqCst)
}

/// True in a handler of the program's around a fork of this thread, if this thread holds `SHARED.lock` already.
pub fn holds_shared() -> bool {
    is_own_turn() && OF_TURN.is_settled.load(SeqCst) && OF_TURN.holds_shared.load(SeqCst)
}
