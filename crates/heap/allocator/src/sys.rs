//! The parts of the C library that this heap uses, and short forms of the system calls in `linux_raw`. Those leave
//! `errno` unchanged and are no cancellation points (pthreads(7)): at a cancellation point a thread could end while it
//! holds locks of the heap. They do not allocate.

use crate::c_library;
use crate::observer::{Moment, observe};
use crate::sandbox;
use address_space::{Address, AddressRange};
use core::ffi::{CStr, c_int, c_long};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub use linux_raw::{close, read_uninterrupted as read};

/// Makes a system call without the C library: `errno` stays as it is.
///
/// # Safety
/// As for the system call that is made.
pub unsafe fn system_call<const COUNT: usize>(
    number: c_long,
    arguments: [usize; COUNT],
) -> Result<usize, linux_raw::Errno> {
    // SAFETY:
    // - the caller's promise.
    unsafe { linux_raw::call_with(number as u32, arguments) }
}

/// Preserves `errno` while the heap makes system calls.
pub struct KeepErrno(c_int);

impl KeepErrno {
    pub fn new() -> Self {
        Self(last_error())
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

/// The error of the C library's last call.
pub fn last_error() -> c_int {
    // SAFETY:
    // - the location of errno is valid for the calling thread at any time.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(value: c_int) {
    // SAFETY:
    // - the location of errno is valid for the calling thread at any time.
    unsafe { *libc::__errno_location() = value };
}

/// A lock that needs no set-up and is known by address, so that a fork can take it along. It is not the C library's: a
/// program may replace that by functions which allocate.
pub struct Lock {
    lock: linux_raw::Lock,
    /// The thread pointer of the thread that holds it; 0 if there is none.
    holder: AtomicUsize,
}

impl Lock {
    pub const fn new() -> Self {
        Self { lock: linux_raw::Lock::new(), holder: AtomicUsize::new(0) }
    }

    /// Locks, unless this thread holds the lock already; true if this call locked it. `is_held` returns whether this
    /// thread holds the lock, and is called only if the lock is taken.
    pub fn lock_unless(&self, is_held: fn() -> bool) -> bool {
        if self.try_lock() {
            return true;
        }
        if is_held() {
            return false;
        }
        self.lock.take();
        self.is_locked_now();
        true
    }

    fn is_locked_now(&self) {
        self.holder.store(linux_raw::thread_pointer(), Relaxed);
        observe(Moment::Locked);
    }

    pub fn try_lock(&self) -> bool {
        let is_taken = self.lock.try_take();
        if is_taken {
            self.is_locked_now();
        }
        is_taken
    }

    /// # Safety
    /// This thread has locked it.
    pub unsafe fn unlock(&self) {
        self.holder.store(0, Relaxed);
        self.lock.release();
    }

    /// Releases the lock if another thread held it at the fork of which this process is the child.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn forget_other_holder(&self) {
        if self.holder.load(Relaxed) != linux_raw::thread_pointer() {
            self.holder.store(0, Relaxed);
            self.lock.renew();
        }
    }
}

/// Lets other threads run (sched_yield(2)).
pub fn give_way() {
    observe(Moment::GivesWay);
    // SAFETY:
    // - has no arguments.
    let _ = unsafe { system_call(libc::SYS_sched_yield, []) };
}

/// Writes for each page of a range whether it is resident (mincore(2)); false if the kernel does not report it.
///
/// # Panics
/// `answer` has less than a byte for each page.
pub fn residence(start: usize, bytes: usize, answer: &mut [u8]) -> bool {
    assert!(bytes.div_ceil(base_page()) <= answer.len());
    if sandbox::is_entered() {
        return false;
    }
    // SAFETY:
    // - the kernel writes one byte for each page, for which there is room; of the range itself nothing is touched.
    unsafe { system_call(libc::SYS_mincore, [start, bytes, answer.as_mut_ptr() as usize]) }.is_ok()
}

fn range(start: usize, bytes: usize) -> AddressRange {
    AddressRange::sized(Address(start as u64), bytes as u64)
}

/// A mapping of anonymous memory anywhere, private, readable and writable unless `reserve_only`.
pub fn map_anywhere(bytes: usize, reserve_only: bool, more_flags: c_int) -> Option<usize> {
    let protection = if reserve_only { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more_flags;
    // SAFETY:
    // - a new mapping at an address of the kernel's choice touches no memory in use.
    unsafe { linux_raw::mmap(0, bytes, protection, flags as u32, -1, 0) }.ok()
}

/// Unmaps a range of this heap; false if the kernel refuses: the range is inside of a mapping, and the process has as many
/// mappings as `vm.max_map_count` allows (proc(5)), so that it cannot be split.
///
/// # Safety
/// The range consists of whole pages of mappings that this heap made, and nothing uses it any more.
pub unsafe fn unmap(start: usize, bytes: usize) -> bool {
    // SAFETY:
    // - the caller's promise.
    bytes == 0 || unsafe { linux_raw::munmap(range(start, bytes)) }.is_ok()
}

/// The result of a change of a mapping's length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Resized {
    Done,
    /// There is no room behind it, or not so much memory.
    NoRoom,
    /// The kernel does not do it: to the kernel it may be several mappings.
    Refused,
}

/// Changes the length of a mapping in place.
///
/// # Safety
/// The range is a mapping of this heap, and nothing uses the removed part if it becomes shorter.
pub unsafe fn resize_in_place(start: usize, old: usize, new: usize) -> Resized {
    // SAFETY:
    // - the caller's promise; without MREMAP_MAYMOVE the mapping keeps its address.
    match unsafe { linux_raw::mremap(range(start, old), new, 0, 0) } {
        Ok(_) => Resized::Done,
        Err(error) if error as c_int == libc::ENOMEM => Resized::NoRoom,
        Err(_) => Resized::Refused,
    }
}

/// Unlocks memory (munlock(2)), unless a sandbox may forbid that.
///
/// # Safety
/// The range consists of whole pages of mappings of this heap.
pub unsafe fn unlock(start: usize, bytes: usize) {
    if !sandbox::is_entered() {
        // SAFETY:
        // - the caller's promise; contents stay.
        let _ = unsafe { system_call(libc::SYS_munlock, [start, bytes]) };
    }
}

/// Makes memory readable and writable, and takes back what a program can have set for its block by mprotect(2) and, for its
/// children, core dumps and guard pages, madvise(2). NUMA policy, locks and protection keys stay. False if the kernel refuses.
///
/// # Safety
/// The range consists of whole pages of mappings of this heap, and nothing uses it.
pub unsafe fn make_as_new(start: usize, bytes: usize) -> bool {
    const AS_NEW: [c_int; 3] = [libc::MADV_DOFORK, libc::MADV_DODUMP, libc::MADV_KEEPONFORK];
    // SAFETY:
    // - the caller's promise; the advice keeps contents.
    unsafe {
        // Guard pages outlast MADV_DONTNEED. Before Linux 6.13 there are none, and the advice is unknown (EINVAL).
        let are_guards_gone =
            || match linux_raw::madvise(range(start, bytes), linux_raw::kernel::general::MADV_GUARD_REMOVE) {
                Ok(()) => true,
                Err(error) => error as c_int == libc::EINVAL,
            };
        make_usable(start, bytes) && AS_NEW.iter().all(|&advice| advise(start, bytes, advice)) && are_guards_gone()
    }
}

/// Makes memory readable and writable (mprotect(2)); false if the kernel refuses: there is no memory for it.
///
/// # Safety
/// As for [`make_as_new`].
pub unsafe fn make_usable(start: usize, bytes: usize) -> bool {
    // SAFETY:
    // - the caller's promise.
    unsafe { linux_raw::mprotect(range(start, bytes), libc::PROT_READ | libc::PROT_WRITE) }.is_ok()
}

/// Moves a mapping to `to` and changes its length; true if it succeeded.
///
/// # Safety
/// The range is a mapping of this heap that nothing uses at its old address any more; the mappings at the destination
/// are this heap's, too, and not in use.
pub unsafe fn move_to(start: usize, old: usize, new: usize, to: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY:
    // - the caller's promise.
    unsafe { linux_raw::mremap(range(start, old), new, flags as u32, to) }.is_ok()
}

/// Maps memory at free addresses; false if they are in use.
pub fn fill_hole(start: usize, bytes: usize) -> bool {
    linux_raw::fill_hole(range(start, bytes)).is_ok()
}

/// madvise(2); true if it succeeded.
///
/// # Safety
/// The range consists of whole pages of mappings of this heap; with advice that drops contents, nobody needs those.
pub unsafe fn advise(start: usize, bytes: usize, advice: c_int) -> bool {
    // SAFETY:
    // - the caller's promise.
    unsafe { linux_raw::madvise(range(start, bytes), advice as u32) }.is_ok()
}

/// Makes pages of memory present (madvise(2), `MADV_POPULATE_WRITE`).
///
/// # Safety
/// The range consists of whole pages of mappings of this heap.
pub unsafe fn populate_for_writing(start: usize, bytes: usize) -> Result<(), linux_raw::Errno> {
    // SAFETY:
    // - the caller's promise; the advice keeps contents.
    unsafe { linux_raw::madvise(range(start, bytes), libc::MADV_POPULATE_WRITE as u32) }
}

/// Clears memory of this heap.
///
/// # Safety
/// The range is writable memory of this heap that nobody else uses.
pub unsafe fn clear(start: usize, bytes: usize) {
    // SAFETY:
    // - the caller's promise.
    unsafe { core::ptr::write_bytes(start as *mut u8, 0, bytes) };
}

/// Copies between two ranges of this heap.
///
/// # Safety
/// The first is readable, the second writable, nobody else writes to either, and they do not overlap.
pub unsafe fn copy(from: usize, to: usize, bytes: usize) {
    // SAFETY:
    // - the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
}

/// Writes once, ignoring errors.
pub fn write(file: c_int, bytes: &[u8]) {
    let _ = linux_raw::write(file, bytes);
}

/// Reads a file into a buffer, up to the buffer's length; returns the number of bytes read.
pub fn read_file(path: &CStr, buffer: &mut [u8]) -> Option<usize> {
    let file = linux_raw::open(path, 0).ok()?;
    let mut length = 0;
    while length < buffer.len() {
        match read(file, &mut buffer[length..]) {
            Ok(count) if count > 0 => length += count,
            _ => break,
        }
    }
    // SAFETY:
    // - opened above, and used no more.
    unsafe { close(file) };
    Some(length)
}

/// Reads memory of this process by process_vm_readv(2), which returns an error instead of raising a signal; false if the
/// memory is not mapped or not readable.
pub fn read_own(address: usize, into: &mut [u8]) -> bool {
    // SAFETY:
    // - the kernel writes to nothing but `into`, which is exclusively ours.
    let read = unsafe { linux_raw::process_vm_readv(range(address, into.len()), into.as_mut_ptr() as usize) };
    read == Ok(into.len()) || read_own_by_file(address, into)
}

/// For processes that may not call process_vm_readv(2).
fn read_own_by_file(address: usize, into: &mut [u8]) -> bool {
    let Ok(memory) = linux_raw::open(c"/proc/thread-self/mem", 0) else { return false };
    let read = linux_raw::read_at(memory, into, address as u64);
    // SAFETY:
    // - opened above, and used no more.
    unsafe { close(memory) };
    read == Ok(into.len())
}

/// One line on standard error, without buffers or allocation.
pub fn say(text: &str) {
    write(2, text.as_bytes());
}

/// Milliseconds of a clock that costs no system call.
pub fn milliseconds() -> u64 {
    observe(Moment::ReadsClock);
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let clock = libc::CLOCK_MONOTONIC_COARSE;
    // SAFETY:
    // - the place for the time is valid.
    unsafe {
        match c_library::clock() {
            Some(read) => drop(read(clock, &mut time)),
            None => drop(system_call(libc::SYS_clock_gettime, [clock as usize, &raw mut time as usize])),
        }
    }
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Sleeps for a moment, or until a signal comes.
pub fn pause() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
    // SAFETY:
    // - the time is valid and the rest is not requested.
    let _ = unsafe { system_call(libc::SYS_nanosleep, [&raw const time as usize, 0]) };
}

/// True if the program has more rights than its user (`AT_SECURE`), as set-user-ID programs have.
pub fn is_privileged() -> bool {
    // SAFETY:
    // - getauxval only looks a number up.
    (unsafe { libc::getauxval(libc::AT_SECURE) }) != 0
}

/// Size of an ordinary page.
pub fn base_page() -> usize {
    // SAFETY:
    // - getauxval only looks a number up.
    (unsafe { libc::getauxval(libc::AT_PAGESZ) }) as usize
}

/// A table of plain records in a separate mapping, which grows as needed.
pub struct Table<T: Copy> {
    start: *mut T,
    length: usize,
    capacity: usize,
}

impl<T: Copy> Table<T> {
    pub const fn new() -> Self {
        Self { start: core::ptr::null_mut(), length: 0, capacity: 0 }
    }

