//! The executor for a running program.
//!
//! Long work (filling and copying a staging copy) is done by this process while the program runs. One thread is stopped
//! for each call that only the process itself can make. For the swap of a range every thread is stopped, and the range
//! is checked again: the program may have unmapped it since, or written to it.

mod attributes;
mod comparing;
mod copying;
mod entering;
mod leaving;
mod planned;
mod refilling;
mod staging;
mod with_threads;

pub use leaving::Finished;

use super::call_page::CallPage;
use super::calls_of_thread::{Calls, FRESH};
use super::stop::{LiveProcess, NotPrepared, Standstill, StopError};
use super::target::{Target, lock};
use crate::remote::RemoteMemory;
use crate::remote::arch::numbers;
use crate::remote::calls::{self, IMAGE, PRIVATE_FILE, failed, is_ours};
use crate::remote::injection::arguments_to_open;
use crate::remote::originals::code_of;
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, Mapping, PageSize, Protection, RangeSet};
use attributes::Attributes;
use entering::enter;
use lift_execution::{Backing, CallError, Executor, FileMapping, map_cut, persist};
use lift_plan::Placement;
use linux::constants;
use linux::nodes::has_several_nodes;
use linux::pagemap::Pagemap;
use linux::process_handle::ProcessHandle;
use linux::text::text_of;
use nix::errno::Errno;
use nix::fcntl::Flock;
use std::ffi::OsStr;
use std::fs::File;
use std::time::Duration;
use with_threads::Length;

/// Name of the call in errors.
const ADVISE_HUGE: &str = "madvise(MADV_HUGEPAGE)";

/// Maximum number of bytes that are unmapped while all threads are stopped, at any length of the call.
const FREED_AT_ONCE: u64 = 64 << 20;

/// Maximum number of bytes of one collapse: the kernel cuts longer calls at 2 GiB (`MAX_RW_COUNT`), and each has a time limit. A
/// multiple of the size of any huge page of transparent memory.
const COLLAPSED_AT_ONCE: u64 = 512 << 20;

/// Times for which the program was stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// All threads: longest single stop.
    pub longest: Duration,
    /// All threads: sum of all stops.
    pub total: Duration,
    /// One thread: longest single stop.
    pub longest_of_one: Duration,
    /// Maximum number of threads stopped at once.
    pub threads: usize,
}

impl Pause {
    /// Returns the times of this lift and of another one together.
    pub fn and(self, other: Self) -> Self {
        Self {
            longest: self.longest.max(other.longest),
            total: self.total + other.total,
            longest_of_one: self.longest_of_one.max(other.longest_of_one),
            threads: self.threads.max(other.threads),
        }
    }
}

/// Executes steps in a running program.
pub struct LiveExecutor {
    process: LiveProcess,
    memory: RemoteMemory,
    handle: ProcessHandle,
    pagemap: Pagemap,
    page: CallPage,
    base_page: PageSize,
    /// The mappings on which the plan is based.
    planned: AddressSpace,
    /// The code of its objects, as their files have it.
    code: RangeSet,
    /// Copies that are not in place yet.
    staging: RangeSet,
    /// Ranges whose copies were made from memory, not from their files.
    from_memory: RangeSet,
    /// Pages of these copies in which the kernel inserted uprobes when it mapped their files.
    probed: RangeSet,
    known: attributes::Known,
    has_cleaned_up: bool,
    /// The last calls have left a staging copy that could not be unmapped.
    has_left_copy: bool,
    /// Time for which threads were stopped to make calls.
    held: Duration,
    refusal: Option<String>,
    /// The last refusal was one for the moment.
    may_work_later: bool,
    /// The program's own setting of PR_SET_THP_DISABLE, where that is suspended.
    thp_disabled: Option<u64>,
    /// Keeps other lifts from working on this memory.
    _locks: Vec<Flock<File>>,
}

/// Maximum sum of the times for which threads are stopped to make calls: a hostile program decides how long each call
/// takes.
const ALL_CALLS: Duration = Duration::from_secs(60);

