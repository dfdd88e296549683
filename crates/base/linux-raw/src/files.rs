//! Files and descriptors.

use crate::kernel::errno::EINTR;
use crate::kernel::general as linux;
use crate::{Errno, call_with};
use core::ffi::CStr;

/// `AT_FDCWD`: the working directory, as the descriptor argument of `*at` calls.
const CURRENT_DIRECTORY: usize = linux::AT_FDCWD as isize as usize;

/// Opens a file for reading, never as a controlling terminal, closed on exec. `more_flags` are `O_*`.
///
/// # Errors
/// Those of open(2).
pub fn open(path: &CStr, more_flags: u32) -> Result<i32, Errno> {
    let flags = linux::O_RDONLY | linux::O_CLOEXEC | linux::O_NOCTTY | more_flags;
    // SAFETY:
    // - the path ends with NUL.
    let opened = unsafe { call_with(linux::__NR_openat, [CURRENT_DIRECTORY, path.as_ptr() as usize, flags as usize]) };
    opened.map(|descriptor| descriptor as i32)
}

/// `close`. Its result is ignored: the descriptor is closed even if the kernel returns an error (close(2)).
///
/// # Safety
/// The caller owns the descriptor, and it is not used afterwards.
pub unsafe fn close(descriptor: i32) {
    // SAFETY:
    // - touches no memory; the caller's promise.
    let _ = unsafe { call_with(linux::__NR_close, [descriptor as usize]) };
}

/// `read`. Returns the number of bytes; 0 at the end of the file.
///
/// # Errors
/// Those of read(2).
pub fn read(descriptor: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY:
    // - the kernel writes at most as many bytes as the buffer has.
    unsafe { call_with(linux::__NR_read, [descriptor as usize, buffer.as_mut_ptr() as usize, buffer.len()]) }
}

/// Like [`read`], and again if a signal interrupts it.
///
/// # Errors
/// Those of read(2) but EINTR.
pub fn read_uninterrupted(descriptor: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        let result = read(descriptor, buffer);
        if result != Err(EINTR as Errno) {
            return result;
        }
    }
}

/// `pread64`. `offset` is in bytes.
///
/// # Errors
/// Those of pread(2).
pub fn read_at(descriptor: i32, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    // SAFETY:
    // - the kernel writes at most as many bytes as the buffer has.
    unsafe { read_to(descriptor, buffer.as_mut_ptr() as usize, buffer.len(), offset) }
}

/// `pread64` to an address; one that cannot be written is an error instead of a signal.
///
/// # Errors
/// Those of pread(2).
///
/// # Safety
/// `to` and the bytes after it must be the caller's to write.
pub unsafe fn read_to(descriptor: i32, to: usize, bytes: usize, offset: u64) -> Result<usize, Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { call_with(linux::__NR_pread64, [descriptor as usize, to, bytes, offset as usize]) }
}

/// `write`. Returns the number of bytes written.
///
/// # Errors
/// Those of write(2).
pub fn write(descriptor: i32, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY:
    // - the kernel reads at most as many bytes as there are.
    unsafe { call_with(linux::__NR_write, [descriptor as usize, bytes.as_ptr() as usize, bytes.len()]) }
}

/// Writes all pieces by one call, so that no other writer's text appears between them. Bytes that do not fit into a
/// pipe are lost.
pub fn write_pieces<const COUNT: usize>(descriptor: i32, pieces: [&[u8]; COUNT]) {
    // One `struct iovec` each: address and length.
    let vectors = pieces.map(|piece| [piece.as_ptr() as usize, piece.len()]);
    // SAFETY:
    // - the kernel reads at most as many bytes as each piece has.
    let _ = unsafe { call_with(linux::__NR_writev, [descriptor as usize, vectors.as_ptr() as usize, COUNT]) };
}

/// `readlinkat` of a path. Returns the number of bytes written; a longer target is cut.
///
/// # Errors
/// Those of readlink(2).
pub fn read_link(path: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    let arguments = [CURRENT_DIRECTORY, path.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len()];
    // SAFETY:
    // - the path ends with NUL, and the kernel writes at most as many bytes as the buffer has.
    unsafe { call_with(linux::__NR_readlinkat, arguments) }
}

