//! Fork. Private pool memory and fork do not go together: whoever writes to a shared page next needs a free pool page,
//! and where there is none the child is killed, whether it is the child that writes or the parent (the kernel then takes
//! the page from the child). No reservation covers that. So a process leaves the pool before its first fork: what the
//! heap holds moves to transparent huge pages, where the kernel copies on write as ever, and the rest goes back.
//!
//! While memory moves, no other thread may write to it: other threads are stopped by a signal that none can block
//! (`stop`). Where there is not as much memory beside the pool as the heap holds in it, `fork` fails with `ENOMEM`, as it
//! may, and the program goes on. `vfork`, `posix_spawn`, `system` and `popen` share memory with their child or need no
//! guard; `clone` called directly is not seen.
//!
//! What the kernel itself writes to the heap meanwhile cannot be stopped. Where io_uring or AIO is in use
//! (`kernel_writes`) the process stays on the pool and the child leaves it, before anybody goes on: for as long both have
//! the same pages, the pool must have as many free ones as the heap uses, and where it has not, `fork` fails with
//! `ENOMEM`. The kernel gives the child its own copies of pages that are the target of a direct read (Linux 5.12).
//!
//! The child must be able to allocate, whatever other threads were doing: no lock of the heap or of mimalloc (`locks`)
//! is held by another thread at the moment of the fork.

use crate::handover::Handover;
use crate::leave::{Stay, child_leaves, leave, make_room_for_copies};
use crate::small::GROWING;
use crate::sys::{KeepErrno, Lock, milliseconds, say, set_errno};
use crate::{SHARED, locks};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

unsafe extern "C" {
    // In every GNU C library, under this name too; it runs the handlers that pthread_atfork registered.
    fn __fork() -> libc::pid_t;
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// A lock is waited for so many milliseconds.
const PATIENCE: u64 = 1000;

/// True once nothing of the heap stands on the pool, so that forks need nothing of us.
static SAFE: AtomicBool = AtomicBool::new(false);

/// Says that nothing of the heap has ever been on the pool.
pub fn needs_no_guard() {
    SAFE.store(true, Relaxed);
}

/// Registers the handlers that keep the heap's locks whole in the child; they also see forks inside the C library.
pub fn register() {
    // SAFETY:
    // - the handlers are functions of this library, which is never unloaded.
    unsafe { pthread_atfork(Some(prepare), Some(release), Some(release_in_child)) };
}

extern "C" fn prepare() {
    let keep = KeepErrno::new();
    // Held from here until after the fork. Where a signal handler forks while this very thread has a lock, it is not
    // waited for: the thread goes on with it when the handler returns, here and in the child.
    HELD[0].store(lock_in_time(&GROWING), Relaxed);
    HELD[1].store(lock_in_time(&SHARED.lock), Relaxed);
    let mut ready = READY.swap(false, Relaxed) || SAFE.load(Relaxed) || HELD[1].load(Relaxed) && make_ready_locked();
    if !SAFE.load(Relaxed) && HELD[1].load(Relaxed) {
        // Also where it is not sure to end well: the sooner the child leaves, the better.
        ready &= HANDOVER.begin();
    }
    if !ready {
        say(
            "pagelift: this fork is not safe: the heap is on the hugetlb pool and could not leave it; use --heap=thp\n",
        );
    }
    locks::close();
    drop(keep);
}

extern "C" fn release_in_child() {
    let keep = KeepErrno::new();
    locks::forget_other_threads();
    if HANDOVER.is_under_way() {
        let left = SHARED.while_locked(child_leaves);
        SAFE.store(left, Relaxed);
        if !left {
            say("pagelift: this child has no memory to leave the hugetlb pool with; use --heap=thp\n");
        }
        HANDOVER.end_in_child();
    }
    release_locks();
    drop(keep);
}

extern "C" fn release() {
    let keep = KeepErrno::new();
    if HANDOVER.is_under_way() {
        HANDOVER.await_child();
    }
    release_locks();
    drop(keep);
}

fn release_locks() {
    locks::open();
    if HELD[1].swap(false, Relaxed) {
        SHARED.lock.unlock();
    }
    if HELD[0].swap(false, Relaxed) {
        GROWING.unlock();
    }
}

/// For the fork that goes on now: begun, awaited and ended by the thread that forks, which holds the heap's lock.
static HANDOVER: Handover = Handover::new();

/// Which of the two locks the thread that forks holds.
static HELD: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];