/// Maximum wait for another lift, or for a thread in the code of a killed one.
const FREE_TIMEOUT: Duration = Duration::from_secs(5);

/// True if the kernel may take long to give memory this protection, so that not all threads wait for it: CPUs of AArch64 may
/// have to write code back from their data caches.
fn is_slow(protection: Protection) -> bool {
    cfg!(target_arch = "aarch64") && protection.execute
}

impl LiveExecutor {
    /// Prepares the program, in which only a page for calls and the code after one of its segments change. `space` and `objects` were read
    /// after `target` had been opened.
    ///
    /// # Errors
    /// [`NotPrepared`]: why the program cannot be worked on.
    pub fn new(
        target: Target,
        space: &AddressSpace,
        objects: &[LoadedObject],
        base_page: PageSize,
    ) -> Result<Self, NotPrepared> {
        let Target { pid, memory, handle } = target;
        let pagemap =
            Pagemap::open(pid, base_page).map_err(|error| format!("its pagemap cannot be opened: {error}"))?;
        let mut process = LiveProcess::new(pid);
        let locks = lock(pid, FREE_TIMEOUT)?;
        let page = enter(&mut process, &memory, space, objects, base_page)?;
        let planned = space.clone();
        let staging = RangeSet::new();
        let mut executor = Self {
            process,
            memory,
            handle,
            pagemap,
            page,
            base_page,
            planned,
            code: code_of(objects),
            staging,
            from_memory: RangeSet::new(),
            probed: RangeSet::new(),
            known: attributes::Known::default(),
            has_cleaned_up: false,
            has_left_copy: false,
            held: Duration::ZERO,
            refusal: None,
            may_work_later: false,
            thp_disabled: None,
            _locks: locks,
        };
        executor.thp_disabled = Some(executor.page.suspended_setting(&executor.memory)).filter(|&setting| setting != 0);
        executor.drop_orphans();
        Ok(executor)
    }

    /// True where copies of a lift that was killed have been unmapped: the mappings must be read again.
    pub fn has_cleaned_up(&self) -> bool {
        self.has_cleaned_up
    }

    /// Stops a thread for each page, so that no stop takes long. False if the kernel is too old (Linux 5.14).
    fn populate_by_thread(&mut self, range: AddressRange, page: PageSize) -> Result<bool, CallError> {
        let name = "madvise(MADV_POPULATE_WRITE)";
        for page in range.pages(page) {
            let populate = |calls: &mut Calls<'_, '_>| calls.advise(name, page, constants::MADV_POPULATE_WRITE);
            match self.with_thread_of(Length::Alone, populate) {
                Err(error) if error.errno == Errno::EINVAL as i32 => return Ok(false),
                result => result?,
            }
        }
        Ok(true)
    }

    /// Maps a staging copy by one stop, at a multiple of `page` if there is a free place, and advises it.
    fn map_staging(
        &mut self,
        length: u64,
        page: PageSize,
        backing: Backing,
        advise: impl Fn(&mut Calls<'_, '_>, AddressRange) -> Result<(), CallError>,
    ) -> Result<Address, CallError> {
        let of_pool = backing.pool().is_some();
        self.map_noted(length, page, 0, |executor, at| {
            let arguments =
                [at.address(), length, FRESH.bits() as u64, calls::mmap_flags(backing) | at.flags(), u64::MAX, 0];
            executor.with_thread(|calls| {
                let map = |calls: &mut Calls<'_, '_>| calls.call("mmap", numbers::SYS_mmap, arguments);
                let copy = AddressRange::sized(calls.map_staging(length, of_pool, map)?, length);
                calls.open_staging(copy)?;
                calls.or_unmap(copy, |calls| advise(calls, copy))
            })
        })
    }

