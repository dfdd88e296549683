//! The library's data, and the lock under which it is used: alone, with all signals held, or by the thread that forks.
//! It is in the library's own memory (`own_memory`).
//!
//! Order of the locks. The dynamic linker has a lock on its list of objects, which `dl_iterate_phdr` and `dlclose` take,
//! and threads come here with it: from callbacks of the program's own `dl_iterate_phdr`. So it is first:
//!
//! - A thread that has the library never waits for the linker's lock. Actions that ask for the list begin by taking that lock
//!   ([`Call::with_objects_and_library`]). The handler before a fork comes here with the locks of all the program's own
//!   handlers, an allocator's for example, that a callback of another thread may need; it takes the library alone.
//! - A thread that has the linker's lock from here never waits for the library: if another thread has it, the linker's lock is
//!   given back first. A child would find that lock taken by a thread that it does not have. For the same reason the handler
//!   before a fork waits, with the library, until other threads have given it back ([`State::entering`]).
//!
//! The lock that `dlopen` and `dlclose` hold while they call the functions of an object is a different one, and is not taken
//! here.

use crate::library::Library;
use crate::own_memory::{self, Room};
use crate::{linking, needs};
use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use linux_raw::ALL_SIGNALS;
use linux_raw::Lock;

/// The state in [`Room`]. All zero, as that is at first, it is a state in which nothing has happened.
struct State {
    lock: Lock,
    /// The thread that holds the lock.
    owner: AtomicU32,
    /// The thread pointer of the thread that holds it for a fork, otherwise 0. In the child the owner has another
    /// number, but the same thread pointer.
    forker: AtomicUsize,
    library: UnsafeCell<MaybeUninit<Library>>,
    /// True once `library` has been written.
    has_library: AtomicBool,
    /// The number of forks that the thread which holds the lock is in; more than one if a handler of the program's
    /// around a fork forks itself.
    forks: AtomicU32,
    /// The number of threads that have the linker's lock from here, or are about to take it.
    entering: AtomicU32,
    /// The signal mask of that thread before the first fork.
    mask_at_fork: UnsafeCell<u64>,
}

/// Longest waits of a fork for threads that are about to give the linker's lock back.
const WAITS: u32 = 10;
const WAIT_MICROSECONDS: u32 = 2000;

const _: () = assert!(size_of::<State>() <= size_of::<Room>() && align_of::<State>() <= align_of::<Room>());

fn known_state() -> Option<&'static State> {
    // SAFETY:
    // - the library's own room, which only this module uses.
    own_memory::known_room().map(|room| unsafe { state_in(room) })
}

fn state() -> Option<&'static State> {
    // SAFETY:
    // - as above.
    own_memory::room().map(|room| unsafe { state_in(room) })
}

/// # Safety
/// The room was zero at first, has only been used as a `State` since, and is never unmapped.
unsafe fn state_in(room: NonNull<Room>) -> &'static State {
    // SAFETY:
    // - the room has the size and the alignment of a `State`, as asserted above; zero is a value of every field.
    // - the rest is the caller's promise; only this module has references, and none is `&mut`.
    unsafe { room.cast::<State>().as_ref() }
}

impl State {
    /// The library, new if it has not been used yet.
    ///
    /// # Safety
    /// The calling thread holds the lock, and there is no other reference to the library.
    #[allow(clippy::mut_from_ref, reason = "the lock makes it exclusive, by the caller's promise")]
    unsafe fn library(&self) -> &mut Library {
        // SAFETY:
        // - the caller's promise.
        let library = unsafe { &mut *self.library.get() };
        if !self.has_library.swap(true, Ordering::Relaxed) {
            library.write(Library::default());
        }
        // SAFETY:
        // - `has_library` says that it has been written, here or before.
        unsafe { library.assume_init_mut() }
    }

