//! What both executors that act on another process share.

use crate::injection::InjectError;
use address_space::{AddressRange, PageSize, RangeSet, parse_smaps};
use kernel_calls::numbers as linux;
use kernel_calls::pagemap::Pagemap;
use kernel_calls::text::text_of;
use lift_execution::{Backing, CallError};
use nix::errno::Errno;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Flags of `mmap` for a file that is never written: of hugetlbfs no pool pages must be set aside for copies.
pub const PRIVATE_FILE: i32 = libc::MAP_PRIVATE | libc::MAP_NORESERVE;

/// The same for a shared image: what it has in memory is mapped into the page tables, too, which takes 1.3 microseconds for
/// each huge page, and a fault 1.8. Where the image is moved to its place, the kernel moves these entries as they are.
pub const IMAGE: i32 = PRIVATE_FILE | libc::MAP_POPULATE;

/// Flags of `mmap` for private anonymous memory.
pub fn mmap_flags(backing: Backing) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    (match backing {
        Backing::Ordinary => flags,
        Backing::Hugetlb(size) => flags | libc::MAP_HUGETLB | (size.log2() << linux::MAP_HUGE_SHIFT) as i32,
    }) as u32 as u64
}

/// An error of ours as one of a call.
pub fn failed(call: &'static str, error: &std::io::Error) -> CallError {
    CallError { call, errno: error.raw_os_error().unwrap_or(Errno::EIO as i32) }
}

/// Refuses a file that a process has opened by a path, where another one lies at that path here: whoever rules over the
/// process's mount namespace decides what the path leads to there.
pub fn is_ours(pid: i32, descriptor: u64, path: &OsStr) -> Result<(), CallError> {
    let opened = format!("/proc/{pid}/fd/{descriptor}");
    let number = |path: &OsStr| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match (number(path), number(OsStr::new(&opened))) {
        (Ok(here), Ok(there)) if here == there => Ok(()),
        (Err(error), _) | (_, Err(error)) => Err(failed("comparing the opened image with ours", &error)),
        _ => Err(CallError {
            call: "opening the image, which is another file in the process's mounts,",
            errno: Errno::ESTALE as i32,
        }),
    }
}

/// A call that could not be made at all.
pub fn not_made(call: &'static str, error: &InjectError) -> CallError {
    let errno = match error {
        InjectError::Ptrace(errno) => *errno,
        InjectError::Gone => Errno::ESRCH,
        InjectError::NoRoom(_) | InjectError::Fault(_) | InjectError::Memory(_) => Errno::EFAULT,
    };
    CallError { call, errno: errno as i32 }
}

/// The parts of `range` that are mapped by huge pages of at least `size`.
pub fn huge(pid: i32, pagemap: &Pagemap, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
    match pagemap.huge(range) {
        Ok(huge) => Ok(huge.iter().map(|part| part.whole_pages(size)).collect()),
        Err(_) => huge_by_smaps(pid, Some(pagemap), range, size),
    }
}

/// Before Linux 6.7 the kernel tells only how much of a mapping is huge; `pagemap` helps to find where.
pub fn huge_by_smaps(
    pid: i32,
    pagemap: Option<&Pagemap>,
    range: AddressRange,
    size: PageSize,
) -> Result<RangeSet, CallError> {
    let text = text_of(format!("/proc/{pid}/smaps"));
    let text = text.map_err(|error| failed("reading smaps", &error))?;
    let usages = parse_smaps(&text).map_err(|_| CallError { call: "reading smaps", errno: Errno::EINVAL as i32 })?;
    let touched = |part| pagemap?.touched(part).ok();
    let parts = usages.iter().filter(|usage| usage.mapping.range.overlaps(range));
    let huge = parts.map(|usage| usage.huge_parts(size, touched));
    Ok(huge.flat_map(|parts| parts.within(range).collect::<Vec<_>>()).collect())
}
