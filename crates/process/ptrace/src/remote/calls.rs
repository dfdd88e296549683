//! Code shared by both executors that act on another process.

use crate::remote::injection::InjectError;
use address_space::{AddressRange, AddressSpace, Mapping, MappingName, PageSize, RangeSet, parse_smaps};
use lift_execution::{Backing, CallError};
use lift_plan::Placement;
use linux::constants;
use linux::pagemap::Pagemap;
use linux::text::text_of;
use linux::unasked;
use nix::errno::Errno;
use std::ffi::OsStr;
use std::path::Path;

/// Flags of `mmap` for a file that is never written: on hugetlbfs, no pool pages are reserved for copies.
pub const PRIVATE_FILE: i32 = libc::MAP_PRIVATE | libc::MAP_NORESERVE;

/// Flags of `mmap` for a shared image: its pages in memory are also mapped into the page tables, which takes 1.3 µs for
/// each huge page, where a page fault takes 1.8 µs. When the image is moved to its place, the kernel moves these
/// entries unchanged.
pub const IMAGE: i32 = PRIVATE_FILE | libc::MAP_POPULATE;

/// Flags of `mmap` for private anonymous memory.
pub fn mmap_flags(backing: Backing) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    (match backing {
        Backing::Ordinary => flags,
        Backing::Hugetlb { size, reserve } => {
            let promise = if reserve { 0 } else { libc::MAP_NORESERVE };
            flags | promise | libc::MAP_HUGETLB | (size.log2() << constants::MAP_HUGE_SHIFT) as i32
        }
    }) as u32 as u64
}

/// The mask of nodes that `mbind` reads, and its number of bits: the kernel reads one less (Linux, `mm/mempolicy.c`,
/// `get_nodes`).
pub fn node_mask(placement: &Placement) -> (Vec<u8>, u64) {
    let mask = placement.nodes.mask();
    (mask.iter().flat_map(|word| word.to_ne_bytes()).collect(), mask.len() as u64 * u64::from(u64::BITS) + 1)
}

/// Returns an I/O error of this process as the error of a call.
pub fn failed(call: &'static str, error: &std::io::Error) -> CallError {
    CallError { call, errno: error.raw_os_error().unwrap_or(Errno::EIO as i32) }
}

/// Refuses a file that a process has opened by a path if this process finds another file at that path: the owner of the
/// process's mount namespace decides which file has the path there.
pub fn is_ours(pid: i32, descriptor: u64, path: &OsStr) -> Result<(), CallError> {
    let opened = format!("/proc/{pid}/fd/{descriptor}");
    // The opened file may be on a file system that does not answer.
    let file = |path: &OsStr| unasked::place(Path::new(path)).and_then(unasked::of);
    match (file(path), file(OsStr::new(&opened))) {
        (Ok(here), Ok(there)) if here.is_same_file(&there) => Ok(()),
        (Err(error), _) | (_, Err(error)) => Err(failed("comparing the opened image with ours", &error)),
        _ => Err(CallError {
            call: "opening the image, which is another file in the process's mounts,",
            errno: Errno::ESTALE as i32,
        }),
    }
}

/// Returns the error of a call that could not be made at all.
pub fn not_made(call: &'static str, error: &InjectError) -> CallError {
    let errno = match error {
        InjectError::Ptrace(errno) => *errno,
        InjectError::Gone | InjectError::Executed => Errno::ESRCH,
        InjectError::NoReturn { .. } => Errno::ETIMEDOUT,
        InjectError::Filtered => Errno::EPERM,
        InjectError::Interfered | InjectError::Dispatched => Errno::EBUSY,
        InjectError::NoRoom(_) | InjectError::Fault(_) | InjectError::Memory(_) => Errno::EFAULT,
    };
    CallError { call, errno: errno as i32 }
}

/// True for a private mapping of a file that is still at a path.
pub fn shows_file(mapping: &Mapping) -> bool {
    matches!(mapping.name, MappingName::File { deleted: false, .. }) && !mapping.shared && mapping.inode != 0
}

/// Returns the mappings within `range` that show a file and no page of which has been written. The kernel writes all of
/// a mapping to a core dump once one page has been written.
pub fn unchanged_files(pagemap: &Pagemap, space: &AddressSpace, range: AddressRange) -> Vec<Mapping> {
    let is_unchanged = |mapping: &&Mapping| pagemap.changed(mapping.range).is_ok_and(|changed| changed.is_empty());
    space.overlapping(range).iter().filter(|mapping| shows_file(mapping)).filter(is_unchanged).cloned().collect()
}

/// Refuses a range of which a page is no longer its file's, or may not be: discarding would lose it.
pub fn expect_unchanged(pagemap: Option<&Pagemap>, range: AddressRange) -> Result<(), CallError> {
    let busy = CallError { call: "mapping its file again: pages were written to", errno: Errno::EBUSY as i32 };
    let changed = pagemap.ok_or(busy)?.changed(range).map_err(|error| failed("reading the pagemap", &error))?;
    if changed.is_empty() { Ok(()) } else { Err(busy) }
}

/// True if a part of `range` has PROT_BTI.
#[cfg(target_arch = "aarch64")]
pub fn guards_branches(pid: i32, range: AddressRange) -> Result<bool, CallError> {
    let text = text_of(format!("/proc/{pid}/smaps")).map_err(|error| failed("reading smaps", &error))?;
    address_space::guards_branches(&text, range)
        .map_err(|_| CallError { call: "reading smaps", errno: Errno::EINVAL as i32 })
}

/// Returns the parts of `range` that are mapped by huge pages of at least `size`.
pub fn huge(pid: i32, pagemap: &Pagemap, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
    match pagemap.huge(range) {
        Ok(huge) => Ok(huge.iter().map(|part| part.whole_pages(size)).collect()),
        Err(_) => huge_by_smaps(pid, Some(pagemap), range, size),
    }
}

/// Like [`huge`], for kernels before 6.7, which report only how much of a mapping is huge; `pagemap` helps to find
/// where.
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