    /// Counts the calling thread in `entering` during the action. `None`, without it, where another thread has the library.
    fn entering<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        self.entering.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let result = (!self.lock.is_taken()).then(act);
        if self.entering.fetch_sub(1, Ordering::SeqCst) == 1 && self.lock.is_taken() {
            linux_raw::futex_wake(&self.entering, false);
        }
        result
    }

    /// Waits until no thread has the linker's lock from here, for the thread that has the library: none takes it any more.
    /// The wait has a limit, for a callback of the program's may hold that lock for long.
    fn wait_for_entering(&self) {
        fence(Ordering::SeqCst);
        for _ in 0..WAITS {
            match self.entering.load(Ordering::SeqCst) {
                0 => return,
                threads => linux_raw::futex_wait_at_most(&self.entering, threads, WAIT_MICROSECONDS),
            }
        }
    }
}

/// Why the library cannot be used just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The calling thread already holds the library's state: it was called from one of its own callbacks.
    Busy,
    /// There is no memory for its state, or for what the call may need.
    NoMemory,
}

/// A call of the library. It keeps every signal from this thread as long as it lives: no handler of the program may run, or
/// fork, while memory is half way, and none may find a lock held by the very thread that it interrupted. That concerns
/// whatever allocates, so that texts are made and dropped within it, too.
pub struct Call {
    /// The signal mask before.
    mask: Cell<u64>,
    /// True once memory is kept for it.
    has_reserve: Cell<bool>,
}

impl Call {
    /// Begins a call.
    ///
    /// # Errors
    /// [`Unusable`]. Nothing has been allocated then.
    pub fn begin() -> Result<Self, Unusable> {
        let state = state().ok_or(Unusable::NoMemory)?;
        if is_holder(state, linux_raw::thread_id()) {
            return Err(Unusable::Busy);
        }
        let call = Self { mask: Cell::new(linux_raw::set_signal_mask(ALL_SIGNALS)), has_reserve: Cell::new(false) };
        if own_memory::has_room() { Ok(call) } else { Err(Unusable::NoMemory) }
    }

    /// Keeps the memory that an action may need until the end of the call: what it allocates is there, whatever limit the
    /// program has reached.
    fn reserve(&self) -> Result<(), Unusable> {
        if !self.has_reserve.get() {
            self.has_reserve.set(own_memory::reserve(needs::of_a_call()));
        }
        if self.has_reserve.get() { Ok(()) } else { Err(Unusable::NoMemory) }
    }

    /// Acts on what the library remembers, alone.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn with_library<R>(&self, act: impl FnOnce(&mut Library) -> R) -> Result<R, Unusable> {
        let state = state().ok_or(Unusable::NoMemory)?;
        self.reserve()?;
        lock(state)?;
        Ok(act_and_unlock(state, act))
    }

    /// Like [`Call::with_library`], while the dynamic linker can unload nothing and its list of objects can be read.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn with_objects_and_library<R>(&self, act: impl FnOnce(&mut Library) -> R) -> Result<R, Unusable> {
        let state = state().ok_or(Unusable::NoMemory)?;
        self.reserve()?;
        let mut act = Some(act);
        loop {
            // Nothing is held here, as the order of the locks asks.
            lock(state)?;
            unlock(state);
            let result = state.entering(|| {
                linking::with_nothing_unloaded(|| {
                    let act = if try_lock(state) { act.take() } else { None };
                    act.map(|act| act_and_unlock(state, act))
                })
            });
            if let Some(result) = result.flatten() {
                return Ok(result);
            }
        }
    }

    /// Calls a function of the program, with the program's signal mask. Changes of the mask are kept.
    pub fn outside<R>(&self, act: impl FnOnce() -> R) -> R {
        linux_raw::set_signal_mask(self.mask.get());
        let result = act();
        self.mask.set(linux_raw::set_signal_mask(ALL_SIGNALS));
        result
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.has_reserve.get() {
            own_memory::release();
        }
        linux_raw::set_signal_mask(self.mask.get());
    }
}

