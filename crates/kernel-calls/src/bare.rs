//! System calls with no C library between us and the kernel: nothing here touches `errno`, the heap or a lock, and
//! nothing panics. For whoever shares its memory with another process for a while (`by-ptrace/src/launch.rs`).

use core::arch::asm;
use core::ffi::{CStr, c_char};

/// The number of an error that the kernel gave.
pub type ErrorNumber = i32;

/// Highest error number that a call may return, negated (Linux, `include/linux/err.h`).
const MOST_ERROR_NUMBER: isize = 4095;

/// A signal set with every signal in it, as the kernel has it: 64 bits.
pub const ALL_SIGNALS: u64 = u64::MAX;

/// Makes a system call.
///
/// # Safety
/// As for the call that is made.
unsafe fn call(number: i64, arguments: [usize; 5]) -> Result<usize, ErrorNumber> {
    // SAFETY:
    // - the caller's promise.
    let result = unsafe { system_call(number as usize, arguments) };
    if (-MOST_ERROR_NUMBER..0).contains(&result) { Err(-result as ErrorNumber) } else { Ok(result as usize) }
}

/// # Safety
/// As for the call that is made.
#[cfg(target_arch = "x86_64")]
unsafe fn system_call(number: usize, a: [usize; 5]) -> isize {
    let result: isize;
    // SAFETY:
    // - the kernel keeps every register but rax, rcx and r11 (syscall(2)).
    // - the caller answers for what the call does to memory, which is why `nomem` is not claimed.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// # Safety
/// As for the call that is made.
#[cfg(target_arch = "aarch64")]
unsafe fn system_call(number: usize, a: [usize; 5]) -> isize {
    let result: isize;
    // SAFETY:
    // - the kernel keeps every register but x0 (syscall(2)).
    // - the caller answers for what the call does to memory, which is why `nomem` is not claimed.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4],
            options(nostack)
        );
    }
    result
}

/// Executes a file; returns only where that fails.
///
/// # Safety
/// `arguments` and `environment` must be arrays of pointers to strings, each with a null pointer behind the last.
pub unsafe fn execute(path: &CStr, arguments: *const *const c_char, environment: *const *const c_char) -> ErrorNumber {
    let words = [path.as_ptr() as usize, arguments as usize, environment as usize, 0, 0];
    // SAFETY:
    // - the path ends with NUL; the caller's promise for the rest.
    unsafe { call(libc::SYS_execve, words) }.err().unwrap_or_default()
}

/// Ends this process with all its threads; nothing of the C library's or of Rust's runs at that.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY:
        // - takes an integer, and does not return.
        let _ = unsafe { call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0]) };
    }
}

/// Waits for the end of a child, of whatever kind it is.
pub fn wait_for_end(child: i32) {
    // SAFETY:
    // - takes integers, and null pointers for what is not asked for.
    let wait = || unsafe { call(libc::SYS_wait4, [child as usize, 0, libc::__WALL as usize, 0, 0]) };
    while wait() == Err(libc::EINTR) {}
}

/// Reads what is there, or waits for it; nothing at the end of the file, and where reading fails.
pub fn read(descriptor: i32, buffer: &mut [u8]) -> usize {
    loop {
        let words = [descriptor as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0];
        // SAFETY:
        // - the kernel writes at most as many bytes as the buffer has.
        match unsafe { call(libc::SYS_read, words) } {
            Err(libc::EINTR) => {}
            result => return result.unwrap_or(0),
        }
    }
}

/// Writes all pieces by one call, so that no other's writing comes in between. What a full pipe does not take is lost.
pub fn write<const COUNT: usize>(descriptor: i32, pieces: [&[u8]; COUNT]) {
    // One `struct iovec` each: address and length.
    let vectors = pieces.map(|piece| [piece.as_ptr() as usize, piece.len()]);
    // SAFETY:
    // - the kernel reads at most as many bytes as each piece has.
    let _ = unsafe { call(libc::SYS_writev, [descriptor as usize, vectors.as_ptr() as usize, COUNT, 0, 0]) };
}

/// `close`.
pub fn close(descriptor: i32) {
    // SAFETY:
    // - touches no memory; the caller owns the descriptor. What it returns leaves nothing to be done.
    let _ = unsafe { call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0]) };
}

/// Closes every descriptor of this process. Refused before Linux 5.9.
///
/// # Errors
/// The kernel's.
pub fn close_all() -> Result<(), ErrorNumber> {
    // SAFETY:
    // - touches no memory; the caller owns all descriptors.
    unsafe { call(libc::SYS_close_range, [0, u32::MAX as usize, 0, 0, 0]) }.map(drop)
}

/// Sets this thread's signal mask and returns the one before.
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = (&raw const mask as usize, &raw mut before as usize);
    // SAFETY:
    // - both point to sets of eight bytes, as the last argument says.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, new, old, 8, 0]) };
    before
}

/// Lets a process, and those below it, trace this one (`PR_SET_PTRACER` of the Yama module, prctl(2)); 0 for none. False
/// where it is refused.
pub fn set_ptracer(process: i32) -> bool {
    // SAFETY:
    // - this option takes an integer and touches no memory.
    unsafe { call(libc::SYS_prctl, [libc::PR_SET_PTRACER as usize, process as usize, 0, 0, 0]) }.is_ok()
}

/// Makes this process the one that adopts orphans below it (`PR_SET_CHILD_SUBREAPER`, prctl(2)), or not; false where it
/// is refused.
pub fn set_child_subreaper(adopts: bool) -> bool {
    // SAFETY:
    // - this option takes an integer and touches no memory.
    unsafe { call(libc::SYS_prctl, [libc::PR_SET_CHILD_SUBREAPER as usize, usize::from(adopts), 0, 0, 0]) }.is_ok()
}

/// Makes the kernel forget the word that it would set to 0 when this thread leaves its memory to others.
pub fn forget_thread_word() {
    // SAFETY:
    // - takes an address, here none.
    let _ = unsafe { call(libc::SYS_set_tid_address, [0; 5]) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    #[test]
    fn pieces_are_written_as_one() {
        let (mut from, to) = std::io::pipe().unwrap();
        write(to.as_raw_fd(), [b"one, ", b"", b"two"]);
        drop(to);
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one, two");
    }

    #[test]
    fn a_read_gives_what_is_there() {
        let file = File::open("/proc/self/status").unwrap();
        let mut buffer = [0; 5];
        assert_eq!(read(file.as_raw_fd(), &mut buffer), 5);
        assert_eq!(&buffer, b"Name:");
        assert_eq!(read(-1, &mut buffer), 0);
    }

    #[test]
    fn the_signal_mask_is_put_back() {
        let before = set_signal_mask(1 << 9);
        assert_eq!(set_signal_mask(before), 1 << 9);
    }

    #[test]
    fn what_cannot_be_executed_is_told() {
        let words = [core::ptr::null()];
        // SAFETY:
        // - both arrays are empty, with their null pointer.
        let number = unsafe { execute(c"/nowhere/to/be/found", words.as_ptr(), words.as_ptr()) };
        assert_eq!(number, libc::ENOENT);
    }
}
