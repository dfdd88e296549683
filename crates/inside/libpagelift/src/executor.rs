//! The executor that acts on the process it lives in.
//!
//! Rules of this file, which hold from the first step of a range to its swap:
//! - No function of any other library is called, the C library's included; only system calls are made.
//! - Only system calls read the range, for the copy and, if it is not writable, for the comparison with the copy just
//!   before the swap (`copies`). The library's own changes are in a separate mapping (`own_memory`), on this thread's
//!   stack, or in registers. Ranges that contain this stack, or memory that others change, are refused before
//!   (`live_restrictions`).
//! - The swap is one `mremap`. The code that makes it may be in the range: the instruction after the system call is
//!   fetched from the copy, which is equal.
//! - Every signal is held, so that no other code of the program runs on this thread.

use crate::copies::{Copies, same};
use crate::own_memory::own_mappings;
use crate::probes::SearchedCode;
use crate::{files, pagemap};
use address_space::{Address, AddressRange, AddressSpace, Mapping, PageSize, Protection, RangeSet, parse_smaps};
use alloc::ffi::CString;
use alloc::vec;
use alloc::vec::Vec;
use lift_execution::{Backing, CallError, Executor, FileMapping};
use lift_plan::Placement;
use linux_raw::Errno;
use linux_raw::kernel::errno::{EBUSY, EFAULT, EINVAL, EIO, ENOMEM, ENOSYS, EPERM};
use linux_raw::kernel::general as linux;

/// Most bytes that one call copies, so that no single call takes long.
const COPIED_AT_ONCE: u64 = 256 << 20;

/// Bytes that are compared at a time.
const COMPARED_AT_ONCE: u64 = 64 << 10;

/// The range has changed since it was copied.
const CHANGED: CallError = CallError { call: "the swap: the program has changed the range", errno: EBUSY as i32 };

/// The range cannot be compared with its copy.
const NOT_COMPARED: CallError =
    CallError { call: "the swap: the range cannot be compared with its copy", errno: EBUSY as i32 };

/// Executes steps in this process.
pub struct OwnProcess {
    pagemap: Option<pagemap::Pagemap>,
    memory: Option<files::File>,
    base_page: PageSize,
    copies: Copies,
    code: SearchedCode,
}

impl OwnProcess {
    /// An executor on the process it lives in.
    ///
    /// # Safety
    /// The methods of [`Executor`] change memory of this process. The caller copies, unmaps and moves only memory that
    /// it has mapped by this executor, and replaces memory in use only by a copy, while no thread writes there. The
    /// engine does so with a plan that was made for this process and is still valid.
    pub unsafe fn new(base_page: PageSize) -> Self {
        let pagemap = pagemap::Pagemap::open(base_page).ok();
        Self { pagemap, memory: None, base_page, copies: Copies::default(), code: SearchedCode::default() }
    }

    /// Replaces no code that has been written since it was searched for probes.
    pub(crate) fn expect_code(&mut self, code: SearchedCode) {
        self.code = code;
    }

    /// Drops the page tables of memory that shows a file.
    ///
    /// # Errors
    /// The program has written to it.
    pub fn drop_tables(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.expect_unchanged(range)?;
        // SAFETY:
        // - the memory shows a file and has not been written to: whoever accesses it next reads the file again. It is
        //   never written, so that no other thread writes to it now.
        unsafe { linux_raw::madvise(range, linux::MADV_DONTNEED) }.map_err(failed("madvise(MADV_DONTNEED)"))
    }

    /// Copies by a system call, so that a page that cannot be allocated is an error instead of a signal.
    ///
    /// # Safety
    /// `to` and as many bytes behind it as `from` has are the caller's to write.
    unsafe fn copy_bytes(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let mut done = 0;
        while done < from.len() {
            let rest = AddressRange::new(from.start() + done, from.end());
            let now = AddressRange::sized(rest.start(), rest.len().min(COPIED_AT_ONCE));
            // SAFETY:
            // - the caller's promise.
            match unsafe { linux_raw::process_vm_readv(now, (to + done).0 as usize) } {
                Ok(0) => return Err(CallError { call: "process_vm_readv", errno: EFAULT as i32 }),
                Ok(copied) => done += copied as u64,
                Err(errno) if [EPERM as i32, ENOSYS as i32].contains(&errno) => {
                    // SAFETY:
                    // - the caller's promise.
                    return unsafe { self.copy_by_memory_file(rest, to + done) };
                }
                Err(errno) => return Err(CallError { call: "process_vm_readv", errno }),
            }
        }
        Ok(())
    }