fn lock(state: &State) -> Result<(), Unusable> {
    let me = linux_raw::thread_id();
    if is_holder(state, me) {
        return Err(Unusable::Busy);
    }
    state.lock.take();
    state.owner.store(me, Ordering::Relaxed);
    Ok(())
}

/// Takes the lock for a thread that does not have it, if no other has it.
fn try_lock(state: &State) -> bool {
    let is_taken = state.lock.try_take();
    if is_taken {
        state.owner.store(linux_raw::thread_id(), Ordering::Relaxed);
    }
    is_taken
}

/// Acts with the lock held, and gives it back.
fn act_and_unlock<R>(state: &State, act: impl FnOnce(&mut Library) -> R) -> R {
    // SAFETY:
    // - the lock is held, so that nobody else has a reference.
    let result = act(unsafe { state.library() });
    unlock(state);
    result
}

/// True if the calling thread, whose number is `me`, has the library already.
fn is_holder(state: &State, me: u32) -> bool {
    state.owner.load(Ordering::Relaxed) == me || is_forker(state)
}

/// True in a handler around a fork of this thread, in the parent and in the child.
fn is_forker(state: &State) -> bool {
    state.forks.load(Ordering::Relaxed) > 0 && state.forker.load(Ordering::Relaxed) == linux_raw::thread_pointer()
}

fn unlock(state: &State) {
    state.owner.store(0, Ordering::Relaxed);
    state.lock.release();
}

/// Takes the library for the time of a fork: from now until the outermost of [`release_in_parent`] or
/// [`release_in_child`] no signal reaches this thread and no other thread forks, lifts or allocates from the library's
/// memory. That memory is taken last and released first: whoever allocates waits for nothing else. Where this very thread
/// has the library already, only forks are counted.
pub fn take_for_fork(prepare: impl FnOnce(&mut Library)) {
    // The library may be unused; and a lock that another thread takes while this one forks is not released here.
    let Some(state) = state() else { return };
    let mask = linux_raw::set_signal_mask(ALL_SIGNALS);
    if lock(state).is_err() {
        linux_raw::set_signal_mask(mask);
        // This thread holds the lock, in a handler around another fork or in the library.
        if is_forker(state) {
            state.forks.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
    state.wait_for_entering();
    state.forker.store(linux_raw::thread_pointer(), Ordering::Relaxed);
    state.forks.store(1, Ordering::Relaxed);
    // SAFETY:
    // - the lock is held, so that nobody else has a reference to either.
    unsafe {
        *state.mask_at_fork.get() = mask;
        prepare(state.library());
    }
    own_memory::hold_for_fork();
}

/// Gives the library back after a fork, in the parent. After a fork within another one's handlers it stays taken: what
/// was prepared is the outer fork's.
pub fn release_in_parent(finish: impl FnOnce(&mut Library)) {
    let Some(state) = known_state().filter(|state| is_forker(state)) else { return };
    match state.forks.load(Ordering::Relaxed) {
        1 => release(state, finish),
        forks => state.forks.store(forks - 1, Ordering::Relaxed),
    }
}

/// Releases the library after a fork, in the child, for any number of forks that its thread is in: the preparations of
/// each fork serve this child, and a later fork within the same handlers has no memory left to guard.
pub fn release_in_child(finish: impl FnOnce(&mut Library)) {
    if let Some(state) = known_state().filter(|state| is_forker(state)) {
        // Other threads exist in the parent only.
        state.entering.store(0, Ordering::Relaxed);
        release(state, finish);
    }
}

/// To be called by the thread that has taken the lock for a fork, or by its copy in the child.
fn release(state: &State, finish: impl FnOnce(&mut Library)) {
    own_memory::release_after_fork();
    state.forks.store(0, Ordering::Relaxed);
    state.forker.store(0, Ordering::Relaxed);
    // SAFETY:
    // - the lock has been held by this thread since `take_for_fork`; in the child no other thread exists.
    let mask = unsafe {
        finish(state.library());
        *state.mask_at_fork.get()
    };
    unlock(state);
    linux_raw::set_signal_mask(mask);
}
