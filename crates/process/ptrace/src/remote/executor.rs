//! The executor for a stopped process, which makes one call after the other.

use crate::remote::Injector;
use crate::remote::arch::numbers;
use crate::remote::calls::{self, IMAGE, PRIVATE_FILE, failed, is_ours, mmap_flags, not_made};
use crate::remote::injection::{OpenFile, arguments_to_open};
use crate::remote::originals::{Original, PROBED, code_of, expect_no_probe};
use address_space::{
    Address, AddressRange, AddressSpace, LoadedObject, Mapping, MappingName, PageSize, Protection, RangeSet,
};
use lift_execution::{Backing, CallError, Executor, FileMapping};
use lift_plan::Placement;
use linux::constants;
use linux::pagemap::Pagemap;
use linux::text::text_of;
use nix::errno::Errno;
use std::ffi::OsStr;

/// Maximum number of bytes that one call copies, so that no call takes long.
const COPIED_AT_ONCE: u64 = 256 << 20;
/// Maximum number of bytes that one call fills, unless one page has more.
const FILLED_AT_ONCE: u64 = 1 << 30;

/// Executes steps in another process whose threads are all stopped.
pub struct ProcessExecutor<'a, 's> {
    injector: &'a mut Injector<'s>,
    pagemap: Option<Pagemap>,
    base_page: PageSize,
    /// Memory for arguments of calls. It is chosen before anything else: if it had to be mapped later, the kernel could
    /// choose a gap from which memory has been moved aside.
    scratch: Option<Address>,
    /// The image that was mapped last, still open in the process: consecutive ranges of an object come from one file.
    image: Option<OpenFile>,
    /// The code of its objects, as their files have it.
    code: RangeSet,
}

impl<'a, 's> ProcessExecutor<'a, 's> {
    /// Creates an executor that makes its calls through `injector`, for a process with these objects.
    pub fn new(injector: &'a mut Injector<'s>, base_page: PageSize, objects: &[LoadedObject]) -> Self {
        let scratch = injector.scratch(base_page).ok().and_then(Result::ok);
        let pagemap = Pagemap::open(injector.pid().as_raw(), base_page).ok();
        Self { injector, pagemap, base_page, scratch, image: None, code: code_of(objects) }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.injector.pid().as_raw()
    }

    pub(crate) fn pagemap(&self) -> Option<&Pagemap> {
        self.pagemap.as_ref()
    }

    pub(crate) fn base_page_bytes(&self) -> u64 {
        self.base_page.bytes()
    }