    /// Moves memory by one stop of all threads. A staging copy gets a protection first, if one is given.
    fn move_with(
        &mut self,
        from: AddressRange,
        to: Address,
        mut protection: Option<Protection>,
    ) -> Result<(), CallError> {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let arguments = [from.start().0, from.len(), from.len(), flags, to.0, 0];
        let range = AddressRange::sized(to, from.len());
        let staged = self.staging.covers(from);
        let mut comparison = self.comparison(range, from);
        if let Some(protection) = protection.take_if(|protection| comparison.has_read_copy() || is_slow(*protection)) {
            self.with_thread(|calls| calls.protect(from, protection))?;
            // No thread writes to what is read now.
            comparison = self.comparison(range, from);
        }
        let refill = self.refill(range, from.start());
        let attributes = staged.then(|| self.attributes_of(range));
        self.with_all_stopped(range, |calls| {
            if staged {
                comparison.expect_same(calls)?;
                attributes.map_or(Ok(()), Attributes::expect_known)?;
            }
            protection.map_or(Ok(()), |protection| calls.protect(from, protection))?;
            if staged {
                // Noted first: a copy that is ordinary memory of the program is found by that only.
                calls.page.set_swap(calls.memory, from, to).map_err(|error| failed("writing memory", &error))?;
                calls.end_staging(from)?;
            }
            // The kernel may unmap the range and then lack memory for the move. No thread runs before it is there again.
            let moved = persist(|| calls.call("mremap", numbers::SYS_mremap, arguments));
            moved.or_else(|error| refill.fill(calls).and(Err(error)))
        })?;
        self.note_staging(|staging| staging.remove(from));
        self.probed.remove(from);
        self.from_memory.remove(range);
        self.known.moved.insert(range);
        Ok(())
    }

    fn touch_by(&mut self, length: Length, range: AddressRange) -> Result<(), CallError> {
        let name = "madvise(MADV_POPULATE_READ)";
        self.with_thread_of(length, |calls| calls.advise(name, range, constants::MADV_POPULATE_READ))
    }

    fn map_as(&mut self, how: i32, file: FileMapping<'_>, length: u64) -> Result<Address, CallError> {
        let pid = self.process.pid().as_raw();
        let is_meant = |descriptor| match how {
            IMAGE => is_ours(pid, descriptor, OsStr::new(file.path)),
            _ => Ok(()),
        };
        let path = [file.path.as_bytes(), &[0]].concat();
        // Huge pages of the file need an address that agrees with the offset.
        let page = linux::pages::transparent_huge_page().unwrap_or(self.base_page);
        self.map_noted(length, page, file.offset, |executor, at| {
            // A file system that is slow to open a file delays one thread. An image is compared with ours in between.
            let length_of_calls = if how == IMAGE { Length::Alone } else { Length::Long };
            executor.with_thread_of(length_of_calls, |calls| {
                let path = calls.place(&path)?;
                let descriptor = calls.call("openat of its file", numbers::SYS_openat, arguments_to_open(path))?;
                let flags = how as u64 | at.flags();
                let arguments = [at.address(), length, file.protection.bits() as u64, flags, descriptor, file.offset];
                let mapped = is_meant(descriptor).and_then(|()| {
                    // Some stores keep images on hugetlbfs.
                    let map = |calls: &mut Calls<'_, '_>| calls.call("mmap of its file", numbers::SYS_mmap, arguments);
                    calls.map_staging(length, how == IMAGE, map)
                });
                // Linux closes a descriptor even where close reports an error (close(2)).
                let _ = calls.call("close", numbers::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
                mapped
            })
        })
    }

    /// Returns the times for which the program was stopped so far.
    pub fn pause(&self) -> Pause {
        let Standstill { longest, total, threads, longest_of_one } = self.process.standstill();
        Pause { longest, total, threads, longest_of_one }
    }

    /// True if the program's threads compete for CPUs, so that each stop takes long.
    pub fn threads_compete(&self) -> bool {
        self.process.threads_compete()
    }

    /// Returns why threads could not be stopped, if that happened.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// True if its threads could not be stopped only at that moment: they waited in uninterruptible sleep, for a child
    /// of vfork, or at places at which no thread can make calls.
    pub fn may_work_later(&self) -> bool {
        self.may_work_later
    }

    /// True if the program is known to have executed another one: its lifted ranges are gone.
    pub fn has_executed(&self) -> bool {
        self.process.is_replaced()
    }

    fn refuse(&mut self, why: String, may_work_later: bool) {
        self.refusal = Some(why);
        self.may_work_later = may_work_later;
    }

    fn refused(&mut self, error: &StopError) -> CallError {
        self.refuse(error.to_string(), error.is_for_the_moment());
        Self::error_of(error)
    }

    fn error_of(error: &StopError) -> CallError {
        let errno = match error {
            StopError::Gone | StopError::Executed => Errno::ESRCH,
            StopError::Lost(_) | StopError::GivenUp => Errno::ETIMEDOUT,
            StopError::Refused(_) | StopError::Listing(_) => Errno::EPERM,
            StopError::DoesNotStop(_) | StopError::NoneFit => Errno::EAGAIN,
        };
        CallError { call: "stopping its threads", errno: errno as i32 }
    }
}

impl Executor for LiveExecutor {
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError> {
        // The pages are made present from outside: only pages that its own call reserves are charged to the program's cgroup.
        let backing = match backing {
            Backing::Hugetlb { size, .. } => Backing::Hugetlb { size, reserve: true },
            Backing::Ordinary => backing,
        };
        let pool = backing.pool();
        self.map_staging(length, pool.unwrap_or(self.base_page), backing, |_, _| Ok(()))
    }

