//! Work before and after a fork. Private pool pages do not survive a fork: the next write to a shared page needs a free
//! pool page. If there is none, the child is killed, whether the child or the parent writes (the kernel then takes the
//! page from the child). No reservation covers that page. So a process leaves the pool before its first fork: the
//! heap's contents move to transparent huge pages, which the kernel copies on write, and the remaining pool pages are
//! returned.
//!
//! While memory moves, no other thread may write to it: a signal that cannot be blocked stops the other threads
//! (`stop`). If the memory outside of the pool is smaller than the heap's part in the pool, `fork` fails with `ENOMEM`,
//! which fork(2) allows, and the program continues. `vfork`, `posix_spawn`, `system` and `popen` share memory with
//! their child or need no guard. A direct call of `clone` is not noticed.
//!
//! Writes by the kernel cannot be stopped. If io_uring or AIO is in use (`kernel_writes`), the process stays on the
//! pool and the child leaves it before either continues. As long as both share pages, the pool must have as many free
//! pages as the heap uses; otherwise `fork` fails with `ENOMEM`. The kernel gives the child its own copies of pages
//! that are the target of a direct read (Linux 5.12).
//!
//! The child must be able to allocate, so no lock of the heap or of mimalloc (`locks`) is held by another thread at the
//! moment of the fork.
//!
//! The handlers are registered before all others (`fork_calls`), so that the heap's handler is the last to run before a
//! fork. Otherwise a library's handler that takes the library's lock would wait, while this thread has the heap's
//! locks, for a thread that has the library's lock and waits for a heap lock.

use crate::c_library::REGISTER_AT_FORK;
use crate::large::Large;
use crate::pool_exit::{PoolExit, child_leaves_pool, leave_pool, make_room_for_copies};
use crate::small::GROWING;
use crate::sys::{KeepErrno, Lock, give_way, milliseconds, say};
use crate::turn::{OF_TURN, TURN, is_own_turn};
use crate::{SHARED, locks, sandbox, small, streams};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// A handler around a fork.
pub type ForkHandler = unsafe extern "C" fn();

/// glibc's `__register_atfork` (nptl, register-atfork.c), which pthread_atfork(3) calls with the object that calls it. The
/// handlers of an object go when it is unloaded; those without one stay.
pub type RegisterAtFork =
    unsafe extern "C" fn(Option<ForkHandler>, Option<ForkHandler>, Option<ForkHandler>, *mut c_void) -> c_int;

/// Longest wait for a lock or for the turn, in milliseconds.
const MAX_WAIT_MS: u64 = 1000;

/// True when no part of the heap is on the pool, so that forks need no guard.
static SAFE: AtomicBool = AtomicBool::new(false);

/// True while the heap is on the pool, so that forks need this module.
pub fn is_needed() -> bool {
    !SAFE.load(Relaxed)
}

/// Records that no part of the heap was ever on the pool.
pub fn needs_no_guard() {
    SAFE.store(true, Relaxed);
}

/// The C library's `__register_atfork`; this library also defines one (`fork_calls`).
pub fn register_atfork() -> Option<RegisterAtFork> {
    // SAFETY:
    // - the symbol is the C library's function of this type.
    REGISTER_AT_FORK.get().map(|found| unsafe { core::mem::transmute::<*mut c_void, RegisterAtFork>(found) })
}

/// Registers the handlers that keep the heap's locks whole in the child, once; they also see forks inside the C library.
pub fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if REGISTERED.swap(true, SeqCst) {
        return;
    }
    let Some(register) = register_atfork() else { return };
    // SAFETY:
    // - the handlers are functions of this library, which is never unloaded; without an object they stay until the end.
    // - the C library calls the last one in the child of a fork, after `prepare` in the parent; the thread that forked
    //   is the child's only one.
    unsafe { register(Some(before_fork), Some(after_fork), Some(after_fork_in_child), core::ptr::null_mut()) };
}