/// `statx` of an open file, with size, inode and times.
///
/// # Errors
/// Those of statx(2).
pub fn status_of(descriptor: i32) -> Result<linux::statx, Errno> {
    let mut status = core::mem::MaybeUninit::<linux::statx>::zeroed();
    let arguments = [
        descriptor as usize,
        c"".as_ptr() as usize,
        linux::AT_EMPTY_PATH as usize,
        linux::STATX_BASIC_STATS as usize,
        status.as_mut_ptr() as usize,
    ];
    // SAFETY:
    // - the path ends with NUL, and the kernel fills one `struct statx`.
    unsafe { call_with(linux::__NR_statx, arguments) }?;
    // SAFETY:
    // - every field is a number, for which zero, and whatever the kernel wrote, is a value.
    Ok(unsafe { status.assume_init() })
}

/// `statx` of a path, with what the kernel has cached: a file system in user space or on a network is not asked.
///
/// # Errors
/// Those of statx(2).
pub fn cached_status(path: &CStr) -> Result<linux::statx, Errno> {
    let mut status = core::mem::MaybeUninit::<linux::statx>::zeroed();
    let arguments = [
        CURRENT_DIRECTORY,
        path.as_ptr() as usize,
        (linux::AT_STATX_DONT_SYNC | linux::AT_NO_AUTOMOUNT) as usize,
        linux::STATX_BASIC_STATS as usize,
        status.as_mut_ptr() as usize,
    ];
    // SAFETY:
    // - the path ends with NUL, and the kernel fills one `struct statx`.
    unsafe { call_with(linux::__NR_statx, arguments) }?;
    // SAFETY:
    // - every field is a number, for which zero, and whatever the kernel wrote, is a value.
    Ok(unsafe { status.assume_init() })
}

/// Pages of a part of a file, as the kernel counts them (`struct cachestat`, `linux/mman.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedPages {
    /// In the page cache.
    pub cached: u64,
    /// Cached pages that have changed and are not yet written back.
    pub dirty: u64,
    /// Cached pages that are being written back.
    pub writeback: u64,
    /// Dropped by reclaim.
    pub evicted: u64,
    /// Dropped by reclaim a short time ago.
    pub recently_evicted: u64,
}

/// `cachestat` (Linux 6.5): counts the base pages of a part of an open file that are in the page cache. Nothing is read. A
/// length of 0 means the rest of the file.
///
/// # Errors
/// Those of cachestat(2).
pub fn cached_pages(descriptor: i32, offset: u64, length: u64) -> Result<CachedPages, Errno> {
    // `struct cachestat_range` (`linux/mman.h`).
    let (range, mut counts) = ([offset, length], CachedPages::default());
    let arguments = [descriptor as usize, range.as_ptr() as usize, (&raw mut counts) as usize, 0];
    // SAFETY:
    // - both structures are of 64-bit numbers, two and five, and the kernel writes to `counts` alone.
    unsafe { call_with(linux::__NR_cachestat, arguments) }?;
    Ok(counts)
}

/// `posix_fadvise` with `POSIX_FADV_DONTNEED`: drops clean pages of a part of an open file from the page cache, unless a process
/// maps them.
///
/// # Errors
/// Those of posix_fadvise(2).
pub fn evict(descriptor: i32, offset: u64, length: u64) -> Result<(), Errno> {
    let arguments = [descriptor as usize, offset as usize, length as usize, linux::POSIX_FADV_DONTNEED as usize];
    // SAFETY:
    // - takes numbers and changes no contents.
    unsafe { call_with(linux::__NR_fadvise64, arguments) }.map(drop)
}

/// `ioctl` on a structure.
///
/// # Errors
/// Those of the request.
///
/// # Safety
/// `argument` must be what the request wants, and whatever it points to too.
pub unsafe fn ioctl<T>(descriptor: i32, request: u32, argument: &mut T) -> Result<usize, Errno> {
    let argument = core::ptr::from_mut(argument) as usize;
    // SAFETY:
    // - the caller's promise.
    unsafe { call_with(linux::__NR_ioctl, [descriptor as usize, request as usize, argument]) }
}

/// `userfaultfd`. `flags` are `O_CLOEXEC`, `O_NONBLOCK` and `UFFD_USER_MODE_ONLY`.
///
/// # Errors
/// Those of userfaultfd(2).
pub fn userfaultfd(flags: u32) -> Result<i32, Errno> {
    // SAFETY:
    // - takes an integer and touches no memory.
    unsafe { call_with(linux::__NR_userfaultfd, [flags as usize]) }.map(|descriptor| descriptor as i32)
}
