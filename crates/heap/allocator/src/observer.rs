//! Lets a test see, and lengthen, the moments at which this heap holds a lock, waits or reads the clock: the functions that
//! do so are no names that a program could define. Nothing but a test sets the observer.

use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The events that the observer is called for.
#[derive(Clone, Copy)]
pub enum Moment {
    /// This thread has just taken a lock.
    Locked = 0,
    /// It is about to let other threads run.
    GivesWay = 1,
    /// It is about to read the clock.
    ReadsClock = 2,
}

/// Address of a function that takes the number of a [`Moment`]; 0 for none.
// SAFETY:
// - no other object defines a symbol of this name.
#[unsafe(export_name = "pagelift_heap_observer")]
static OBSERVER: AtomicUsize = AtomicUsize::new(0);

/// Calls the observer, if there is one.
#[inline]
pub fn observe(moment: Moment) {
    let observer = OBSERVER.load(Relaxed);
    if observer != 0 {
        // SAFETY:
        // - the caller that has set it promises that it is the address of such a function.
        unsafe { core::mem::transmute::<usize, extern "C" fn(c_int)>(observer)(moment as c_int) };
    }
}