    /// One stop: the address is chosen here.
    fn map_advised(&mut self, length: u64, page: PageSize, name: &str) -> Result<Address, CallError> {
        let advise = |calls: &mut Calls<'_, '_>, copy| {
            calls.advise(ADVISE_HUGE, copy, libc::MADV_HUGEPAGE)?;
            calls.name_if_possible(copy, name)
        };
        let start = self.map_staging(length, page, Backing::Ordinary, advise)?;
        if start.is_aligned(page) {
            return Ok(start);
        }
        // No free place was found, and the kernel has chosen another one.
        persist(|| self.unmap(AddressRange::sized(start, length)))?;
        map_cut(self, length, page, name)
    }

    fn map_at(&mut self, _range: AddressRange, _backing: Backing) -> Result<(), CallError> {
        // Moving memory aside leaves a gap, into which a running program would fault.
        Err(CallError { call: "mapping in place in a program that runs", errno: Errno::EOPNOTSUPP as i32 })
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), CallError> {
        let arguments = [range.start().0, range.len(), 0, 0, 0, 0];
        // The kernel takes some 10 ms to free a gigabyte in base pages.
        let length = if range.len() <= FREED_AT_ONCE { Length::Short } else { Length::Long };
        self.with_thread_of(length, |calls| calls.call("munmap", numbers::SYS_munmap, arguments))?;
        self.note_staging(|staging| staging.remove(range));
        self.probed.remove(range);
        Ok(())
    }

    fn advise_huge(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.with_thread(|calls| calls.advise(ADVISE_HUGE, range, libc::MADV_HUGEPAGE))
    }

    fn place(&mut self, range: AddressRange, placement: &Placement) -> Result<(), CallError> {
        let (mask, bits) = calls::node_mask(placement);
        self.with_thread(|calls| {
            let at = calls.place(&mask)?;
            let arguments = [range.start().0, range.len(), placement.mode(), at.0, bits, 0];
            calls.call("mbind", numbers::SYS_mbind, arguments).map(drop)
        })
    }