    /// Refuses a range that does not hold what is at `copy`. Pages of both that still show a file are not read: a copy that
    /// shows a file shows the range's.
    ///
    /// A uprobe may be inserted, and removed again, at any moment. While it is there, its page differs from the file; the
    /// page is the file's again afterwards, but a copy may have it.
    fn expect_same(&mut self, range: AddressRange, copy: Address) -> Result<(), CallError> {
        self.expect_unprobed(range)?;
        let mut written = self.changed(range);
        let mut copied = self.changed(AddressRange::sized(copy, range.len()));
        let here = |part: AddressRange| AddressRange::sized(range.start() + (part.start() - copy), part.len());
        copied = copied.iter().map(here).collect();
        written.iter().for_each(|part| copied.remove(part));
        self.compare(&copied, range, copy)?;
        // Last, because a write between the comparison and the swap is lost.
        self.changed(range).iter().for_each(|part| written.insert(part));
        self.compare(&written, range, copy)
    }

    /// The pages of `range` that show no file; the whole range if the kernel does not report them.
    fn changed(&self, range: AddressRange) -> RangeSet {
        let changed = self.pagemap.as_ref().and_then(|pagemap| pagemap.changed(range).ok());
        changed.unwrap_or_else(|| RangeSet::from_iter([range]))
    }

    /// Refuses code that has been written since it was searched for probes.
    fn expect_unprobed(&self, range: AddressRange) -> Result<(), CallError> {
        let changed = |part| self.pagemap.as_ref()?.changed(part).ok();
        if self.code.was_written_in(range, changed) { Err(CHANGED) } else { Ok(()) }
    }

    /// Compares parts of `range` with its copy.
    fn compare(&mut self, parts: &RangeSet, range: AddressRange, copy: Address) -> Result<(), CallError> {
        let (mut now, mut copied) = (vec![0; COMPARED_AT_ONCE as usize], vec![0; COMPARED_AT_ONCE as usize]);
        for part in parts.iter() {
            let mut at = part.start();
            while at < part.end() {
                let length = COMPARED_AT_ONCE.min(part.end() - at);
                let (now, copied) = (&mut now[..length as usize], &mut copied[..length as usize]);
                let (here, copy) =
                    (AddressRange::sized(at, length), AddressRange::sized(copy + (at - range.start()), length));
                // SAFETY:
                // - the buffers are as long as what is copied, and exclusively ours.
                unsafe {
                    self.copy_bytes(here, Address(now.as_mut_ptr() as u64))?;
                    self.copy_bytes(copy, Address(copied.as_mut_ptr() as u64))?;
                }
                if !same(now, copied) {
                    return Err(CHANGED);
                }
                // Both may hold a probe that was inserted anew.
                self.expect_unprobed(here)?;
                at = at + length;
            }
        }
        Ok(())
    }

    /// Populates fresh memory on kernels before 5.14: reads zeros into each page from a file, so that a shortage is an error
    /// instead of a signal.
    ///
    /// # Safety
    /// The range is mapped, writable and zero, and only the caller uses it.
    unsafe fn fill_with_zeros(range: AddressRange, page: PageSize) -> Result<(), Errno> {
        let zeros = files::File::open(c"/dev/zero")?;
        for page in range.pages(page) {
            // SAFETY:
            // - the caller's promise.
            unsafe { linux_raw::read_to(zeros.descriptor(), page.start().0 as usize, 1, 0) }?;
        }
        Ok(())
    }

    /// Copies in processes that may not call `process_vm_readv`.
    ///
    /// # Safety
    /// As for [`Self::copy_bytes`].
    unsafe fn copy_by_memory_file(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let name = "reading /proc/thread-self/mem";
        if self.memory.is_none() {
            self.memory =
                Some(files::File::open(c"/proc/thread-self/mem").map_err(|errno| CallError { call: name, errno })?);
        }
        let Some(memory) = &self.memory else { return Err(CallError { call: name, errno: EIO as i32 }) };
        let mut done = 0;
        while done < from.len() {
            let (to, length) = ((to + done).0 as usize, (from.len() - done).min(COPIED_AT_ONCE) as usize);
            // SAFETY:
            // - the caller's promise.
            match unsafe { linux_raw::read_to(memory.descriptor(), to, length, (from.start() + done).0) } {
                Ok(0) => return Err(CallError { call: name, errno: EFAULT as i32 }),
                Ok(copied) => done += copied as u64,
                Err(errno) => return Err(CallError { call: name, errno }),
            }
        }
        Ok(())
    }

