//! The executor that acts on the process it lives in.
//!
//! Rules of this file, which hold from the first step of a range to its swap:
//! - No function of any other library is called, the C library's included; only system calls are made.
//! - No memory of the range is read but by the one copy, and nothing in it is written: what the library itself changes
//!   lies in its own mapping (`own_state`), on this thread's stack, or in registers. Ranges that hold this stack, or
//!   memory that changes by itself, never get here (`safety`).
//! - The swap is one `mremap`. The code that makes it may lie in the range: the instruction behind the system call is
//!   fetched from the copy, which is the same.
//! - Every signal is held, so that no other code of the program runs on this thread.

use crate::calls::{self, Errno};
use crate::own_state::own_mappings;
use crate::{files, pagemap};
use address_space::{Address, AddressRange, AddressSpace, Mapping, PageSize, Protection, RangeSet, parse_smaps};
use alloc::ffi::CString;
use alloc::vec::Vec;
use lift_execution::{Backing, CallError, Executor};
use linux_raw_sys::errno::{EFAULT, EINVAL, EIO, ENOMEM, ENOSYS, EPERM};
use linux_raw_sys::general as linux;

/// A call copies at most so many bytes, so that no single call keeps the process for long.
const COPIED_AT_ONCE: u64 = 256 << 20;

/// Executes steps in this process.
pub struct OwnProcess {
    pagemap: Option<pagemap::Pagemap>,
    memory: Option<files::File>,
    base_page: PageSize,
}

impl OwnProcess {
    /// An executor on the process it lives in.
    pub fn new(base_page: PageSize) -> Self {
        Self { pagemap: pagemap::Pagemap::open(base_page).ok(), memory: None, base_page }
    }

    /// For kernels before 5.14: reads zeros into each page from a file, where a shortage is an error and no signal.
    fn touch(range: AddressRange, page: PageSize) -> Result<(), Errno> {
        let zeros = files::File::open(c"/dev/zero")?;
        for page in range.pages(page) {
            // SAFETY:
            // - the memory is fresh, writable and zero, and nobody but the library knows of it.
            unsafe { calls::read_to(zeros.descriptor(), page.start().0 as usize, 1, 0) }?;
        }
        Ok(())
    }

    /// For processes that may not call `process_vm_readv`.
    fn copy_by_memory_file(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let name = "reading /proc/self/mem";
        if self.memory.is_none() {
            self.memory = Some(files::File::open(c"/proc/self/mem").map_err(|errno| CallError { call: name, errno })?);
        }
        let Some(memory) = &self.memory else { return Err(CallError { call: name, errno: EIO as i32 }) };
        let mut done = 0;
        while done < from.len() {
            let (to, length) = ((to + done).0 as usize, (from.len() - done).min(COPIED_AT_ONCE) as usize);
            // SAFETY:
            // - the caller of the executor owns what is copied to.
            match unsafe { calls::read_to(memory.descriptor(), to, length, (from.start() + done).0) } {
                Ok(0) => return Err(CallError { call: name, errno: EFAULT as i32 }),
                Ok(copied) => done += copied as u64,
                Err(errno) => return Err(CallError { call: name, errno }),
            }
        }
        Ok(())
    }

    /// Before Linux 6.7 the kernel tells only how much of a mapping is huge; the pagemap helps to find where.
    fn huge_by_smaps(
        pagemap: Option<&pagemap::Pagemap>,
        range: AddressRange,
        size: PageSize,
    ) -> Result<RangeSet, CallError> {
        let text = files::text(c"/proc/self/smaps").map_err(failed("reading smaps"))?;
        let usages = parse_smaps(&text).map_err(|_| CallError { call: "reading smaps", errno: EINVAL as i32 })?;
        let touched = |part| pagemap?.touched(part).ok();
        let parts = usages.iter().filter(|usage| usage.mapping.range.overlaps(range));
        let huge = parts.map(|usage| usage.huge_parts(size, touched));
        Ok(huge.flat_map(|parts| parts.within(range).collect::<Vec<_>>()).collect())
    }
}

/// Names the call that gave an error.
fn failed(call: &'static str) -> impl Fn(Errno) -> CallError {
    move |errno| CallError { call, errno }
}

fn flags_of(backing: Backing) -> u32 {
    let flags = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS;
    match backing {
        Backing::Ordinary => flags,
        Backing::Hugetlb(size) => flags | linux::MAP_HUGETLB | size.log2() << linux::MAP_HUGE_SHIFT,
    }
}

impl Executor for OwnProcess {
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError> {
        let bits = Protection::READ_WRITE.bits();
        // SAFETY:
        // - no MAP_FIXED: only free addresses are taken.
        let got = unsafe { calls::mmap(0, length as usize, bits, flags_of(backing), -1, 0) };
        got.map(|at| Address(at as u64)).map_err(failed("mmap"))
    }

