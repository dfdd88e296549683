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
use crate::large::Large;
use crate::leave::{Stay, child_leaves, leave, make_room_for_copies};
use crate::small::GROWING;
use crate::sys::{KeepErrno, Lock, milliseconds, say, set_errno};
use crate::{SHARED, locks};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

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

/// The thread that forks and holds the heap's locks; 0 where none does. Handlers around forks run in several threads at
/// once (glibc 2.36). A thread that does not get its turn in time holds nothing and touches nothing of the one that has it.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// What belongs to the thread whose turn it is.
struct Turn {
    /// It has done what has to be done before its fork: until its end the heap does not change.
    is_settled: AtomicBool,
    /// Forks that it has begun since, in handlers of the program's.
    nested: AtomicUsize,
    /// Which of the two locks it holds.
    holds_growing: AtomicBool,
    holds_shared: AtomicBool,
    /// Begun before the fork, awaited and ended behind it.
    handover: Handover,
}

static OF_TURN: Turn = Turn {
    is_settled: AtomicBool::new(false),
    nested: AtomicUsize::new(0),
    holds_growing: AtomicBool::new(false),
    holds_shared: AtomicBool::new(false),
    handover: Handover::new(),
};

fn is_own_turn() -> bool {
    TURN.load(SeqCst) == locks::this_thread()
}

/// True in a handler of the program's around a fork of this thread, where `GROWING` is this thread's already.
pub fn holds_growing() -> bool {
    is_own_turn() && OF_TURN.is_settled.load(SeqCst) && OF_TURN.holds_growing.load(SeqCst)
}

/// True in a handler of the program's around a fork of this thread, where `SHARED.lock` is this thread's already.
pub fn holds_shared() -> bool {
    is_own_turn() && OF_TURN.is_settled.load(SeqCst) && OF_TURN.holds_shared.load(SeqCst)
}

/// Waits for the turn. Not for ever where the other thread may be in a handler of the program's, which may wait for this
/// thread; only as long as that one does our own work.
fn take_turn() -> bool {
    let own = locks::this_thread();
    let mut settled_since = None;
    while TURN.compare_exchange(0, own, SeqCst, SeqCst).is_err() {
        if OF_TURN.is_settled.load(SeqCst) {
            let now = milliseconds();
            if now.saturating_sub(*settled_since.get_or_insert(now)) > PATIENCE {
                return false;
            }
        }
        // SAFETY:
        // - has no arguments.
        unsafe { libc::sched_yield() };
    }
    true
}

extern "C" fn prepare() {
    let _keep = KeepErrno::new();
    let is_ready = if is_own_turn() {
        // In a handler of the program's, around another fork of this thread, which holds everything already.
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
    // Held from here until after the fork. Where a signal handler forks while this very thread has a lock, it is not
    // waited for: the thread goes on with it when the handler returns, here and in the child.
    OF_TURN.holds_growing.store(lock_in_time(&GROWING), SeqCst);
    let holds_shared = lock_in_time(&SHARED.lock);
    OF_TURN.holds_shared.store(holds_shared, SeqCst);
    let was_ready = READY_FOR.compare_exchange(locks::this_thread(), 0, SeqCst, SeqCst).is_ok();
    // SAFETY:
    // - `holds_shared` says that this thread holds the lock.
    let mut is_ready = was_ready || SAFE.load(Relaxed) || holds_shared && unsafe { make_ready_locked() };
    if !SAFE.load(Relaxed) && holds_shared {
        // Also where it is not sure to end well: the sooner the child leaves, the better.
        is_ready &= OF_TURN.handover.begin();
    }
    is_ready
}

extern "C" fn release_in_child() {
    let _keep = KeepErrno::new();
    locks::forget_other_threads();
    if !is_own_turn() {
        // SAFETY:
        // - the child has one thread.
        unsafe { forget_turn_of_another() };
        locks::open();
        return;
    }
    if is_end_of_nested() {
        return;
    }
    if OF_TURN.handover.is_under_way() {
        // SAFETY:
        // - a handover is only begun by a thread that holds the lock, and it is this thread's turn.
        let left = unsafe { SHARED.while_locked(child_leaves) };
        SAFE.store(left, Relaxed);
        if !left {
            say("pagelift: this child has no memory to leave the hugetlb pool with; use --heap=thp\n");
        }
        OF_TURN.handover.end_in_child();
    }
    end_turn();
}

extern "C" fn release() {
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

/// True behind a fork in a handler around another one of this thread.
fn is_end_of_nested() -> bool {
    OF_TURN.nested.fetch_update(SeqCst, SeqCst, |nested| nested.checked_sub(1)).is_ok()
}

/// To be called by the thread whose turn it is.
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

/// In the child of a thread that did not get its turn in time: the thread whose turn it was is not there, and what it
/// held is free. It was settled, so that what the locks guard is whole.
///
/// # Safety
/// The process has one thread.
unsafe fn forget_turn_of_another() {
    if TURN.load(SeqCst) == 0 {
        return;
    }
    for (holds, lock) in [(&OF_TURN.holds_shared, &SHARED.lock), (&OF_TURN.holds_growing, &GROWING)] {
        if holds.swap(false, SeqCst) {
            // SAFETY:
            // - its holder is not there, and the caller's promise: nobody waits for it.
            unsafe { lock.renew() };
        }
    }
    OF_TURN.handover.give_up();
    OF_TURN.nested.store(0, SeqCst);
    OF_TURN.is_settled.store(false, SeqCst);
    TURN.store(0, SeqCst);
}

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

/// The thread that `make_ready` has said yes to, for as long as it takes from there to the handlers. Where another takes
/// its place it finds it out again.
static READY_FOR: AtomicUsize = AtomicUsize::new(0);

/// # Safety
/// This thread holds `SHARED.lock`.
unsafe fn make_ready_locked() -> bool {
    let work = |large: &mut Large| match leave(large) {
        Stay::Left => {
            SAFE.store(true, Relaxed);
            true
        }
        Stay::MayBeWrittenTo => make_room_for_copies(large),
        Stay::Failed => false,
    };
    // SAFETY:
    // - the caller's promise.
    unsafe { SHARED.while_locked(work) }
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