/// Waits for the turn; false if it was not given in time. The wait is bounded by [`MAX_WAIT_MS`] once the other thread has
/// settled: it may then be in a handler of the program's, which may wait for this thread.
fn take_turn() -> bool {
    let own = locks::this_thread();
    let mut settled_since = None;
    while TURN.compare_exchange(0, own, SeqCst, SeqCst).is_err() {
        if OF_TURN.is_settled.load(SeqCst) {
            let now = milliseconds();
            if now.saturating_sub(*settled_since.get_or_insert(now)) > MAX_WAIT_MS {
                return false;
            }
        }
        give_way();
    }
    true
}

/// The handler before a fork(2), which takes the lock of the C library's streams as well.
extern "C" fn before_fork() {
    let _keep = KeepErrno::new();
    streams::lock();
    prepare();
}

/// The handler after it in the parent.
extern "C" fn after_fork() {
    let _keep = KeepErrno::new();
    streams::unlock();
    release();
}

/// The handler after it in the child.
///
/// # Safety
/// As for [`release_in_child`].
unsafe extern "C" fn after_fork_in_child() {
    let _keep = KeepErrno::new();
    // SAFETY:
    // - the caller's promise.
    unsafe {
        streams::forget();
        release_in_child();
    }
}

/// Before a fork: makes the fork safe, and takes the heap's locks.
pub fn prepare() {
    let _keep = KeepErrno::new();
    let is_ready = if is_own_turn() {
        // In a handler of the program's around another fork of this thread, which holds the locks already.
        OF_TURN.nested.fetch_add(1, SeqCst);
        SAFE.load(Relaxed)
    } else if take_turn() {
        let is_ready = prepare_in_turn();
        locks::close();
        OF_TURN.is_settled.store(true, SeqCst);
        is_ready
    } else {
        locks::close();
        SAFE.load(Relaxed)
    };
    if !is_ready {
        say(
            "pagelift: this fork is not safe: the heap is on the hugetlb pool and could not leave it; use --heap=thp\n",
        );
    }
}

fn prepare_in_turn() -> bool {
    // Both locks are held until after the fork. If a signal handler forks while its own thread holds a lock, the wait
    // for it times out, and the thread continues with the lock when the handler returns, in the parent and in the
    // child.
    OF_TURN.holds_growing.store(lock_in_time(&GROWING), SeqCst);
    let holds_shared = lock_in_time(&SHARED.lock);
    OF_TURN.holds_shared.store(holds_shared, SeqCst);
    let was_ready = READY_FOR.compare_exchange(locks::this_thread(), 0, SeqCst, SeqCst).is_ok();
    // SAFETY:
    // - `holds_shared` says that this thread holds the lock.
    let mut is_ready = was_ready || SAFE.load(Relaxed) || holds_shared && unsafe { make_ready_locked() };
    if !SAFE.load(Relaxed) && holds_shared {
        // Even if the fork may not be safe: the sooner the child leaves the pool, the better.
        is_ready &= OF_TURN.handover.begin();
    }
    is_ready
}

/// After a fork in the child.
///
/// # Safety
/// This is the child of a fork, and its only thread; the thread that forked had called [`prepare`] before.
pub unsafe fn release_in_child() {
    let _keep = KeepErrno::new();
    sandbox::is_in_process();
    locks::forget_other_threads();
    // SAFETY:
    // - the caller's promise: the child has one thread.
    unsafe {
        forget_other_holders();
        small::forget_other_threads();
    }
    forget_departures();
    if !is_own_turn() {
        forget_turn_of_another();
        locks::open();
        return;
    }
    if is_end_of_nested() {
        return;
    }
    if OF_TURN.handover.is_under_way() {
        // SAFETY:
        // - a handover is only begun by a thread that holds the lock, and it is this thread's turn.
        // - the child has one thread, by the caller's promise.
        let left = unsafe { SHARED.while_locked(|large| child_leaves_pool(large)) };
        SAFE.store(left, Relaxed);
        if !left {
            say("pagelift: this child has no memory to leave the hugetlb pool with; use --heap=thp\n");
        }
        OF_TURN.handover.end_in_child();
    }
    end_turn();
}

/// After a fork in the parent.
pub fn release() {
    let _keep = KeepErrno::new();
    if !is_own_turn() {
        return locks::open();
    }
    if is_end_of_nested() {
        return;
    }
    if OF_TURN.handover.is_under_way() {
        OF_TURN.handover.await_child();
    }
    end_turn();
}

