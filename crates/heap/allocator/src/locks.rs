//! mimalloc's locks at a fork. mimalloc has no fork handlers, and a lock that another thread holds at the fork would stay
//! locked in the child. Its locks are taken rarely (when a thread begins or ends, when an arena is first used), and always
//! through this module (`mimalloc.c`), which lets no thread take one while the process forks.

use crate::observer::{Moment, observe};
use crate::sys::{give_way, milliseconds};
use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use libc::pthread_mutex_t;
use linux_raw::Lock;

/// A thread that holds locks, or is about to.
struct Holder {
    /// The thread's [`this_thread`]; 0 if the place is free.
    thread: AtomicUsize,
    /// Number of locks that it holds; used by that thread alone.
    locks: AtomicUsize,
}

/// Longest wait for a fork, in milliseconds. Bounded, because the fork may itself wait for something that the waiting
/// thread holds.
const MAX_WAIT_MS: u64 = 1000;

/// Highest number of threads that hold locks at the same time; others wait.
const MOST_HOLDERS: usize = 64;
static HOLDERS: [Holder; MOST_HOLDERS] =
    [const { Holder { thread: AtomicUsize::new(0), locks: AtomicUsize::new(0) } }; MOST_HOLDERS];

/// The thread that is forking; 0 if there is none.
static CLOSED_BY: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's thread pointer, which stays the same in a child that it forks.
pub fn this_thread() -> usize {
    linux_raw::thread_pointer()
}

fn place_of(thread: usize) -> Option<&'static Holder> {
    HOLDERS.iter().find(|holder| holder.thread.load(SeqCst) == thread)
}

fn enter() {
    let own = this_thread();
    if let Some(holder) = place_of(own) {
        holder.locks.fetch_add(1, Relaxed);
        return;
    }
    let mut since = None;
    loop {
        let free = |holder: &&Holder| holder.thread.compare_exchange(0, own, SeqCst, SeqCst).is_ok();
        if let Some(holder) = HOLDERS.iter().find(free) {
            // Either the thread that forks sees the place taken, or this one sees that a fork has begun.
            let closed_by = CLOSED_BY.load(SeqCst);
            let began = *since.get_or_insert_with(milliseconds);
            let waited = milliseconds() - began;
            if closed_by == 0 || closed_by == own || waited > MAX_WAIT_MS {
                holder.locks.store(1, Relaxed);
                return;
            }
            holder.thread.store(0, SeqCst);
        }
        give_way();
    }
}

fn leave() {
    let Some(holder) = place_of(this_thread()) else { return };
    if holder.locks.fetch_sub(1, Relaxed) == 1 {
        holder.thread.store(0, SeqCst);
    }
}

/// Keeps other threads from taking a lock from now on. Returns when none holds one, or after [`MAX_WAIT_MS`].
pub fn close() {
    let own = this_thread();
    let deadline = milliseconds() + MAX_WAIT_MS;
    while CLOSED_BY.compare_exchange(0, own, SeqCst, SeqCst).is_err_and(|other| other != own) {
        if milliseconds() > deadline {
            return;
        }
        give_way();
    }
    let is_other = |holder: &Holder| ![0, own].contains(&holder.thread.load(SeqCst));
    while HOLDERS.iter().any(is_other) && milliseconds() <= deadline {
        give_way();
    }
}

/// Lets other threads take locks again after the fork.
pub fn open() {
    CLOSED_BY.compare_exchange(this_thread(), 0, SeqCst, SeqCst).ok();
}

/// Forgets the other threads, in the child, which has one thread. A thread that forked at the same time does not exist
/// there.
pub fn forget_other_threads() {
    let own = this_thread();
    if CLOSED_BY.load(SeqCst) != own {
        CLOSED_BY.store(0, SeqCst);
    }
    for holder in HOLDERS.iter().filter(|holder| holder.thread.load(SeqCst) != own) {
        holder.thread.store(0, SeqCst);
    }
}

type MutexFunction = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;

unsafe extern "C" {
    // Of `mimalloc.c`.
    static mut mimalloc_lock: MutexFunction;
    static mut mimalloc_unlock: MutexFunction;
    static mut mimalloc_yield: extern "C" fn();
}

/// Makes mimalloc take its locks through this module.
///
/// # Safety
/// The process has one thread, which is not in mimalloc.
pub unsafe fn take_over() {
    // SAFETY:
    // - by the caller's promise nobody reads them or holds a lock at that time, and both functions keep the promises of
    //   the functions that they replace.
    unsafe {
        mimalloc_lock = lock;
        mimalloc_unlock = unlock;
        mimalloc_yield = yield_now;
    }
}

/// mimalloc's sched_yield(2).
extern "C" fn yield_now() {
    give_way();
}

/// The lock in a mutex of mimalloc. The memory of a free one is all zero: it is only initialised
/// by `PTHREAD_MUTEX_INITIALIZER`.
///
/// # Safety
/// The mutex lives as long as the reference.
unsafe fn lock_in<'a>(mutex: *mut pthread_mutex_t) -> &'a Lock {
    const { assert!(size_of::<Lock>() <= size_of::<pthread_mutex_t>()) };
    const { assert!(align_of::<Lock>() <= align_of::<pthread_mutex_t>()) };
    // SAFETY:
    // - the caller's promise; any bytes are a lock, and only these functions use them.
    unsafe { &*mutex.cast::<Lock>() }
}

/// mimalloc's pthread_mutex_lock(3).
///
/// # Safety
/// As in C.
unsafe extern "C" fn lock(mutex: *mut pthread_mutex_t) -> c_int {
    enter();
    // SAFETY:
    // - the caller's promise.
    unsafe { lock_in(mutex) }.take();
    observe(Moment::Locked);
    0
}

/// mimalloc's pthread_mutex_unlock(3).
///
/// # Safety
/// As in C.
unsafe extern "C" fn unlock(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY:
    // - the caller's promise.
    unsafe { lock_in(mutex) }.release();
    leave();
    0
}