    /// Writes to each huge page from outside: the program is not stopped, and a shortage is an error. On a machine with
    /// several NUMA nodes a thread of the program makes them present, because the kernel applies the cpuset and the memory
    /// policy of whoever causes the page fault.
    fn populate(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError> {
        if has_several_nodes() && self.populate_by_thread(range, page)? {
            return Ok(());
        }
        for page in range.pages(page) {
            self.memory.write(page.start(), &[0]).map_err(|error| failed("populating", &error))?;
        }
        Ok(())
    }

    fn collapse(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.process.release_late();
        let pid = self.process.pid().as_raw();
        let mut first = Ok(());
        let mut start = range.start();
        while start < range.end() {
            let part = AddressRange::sized(start, COLLAPSED_AT_ONCE.min(range.end() - start));
            first = first.and(linux::advice::collapse(pid, part));
            start = part.end();
        }
        first.map_err(|error| failed("process_madvise(MADV_COLLAPSE)", &error))
    }

    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        self.with_thread(|calls| calls.protect(range, protection))
    }

    #[cfg(target_arch = "aarch64")]
    fn guards_branches(&mut self, range: AddressRange) -> Result<bool, CallError> {
        calls::guards_branches(self.process.pid().as_raw(), range)
    }

    #[cfg(target_arch = "aarch64")]
    fn guard_branches(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        let protection = protection.bits() | constants::PROT_BTI;
        let arguments = [range.start().0, range.len(), protection as u64, 0, 0, 0];
        self.with_thread(|calls| calls.call("mprotect(PROT_BTI)", numbers::SYS_mprotect, arguments)).map(drop)
    }

    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        self.move_with(from, to, None)
    }

    fn seal_and_move(&mut self, from: AddressRange, to: Address, protection: Protection) -> Result<(), CallError> {
        self.move_with(from, to, Some(protection))
    }

    fn restores_destination(&self) -> bool {
        true
    }

    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        self.copy_range(from, to)
    }

    fn map_file(&mut self, file: FileMapping<'_>, length: u64) -> Result<Address, CallError> {
        self.map_as(IMAGE, file, length)
    }

    fn map_own_file(&mut self, file: FileMapping<'_>, length: u64) -> Result<Address, CallError> {
        let start = self.map_as(PRIVATE_FILE, file, length)?;
        self.note_probes(AddressRange::sized(start, length))?;
        Ok(start)
    }

    fn expect_unchanged(&mut self, range: AddressRange) -> Result<(), CallError> {
        calls::expect_unchanged(Some(&self.pagemap), range)
    }

    /// All threads are stopped, so that no page is written after it was checked.
    fn refault(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.with_all_stopped(range, |calls| {
            calls::expect_unchanged(Some(calls.pagemap), range)?;
            calls.advise("madvise(MADV_DONTNEED)", range, libc::MADV_DONTNEED)
        })?;
        let _ = self.touch_by(Length::Alone, range);
        Ok(())
    }

    fn touch(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.touch_by(Length::Long, range)
    }

    fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError> {
        self.with_thread(|calls| calls.name(range, name))
    }

    fn unchanged_files(&mut self, range: AddressRange) -> Vec<Mapping> {
        self.space().map(|space| calls::unchanged_files(&self.pagemap, &space, range)).unwrap_or_default()
    }

    fn leave_out_of_dumps(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.with_thread(|calls| calls.advise("madvise(MADV_DONTDUMP)", range, libc::MADV_DONTDUMP))
    }

    fn seal(&mut self, range: AddressRange) -> Result<(), CallError> {
        let arguments = [range.start().0, range.len(), 0, 0, 0, 0];
        self.with_thread(|calls| calls.call("mseal", constants::SYS_MSEAL, arguments)).map(drop)
    }

    fn query_huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
        calls::huge(self.process.pid().as_raw(), &self.pagemap, range, size)
    }

    fn space(&mut self) -> Result<AddressSpace, CallError> {
        let text = text_of(format!("/proc/{}/maps", self.process.pid()));
        let text = text.map_err(|error| failed("reading maps", &error))?;
        AddressSpace::parse(&text).map_err(|_| CallError { call: "reading maps", errno: Errno::EINVAL as i32 })
    }
}

impl LiveExecutor {
    /// The base page size of the program.
    pub fn base_page(&self) -> PageSize {
        self.base_page
    }

    /// The program's memory.
    pub fn memory(&self) -> &RemoteMemory {
        &self.memory
    }
}
