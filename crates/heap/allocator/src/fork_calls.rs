//! The C library's functions that fork, under its names, and the one by which handlers around forks are registered. Each
//! that forks makes the fork safe first (`fork`), or refuses it.

use crate::c_library::{DAEMON, FORK, FORK_PTY, FORK_WITH_HANDLERS};
use crate::fork::{self, ForkHandler};
use crate::start::is_acting;
use crate::sys::{KeepErrno, say, set_errno};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

unsafe extern "C" {
    // In every GNU C library, under this name too; it runs the handlers that pthread_atfork registered.
    fn __fork() -> libc::pid_t;
}

/// True once the message has been written.
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

/// Makes a fork safe if the heap acts; false if the fork is to be refused.
fn is_ready() -> bool {
    !is_acting() || fork::make_ready()
}

/// fork(2).
///
/// # Safety
/// As in C.
#[unsafe(export_name = "fork")]
pub unsafe extern "C" fn fork_with_handlers() -> libc::pid_t {
    if !is_ready() {
        return refuse();
    }
    let Some(next) = FORK_WITH_HANDLERS.get() else {
        // SAFETY:
        // - the C library's own fork, with the caller's promise.
        return unsafe { __fork() };
    };
    // SAFETY:
    // - the symbol is a function of this type: the function of the C library, or of a library which replaces it; the caller's promise.
    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::pid_t>(next)() }
}

/// _Fork(3): runs no handlers.
///
/// # Safety
/// As in C.
#[unsafe(export_name = "_Fork")]
pub unsafe extern "C" fn fork_without_handlers() -> libc::pid_t {
    if !is_ready() {
        return refuse();
    }
    let Some(real) = FORK.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    let by_child = is_acting() && fork::is_needed();
    if by_child {
        fork::prepare();
    }
    // SAFETY:
    // - the symbol is the C library's function of this type.
    let process = unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::pid_t>(real)() };
    match process {
        _ if !by_child => {}
        // SAFETY:
        // - the child has one thread, the forking one, which has called `prepare` above.
        0 => unsafe { fork::release_in_child() },
        _ => fork::release(),
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
    let real = if is_ready() { DAEMON.get() } else { None };
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
    let real = if is_ready() { FORK_PTY.get() } else { None };
    let Some(real) = real else { return refuse() };
    // SAFETY:
    // - the symbol is the C library's function of this type.
    unsafe { core::mem::transmute::<*mut c_void, ForkPty>(real)(terminal, name, settings, size) }
}

/// The target of pthread_atfork(3), which is in the part of the C library that is linked into each object. Constructors
/// of libraries register handlers before this library's own constructor runs, so the heap's are registered before
/// theirs. Only the handlers of libpagelift.so are earlier: it copies memory, including the heap's state, just before
/// the fork, and registers its handlers first and directly with the C library.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Option<ForkHandler>,
    parent: Option<ForkHandler>,
    child: Option<ForkHandler>,
    object: *mut c_void,
) -> c_int {
    let keep = KeepErrno::new();
    if is_acting() {
        fork::register();
    }
    let real = fork::register_atfork();
    drop(keep);
    match real {
        // SAFETY:
        // - the caller's promise.
        Some(real) => unsafe { real(prepare, parent, child, object) },
        None => libc::ENOMEM,
    }
}