/// True after a fork that was made in a handler around another fork of this thread.
fn is_end_of_nested() -> bool {
    OF_TURN.nested.fetch_update(SeqCst, SeqCst, |nested| nested.checked_sub(1)).is_ok()
}

/// Ends the turn. Called by the thread whose turn it is.
fn end_turn() {
    locks::open();
    if OF_TURN.holds_shared.swap(false, SeqCst) {
        // SAFETY:
        // - this thread, whose turn it is, has locked it in `prepare_in_turn`.
        unsafe { SHARED.lock.unlock() };
    }
    if OF_TURN.holds_growing.swap(false, SeqCst) {
        // SAFETY:
        // - as above.
        unsafe { GROWING.unlock() };
    }
    OF_TURN.is_settled.store(false, SeqCst);
    TURN.store(0, SeqCst);
}

/// Releases the heap's locks that other threads hold: those threads do not exist in the child. If the holder is the thread
/// whose turn it was, it had settled, and the state is consistent. Any other holder of a lock for longer than
/// [`MAX_WAIT_MS`] is most likely in a system call that maps or unmaps memory. The child then loses that memory at most.
///
/// # Safety
/// The process has one thread.
unsafe fn forget_other_holders() {
    for lock in [&SHARED.lock, &GROWING] {
        // SAFETY:
        // - the caller's promise.
        unsafe { lock.forget_other_holder() };
    }
}

/// Ends the departures of blocks that other threads have freed. Without the lock, which this thread may hold below a signal
/// handler, those blocks stay unused.
fn forget_departures() {
    // SAFETY:
    // - the lock is this thread's: taken before the fork or here.
    unsafe {
        if is_own_turn() && OF_TURN.holds_shared.load(SeqCst) {
            SHARED.while_locked(Large::forget_other_threads);
        } else if SHARED.lock.try_lock() {
            SHARED.while_locked(Large::forget_other_threads);
            SHARED.lock.unlock();
        }
    }
}

/// Ends the turn of another thread, in the child of a thread that did not get the turn in time.
fn forget_turn_of_another() {
    if TURN.load(SeqCst) == 0 {
        return;
    }
    OF_TURN.holds_shared.store(false, SeqCst);
    OF_TURN.holds_growing.store(false, SeqCst);
    OF_TURN.handover.give_up();
    OF_TURN.nested.store(0, SeqCst);
    OF_TURN.is_settled.store(false, SeqCst);
    TURN.store(0, SeqCst);
}

/// Waits for a lock for at most [`MAX_WAIT_MS`]: this thread may hold it itself, below a signal handler.
fn lock_in_time(lock: &Lock) -> bool {
    let deadline = milliseconds() + MAX_WAIT_MS;
    while !lock.try_lock() {
        if milliseconds() > deadline {
            return false;
        }
        give_way();
    }
    true
}

/// Makes a fork of this process, in which the heap acts, safe, or makes sure that the child can; false if the fork is to
/// be refused.
pub fn make_ready() -> bool {
    if SAFE.load(Relaxed) {
        return true;
    }
    // A handler that forks: the lock is this thread's own.
    if is_own_turn() || !lock_in_time(&SHARED.lock) {
        return false;
    }
    // SAFETY:
    // - the lock has just been taken.
    let ready = unsafe { make_ready_locked() };
    // The handlers that follow need not find it out again.
    READY_FOR.store(if ready { locks::this_thread() } else { 0 }, SeqCst);
    // SAFETY:
    // - as above.
    unsafe { SHARED.lock.unlock() };
    ready
}

/// The thread for which `make_ready` returned true, until its handlers run. If another thread replaces it, its handler
/// checks again.
static READY_FOR: AtomicUsize = AtomicUsize::new(0);

/// # Safety
/// This thread holds `SHARED.lock`.
unsafe fn make_ready_locked() -> bool {
    let work = |large: &mut Large| match leave_pool(large) {
        PoolExit::Left => {
            SAFE.store(true, Relaxed);
            true
        }
        PoolExit::MayBeWrittenTo => make_room_for_copies(large),
        PoolExit::Failed => false,
    };
    // SAFETY:
    // - the caller's promise.
    unsafe { SHARED.while_locked(work) }
}
