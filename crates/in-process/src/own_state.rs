//! Where everything lies that the library remembers: one mapping of its own.
//!
//! Nothing that changes lies in the library's `.data` or `.bss`. Linked statically, those belong to the program that is
//! lifted, and a change between the copy of a range and its swap would be lost. One pointer lies there; it is written
//! once, before anything is lifted.

use crate::arena::Arena;
use crate::calls::{self, ALL_SIGNALS};
use crate::library::Library;
use address_space::{Address, AddressRange};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use linux_raw_sys::general::{MAP_ANONYMOUS, MAP_PRIVATE};

/// What the library remembers. Fresh memory from the kernel, all zero, is a state in which nothing has happened.
struct State {
    arena: Arena,
    /// 0 free, 1 held, 2 held and waited for.
    lock: AtomicU32,
    /// The thread that holds the lock.
    owner: AtomicU32,
    library: UnsafeCell<Option<Library>>,
    /// 1 while a thread forks with the lock held.
    forking: AtomicU32,
    /// The signal mask of that thread.
    mask_at_fork: UnsafeCell<u64>,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(core::ptr::null_mut());

fn known_state() -> Option<&'static State> {
    // SAFETY:
    // - the pointer was published by `state`, is never unmapped, and nobody has a `&mut` to it.
    unsafe { STATE.load(Ordering::Acquire).as_ref() }
}

fn state() -> Option<&'static State> {
    if let Some(known) = known_state() {
        return Some(known);
    }
    // SAFETY:
    // - no MAP_FIXED: only free addresses are taken.
    let fresh = unsafe { calls::mmap(0, size_of::<State>(), 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) }.ok()?;
    let _ = calls::name_memory(extent(fresh), c"pagelift library");
    // SAFETY:
    // - the memory is fresh, aligned to a page, large enough and nobody else's.
    unsafe { (*(fresh as *mut State)).library.get().write(None) };
    let null = core::ptr::null_mut();
    if STATE.compare_exchange(null, fresh as *mut State, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY:
        // - another thread was first; nobody knows of this mapping.
        let _ = unsafe { calls::munmap(extent(fresh)) };
    }
    state()
}

fn extent(start: usize) -> AddressRange {
    AddressRange::sized(Address(start as u64), size_of::<State>() as u64)
}

/// The library's allocator.
pub struct OwnMemory;

// SAFETY:
// - blocks come from the arena, which never gives out a block twice, with the alignment of their class or of a page.
unsafe impl GlobalAlloc for OwnMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        state().map_or(core::ptr::null_mut(), |state| state.arena.allocate(layout))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(state) = state() {
            // SAFETY:
            // - the caller's promise: the block is one of this allocator's, with its layout.
            unsafe { state.arena.free(block, layout) };
        }
    }
}

/// Every mapping of the library's own.
pub fn own_mappings(mut take: impl FnMut(AddressRange)) {
    if let Some(state) = state() {
        take(extent(core::ptr::from_ref(state) as usize));
        state.arena.mappings(take);
    }
}

/// Why the library cannot be used just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The same thread is in it already: a call from a callback.
    Busy,
    /// There is no memory even for its state.
    NoMemory,
}

/// Keeps every signal from this thread as long as it lives: no handler of the program may run, or fork, while memory is
/// half way, and none may find the lock held by the very thread that it interrupted.
struct SignalsHeld(u64);

impl SignalsHeld {
    /// Holds them from now on.
    fn new() -> Self {
        Self(calls::set_signal_mask(ALL_SIGNALS))
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        calls::set_signal_mask(self.0);
    }
}

/// Acts on what the library remembers, alone and with all signals held.
///
/// # Errors
/// [`Unusable`].
pub fn with_library<R>(act: impl FnOnce(&mut Library) -> R) -> Result<R, Unusable> {
    let state = state().ok_or(Unusable::NoMemory)?;
    let _signals = SignalsHeld::new();
    lock(state)?;
    // SAFETY:
    // - the lock is held, so that nobody else has a reference.
    let library = unsafe { &mut *state.library.get() };
    let result = act(library.get_or_insert_default());
    unlock(state);
    Ok(result)
}

fn lock(state: &State) -> Result<(), Unusable> {
    let me = calls::thread_id();
    if state.owner.load(Ordering::Relaxed) == me {
        return Err(Unusable::Busy);
    }
    let mut seen = state.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
    while seen.is_err() {
        if state.lock.swap(2, Ordering::Acquire) == 0 {
            break;
        }
        calls::futex_wait(&state.lock, 2, false);
        seen = Err(2);
    }
    state.owner.store(me, Ordering::Relaxed);
    Ok(())
}

fn unlock(state: &State) {
    state.owner.store(0, Ordering::Relaxed);
    if state.lock.swap(0, Ordering::Release) == 2 {
        calls::futex_wake(&state.lock, false);
    }
}

/// Takes the library for the time of a fork: from now until [`release_after_fork`] no signal reaches this thread and no
/// other thread forks or lifts. Nothing happens where the library is in use by this very thread.
pub fn take_for_fork(prepare: impl FnOnce(&mut Library)) {
    // A library that has done nothing has nothing to guard.
    let Some(state) = known_state() else { return };
    let mask = calls::set_signal_mask(ALL_SIGNALS);
    if lock(state).is_err() {
        calls::set_signal_mask(mask);
        return;
    }
    state.forking.store(1, Ordering::Relaxed);
    // SAFETY:
    // - the lock is held, so that nobody else has a reference to either.
    unsafe {
        *state.mask_at_fork.get() = mask;
        prepare((*state.library.get()).get_or_insert_default());
    }
}

/// Gives the library back after a fork, in the parent or in the child.
///
/// In the child the owner is the forking thread under its new number, which [`take_for_fork`] could not know.
pub fn release_after_fork(finish: impl FnOnce(&mut Library)) {
    let Some(state) = known_state().filter(|state| state.forking.swap(0, Ordering::Relaxed) == 1) else { return };
    // SAFETY:
    // - the lock has been held by this thread since `take_for_fork`; in the child no other thread exists.
    let mask = unsafe {
        finish((*state.library.get()).get_or_insert_default());
        *state.mask_at_fork.get()
    };
    unlock(state);
    calls::set_signal_mask(mask);
}
