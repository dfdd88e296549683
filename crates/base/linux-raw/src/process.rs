//! This process and its threads.

use crate::kernel::errno::EINTR;
use crate::kernel::general as linux;
use crate::kernel::prctl::{PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER};
use crate::kernel::system::new_utsname;
use crate::{Errno, call_with};
use core::ffi::{CStr, c_char};
use core::sync::atomic::AtomicU32;

/// A signal set with every signal in it. The kernel's sets have 64 bits.
pub const ALL_SIGNALS: u64 = u64::MAX;

/// Sets the calling thread's signal mask and returns the previous one.
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = (&raw const mask as usize, &raw mut before as usize);
    // SAFETY:
    // - both point to sets of eight bytes, as the last argument says.
    let _ = unsafe { call_with(linux::__NR_rt_sigprocmask, [linux::SIG_SETMASK as usize, new, old, 8]) };
    before
}

/// The process ID in this process's own PID namespace.
pub fn process_id() -> i32 {
    // SAFETY:
    // - no arguments, no effect.
    unsafe { call_with(linux::__NR_getpid, []) }.unwrap_or_default() as i32
}

/// The thread ID in this process's own PID namespace.
pub fn thread_id() -> u32 {
    // SAFETY:
    // - no arguments, no effect.
    unsafe { call_with(linux::__NR_gettid, []) }.unwrap_or_default() as u32
}

/// Waits until the word is no longer `expected`; may return spuriously. `shared`: threads of other processes wait, too.
pub fn futex_wait(word: &AtomicU32, expected: u32, shared: bool) {
    let operation = if shared { linux::FUTEX_WAIT } else { linux::FUTEX_WAIT | linux::FUTEX_PRIVATE_FLAG };
    // SAFETY:
    // - the word is an aligned 32-bit integer that lives during the call; without a time there is no limit.
    let _ = unsafe { call_with(linux::__NR_futex, [word.as_ptr() as usize, operation as usize, expected as usize, 0]) };
}

/// Waits like [`futex_wait`], with a private word, and no longer than this.
pub fn futex_wait_at_most(word: &AtomicU32, expected: u32, microseconds: u32) {
    let operation = linux::FUTEX_WAIT | linux::FUTEX_PRIVATE_FLAG;
    let time = [u64::from(microseconds / 1_000_000), u64::from(microseconds % 1_000_000) * 1000];
    let words = [word.as_ptr() as usize, operation as usize, expected as usize, time.as_ptr() as usize];
    // SAFETY:
    // - the word is an aligned 32-bit integer that lives during the call; the time is one `struct timespec`, two 64-bit
    //   integers.
    let _ = unsafe { call_with(linux::__NR_futex, words) };
}

/// Wakes all threads that wait for the word.
pub fn futex_wake(word: &AtomicU32, shared: bool) {
    wake(word, shared, i32::MAX as usize);
}

/// Wakes one of the threads of this process that wait for the word. Returns the number of woken threads.
pub fn futex_wake_one(word: &AtomicU32) -> usize {
    wake(word, false, 1)
}

fn wake(word: &AtomicU32, shared: bool, most: usize) -> usize {
    let operation = if shared { linux::FUTEX_WAKE } else { linux::FUTEX_WAKE | linux::FUTEX_PRIVATE_FLAG };
    // SAFETY:
    // - the word is an aligned 32-bit integer that lives during the call.
    unsafe { call_with(linux::__NR_futex, [word.as_ptr() as usize, operation as usize, most]) }.unwrap_or_default()
}

/// Microseconds of `CLOCK_MONOTONIC`.
pub fn monotonic_microseconds() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY:
    // - the kernel fills one `struct timespec`, two 64-bit integers.
    let _ =
        unsafe { call_with(linux::__NR_clock_gettime, [linux::CLOCK_MONOTONIC as usize, time.as_mut_ptr() as usize]) };
    time[0] * 1_000_000 + time[1] / 1000
}

