//! `abort` for musl.
//!
//! musl's own `abort` sends the signal to the thread ID that it stored when the thread began. The helper shares its
//! thread-local memory with the process that becomes the program, so that this is the program's ID: a panic in the
//! helper would kill the program.

/// Ends this process by SIGABRT.
// SAFETY:
// - musl has `abort` in a separate object, so that this one replaces it for all callers.
#[unsafe(no_mangle)]
extern "C" fn abort() -> ! {
    // SAFETY:
    // - the calls take integers and a set of signals that belongs to this function; no handler runs, as in abort(3).
    unsafe {
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
        let mut signals = std::mem::zeroed();
        libc::sigaddset(&raw mut signals, libc::SIGABRT);
        libc::kill(libc::getpid(), libc::SIGABRT);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut());
    }
    linux::bare::exit(128 + libc::SIGABRT)
}
