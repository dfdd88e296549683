//! Memory on pages of one size, read back from the kernel.

use crate::tlb_probe::Backing;
use address_space::{Address, AddressRange, PageSize};
use linux::pages::base_page;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use process_view::ProcessFiles;
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Why there is no memory on these pages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMemory {
    /// The kernel refuses a call.
    #[error("{call}: {errno}{}", hint(.call, *.errno))]
    Call {
        /// Its name.
        call: &'static str,
        /// The error.
        errno: Errno,
    },
    /// The kernel has backed only a part by such pages.
    #[error(
        "{found} MiB of {wanted} MiB are on such pages: memory is fragmented; fix: echo 1 > /proc/sys/vm/compact_memory"
    )]
    Fragmented {
        /// MiB that are on such pages.
        found: u64,
        /// MiB that were asked for.
        wanted: u64,
    },
    /// The kernel does not show what backs memory.
    #[error("the page size of the memory cannot be read: {0}")]
    Unseen(String),
}

/// The fix for a refused call.
fn hint(call: &str, errno: Errno) -> &'static str {
    match (call, errno) {
        ("mmap", Errno::ENOMEM) => "; the pool has too few free pages",
        ("mprotect", Errno::EACCES) => "; a security module allows no code that is written at run time (execmem)",
        _ => "",
    }
}

/// A mapping, unmapped when dropped. Its start is aligned to its pages.
#[derive(Debug)]
pub(crate) struct Region {
    mapped: NonNull<c_void>,
    mapped_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
}

impl Region {
    /// Maps `bytes`, a multiple of the backing's page size, and touches every page.
    pub(crate) fn new(bytes: usize, backing: Backing) -> Result<Self, NoMemory> {
        let region = match backing {
            Backing::Base => Self::anonymous(bytes, base_page(), MapFlags::empty())?,
            Backing::Transparent(page) => Self::anonymous(bytes, page, MapFlags::empty())?,
            Backing::Pool(page) => Self::anonymous(bytes, base_page(), pool_flags(page))?,
        };
        match backing {
            Backing::Base => region.advise(MmapAdvise::MADV_NOHUGEPAGE)?,
            Backing::Transparent(_) => region.advise(MmapAdvise::MADV_HUGEPAGE)?,
            Backing::Pool(_) => {}
        }
        region.touch(base_page().bytes() as usize);
        if let Backing::Transparent(_) = backing {
            region.collapse();
        }
        region.check(backing)?;
        Ok(region)
    }

    /// Maps `bytes`, a multiple of the page size, for transparent huge pages, and makes these present. Returns the time for that.
    pub(crate) fn filled(bytes: usize, page: PageSize) -> Result<(Self, Duration), NoMemory> {
        let region = Self::anonymous(bytes, page, MapFlags::empty())?;
        region.advise(MmapAdvise::MADV_HUGEPAGE)?;
        let started = Instant::now();
        region.touch(page.bytes() as usize);
        let time = started.elapsed();
        region.check(Backing::Transparent(page))?;
        Ok((region, time))
    }

    /// Copies the contents of the other region, which has the same length.
    pub(crate) fn copy_from(&self, other: &Self) {
        let bytes = self.bytes.min(other.bytes);
        // SAFETY:
        // - both regions have this number of bytes, which nobody else uses.
        // - they are two mappings, which do not overlap.
        unsafe { self.start.copy_from_nonoverlapping(other.start, bytes) };
    }

    fn anonymous(bytes: usize, alignment: PageSize, flags: MapFlags) -> Result<Self, NoMemory> {
        let spare = if alignment == base_page() { 0 } else { alignment.bytes() as usize };
        let mapped_bytes =
            NonZeroUsize::new(bytes + spare).ok_or(NoMemory::Call { call: "mmap", errno: Errno::EINVAL })?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - the kernel chooses the address, so nothing that exists is replaced.
        let mapped = unsafe { mmap_anonymous(None, mapped_bytes, protection, MapFlags::MAP_PRIVATE | flags) };
        let mapped = mapped.map_err(|errno| NoMemory::Call { call: "mmap", errno })?;
        let ahead = (mapped.as_ptr() as usize).next_multiple_of(alignment.bytes() as usize) - mapped.as_ptr() as usize;
        // SAFETY:
        // - `ahead` is less than the alignment, by which the mapping is longer than `bytes`.
        let start = unsafe { mapped.cast::<u8>().add(ahead) };
        Ok(Self { mapped, mapped_bytes: mapped_bytes.get(), start, bytes })
    }

    fn advise(&self, advice: MmapAdvise) -> Result<(), NoMemory> {
        // SAFETY:
        // - the range is this region's, and the advice changes no contents.
        let result = unsafe { madvise(self.start.cast(), self.bytes, advice) };
        result.map_err(|errno| NoMemory::Call { call: "madvise", errno })
    }

    /// Requests huge pages again after a fault without one. [`Self::check`] reads the outcome.
    fn collapse(&self) {
        // SAFETY:
        // - the range is this region's, and the advice (Linux 6.1) changes no contents.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, linux::constants::MADV_COLLAPSE) };
    }

    fn touch(&self, step: usize) {
        for offset in (0..self.bytes).step_by(step) {
            // SAFETY:
            // - the offset is inside of this region, which has no other user.
            unsafe { self.start.add(offset).write_volatile(0) };
        }
    }

    /// Reads back from the kernel that the whole region is on pages of the requested size.
    fn check(&self, backing: Backing) -> Result<(), NoMemory> {
        let smaps = ProcessFiles::own().smaps().map_err(|e| NoMemory::Unseen(e.to_string()))?;
        let own = AddressRange::sized(Address(self.start.as_ptr() as u64), self.bytes as u64);
        let entries = smaps.iter().filter(|entry| entry.mapping.range.overlaps(own));
        let huge: u64 = entries
            .map(|entry| match backing {
                Backing::Base => entry.huge(),
                Backing::Transparent(_) => entry.anonymous_huge,
                Backing::Pool(page) if entry.kernel_page_size == Some(page) => entry.hugetlb,
                Backing::Pool(_) => 0,
            })
            .sum();
        let is_right = if backing == Backing::Base { huge == 0 } else { huge >= self.bytes as u64 };
        let wanted = if backing == Backing::Base { 0 } else { self.bytes as u64 >> 20 };
        if is_right { Ok(()) } else { Err(NoMemory::Fragmented { found: huge >> 20, wanted }) }
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes it writable or executable, never both.
    pub(crate) fn protect(&self, executable: bool) -> Result<(), NoMemory> {
        let flag = if executable { ProtFlags::PROT_EXEC } else { ProtFlags::PROT_WRITE };
        // SAFETY:
        // - the range is this region's; its user writes only while it is writable.
        let result = unsafe { mprotect(self.start.cast(), self.bytes, ProtFlags::PROT_READ | flag) };
        result.map_err(|errno| NoMemory::Call { call: "mprotect", errno })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY:
        // - the mapping is this region's, and references into it borrow the region.
        unsafe { munmap(self.mapped, self.mapped_bytes).ok() };
    }
}

/// `MAP_HUGETLB` with the page size in bits 26 to 31, as its binary logarithm (mmap(2)).
fn pool_flags(page: PageSize) -> MapFlags {
    MapFlags::MAP_HUGETLB | MapFlags::from_bits_retain((page.bytes().trailing_zeros() << 26) as i32)
}
