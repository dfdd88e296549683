//! Mappings of this process.

use crate::kernel::errno::EEXIST;
use crate::kernel::general as linux;
use crate::kernel::prctl::{PR_SET_VMA, PR_SET_VMA_ANON_NAME};
use crate::{Errno, call_with, process};
use address_space::{Address, AddressRange};
use core::ffi::CStr;

/// `mmap`. `bits` are the protection (`PROT_*`), `offset` is in bytes. Returns the start of the mapping.
///
/// # Errors
/// Those of mmap(2).
///
/// # Safety
/// With `MAP_FIXED` in `flags`, nothing that is mapped there may be in use.
pub unsafe fn mmap(at: usize, length: usize, bits: i32, flags: u32, fd: i32, offset: u64) -> Result<usize, Errno> {
    let arguments = [at, length, bits as usize, flags as usize, fd as isize as usize, offset as usize];
    // SAFETY:
    // - the caller's promise; without MAP_FIXED only free addresses are taken.
    unsafe { call_with(linux::__NR_mmap, arguments) }
}

/// `munmap`.
///
/// # Errors
/// Those of munmap(2).
///
/// # Safety
/// Nothing in the range may be in use.
pub unsafe fn munmap(range: AddressRange) -> Result<(), Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { call_with(linux::__NR_munmap, [start(range), length(range)]) }.map(drop)
}

/// `mprotect`. `bits` are the protection (`PROT_*`).
///
/// # Errors
/// Those of mprotect(2).
///
/// # Safety
/// All users of the range must be able to work with the new protection.
pub unsafe fn mprotect(range: AddressRange, bits: i32) -> Result<(), Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { call_with(linux::__NR_mprotect, [start(range), length(range), bits as usize]) }.map(drop)
}

/// `mremap` to a length of `bytes`. `to` counts with `MREMAP_FIXED` only. Returns the start of the mapping.
///
/// # Errors
/// Those of mremap(2).
///
/// # Safety
/// Where `flags` let the mapping move, or it becomes shorter, nothing that goes may be in use; with `MREMAP_FIXED`,
/// nothing that is mapped at the destination may be in use.
pub unsafe fn mremap(from: AddressRange, bytes: usize, flags: u32, to: usize) -> Result<usize, Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { call_with(linux::__NR_mremap, [start(from), length(from), bytes, flags as usize, to]) }
}

/// Maps writable memory at `range` if nothing is mapped there: after a failed [`mremap_to`], which may have removed what was there.
///
/// # Errors
/// Those of mmap(2): `EEXIST` where something is mapped.
pub fn fill_hole(range: AddressRange) -> Result<(), Errno> {
    let flags = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_FIXED_NOREPLACE;
    let bits = (linux::PROT_READ | linux::PROT_WRITE) as i32;
    // SAFETY:
    // - MAP_FIXED_NOREPLACE never takes addresses that are in use.
    let at = unsafe { mmap(start(range), length(range), bits, flags, -1, 0) }?;
    if at == start(range) {
        return Ok(());
    }
    // Linux before 4.17 does not know the flag.
    // SAFETY:
    // - the mapping is new and has no other user.
    let _ = unsafe { munmap(AddressRange::sized(Address(at as u64), range.len())) };
    Err(EEXIST as Errno)
}

/// `mremap` to a given address, replacing what is mapped there.
///
/// # Errors
/// Those of mremap(2). The mapping at the destination may be gone then: see [`fill_hole`].
///
/// # Safety
/// Nothing in `from` may be in use, and what is in use at the destination must find there what it needs.
pub unsafe fn mremap_to(from: AddressRange, to: usize) -> Result<(), Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { mremap(from, length(from), linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED, to) }.map(drop)
}

/// `madvise`.
///
/// # Errors
/// Those of madvise(2).
///
/// # Safety
/// The advice must not drop contents that are in use.
pub unsafe fn madvise(range: AddressRange, advice: u32) -> Result<(), Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { call_with(linux::__NR_madvise, [start(range), length(range), advice as usize]) }.map(drop)
}

/// Copies memory of this process by `process_vm_readv`, which returns an error for an inaccessible address instead of
/// raising a signal. Returns the number of bytes copied. It names the calling thread: the first one may have ended, and
/// has no memory then.
///
/// # Errors
/// Those of process_vm_readv(2).
///
/// # Safety
/// `to` and the bytes after it must be the caller's to write.
pub unsafe fn process_vm_readv(from: AddressRange, to: usize) -> Result<usize, Errno> {
    let local = [to, length(from)];
    let remote = [start(from), length(from)];
    // SAFETY:
    // - both vectors have the layout of one `struct iovec` and live until after the call.
    // - the caller's promise for what they point to.
    unsafe {
        let (local, remote) = (local.as_ptr() as usize, remote.as_ptr() as usize);
        call_with(linux::__NR_process_vm_readv, [process::thread_id() as usize, local, 1, remote, 1])
    }
}

/// Names private anonymous memory (`PR_SET_VMA_ANON_NAME`, Linux 5.17).
///
/// # Errors
/// `EINVAL` from a kernel that is built without it; otherwise the errors of prctl(2).
pub fn name_memory(range: AddressRange, name: &CStr) -> Result<(), Errno> {
    let (option, what) = (PR_SET_VMA as usize, PR_SET_VMA_ANON_NAME as usize);
    let arguments = [option, what, start(range), length(range), name.as_ptr() as usize];
    // SAFETY:
    // - the name ends with NUL; only the label of the range changes.
    unsafe { call_with(linux::__NR_prctl, arguments) }.map(drop)
}

/// Gives memory a policy about its NUMA nodes, which decides where pages come from that are made present later.
///
/// # Errors
/// `ENOSYS` from a kernel without NUMA; otherwise the errors of mbind(2).
pub fn mbind(range: AddressRange, mode: u64, nodes: &[u64]) -> Result<(), Errno> {
    // The kernel reads one bit less than the number it is given (Linux, `mm/mempolicy.c`, `get_nodes`).
    let bits = nodes.len() * u64::BITS as usize + 1;
    let arguments = [start(range), length(range), mode as usize, nodes.as_ptr() as usize, bits, 0];
    // SAFETY:
    // - the kernel reads no more of the mask than it has; no flag moves pages, and no contents change.
    unsafe { call_with(linux::__NR_mbind, arguments) }.map(drop)
}

fn start(range: AddressRange) -> usize {
    range.start().0 as usize
}

fn length(range: AddressRange) -> usize {
    range.len() as usize
}