    pub fn as_slice(&self) -> &[T] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY:
        // - the first `length` records of the mapping were written, and live as long as the table, which is static.
        unsafe { core::slice::from_raw_parts(self.start, self.length) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [T] {
        if self.length == 0 {
            return &mut [];
        }
        // SAFETY:
        // - as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.length) }
    }

    /// Makes room for one more record; false if there is no memory for it.
    pub fn make_room(&mut self) -> bool {
        if self.length < self.capacity {
            return true;
        }
        let bytes = (self.capacity * size_of::<T>()).max(base_page() / 2) * 2;
        let start = if self.capacity == 0 {
            map_anywhere(bytes, false, 0)
        } else {
            let old = (self.capacity * size_of::<T>()).next_multiple_of(base_page());
            // SAFETY:
            // - the mapping is the table's own; nothing points into it while the table is borrowed exclusively.
            unsafe { linux_raw::mremap(range(self.start as usize, old), bytes, libc::MREMAP_MAYMOVE as u32, 0) }.ok()
        };
        let Some(start) = start else { return false };
        self.start = start as *mut T;
        self.capacity = bytes / size_of::<T>();
        true
    }

    /// Inserts a record, after [`Table::make_room`] has returned true.
    pub fn insert(&mut self, at: usize, record: T) {
        assert!(self.length < self.capacity && at <= self.length);
        // SAFETY:
        // - the mapping has room for `length + 1` records and `at` is at most `length`.
        unsafe {
            let place = self.start.add(at);
            core::ptr::copy(place, place.add(1), self.length - at);
            place.write(record);
        }
        self.length += 1;
    }

    pub fn remove(&mut self, at: usize) -> T {
        let record = self.as_slice()[at];
        // SAFETY:
        // - indexing has shown that `at` is a record; those behind it move up by one.
        unsafe {
            let place = self.start.add(at);
            core::ptr::copy(place.add(1), place, self.length - at - 1);
        }
        self.length -= 1;
        record
    }
}