    fn map_at(&mut self, range: AddressRange, backing: Backing) -> Result<(), CallError> {
        let (flags, bits) = (flags_of(backing) | linux::MAP_FIXED_NOREPLACE, Protection::READ_WRITE.bits());
        // SAFETY:
        // - MAP_FIXED_NOREPLACE never takes addresses that are in use.
        let got = unsafe { calls::mmap(range.start().0 as usize, range.len() as usize, bits, flags, -1, 0) };
        let at = got.map_err(failed("mmap"))?;
        if at as u64 == range.start().0 {
            return Ok(());
        }
        // Kernels before 4.17 take the address for a hint.
        self.unmap(AddressRange::sized(Address(at as u64), range.len()))?;
        Err(CallError { call: "mmap", errno: linux_raw_sys::errno::EEXIST as i32 })
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), CallError> {
        // SAFETY:
        // - the engine unmaps only what it has mapped or moved aside itself.
        unsafe { calls::munmap(range) }.map_err(failed("munmap"))
    }

    fn advise_huge(&mut self, range: AddressRange) -> Result<(), CallError> {
        // SAFETY:
        // - this advice keeps all contents.
        unsafe { calls::madvise(range, linux::MADV_HUGEPAGE) }.map_err(failed("madvise(MADV_HUGEPAGE)"))
    }

    fn populate(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError> {
        // SAFETY:
        // - this advice keeps all contents.
        match unsafe { calls::madvise(range, linux::MADV_POPULATE_WRITE) } {
            Err(errno) if errno == EINVAL as i32 => Self::touch(range, page),
            result => result,
        }
        .map_err(failed("madvise(MADV_POPULATE_WRITE)"))
    }

    fn collapse(&mut self, range: AddressRange) -> Result<(), CallError> {
        // SAFETY:
        // - this advice keeps all contents; the kernel makes it invisible to other threads.
        unsafe { calls::madvise(range, linux::MADV_COLLAPSE) }.map_err(failed("madvise(MADV_COLLAPSE)"))
    }

    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        // SAFETY:
        // - the engine protects only copies that nobody uses yet, with what the original had.
        unsafe { calls::mprotect(range, protection.bits()) }.map_err(failed("mprotect"))
    }

    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        // SAFETY:
        // - the engine moves a copy over what it is a copy of, or what it moved aside back.
        unsafe { calls::mremap_to(from, to.0 as usize) }.map_err(failed("mremap"))
    }

    /// The kernel copies, for a page that cannot be had is an error then instead of a signal.
    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let mut done = 0;
        while done < from.len() {
            let rest = AddressRange::new(from.start() + done, from.end());
            let now = AddressRange::sized(rest.start(), rest.len().min(COPIED_AT_ONCE));
            // SAFETY:
            // - the engine copies only to staging, which is its own.
            match unsafe { calls::process_vm_readv(now, (to + done).0 as usize) } {
                Ok(0) => return Err(CallError { call: "process_vm_readv", errno: EFAULT as i32 }),
                Ok(copied) => done += copied as u64,
                Err(errno) if [EPERM as i32, ENOSYS as i32].contains(&errno) => {
                    return self.copy_by_memory_file(rest, to + done);
                }
                Err(errno) => return Err(CallError { call: "process_vm_readv", errno }),
            }
        }
        Ok(())
    }

    fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError> {
        let name = CString::new(name).map_err(|_| CallError { call: "prctl(PR_SET_VMA)", errno: EINVAL as i32 })?;
        calls::name_memory(range, &name).map_err(failed("prctl(PR_SET_VMA)"))
    }

    fn huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
        match self.pagemap.as_ref().map(|pagemap| pagemap.huge(range)) {
            Some(Ok(huge)) => Ok(huge.iter().map(|part| part.whole_pages(size)).collect()),
            _ => Self::huge_by_smaps(self.pagemap.as_ref(), range, size),
        }
    }

    fn space(&mut self) -> Result<AddressSpace, CallError> {
        let _ = self.base_page;
        own_space()
    }
}

/// This process's mappings without the library's own.
///
/// # Errors
/// Where `/proc/self/maps` cannot be read.
pub fn own_space() -> Result<AddressSpace, CallError> {
    // What reading needs is there before it is read, so that the text does not miss the memory it lies in itself.
    let text = files::text(c"/proc/self/maps").map_err(failed("reading maps"))?;
    let space = AddressSpace::parse(&text).map_err(|_| CallError { call: "reading maps", errno: ENOMEM as i32 })?;
    let mut own = RangeSet::new();
    own_mappings(|range| own.insert(range));
    let mut kept: Vec<Mapping> = Vec::new();
    for mapping in space.mappings() {
        let mut rest = RangeSet::from_iter([mapping.range]);
        own.within(mapping.range).for_each(|range| rest.remove(range));
        // The kernel may have merged our memory with a neighbour.
        kept.extend(rest.iter().map(|range| {
            let offset = mapping.offset + (range.start() - mapping.range.start());
            Mapping { range, offset, ..mapping.clone() }
        }));
    }
    Ok(AddressSpace::from_mappings(kept))
}
