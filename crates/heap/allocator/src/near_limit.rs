//! The limit of the process's memory cgroups. Memory in huge pages that no block uses counts there as well, so a program
//! could be killed for it. Far from the limit nothing changes. Near the limit the heap reduces its memory after each small
//! growth (`relief`).
//!
//! The limit is read at the start. Later a sandbox of the program may forbid the calls. A limit that is set or lowered
//! later is not known.

use crate::{ACCOUNT, memory};
use core::ptr::{from_ref, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Bytes that the heap and the rest of the program can have; `usize::MAX` without a limit.
static ROOM: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Size of the heap at which it is reduced next; `usize::MAX` without a limit.
static NEXT: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Value of [`NEXT`] while a thread reduces the heap.
const BUSY: usize = usize::MAX - 1;
/// Bytes of large blocks in use that hold no memory.
pub static UNTOUCHED: AtomicUsize = AtomicUsize::new(0);
static IS_NEAR: AtomicBool = AtomicBool::new(false);
static ACTIONS: AtomicPtr<Actions> = AtomicPtr::new(null_mut());

/// The limit is near from this share of the room on, in quarters, and far again below [`FAR_QUARTERS`].
const NEAR_QUARTERS: usize = 3;
const FAR_QUARTERS: usize = 2;
/// The heap is reduced again when it has grown by this share of the room, within the bounds.
const STEP_SHARE: usize = 64;
pub const LEAST_STEP: usize = 4 << 20;
const MOST_STEP: usize = 256 << 20;

/// The functions that change the heap, called without its locks.
pub struct Actions {
    /// Reduces the heap, which may then grow by so many bytes before the next call.
    pub reduce: fn(usize),
    /// Takes back the changes that `reduce` has made for the future; false if that is not possible now.
    pub restore: fn() -> bool,
}

unsafe extern "C" {
    /// Defined in `near_limit.c`.
    fn mimalloc_arena_bytes() -> usize;
}

/// Reads the limit, and returns true if there is one.
pub fn set_up(actions: &'static Actions) -> bool {
    let Some(room) = memory::room_of_cgroups().and_then(|room| usize::try_from(room).ok()) else { return false };
    ACTIONS.store(from_ref(actions).cast_mut(), Release);
    ROOM.store(room, Relaxed);
    NEXT.store(near_from(room), Relaxed);
    true
}

fn actions() -> Option<&'static Actions> {
    // SAFETY:
    // - null, or a reference that lives as long as the process.
    unsafe { ACTIONS.load(Acquire).as_ref() }
}

fn near_from(room: usize) -> usize {
    room / 4 * NEAR_QUARTERS
}

fn step(room: usize) -> usize {
    (room / STEP_SHARE).clamp(LEAST_STEP, MOST_STEP)
}

/// True if the heap is near the limit.
pub fn is_near() -> bool {
    IS_NEAR.load(Relaxed)
}

/// Bytes of the heap that may hold memory. Blocks count whole, touched or not, but for those that are large only because of
/// their alignment.
fn size() -> usize {
    let large = (ACCOUNT.large_held.load(Relaxed) + ACCOUNT.large_kept.load(Relaxed)) as usize;
    // SAFETY:
    // - only reads counters.
    let arenas = unsafe { mimalloc_arena_bytes() };
    large.saturating_sub(UNTOUCHED.load(Relaxed)).saturating_add(arenas)
}

/// Reduces the heap if it has grown far enough. Called after each growth, without locks of the heap.
pub extern "C" fn grew() {
    let next = NEXT.load(Relaxed);
    if next == usize::MAX || size() < next {
        return;
    }
    let Some(actions) = actions() else { return };
    // One thread at a time: the others find a value that is not reached.
    if NEXT.compare_exchange(next, BUSY, Relaxed, Relaxed).is_err() {
        return;
    }
    let room = ROOM.load(Relaxed);
    // A successful malloc(3) leaves errno alone.
    let _keep = crate::sys::KeepErrno::new();
    IS_NEAR.store(true, Relaxed);
    (actions.reduce)(step(room));
    NEXT.store(size().saturating_add(step(room)).max(near_from(room)), Relaxed);
}

/// In the child of a fork: ends the work of a thread that does not exist there.
pub fn forget_other_threads() {
    if NEXT.load(Relaxed) == BUSY {
        NEXT.store(near_from(ROOM.load(Relaxed)), Relaxed);
    }
}

/// Adapts to a heap that has become smaller. Called about every two seconds, without locks of the heap.
pub fn time_passes() {
    let (room, next) = (ROOM.load(Relaxed), NEXT.load(Relaxed));
    let Some(actions) = actions().filter(|_| is_near() && next < BUSY) else { return };
    let size = size();
    let nearer = size.saturating_add(step(room)).max(near_from(room));
    if nearer < next {
        // Another thread that has changed it knows more.
        let _ = NEXT.compare_exchange(next, nearer, Relaxed, Relaxed);
    }
    if size < room / 4 * FAR_QUARTERS && (actions.restore)() {
        IS_NEAR.store(false, Relaxed);
    }
}
