//! `abort` for musl.
//!
//! musl's own sends the signal to the thread number that it noted when the thread began. In the helper, which shares its
//! thread-local memory with the process that is to become the program, that is the number of the program: a panic here
//! would kill it there.

/// Ends this process by SIGABRT.
// SAFETY:
// - musl has `abort` in an object of its own, so that this one takes its place for all callers.
#[unsafe(no_mangle)]
extern "C" fn abort() -> ! {
    // SAFETY:
    // - the calls take integers and a set of signals that is ours; a handler is not run any more, as abort(3) has it.
    unsafe {
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
        let mut signals = std::mem::zeroed();
        libc::sigaddset(&raw mut signals, libc::SIGABRT);
        libc::kill(libc::getpid(), libc::SIGABRT);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut());
    }
    kernel_calls::bare::exit(128 + libc::SIGABRT)
}