    /// Finds huge pages on kernels before 6.7, on which smaps only reports how many bytes of a mapping are huge, and
    /// the pagemap helps to find the addresses.
    fn huge_by_smaps(
        pagemap: Option<&pagemap::Pagemap>,
        range: AddressRange,
        size: PageSize,
    ) -> Result<RangeSet, CallError> {
        let text = files::text(c"/proc/thread-self/smaps").map_err(failed("reading smaps"))?;
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

/// An error after which nothing was moved. With another number than `EBUSY` the engine would search the range for a gap.
fn before_the_move(error: CallError) -> CallError {
    if error == CHANGED || error.errno == EFAULT as i32 { CHANGED } else { NOT_COMPARED }
}

fn flags_of(backing: Backing) -> u32 {
    let flags = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS;
    match backing {
        Backing::Ordinary => flags,
        Backing::Hugetlb { size, reserve } => {
            let promise = if reserve { 0 } else { linux::MAP_NORESERVE };
            flags | promise | linux::MAP_HUGETLB | size.log2() << linux::MAP_HUGE_SHIFT
        }
    }
}

impl Executor for OwnProcess {
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError> {
        let bits = Protection::READ_WRITE.bits();
        // SAFETY:
        // - no MAP_FIXED: only free addresses are taken.
        let got = unsafe { linux_raw::mmap(0, length as usize, bits, flags_of(backing), -1, 0) };
        got.map(|at| Address(at as u64)).map_err(failed("mmap"))
    }

    fn map_at(&mut self, range: AddressRange, backing: Backing) -> Result<(), CallError> {
        let (flags, bits) = (flags_of(backing) | linux::MAP_FIXED_NOREPLACE, Protection::READ_WRITE.bits());
        // SAFETY:
        // - MAP_FIXED_NOREPLACE never takes addresses that are in use.
        let got = unsafe { linux_raw::mmap(range.start().0 as usize, range.len() as usize, bits, flags, -1, 0) };
        let at = got.map_err(failed("mmap"))?;
        if at as u64 == range.start().0 {
            return Ok(());
        }
        // Kernels before 4.17 take the address as a hint.
        self.unmap(AddressRange::sized(Address(at as u64), range.len()))?;
        Err(CallError { call: "mmap", errno: linux_raw::kernel::errno::EEXIST as i32 })
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), CallError> {
        // SAFETY:
        // - the engine unmaps only what it has mapped or moved aside itself.
        unsafe { linux_raw::munmap(range) }.map_err(failed("munmap"))?;
        self.copies.take(range, Address(0));
        Ok(())
    }

    fn advise_huge(&mut self, range: AddressRange) -> Result<(), CallError> {
        // SAFETY:
        // - this advice keeps all contents.
        unsafe { linux_raw::madvise(range, linux::MADV_HUGEPAGE) }.map_err(failed("madvise(MADV_HUGEPAGE)"))
    }

    fn place(&mut self, range: AddressRange, placement: &Placement) -> Result<(), CallError> {
        linux_raw::mbind(range, placement.mode(), &placement.nodes.mask()).map_err(failed("mbind"))
    }

    fn populate(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError> {
        // SAFETY:
        // - this advice keeps all contents.
        match unsafe { linux_raw::madvise(range, linux::MADV_POPULATE_WRITE) } {
            // SAFETY:
            // - by the promise of `new` what is populated is fresh memory of this executor, which is zero and writable
            //   until it is sealed.
            Err(errno) if errno == EINVAL as i32 => unsafe { Self::fill_with_zeros(range, page) },
            result => result,
        }
        .map_err(failed("madvise(MADV_POPULATE_WRITE)"))
    }

    fn collapse(&mut self, range: AddressRange) -> Result<(), CallError> {
        // SAFETY:
        // - this advice keeps all contents; the kernel makes it invisible to other threads.
        unsafe { linux_raw::madvise(range, linux::MADV_COLLAPSE) }.map_err(failed("madvise(MADV_COLLAPSE)"))
    }

    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        // SAFETY:
        // - the engine protects only copies that nobody uses yet, with what the original had.
        unsafe { linux_raw::mprotect(range, protection.bits()) }.map_err(failed("mprotect"))?;
        self.copies.note_protection(range, protection.write);
        Ok(())
    }

    #[cfg(target_arch = "aarch64")]
    fn guards_branches(&mut self, range: AddressRange) -> Result<bool, CallError> {
        let text = files::text(c"/proc/thread-self/smaps").map_err(failed("reading smaps"))?;
        address_space::guards_branches(&text, range)
            .map_err(|_| CallError { call: "reading smaps", errno: EINVAL as i32 })
    }

    #[cfg(target_arch = "aarch64")]
    fn guard_branches(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        let protection = protection.bits() | linux::PROT_BTI as i32;
        // SAFETY:
        // - the engine guards copies that nobody uses yet, or an image of code that was guarded.
        unsafe { linux_raw::mprotect(range, protection) }.map_err(failed("mprotect(PROT_BTI)"))
    }

    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        // Only before the first try: where that fails, the range may be gone.
        for (range, copy) in self.copies.take(from, to) {
            self.expect_same(range, copy).map_err(before_the_move)?;
        }
        // SAFETY:
        // - the engine moves a copy over what it is a copy of, or what it moved aside back.
        unsafe { linux_raw::mremap_to(from, to.0 as usize) }.map_err(failed("mremap"))
    }

    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        // SAFETY:
        // - the engine copies only to staging, which is its own.
        unsafe { self.copy_bytes(from, to) }?;
        self.copies.note(from, to);
        Ok(())
    }