/// Waits for a lock, but not for ever: it may be this thread's own, below a signal handler.
fn lock_in_time(lock: &Lock) -> bool {
    let deadline = milliseconds() + PATIENCE;
    while !lock.try_lock() {
        if milliseconds() > deadline {
            return false;
        }
        // SAFETY:
        // - has no arguments.
        unsafe { libc::sched_yield() };
    }
    true
}

/// Makes a fork safe, or sees that the child can; false where it is better not done.
fn make_ready() -> bool {
    if SAFE.load(Relaxed) || !crate::start::is_acting() {
        return true;
    }
    if !lock_in_time(&SHARED.lock) {
        return false;
    }
    let ready = make_ready_locked();
    // The handlers that follow need not find it out again.
    READY.store(ready, Relaxed);
    SHARED.lock.unlock();
    ready
}

/// True for as long as it takes from `make_ready` to the handlers.
static READY: AtomicBool = AtomicBool::new(false);

fn make_ready_locked() -> bool {
    SHARED.while_locked(|large| match leave(large) {
        Stay::Left => {
            SAFE.store(true, Relaxed);
            true
        }
        Stay::MayBeWrittenTo => make_room_for_copies(large),
        Stay::Failed => false,
    })
}

/// Said once.
static REFUSED: AtomicBool = AtomicBool::new(false);

fn refuse() -> c_int {
    if !REFUSED.swap(true, Relaxed) {
        say(
            "pagelift: fork refused: the heap cannot leave the hugetlb pool, since memory is short or a thread cannot \
             be stopped, or the pool has no room for the child's copy beside asynchronous reads; use --heap=thp\n",
        );
    }
    set_errno(libc::ENOMEM);
    -1
}

/// fork(2).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    if !make_ready() {
        return refuse();
    }
    // SAFETY:
    // - the C library's own fork, with the caller's promise.
    unsafe { __fork() }
}

/// The function of this name in the next object, which is the C library. It is looked up at each call: these calls are
/// rare.
fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY:
    // - the name ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// _Fork(3): runs no handlers.
///
/// # Safety
/// As in C.
#[unsafe(export_name = "_Fork")]
pub unsafe extern "C" fn fork_without_handlers() -> libc::pid_t {
    if !make_ready() {
        return refuse();
    }
    let Some(real) = next(c"_Fork") else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    let by_child = crate::start::is_acting() && !SAFE.load(Relaxed);
    if by_child {
        prepare();
    }
    // SAFETY:
    // - the symbol is the C library's function of this type.
    let process = unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::pid_t>(real)() };
    match process {
        _ if !by_child => {}
        0 => release_in_child(),
        _ => release(),
    }
    process
}

/// daemon(3): forks inside the C library.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
    type Daemon = unsafe extern "C" fn(c_int, c_int) -> c_int;
    let real = if make_ready() { next(c"daemon") } else { None };
    let Some(real) = real else { return refuse() };
    // SAFETY:
    // - the symbol is the C library's function of this type.
    unsafe { core::mem::transmute::<*mut c_void, Daemon>(real)(no_chdir, no_close) }
}

/// forkpty(3): forks inside the C library.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkpty(
    terminal: *mut c_int,
    name: *mut c_char,
    settings: *const c_void,
    size: *const c_void,
) -> c_int {
    type ForkPty = unsafe extern "C" fn(*mut c_int, *mut c_char, *const c_void, *const c_void) -> c_int;
    let real = if make_ready() { next(c"forkpty") } else { None };
    let Some(real) = real else { return refuse() };
    // SAFETY:
    // - the symbol is the C library's function of this type.
    unsafe { core::mem::transmute::<*mut c_void, ForkPty>(real)(terminal, name, settings, size) }
}

/// The C library's malloc_usable_size, for programs in which this heap does not act. Not the next one: that is another
/// allocator's where a program has one (redis has jemalloc), and the blocks here are the C library's.
pub fn libc_usable_size(block: *mut c_void) -> usize {
    static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut real = KNOWN.load(Relaxed);
    if real.is_null() {
        // SAFETY:
        // - both names end with NUL; the C library is loaded already, so that nothing is loaded here, and stays.
        real = unsafe {
            let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() { library } else { libc::dlsym(library, c"malloc_usable_size".as_ptr()) }
        };
        if real.is_null() {
            return 0;
        }
        KNOWN.store(real, Relaxed);
    }
    // SAFETY:
    // - the symbol is the C library's function of this type, and the block came from it.
    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> usize>(real)(block) }
}
