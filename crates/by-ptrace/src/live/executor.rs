//! The executor for a program that runs.
//!
//! What takes long (filling and copying a staging copy) is done from outside while the program runs. One thread is held
//! for each call that only the process itself can make. For the swap of a range every thread is stopped, and the range is
//! looked at once more: the program may have unmapped it meanwhile.

use super::hold::Hold;
use super::page::CallPage;
use super::stop::{LiveProcess, Standstill, StopError};
use crate::RemoteMemory;
use crate::arch::{self, numbers};
use crate::calls::{self, IMAGE, PRIVATE_FILE, failed, is_ours};
use crate::injection::arguments_to_open;
use address_space::{
    Address, AddressRange, AddressSpace, LoadedObject, Mapping, PageSize, Protection, RangeSet, parse_smaps,
};
use kernel_calls::numbers as linux;
use kernel_calls::pagemap::Pagemap;
use kernel_calls::text::text_of;
use kernel_calls::urgency::Urgency;
use lift_execution::{Backing, CallError, Executor};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::{Duration, Instant};

/// So much is copied from outside at a time. In bytes.
const COPIED_AT_ONCE: usize = 1 << 20;

/// For how long the program stood still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// All threads, at the longest in one piece.
    pub longest: Duration,
    /// All threads, in all.
    pub total: Duration,
    /// One thread, at the longest in one piece.
    pub longest_of_one: Duration,
    /// Threads stopped at the most.
    pub threads: usize,
}

/// Executes steps in a program that runs.
pub struct LiveExecutor {
    process: LiveProcess,
    memory: RemoteMemory,
    pagemap: Pagemap,
    page: CallPage,
    base_page: PageSize,
    /// The mappings by which the plan was made.
    planned: AddressSpace,
    /// Copies that are not in place yet.
    staging: RangeSet,
    has_cleaned_up: bool,
    longest_of_one: Duration,
    refusal: Option<String>,
    /// What the program had chosen by PR_SET_THP_DISABLE, where that is suspended.
    thp_disabled: Option<u64>,
    /// Nobody else works on the program meanwhile.
    _lock: Flock<File>,
}