    fn map_own_file(&mut self, file: FileMapping<'_>, length: u64) -> Result<Address, CallError> {
        let FileMapping { path, offset, protection } = file;
        let path = files::c_path(path).ok_or(CallError { call: "openat", errno: EINVAL as i32 })?;
        let file = files::File::open(&path).map_err(failed("openat"))?;
        // Memory that the program may write is accounted, like its own mappings (mmap(2)).
        let reserve = if protection.write { 0 } else { linux::MAP_NORESERVE };
        let (bits, flags) = (protection.bits(), linux::MAP_PRIVATE | reserve);
        // SAFETY:
        // - no MAP_FIXED: only free addresses are taken.
        let got = unsafe { linux_raw::mmap(0, length as usize, bits, flags, file.descriptor(), offset) };
        let at = Address(got.map_err(failed("mmap of its file"))? as u64);
        let copy = AddressRange::sized(at, length);
        self.copies.note_shown(copy);
        self.copies.note_protection(copy, protection.write);
        Ok(at)
    }

    fn expect_unchanged(&mut self, range: AddressRange) -> Result<(), CallError> {
        let busy = CallError { call: "mapping its file anew: pages were written to", errno: EBUSY as i32 };
        let changed = self.pagemap.as_ref().ok_or(busy)?.changed(range).map_err(failed("reading the pagemap"))?;
        if changed.is_empty() { Ok(()) } else { Err(busy) }
    }

    fn refault(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.drop_tables(range)?;
        let _ = self.touch(range);
        Ok(())
    }

    fn touch(&mut self, range: AddressRange) -> Result<(), CallError> {
        // SAFETY:
        // - this advice keeps all contents.
        unsafe { linux_raw::madvise(range, linux::MADV_POPULATE_READ) }.map_err(failed("madvise(MADV_POPULATE_READ)"))
    }

    fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError> {
        let name = CString::new(name).map_err(|_| CallError { call: "prctl(PR_SET_VMA)", errno: EINVAL as i32 })?;
        linux_raw::name_memory(range, &name).map_err(failed("prctl(PR_SET_VMA)"))
    }