/// Major and minor number of the running kernel, such as `(6, 18)`; `(0, 0)` if they cannot be read.
///
/// Used only for features that cannot be probed without touching a program's memory.
pub fn kernel_release() -> (u32, u32) {
    let mut names = core::mem::MaybeUninit::<new_utsname>::zeroed();
    // SAFETY:
    // - the kernel fills one `struct new_utsname`.
    let _ = unsafe { call_with(linux::__NR_uname, [names.as_mut_ptr() as usize]) };
    // SAFETY:
    // - every field is an array of characters, for which zero is a value.
    let names = unsafe { names.assume_init() };
    let release = names.release.map(|character| character.to_ne_bytes()[0]);
    core::str::from_utf8(&release).ok().and_then(parse_release).unwrap_or((0, 0))
}

/// Reads the first two numbers of a release such as `6.1.0-13`.
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Executes a file. Returns only on failure.
///
/// # Safety
/// `arguments` and `environment` must be arrays of pointers to strings, each with a null pointer behind the last.
pub unsafe fn execute(path: &CStr, arguments: *const *const c_char, environment: *const *const c_char) -> Errno {
    let words = [path.as_ptr() as usize, arguments as usize, environment as usize];
    // SAFETY:
    // - the path ends with NUL; the caller promises the rest.
    unsafe { call_with(linux::__NR_execve, words) }.err().unwrap_or_default()
}

/// Waits for the end of a child, of whatever kind it is.
pub fn wait_for_end(child: i32) {
    // SAFETY:
    // - takes integers, and null pointers for what is not asked for.
    let wait = || unsafe { call_with(linux::__NR_wait4, [child as usize, 0, linux::__WALL as usize, 0]) };
    while wait() == Err(EINTR as Errno) {}
}

/// Closes every descriptor of this process. Refused before Linux 5.9.
///
/// # Errors
/// Those of close_range(2).
///
/// # Safety
/// Nothing in this process uses a descriptor that it has opened before, or closes one later.
pub unsafe fn close_all() -> Result<(), Errno> {
    // SAFETY:
    // - touches no memory; the caller's promise.
    unsafe { call_with(linux::__NR_close_range, [0, u32::MAX as usize, 0]) }.map(drop)
}

/// Allows a process and its descendants to trace this one (`PR_SET_PTRACER` of the Yama module, prctl(2)); 0 allows
/// none. False if the call is refused.
pub fn set_ptracer(process: i32) -> bool {
    // SAFETY:
    // - this option takes an integer and touches no memory.
    unsafe { call_with(linux::__NR_prctl, [PR_SET_PTRACER as usize, process as usize]) }.is_ok()
}

/// Sets whether this process adopts its orphaned descendants (`PR_SET_CHILD_SUBREAPER`, prctl(2)). Returns false if the
/// kernel refuses.
pub fn set_child_subreaper(adopts: bool) -> bool {
    // SAFETY:
    // - this option takes an integer and touches no memory.
    unsafe { call_with(linux::__NR_prctl, [PR_SET_CHILD_SUBREAPER as usize, usize::from(adopts)]) }.is_ok()
}

/// Makes the kernel forget the word that it sets to 0 when this thread exits or executes a program
/// (set_tid_address(2)).
pub fn forget_thread_word() {
    // SAFETY:
    // - takes an address, here a null pointer, which is not accessed.
    let _ = unsafe { call_with(linux::__NR_set_tid_address, [0]) };
}

/// Ends the process with all its threads. No exit handler of the C library or of Rust runs.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY:
        // - takes an integer, and does not return.
        let _ = unsafe { call_with(linux::__NR_exit_group, [status as usize]) };
    }
}

/// Ends the process as abort(3) does: by SIGABRT and, if that is blocked or handled, with status 134.
pub fn abort() -> ! {
    let signal = [process_id() as usize, thread_id() as usize, linux::SIGABRT as usize];
    // SAFETY:
    // - takes integers, and touches no memory.
    let _ = unsafe { call_with(linux::__NR_tgkill, signal) };
    exit(134)
}

#[cfg(test)]
mod tests {
    use super::parse_release;

    #[test]
    fn releases_are_read() {
        assert_eq!(parse_release("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(parse_release("5.10.0-30-amd64\0\0"), Some((5, 10)));
        assert_eq!(parse_release("6.1\0\0"), Some((6, 1)));
        assert_eq!(parse_release("linux"), None);
    }
}