    pub(crate) fn call(&mut self, name: &'static str, number: i64, arguments: [u64; 6]) -> Result<u64, CallError> {
        match self.injector.call(number, arguments) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(errno)) => Err(CallError { call: name, errno: errno as i32 }),
            Err(error) => Err(not_made(name, &error)),
        }
    }

    fn scratch(&mut self) -> Result<Address, CallError> {
        self.injector.await_opened().map_err(|error| not_made("openat", &error))?;
        self.scratch.ok_or(CallError { call: "mmap of a scratch page", errno: Errno::ENOMEM as i32 })
    }

    fn write(&self, at: Address, bytes: &[u8]) -> Result<(), CallError> {
        self.injector.memory().write(at, bytes).map_err(|error| failed("writing memory", &error))
    }

    fn madvise(&mut self, name: &'static str, range: AddressRange, advice: i32) -> Result<(), CallError> {
        self.call(name, numbers::SYS_madvise, [range.start().0, range.len(), advice as u64, 0, 0, 0]).map(drop)
    }

    /// Writes to each page from outside, for kernels before 5.14: a shortage is an error there, not a signal.
    fn write_to_each(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError> {
        for page in range.pages(page) {
            self.write(page.start(), &[0])?;
        }
        Ok(())
    }

    /// Makes the process open a file for reading.
    pub(crate) fn open_file(&mut self, path: &str) -> Result<u64, CallError> {
        let scratch = self.scratch()?;
        let mut bytes = path.as_bytes().to_vec();
        bytes.push(0);
        if bytes.len() as u64 > self.base_page.bytes() {
            return Err(CallError { call: "openat", errno: Errno::ENAMETOOLONG as i32 });
        }
        self.write(scratch, &bytes)?;
        self.call("openat", numbers::SYS_openat, arguments_to_open(scratch))
    }

    fn map_image(&mut self, file: FileMapping<'_>, range: AddressRange, flags: i32) -> Result<Address, CallError> {
        let descriptor = self.open_image(file.path)?;
        let protection = file.protection.bits() as u64;
        let arguments = [range.start().0, range.len(), protection, flags as u64, descriptor, file.offset];
        self.call("mmap of an image", numbers::SYS_mmap, arguments).map(Address)
    }

    /// Returns the image's descriptor in the process.
    fn open_image(&mut self, path: &str) -> Result<u64, CallError> {
        if let Ok(Some(opened)) = self.injector.take_opened() {
            self.keep_image(opened)?;
        }
        if let Some(image) = self.image.as_ref().filter(|image| image.path == path) {
            return Ok(image.descriptor);
        }
        let descriptor = self.open_file(path)?;
        self.keep_image(OpenFile { path: path.to_owned(), descriptor })?;
        Ok(descriptor)
    }

    /// Keeps an image that the process has opened in place of the previous one, if this process finds the same file.
    fn keep_image(&mut self, opened: OpenFile) -> Result<(), CallError> {
        self.close_image();
        let meant = is_ours(self.injector.pid().as_raw(), opened.descriptor, OsStr::new(&opened.path));
        self.image = Some(opened);
        meant.inspect_err(|_| self.close_image())
    }

    fn mappings(&self) -> Result<AddressSpace, CallError> {
        let text = text_of(format!("/proc/{}/maps", self.injector.pid()));
        let text = text.map_err(|error| failed("reading maps", &error))?;
        AddressSpace::parse(&text).map_err(|_| CallError { call: "reading maps", errno: Errno::EINVAL as i32 })
    }

    fn begin_to_close(&mut self, image: &OpenFile) -> bool {
        self.injector.begin(numbers::SYS_close, [image.descriptor, 0, 0, 0, 0, 0]).is_ok()
    }

    fn close_image(&mut self) {
        if let Some(image) = self.image.take() {
            // Linux closes a descriptor even where close reports an error (close(2)).
            let _ = self.call("close", numbers::SYS_close, [image.descriptor, 0, 0, 0, 0, 0]);
        }
    }

    /// Makes the process copy its own memory by `process_vm_readv`: one copy at the speed of memory, and a failed
    /// allocation is an error instead of a signal.
    fn copy_memory(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let Ok(scratch) = self.scratch() else { return self.copy_from_outside(from, to) };
        let mut done = 0;
        while done < from.len() {
            let length = (from.len() - done).min(COPIED_AT_ONCE);
            let vectors = [to.0 + done, length, from.start().0 + done, length];
            let bytes: Vec<u8> = vectors.iter().flat_map(|word| word.to_ne_bytes()).collect();
            self.write(scratch, &bytes)?;
            let arguments = [self.injector.own_number() as u64, scratch.0, 1, scratch.0 + 16, 1, 0];
            match self.call("process_vm_readv", numbers::SYS_process_vm_readv, arguments) {
                Ok(0) => return Err(CallError { call: "process_vm_readv", errno: Errno::EFAULT as i32 }),
                Ok(copied) => done += copied,
                Err(error)
                    if [Errno::EPERM as i32, Errno::ENOSYS as i32, Errno::ESRCH as i32].contains(&error.errno) =>
                {
                    let rest = AddressRange::new(from.start() + done, from.end());
                    return self.copy_from_outside(rest, to + done);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Refuses code copied from memory in which a breakpoint or uprobe has been inserted since the plan was made.
    fn expect_no_probes(&self, from: AddressRange, to: Address, from_memory: &RangeSet) -> Result<(), CallError> {
        let code: Vec<AddressRange> = self.code.within(from).flat_map(|code| from_memory.within(code)).collect();
        let (Some(pagemap), false) = (&self.pagemap, code.is_empty()) else { return Ok(()) };
        let space = self.mappings()?;
        for part in code {
            for mapping in space.overlapping(part) {
                let part = mapping.range.intersect(part);
                let copy = to + (part.start() - from.start());
                match Original::of(self.pid(), mapping) {
                    Some(original) => expect_no_probe(&original, self.injector.memory(), part, copy)?,
                    None if !matches!(mapping.name, MappingName::File { .. }) => {}
                    None => {
                        let changed = pagemap.changed(part).map_err(|error| failed("reading the pagemap", &error))?;
                        if !changed.is_empty() {
                            return Err(PROBED);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies through memory of this process, for processes that may not call `process_vm_readv`.
    fn copy_from_outside(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let mut buffer = vec![0; (1 << 20).min(from.len()) as usize];
        let mut done = 0;
        while done < from.len() {
            let length = (from.len() - done).min(buffer.len() as u64) as usize;
            let chunk = &mut buffer[..length];
            let memory = self.injector.memory();
            memory.read(from.start() + done, chunk).map_err(|error| failed("reading memory", &error))?;
            memory.write(to + done, chunk).map_err(|error| failed("writing memory", &error))?;
            done += length as u64;
        }
        Ok(())
    }
}

impl Drop for ProcessExecutor<'_, '_> {
    fn drop(&mut self) {
        self.close_image();
    }
}

impl Executor for ProcessExecutor<'_, '_> {
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError> {
        let protection = Protection::READ_WRITE.bits() as u64;
        let arguments = [0, length, protection, mmap_flags(backing), u64::MAX, 0];
        self.call("mmap", numbers::SYS_mmap, arguments).map(Address)
    }

    fn map_at(&mut self, range: AddressRange, backing: Backing) -> Result<(), CallError> {
        let flags = mmap_flags(backing) | libc::MAP_FIXED_NOREPLACE as u64;
        let protection = Protection::READ_WRITE.bits() as u64;
        let arguments = [range.start().0, range.len(), protection, flags, u64::MAX, 0];
        let at = self.call("mmap", numbers::SYS_mmap, arguments)?;
        if at == range.start().0 {
            return Ok(());
        }
        // Kernels before 4.17 take the address as a hint.
        self.unmap(AddressRange::sized(Address(at), range.len()))?;
        Err(CallError { call: "mmap", errno: Errno::EEXIST as i32 })
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.call("munmap", numbers::SYS_munmap, [range.start().0, range.len(), 0, 0, 0, 0]).map(drop)
    }

    fn advise_huge(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.madvise("madvise(MADV_HUGEPAGE)", range, libc::MADV_HUGEPAGE)
    }

    fn place(&mut self, range: AddressRange, placement: &Placement) -> Result<(), CallError> {
        let (mask, bits) = calls::node_mask(placement);
        let scratch = self.scratch()?;
        self.write(scratch, &mask)?;
        let arguments = [range.start().0, range.len(), placement.mode(), scratch.0, bits, 0];
        self.call("mbind", numbers::SYS_mbind, arguments).map(drop)
    }

    fn populate(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError> {
        let mut start = range.start();
        while start < range.end() {
            let end = range.end().min(start + FILLED_AT_ONCE.max(page.bytes()));
            let part = AddressRange::new(start, end);
            match self.madvise("madvise(MADV_POPULATE_WRITE)", part, constants::MADV_POPULATE_WRITE) {
                Err(error) if error.errno == Errno::EINVAL as i32 => {
                    return self.write_to_each(AddressRange::new(start, range.end()), page);
                }
                result => result?,
            }
            start = end;
        }
        Ok(())
    }

    fn collapse(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.madvise("madvise(MADV_COLLAPSE)", range, constants::MADV_COLLAPSE)
    }

    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        let arguments = [range.start().0, range.len(), protection.bits() as u64, 0, 0, 0];
        self.call("mprotect", numbers::SYS_mprotect, arguments).map(drop)
    }

    #[cfg(target_arch = "aarch64")]
    fn guards_branches(&mut self, range: AddressRange) -> Result<bool, CallError> {
        calls::guards_branches(self.pid(), range)
    }

    #[cfg(target_arch = "aarch64")]
    fn guard_branches(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        let protection = protection.bits() | constants::PROT_BTI;
        let arguments = [range.start().0, range.len(), protection as u64, 0, 0, 0];
        self.call("mprotect(PROT_BTI)", numbers::SYS_mprotect, arguments).map(drop)
    }

    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let arguments = [from.start().0, from.len(), from.len(), flags, to.0, 0];
        self.call("mremap", numbers::SYS_mremap, arguments).map(drop)
    }

    /// Copies from the file if a mapping shows one, otherwise from memory.
    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let from_memory = self.copy_from_files(from, to);
        for range in from_memory.iter() {
            self.copy_memory(range, to + (range.start() - from.start()))?;
        }
        self.expect_no_probes(from, to, &from_memory)
    }

    fn map_file(&mut self, file: FileMapping<'_>, length: u64) -> Result<Address, CallError> {
        self.map_image(file, AddressRange::sized(Address(0), length), IMAGE)
    }

    fn map_file_at(&mut self, file: FileMapping<'_>, range: AddressRange) -> Result<(), CallError> {
        self.map_image(file, range, IMAGE | libc::MAP_FIXED).map(drop)
    }

    fn map_own_file(&mut self, file: FileMapping<'_>, length: u64) -> Result<Address, CallError> {
        let descriptor = self.open_file(file.path)?;
        let arguments = [0, length, file.protection.bits() as u64, PRIVATE_FILE as u64, descriptor, file.offset];
        let mapped = self.call("mmap of its file", numbers::SYS_mmap, arguments);
        // Linux closes a descriptor even where close reports an error (close(2)).
        let _ = self.call("close", numbers::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
        mapped.map(Address)
    }

    fn expect_unchanged(&mut self, range: AddressRange) -> Result<(), CallError> {
        calls::expect_unchanged(self.pagemap.as_ref(), range)
    }

    fn refault(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.expect_unchanged(range)?;
        self.madvise("madvise(MADV_DONTNEED)", range, libc::MADV_DONTNEED)?;
        let _ = self.touch(range);
        Ok(())
    }

    fn touch(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.madvise("madvise(MADV_POPULATE_READ)", range, constants::MADV_POPULATE_READ)
    }

    fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError> {
        let scratch = self.scratch()?;
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0);
        self.write(scratch, &bytes)?;
        let arguments =
            [constants::PR_SET_VMA, constants::PR_SET_VMA_ANON_NAME, range.start().0, range.len(), scratch.0, 0];
        self.call("prctl(PR_SET_VMA)", numbers::SYS_prctl, arguments).map(drop)
    }

    fn unchanged_files(&mut self, range: AddressRange) -> Vec<Mapping> {
        let Ok(space) = self.mappings() else { return Vec::new() };
        self.pagemap.as_ref().map(|pagemap| calls::unchanged_files(pagemap, &space, range)).unwrap_or_default()
    }

    fn leave_out_of_dumps(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.madvise("madvise(MADV_DONTDUMP)", range, libc::MADV_DONTDUMP)
    }

    fn seal(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.call("mseal", constants::SYS_MSEAL, [range.start().0, range.len(), 0, 0, 0, 0]).map(drop)
    }

    fn query_huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
        let pid = self.injector.pid().as_raw();
        match &self.pagemap {
            Some(pagemap) => calls::huge(pid, pagemap, range, size),
            None => calls::huge_by_smaps(pid, None, range, size),
        }
    }

    fn space(&mut self) -> Result<AddressSpace, CallError> {
        // Called mostly at the end, when the image is no longer needed: it is closed while maps is read.
        let image = self.image.take();
        let closing = image.is_some_and(|image| self.begin_to_close(&image));
        let space = self.mappings();
        if closing {
            let _ = self.injector.end();
        }
        let space = space?;
        Ok(match self.injector.scratch_range() {
            Some(scratch) => without(&space, scratch),
            None => space,
        })
    }
}

/// Returns the space without the scratch page, which the kernel may have merged with a neighbour.
fn without(space: &AddressSpace, scratch: AddressRange) -> AddressSpace {
    let cut = space.mappings().iter().flat_map(|mapping| {
        mapping.range.without(scratch).into_iter().filter(|range| !range.is_empty()).map(|range| {
            let offset = mapping.offset + (range.start() - mapping.range.start());
            Mapping { range, offset, ..mapping.clone() }
        })
    });
    AddressSpace::from_mappings(cut.collect())
}
