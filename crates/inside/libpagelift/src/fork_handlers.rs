//! The handlers around a fork: each takes the library or gives it back, and has the fork guard act.

use crate::library::Library;
use crate::linking;
#[cfg(feature = "freestanding")]
use crate::own_state::Call;
use crate::own_state::{release_in_child, release_in_parent, take_for_fork};

/// Registers the handlers; called when the library is loaded.
#[cfg(feature = "freestanding")]
pub fn register_at_start() {
    let Ok(_call) = Call::begin() else { return };
    if !register() {
        return;
    }
    #[cfg(feature = "preload")]
    let is_first = crate::loaded::was_loaded_at_start();
    #[cfg(not(feature = "preload"))]
    let is_first =
        crate::auxiliary::Auxiliary::read().is_some_and(|auxiliary| auxiliary.vector.dynamic_linker().is_none());
    crate::fork_guard::note_registered(is_first);
}

/// Asks the C library to call the handlers around every fork. False if it cannot.
pub fn register() -> bool {
    linking::at_fork(before, in_parent, in_child)
}

extern "C" fn before() {
    take_for_fork(Library::prepare_fork);
}

extern "C" fn in_parent() {
    release_in_parent(|library| library.guard.finish_in_parent());
}

/// # Safety
/// Called by the C library in the child of a fork, as its only thread, after [`before`] in the parent.
unsafe extern "C" fn in_child() {
    release_in_child(|library| {
        let Library { guard, records, .. } = library;
        // SAFETY:
        // - the caller's promise; `before` has called `prepare`.
        unsafe { guard.finish_in_child(records) };
    });
}