    fn query_huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
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
/// `/proc/thread-self/maps` cannot be read.
pub fn own_space() -> Result<AddressSpace, CallError> {
    // The buffer is allocated before the file is read, so that the text includes the buffer's own memory.
    let text = files::text(c"/proc/thread-self/maps").map_err(failed("reading maps"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn executor() -> OwnProcess {
        // SAFETY:
        // - the tests act on memory that they map by this executor.
        unsafe { OwnProcess::new(crate::auxiliary::Auxiliary::read().unwrap().base_page) }
    }

    /// 64 pages that hold `byte`.
    fn filled(executor: &mut OwnProcess, byte: u8) -> AddressRange {
        let length = 64 * executor.base_page.bytes();
        let range = AddressRange::sized(executor.map(length, Backing::Ordinary).unwrap(), length);
        write(range, byte);
        range
    }

    fn write(range: AddressRange, byte: u8) {
        // SAFETY:
        // - the range is mapped and writable, and only its test uses it.
        unsafe { core::ptr::write_bytes(range.start().0 as *mut u8, byte, range.len() as usize) }
    }

    fn last_byte(range: AddressRange) -> u8 {
        // SAFETY:
        // - the range is mapped and readable.
        unsafe { ((range.end() - 1).0 as *const u8).read() }
    }

    /// Copies a range, has it changed, and swaps it.
    fn swapped(protection: Protection, change: fn(AddressRange)) -> (Result<(), CallError>, u8) {
        let mut executor = executor();
        let (range, copy) = (filled(&mut executor, 1), filled(&mut executor, 0));
        executor.copy(range, copy.start()).unwrap();
        executor.protect(copy, protection).unwrap();
        change(range);
        let result = executor.move_to(copy, range.start());
        let found = (result, last_byte(range));
        executor.unmap(range).unwrap();
        // Moved memory has left its addresses to the other threads, which may have mapped memory there.
        if found.0.is_err() {
            executor.unmap(copy).unwrap();
        }
        found
    }

    #[test]
    fn what_is_written_to_read_only_memory_after_the_copy_is_kept() {
        let change = |range: AddressRange| write(AddressRange::sized(range.end() - 1, 1), 2);
        assert_eq!(swapped(Protection::READ_EXECUTE, change), (Err(CHANGED), 2));
        assert_eq!(swapped(Protection::READ_EXECUTE, |_| {}), (Ok(()), 1));
        assert_eq!(swapped(Protection::READ, |range| write(range, 1)), (Ok(()), 1));
    }

    /// A call that fails before the move has left no gap that another thread could take, and nothing is restored after it.
    #[test]
    fn memory_that_is_unmapped_after_the_copy_has_changed() {
        let mut executor = executor();
        let (range, copy) = (filled(&mut executor, 1), filled(&mut executor, 0));
        executor.copy(range, copy.start()).unwrap();
        executor.protect(copy, Protection::READ).unwrap();
        let last = AddressRange::new(range.end() - executor.base_page.bytes(), range.end());
        executor.unmap(last).unwrap();
        assert_eq!(executor.move_to(copy, range.start()), Err(CHANGED));
        executor.unmap(AddressRange::new(range.start(), last.start())).unwrap();
        executor.unmap(copy).unwrap();
        let without_files = CallError { call: "reading /proc/thread-self/mem", errno: EPERM as i32 };
        assert_eq!(before_the_move(without_files), NOT_COMPARED);
    }

    /// A private mapping of this program's own file, of one page, and an anonymous copy.
    fn shown_and_copied(executor: &mut OwnProcess) -> (AddressRange, AddressRange) {
        let length = executor.base_page.bytes();
        let file = FileMapping { path: "/proc/self/exe", offset: 0, protection: Protection::READ_WRITE };
        let range = AddressRange::sized(executor.map_own_file(file, length).unwrap(), length);
        let copy = AddressRange::sized(executor.map(length, Backing::Ordinary).unwrap(), length);
        (range, copy)
    }

    fn first_byte(range: AddressRange) -> AddressRange {
        AddressRange::sized(range.start(), 1)
    }

    /// Copies a page of code in which somebody has inserted a uprobe since it was searched, and swaps it.
    fn swapped_with_probe(is_removed: bool) -> Result<(), CallError> {
        let mut executor = executor();
        let (range, copy) = shown_and_copied(&mut executor);
        executor.expect_code(SearchedCode { searched: [range].into_iter().collect(), written: RangeSet::new() });
        write(first_byte(range), 0xcc);
        executor.copy(range, copy.start()).unwrap();
        executor.protect(copy, Protection::READ_EXECUTE).unwrap();
        if is_removed {
            // SAFETY:
            // - only this test uses the range.
            unsafe { linux_raw::madvise(range, linux::MADV_DONTNEED) }.unwrap();
        }
        let result = executor.move_to(copy, range.start());
        executor.unmap(range).unwrap();
        if result.is_err() {
            executor.unmap(copy).unwrap();
        }
        result
    }

    #[test]
    fn a_uprobe_inserted_since_the_search_is_not_copied() {
        assert_eq!(swapped_with_probe(false), Err(CHANGED));
        assert_eq!(swapped_with_probe(true), Err(CHANGED));
    }

    #[test]
    fn code_that_was_written_before_the_search_is_copied() {
        let mut executor = executor();
        let (range, copy) = shown_and_copied(&mut executor);
        let whole: RangeSet = [range].into_iter().collect();
        write(first_byte(range), 0x90);
        executor.expect_code(SearchedCode { searched: whole.clone(), written: whole });
        executor.copy(range, copy.start()).unwrap();
        executor.protect(copy, Protection::READ_EXECUTE).unwrap();
        assert_eq!(executor.move_to(copy, range.start()), Ok(()));
        executor.unmap(range).unwrap();
    }
}
