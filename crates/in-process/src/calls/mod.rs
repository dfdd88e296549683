//! The system calls that the library makes, without any C library between it and the kernel: no `errno`, no
//! cancellation, nothing that could lie in memory which is just being lifted.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64::system_call;
#[cfg(target_arch = "aarch64")]
pub use aarch64::{stack_pointer, thread_pointer};
#[cfg(target_arch = "x86_64")]
use x86_64::system_call;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{stack_pointer, thread_pointer};

use address_space::AddressRange;
use core::ffi::CStr;
use linux_raw_sys::general as linux;

/// The number of an error that the kernel gave.
pub type Errno = i32;

/// The file descriptor argument of `*at` calls that means the working directory.
const CURRENT_DIRECTORY: usize = linux::AT_FDCWD as isize as usize;

/// Highest error number that a call may return, negated (Linux, `include/linux/err.h`).
const MOST_ERRNO: isize = 4095;

/// Makes a system call.
///
/// # Safety
/// As for the call that is made.
unsafe fn call(number: u32, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY:
    // - the caller's promise.
    let result = unsafe { system_call(number as usize, arguments) };
    if (-MOST_ERRNO..0).contains(&result) { Err(-result as Errno) } else { Ok(result as usize) }
}

/// `mmap` of private memory.
///
/// # Safety
/// With `MAP_FIXED` in `flags`, nothing that is mapped there may be in use.
pub unsafe fn mmap(at: usize, length: usize, bits: i32, flags: u32, fd: i32, offset: u64) -> Result<usize, Errno> {
    let arguments = [at, length, bits as usize, flags as usize, fd as isize as usize, offset as usize];
    // SAFETY:
    // - the caller's promise; without MAP_FIXED only free addresses are taken.
    unsafe { call(linux::__NR_mmap, arguments) }
}

/// `munmap`.
///
/// # Safety
/// Nothing in the range may be in use.
pub unsafe fn munmap(range: AddressRange) -> Result<(), Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { call(linux::__NR_munmap, [start(range), length(range), 0, 0, 0, 0]) }.map(drop)
}

/// `mprotect`.
///
/// # Safety
/// Whoever uses the range must be content with the new protection.
pub unsafe fn mprotect(range: AddressRange, bits: i32) -> Result<(), Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { call(linux::__NR_mprotect, [start(range), length(range), bits as usize, 0, 0, 0]) }.map(drop)
}

/// `mremap` to a place of our choice, over what is mapped there.
///
/// # Safety
/// Nothing in `from` may be in use, and what is in use at the destination must find there what it needs.
pub unsafe fn mremap_to(from: AddressRange, to: usize) -> Result<(), Errno> {
    let flags = linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED;
    // SAFETY:
    // - the caller's promise.
    unsafe { call(linux::__NR_mremap, [start(from), length(from), length(from), flags as usize, to, 0]) }.map(drop)
}

/// `madvise` with advice that keeps contents: populating, collapsing, advising.
///
/// # Safety
/// The advice must not drop contents that are in use.
pub unsafe fn madvise(range: AddressRange, advice: u32) -> Result<(), Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { call(linux::__NR_madvise, [start(range), length(range), advice as usize, 0, 0, 0]) }.map(drop)
}

/// Copies memory of this process by the kernel's hand, where an address that cannot be accessed is an error instead of
/// a signal. Returns how much was copied.
///
/// # Safety
/// `to` and the bytes behind it must be the caller's to write.
pub unsafe fn process_vm_readv(from: AddressRange, to: usize) -> Result<usize, Errno> {
    let local = [to, length(from)];
    let remote = [start(from), length(from)];
    // SAFETY:
    // - both vectors have the layout of one `struct iovec` and live until after the call.
    // - the caller's promise for what they point to.
    unsafe {
        let (local, remote) = (local.as_ptr() as usize, remote.as_ptr() as usize);
        call(linux::__NR_process_vm_readv, [process_id() as usize, local, 1, remote, 1, 0])
    }
}

/// Opens a file for reading, never as a controlling terminal, never blocking, closed on exec.
pub fn open(path: &CStr) -> Result<i32, Errno> {
    let flags = linux::O_RDONLY | linux::O_CLOEXEC | linux::O_NOCTTY | linux::O_NONBLOCK;
    // SAFETY:
    // - the path ends with NUL.
    unsafe {
        call(linux::__NR_openat, [CURRENT_DIRECTORY, path.as_ptr() as usize, flags as usize, 0, 0, 0])
            .map(|descriptor| descriptor as i32)
    }
}