/// How long another lift, or a thread that a killed one has left in its code, is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The lock of everybody who works on this program; it ends with its holder.
fn lock(pid: i32) -> Result<Flock<File>, String> {
    let path = format!("/proc/{pid}/maps");
    let mut file = File::open(&path).map_err(|error| format!("opening {path}: {error}"))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((again, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file = again,
            Err((_, Errno::EWOULDBLOCK)) => return Err("another pagelift works on it; try again later".to_owned()),
            Err((_, error)) => return Err(format!("locking {path}: {error}")),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whoever was killed while working on a program may have left a thread in the code, or in a signal handler that returns
/// into it. It goes its way by itself; before that nothing there may be changed.
fn wait_until_free(process: &mut LiveProcess, page: &CallPage, memory: &RemoteMemory) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // On AArch64 it may wait there for long, and is brought out.
        if !page.is_occupied(memory) || !arch::SHOWS_CALLS {
            process.stop_all().map_err(|error| error.to_string())?;
            // One that is gone stands nowhere.
            process.threads_held().for_each(|thread| drop(page.bring_out(memory, thread)));
            let occupied = page.is_occupied(memory) || process.stands_in(page.code());
            process.release_all();
            if !occupied {
                return Ok(());
            }
        }
        if Instant::now() > deadline {
            return Err("a thread of it still makes a call for a pagelift that was killed; try again later".to_owned());
        }
        thread::sleep(Duration::from_millis(1));
    }
}

impl LiveExecutor {
    /// Makes ready; the program is not touched but for the code behind one of its segments.
    ///
    /// # Errors
    /// A sentence that says why the program cannot be worked on.
    pub fn new(pid: i32, space: &AddressSpace, objects: &[LoadedObject], base_page: PageSize) -> Result<Self, String> {
        let memory = RemoteMemory::open(pid).map_err(|error| format!("its memory cannot be opened: {error}"))?;
        let pagemap =
            Pagemap::open(pid, base_page).map_err(|error| format!("its pagemap cannot be opened: {error}"))?;
        let mut process = LiveProcess::new(pid);
        let lock = lock(pid)?;
        process.stop_one().map_err(|error| error.to_string())?;
        process.release_all();
        let page = CallPage::find(&memory, space, objects, &pagemap, base_page).map_err(|error| error.to_string())?;
        if page.is_left_behind() {
            wait_until_free(&mut process, &page, &memory)?;
        }
        page.install(&memory).map_err(|error| format!("its memory cannot be written: {error}"))?;
        let planned = space.clone();
        let staging = RangeSet::new();
        let mut executor = Self {
            process,
            memory,
            pagemap,
            page,
            base_page,
            planned,
            staging,
            has_cleaned_up: false,
            longest_of_one: Duration::ZERO,
            refusal: None,
            thp_disabled: None,
            _lock: lock,
        };
        executor.drop_orphans();
        Ok(executor)
    }

    /// Unmaps staging copies of a lift that was killed: those that its call page names, if they are still what they were.
    fn drop_orphans(&mut self) {
        let orphans = self.page.staging(&self.memory);
        if orphans.is_empty() {
            return;
        }
        let text = text_of(format!("/proc/{}/smaps", self.process.pid())).unwrap_or_default();
        for usage in parse_smaps(&text).unwrap_or_default() {
            // What is in place is never kept from children; what was noted and is kept from them is a copy.
            let ours = usage.has_flag("dc");
            for range in orphans.within(usage.mapping.range).filter(|_| ours).collect::<Vec<_>>() {
                // What cannot be unmapped now costs memory, as it did before.
                self.has_cleaned_up |= self.unmap(range).is_ok();
            }
        }
        self.note_staging(|staging| *staging = RangeSet::new());
    }

    /// Keeps the list of staging copies, here and in the call page, where the next lift finds it should we be killed.
    fn note_staging(&mut self, change: impl FnOnce(&mut RangeSet)) {
        change(&mut self.staging);
        // A page that cannot be written belongs to a process that has ended.
        let _ = self.page.set_staging(&self.memory, &self.staging);
    }

    /// True where copies of a lift that was killed have been unmapped: the mappings must be read anew.
    pub fn has_cleaned_up(&self) -> bool {
        self.has_cleaned_up
    }

    /// Maps a file of the process's own, private, with the protection it shall have in the end. `path` ends with NUL.
    ///
    /// # Errors
    /// Whatever `openat` and `mmap` give.
    pub fn map_own_file(
        &mut self,
        path: &[u8],
        offset: u64,
        length: u64,
        protection: Protection,
    ) -> Result<Address, CallError> {
        self.map_as(PRIVATE_FILE, path, offset, length, protection)
    }

    fn map_as(
        &mut self,
        how: i32,
        path: &[u8],
        offset: u64,
        length: u64,
        protection: Protection,
    ) -> Result<Address, CallError> {
        let pid = self.process.pid().as_raw();
        let is_meant = |descriptor| match (how, path) {
            (IMAGE, [path @ .., 0]) => is_ours(pid, descriptor, OsStr::from_bytes(path)),
            _ => Ok(()),
        };
        let start = self.with_thread(|calls| {
            let at = calls.place(path)?;
            let descriptor = calls.call("openat of its file", numbers::SYS_openat, arguments_to_open(at))?;
            let arguments = [0, length, protection.bits() as u64, how as u64, descriptor, offset];
            let mapped =
                is_meant(descriptor).and_then(|()| calls.call("mmap of its file", numbers::SYS_mmap, arguments));
            // Linux closes a descriptor even where close reports an error (close(2)).
            let _ = calls.call("close", numbers::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
            let range = AddressRange::sized(Address(mapped?), length);
            calls.advise("madvise(MADV_DONTFORK)", range, libc::MADV_DONTFORK)?;
            Ok(range.start())
        })?;
        self.note_staging(|staging| staging.insert(AddressRange::sized(start, length)));
        Ok(start)
    }

    /// For how long the program stood still so far.
    pub fn pause(&self) -> Pause {
        let Standstill { longest, total, threads } = self.process.standstill();
        Pause { longest, total, threads, longest_of_one: self.longest_of_one }
    }

    /// Why threads could not be stopped, where that happened.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Suspends the program's own PR_SET_THP_DISABLE until [`LiveExecutor::finish`]: what is lifted meanwhile stays on
    /// huge pages, as it does for a program that makes that choice after it was lifted at its start.
    ///
    /// # Errors
    /// The error of prctl(2); the choice is as it was.
    pub fn suspend_thp_disable(&mut self) -> Result<(), CallError> {
        let chosen = self.with_thread(|calls| {
            let get = libc::PR_GET_THP_DISABLE as u64;
            let chosen = calls.call("prctl(PR_GET_THP_DISABLE)", numbers::SYS_prctl, [get, 0, 0, 0, 0, 0])?;
            calls.disable_thp(0, 0).map(|()| chosen)
        })?;
        self.thp_disabled = (chosen != 0).then_some(chosen);
        Ok(())
    }

    /// Leaves the program for good.
    pub fn finish(mut self) {
        if let Some(chosen) = self.thp_disabled.take() {
            // Since Linux 6.18 the upper bits of what is got are the flags that set it.
            let _ = self.with_thread(|calls| calls.disable_thp(chosen & 1, chosen & !1));
        }
        self.process.release_all();
        // A thread that could not be brought out of the code still needs it. What cannot be written is a program that has
        // ended.
        if !self.page.is_occupied(&self.memory) {
            let _ = self.page.erase(&self.memory);
        }
    }

    /// Lets one thread make calls.
    ///
    /// # Errors
    /// The first error of a call.
    pub fn with_thread<T>(
        &mut self,
        work: impl FnOnce(&mut Calls<'_, '_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let _urgency = Urgency::raise();
        let started = Instant::now();
        let thread = self.process.stop_one().map_err(|error| self.refused(&error))?;
        let result = self.work_with(thread, work);
        self.process.release_all();
        self.longest_of_one = self.longest_of_one.max(started.elapsed());
        result
    }

    /// Lets one thread make calls while all others stand still, if `range` is as it was when it was planned.
    ///
    /// # Errors
    /// The first error of a call; `EBUSY` where the range has changed.
    pub fn with_all_stopped<T>(
        &mut self,
        range: AddressRange,
        work: impl FnOnce(&mut Calls<'_, '_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let _urgency = Urgency::raise();
        let thread = self.process.stop_all().map_err(|error| self.refused(&error))?;
        let result = match self.is_as_planned(range) {
            true => self.work_with(thread, work),
            false => Err(CallError { call: "the swap: the program has changed the range", errno: Errno::EBUSY as i32 }),
        };
        self.process.release_all();
        result
    }

    fn work_with<T>(
        &self,
        thread: nix::unistd::Pid,
        work: impl FnOnce(&mut Calls<'_, '_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let hold = Hold::new(thread, &self.page, &self.memory, self.process.waiter())
            .map_err(|error| calls::not_made("ptrace", &error))?;
        let mut calls = Calls { hold, page: &self.page, memory: &self.memory };
        let result = work(&mut calls);
        calls.hold.finish().map_err(|error| calls::not_made("ptrace", &error))?;
        result
    }

    fn refused(&mut self, error: &StopError) -> CallError {
        self.refusal = Some(error.to_string());
        let errno = match error {
            StopError::Gone => Errno::ESRCH,
            StopError::Refused(_) | StopError::Listing(_) => Errno::EPERM,
            StopError::DoesNotStop(_) | StopError::NoneFit => Errno::EAGAIN,
        };
        CallError { call: "stopping its threads", errno: errno as i32 }
    }

    fn is_as_planned(&mut self, range: AddressRange) -> bool {
        let same = |a: &Mapping, b: &Mapping| {
            a.range.intersect(range) == b.range.intersect(range)
                && (a.protection, a.inode, a.device, a.shared) == (b.protection, b.inode, b.device, b.shared)
        };
        let Ok(now) = self.space() else { return false };
        let (before, now) = (self.planned.overlapping(range), now.overlapping(range));
        before.len() == now.len() && before.iter().zip(now).all(|(a, b)| same(a, b))
    }
}

/// A thread that makes calls.
pub struct Calls<'a, 'b> {
    hold: Hold<'a>,
    page: &'b CallPage,
    memory: &'b RemoteMemory,
}

impl Calls<'_, '_> {
    /// Makes one call.
    ///
    /// # Errors
    /// The call's, or that of making it.
    pub fn call(&mut self, name: &'static str, number: i64, arguments: [u64; 6]) -> Result<u64, CallError> {
        match self.hold.call(number, arguments) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(errno)) => Err(CallError { call: name, errno: errno as i32 }),
            Err(error) => Err(calls::not_made(name, &error)),
        }
    }

    /// One `madvise`.
    ///
    /// # Errors
    /// As [`Calls::call`].
    pub fn advise(&mut self, name: &'static str, range: AddressRange, advice: i32) -> Result<(), CallError> {
        self.call(name, numbers::SYS_madvise, [range.start().0, range.len(), advice as u64, 0, 0, 0]).map(drop)
    }

    fn disable_thp(&mut self, disable: u64, flags: u64) -> Result<(), CallError> {
        let arguments = [libc::PR_SET_THP_DISABLE as u64, disable, flags, 0, 0, 0];
        self.call("prctl(PR_SET_THP_DISABLE)", numbers::SYS_prctl, arguments).map(drop)
    }

    /// Puts bytes where calls can find them, and tells where; at most half a kilobyte.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn place(&mut self, bytes: &[u8]) -> Result<Address, CallError> {
        if bytes.len() > super::page::SCRATCH_BYTES {
            return Err(CallError { call: "placing arguments", errno: Errno::ENAMETOOLONG as i32 });
        }
        let at = self.page.scratch();
        self.memory.write(at, bytes).map_err(|error| failed("writing memory", &error))?;
        Ok(at)
    }
}

impl Executor for LiveExecutor {
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError> {
        let arguments = [0, length, Protection::READ_WRITE.bits() as u64, calls::mmap_flags(backing), u64::MAX, 0];
        let start = self.with_thread(|calls| {
            let start = calls.call("mmap", numbers::SYS_mmap, arguments)?;
            // A fork meanwhile would share the copy's huge pages with the child, and filling them would split them.
            calls.advise("madvise(MADV_DONTFORK)", AddressRange::sized(Address(start), length), libc::MADV_DONTFORK)?;
            Ok(Address(start))
        })?;
        self.note_staging(|staging| staging.insert(AddressRange::sized(start, length)));
        Ok(start)
    }

    fn map_at(&mut self, _range: AddressRange, _backing: Backing) -> Result<(), CallError> {
        // Moving memory aside leaves a gap, which a program that runs would fall into.
        Err(CallError { call: "mapping in place in a program that runs", errno: Errno::EOPNOTSUPP as i32 })
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), CallError> {
        let arguments = [range.start().0, range.len(), 0, 0, 0, 0];
        self.with_thread(|calls| calls.call("munmap", numbers::SYS_munmap, arguments))?;
        self.note_staging(|staging| staging.remove(range));
        Ok(())
    }

    fn advise_huge(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.with_thread(|calls| calls.advise("madvise(MADV_HUGEPAGE)", range, libc::MADV_HUGEPAGE))
    }

    /// From outside, by a write to each huge page: the program runs on meanwhile, and a shortage is an error.
    fn populate(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError> {
        for page in range.pages(page) {
            self.memory.write(page.start(), &[0]).map_err(|error| failed("populating", &error))?;
        }
        Ok(())
    }

    fn collapse(&mut self, range: AddressRange) -> Result<(), CallError> {
        let result = kernel_calls::advice::collapse(self.process.pid().as_raw(), range);
        result.map_err(|error| failed("process_madvise(MADV_COLLAPSE)", &error))
    }

    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        let arguments = [range.start().0, range.len(), protection.bits() as u64, 0, 0, 0];
        self.with_thread(|calls| calls.call("mprotect", numbers::SYS_mprotect, arguments)).map(drop)
    }

    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let arguments = [from.start().0, from.len(), from.len(), flags, to.0, 0];
        let range = AddressRange::sized(to, from.len());
        let staged = self.staging.covers(from);
        self.with_all_stopped(range, |calls| {
            if staged {
                calls.advise("madvise(MADV_DOFORK)", from, libc::MADV_DOFORK)?;
            }
            calls.call("mremap", numbers::SYS_mremap, arguments)
        })?;
        self.note_staging(|staging| staging.remove(from));
        Ok(())
    }

    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let mut buffer = vec![0; COPIED_AT_ONCE.min(from.len() as usize)];
        let mut done = 0;
        while done < from.len() {
            let length = (from.len() - done).min(buffer.len() as u64) as usize;
            let chunk = &mut buffer[..length];
            self.memory.read(from.start() + done, chunk).map_err(|error| failed("reading memory", &error))?;
            self.memory.write(to + done, chunk).map_err(|error| failed("writing memory", &error))?;
            done += length as u64;
        }
        Ok(())
    }

    fn map_file(&mut self, path: &str, offset: u64, length: u64, protection: Protection) -> Result<Address, CallError> {
        let mut bytes = path.as_bytes().to_vec();
        bytes.push(0);
        self.map_as(IMAGE, &bytes, offset, length, protection)
    }

    fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError> {
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0);
        self.with_thread(|calls| {
            let at = calls.place(&bytes)?;
            let arguments = [linux::PR_SET_VMA, linux::PR_SET_VMA_ANON_NAME, range.start().0, range.len(), at.0, 0];
            calls.call("prctl(PR_SET_VMA)", numbers::SYS_prctl, arguments).map(drop)
        })
    }

    fn huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
        calls::huge(self.process.pid().as_raw(), &self.pagemap, range, size)
    }

    fn space(&mut self) -> Result<AddressSpace, CallError> {
        let text = text_of(format!("/proc/{}/maps", self.process.pid()));
        let text = text.map_err(|error| failed("reading maps", &error))?;
        AddressSpace::parse(&text).map_err(|_| CallError { call: "reading maps", errno: Errno::EINVAL as i32 })
    }
}

impl LiveExecutor {
    /// The ordinary page size of the program.
    pub fn base_page(&self) -> PageSize {
        self.base_page
    }

    /// The program's memory.
    pub fn memory(&self) -> &RemoteMemory {
        &self.memory
    }
}