/// `close`.
pub fn close(descriptor: i32) {
    // SAFETY:
    // - touches no memory; the caller owns the descriptor. What it returns leaves nothing to be done.
    let _ = unsafe { call(linux::__NR_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
}

/// `pread64`.
pub fn read_at(descriptor: i32, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let arguments = [descriptor as usize, buffer.as_mut_ptr() as usize, buffer.len(), offset as usize, 0, 0];
    // SAFETY:
    // - the kernel writes at most as many bytes as the buffer has.
    unsafe { call(linux::__NR_pread64, arguments) }
}

/// `read`.
pub fn read(descriptor: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY:
    // - the kernel writes at most as many bytes as the buffer has.
    unsafe { call(linux::__NR_read, [descriptor as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
}

/// `pread64` to an address, where one that cannot be written is an error instead of a signal.
///
/// # Safety
/// `to` and the bytes behind it must be the caller's to write.
pub unsafe fn read_to(descriptor: i32, to: usize, bytes: usize, offset: u64) -> Result<usize, Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { call(linux::__NR_pread64, [descriptor as usize, to, bytes, offset as usize, 0, 0]) }
}

/// `write`.
#[cfg(any(feature = "freestanding", feature = "preload"))]
pub fn write(descriptor: i32, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY:
    // - the kernel reads at most as many bytes as there are.
    unsafe { call(linux::__NR_write, [descriptor as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// `getdents64`.
pub fn directory_entries(descriptor: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY:
    // - the kernel writes at most as many bytes as the buffer has.
    unsafe { call(linux::__NR_getdents64, [descriptor as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
}

/// `readlinkat` of a path; the bytes written.
pub fn read_link(path: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    let arguments = [CURRENT_DIRECTORY, path.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0];
    // SAFETY:
    // - the path ends with NUL, and the kernel writes at most as many bytes as the buffer has.
    unsafe { call(linux::__NR_readlinkat, arguments) }
}

/// `statx` of an open file, with size, inode and times.
pub fn status_of(descriptor: i32) -> Result<linux::statx, Errno> {
    let mut status = core::mem::MaybeUninit::<linux::statx>::zeroed();
    let arguments = [
        descriptor as usize,
        c"".as_ptr() as usize,
        linux::AT_EMPTY_PATH as usize,
        linux::STATX_BASIC_STATS as usize,
        status.as_mut_ptr() as usize,
        0,
    ];
    // SAFETY:
    // - the path ends with NUL, and the kernel fills one `struct statx`.
    unsafe { call(linux::__NR_statx, arguments) }?;
    // SAFETY:
    // - every field is a number, for which zero, and whatever the kernel wrote, is a value.
    Ok(unsafe { status.assume_init() })
}

/// `ioctl` on a structure.
///
/// # Safety
/// `argument` must be what the request wants, and whatever it points to too.
pub unsafe fn ioctl<T>(descriptor: i32, request: u32, argument: &mut T) -> Result<usize, Errno> {
    let argument = core::ptr::from_mut(argument) as usize;
    // SAFETY:
    // - the caller's promise.
    unsafe { call(linux::__NR_ioctl, [descriptor as usize, request as usize, argument, 0, 0, 0]) }
}

/// `userfaultfd`.
pub fn userfaultfd(flags: u32) -> Result<i32, Errno> {
    // SAFETY:
    // - takes an integer and touches no memory.
    unsafe { call(linux::__NR_userfaultfd, [flags as usize, 0, 0, 0, 0, 0]) }.map(|descriptor| descriptor as i32)
}

/// Names private anonymous memory. Refused by kernels before 5.17 and those built without it.
pub fn name_memory(range: AddressRange, name: &CStr) -> Result<(), Errno> {
    use linux_raw_sys::prctl::{PR_SET_VMA, PR_SET_VMA_ANON_NAME};
    let (option, what) = (PR_SET_VMA as usize, PR_SET_VMA_ANON_NAME as usize);
    // SAFETY:
    // - the name ends with NUL; only the label of the range changes.
    unsafe { call(linux::__NR_prctl, [option, what, start(range), length(range), name.as_ptr() as usize, 0]).map(drop) }
}

/// A signal set with every signal in it, as the kernel has it: 64 bits.
pub const ALL_SIGNALS: u64 = u64::MAX;

/// Sets this thread's signal mask and returns the one before.
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = (core::ptr::from_ref(&mask) as usize, core::ptr::from_mut(&mut before) as usize);
    // SAFETY:
    // - both point to sets of eight bytes, as the last argument says.
    let _ = unsafe { call(linux::__NR_rt_sigprocmask, [linux::SIG_SETMASK as usize, new, old, 8, 0, 0]) };
    before
}

/// Waits until the word is no longer `expected`, or wakes for no reason.
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, expected: u32, shared: bool) {
    let operation = if shared { linux::FUTEX_WAIT } else { linux::FUTEX_WAIT | linux::FUTEX_PRIVATE_FLAG };
    let arguments = [core::ptr::from_ref(word) as usize, operation as usize, expected as usize, 0, 0, 0];
    // SAFETY:
    // - the word is an aligned 32-bit integer that lives during the call.
    let _ = unsafe { call(linux::__NR_futex, arguments) };
}

/// Wakes all who wait for the word.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32, shared: bool) {
    let operation = if shared { linux::FUTEX_WAKE } else { linux::FUTEX_WAKE | linux::FUTEX_PRIVATE_FLAG };
    let everyone = i32::MAX as usize;
    let arguments = [core::ptr::from_ref(word) as usize, operation as usize, everyone, 0, 0, 0];
    // SAFETY:
    // - the word is an aligned 32-bit integer that lives during the call.
    let _ = unsafe { call(linux::__NR_futex, arguments) };
}

/// This process, as it calls itself.
pub fn process_id() -> i32 {
    // SAFETY:
    // - no arguments, no effect.
    unsafe { call(linux::__NR_getpid, [0; 6]) }.unwrap_or_default() as i32
}

/// This thread, as it calls itself.
pub fn thread_id() -> u32 {
    // SAFETY:
    // - no arguments, no effect.
    unsafe { call(linux::__NR_gettid, [0; 6]) }.unwrap_or_default() as u32
}

/// Lets others run.
pub fn yield_processor() {
    // SAFETY:
    // - no arguments, no effect on memory.
    let _ = unsafe { call(linux::__NR_sched_yield, [0; 6]) };
}

/// Microseconds of the clock that never goes back.
pub fn monotonic_microseconds() -> u64 {
    let mut time = [0u64; 2];
    let arguments = [linux::CLOCK_MONOTONIC as usize, time.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY:
    // - the kernel fills one `struct timespec`, two 64-bit integers.
    let _ = unsafe { call(linux::__NR_clock_gettime, arguments) };
    time[0] * 1_000_000 + time[1] / 1000
}

/// The kernel's release, `6.1.0-13` for example, behind NUL bytes.
pub fn kernel_release() -> [u8; 65] {
    let mut names = core::mem::MaybeUninit::<linux_raw_sys::system::new_utsname>::zeroed();
    // SAFETY:
    // - the kernel fills one `struct new_utsname`.
    let _ = unsafe { call(linux::__NR_uname, [names.as_mut_ptr() as usize, 0, 0, 0, 0, 0]) };
    // SAFETY:
    // - every field is an array of characters, for which zero is a value.
    let names = unsafe { names.assume_init() };
    names.release.map(|character| character as u8)
}

/// Ends the process as abort(3) would, with nothing of it run any more.
#[cfg(feature = "freestanding")]
pub fn abort() -> ! {
    // SAFETY:
    // - tgkill takes integers. SIGABRT may be blocked or handled; exit_group then ends the process all the same.
    unsafe {
        let _ =
            call(linux::__NR_tgkill, [process_id() as usize, thread_id() as usize, linux::SIGABRT as usize, 0, 0, 0]);
        loop {
            let _ = call(linux::__NR_exit_group, [134, 0, 0, 0, 0, 0]);
        }
    }
}

/// Ends the process with this status, with nothing of it run any more.
#[cfg(feature = "preload")]
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY:
        // - takes an integer and does not return.
        let _ = unsafe { call(linux::__NR_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

fn start(range: AddressRange) -> usize {
    range.start().0 as usize
}

fn length(range: AddressRange) -> usize {
    range.len() as usize
}
