//! Thin words for the C library's calls that this heap makes, none of which allocates.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_long, c_void};

/// Keeps `errno` as it was while the heap makes system calls of its own.
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

/// A lock that needs no set-up and is known by address, so that a fork can take it along.
pub struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY:
// - a pthread mutex is made to be used by many threads, and is only handed to the pthread functions.
unsafe impl Sync for Lock {}

impl Lock {
    pub const fn new() -> Self {
        Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    fn lock(&self) {
        // SAFETY:
        // - the mutex is initialised and never destroyed or moved: it is part of a static.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    /// Locks, unless this thread holds the lock already, which `is_held` is asked where somebody does; true where it was
    /// locked here.
    pub fn lock_unless(&self, is_held: fn() -> bool) -> bool {
        if self.try_lock() {
            return true;
        }
        if is_held() {
            return false;
        }
        self.lock();
        true
    }

    pub fn try_lock(&self) -> bool {
        // SAFETY:
        // - as in `lock`.
        unsafe { libc::pthread_mutex_trylock(self.0.get()) == 0 }
    }

    /// # Safety
    /// This thread has locked it.
    pub unsafe fn unlock(&self) {
        // SAFETY:
        // - as in `lock`; a mutex of the default kind that its holder unlocks, by the caller's promise.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }

    /// Makes it a lock that nobody holds.
    ///
    /// # Safety
    /// The process has one thread, and that one does not hold the lock: its holder was not taken along by a fork.
    pub unsafe fn renew(&self) {
        // SAFETY:
        // - the caller's promise: nobody uses the mutex, or waits for it.
        unsafe { self.0.get().write(libc::PTHREAD_MUTEX_INITIALIZER) };
    }
}

/// A mapping of anonymous memory anywhere, private, readable and writable unless `reserve_only`.
pub fn map_anywhere(bytes: usize, reserve_only: bool, more_flags: c_int) -> Option<usize> {
    let protection = if reserve_only { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more_flags;
    // SAFETY:
    // - a new mapping at an address of the kernel's choice touches no memory in use.
    let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start as usize)
}

/// Gives a range of our own back to the kernel.
///
/// # Safety
/// The range consists of whole pages of mappings that this heap made, and nothing uses it any more.
pub unsafe fn unmap(start: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY:
        // - the caller's promise.
        unsafe { libc::munmap(start as *mut c_void, bytes) };
    }
}

/// True where the kernel took the advice.
///
/// # Safety
/// The range consists of whole pages of mappings of this heap; with advice that drops contents, nobody needs those.
pub unsafe fn advise(start: usize, bytes: usize, advice: c_int) -> bool {
    // SAFETY:
    // - the caller's promise.
    unsafe { libc::madvise(start as *mut c_void, bytes, advice) == 0 }
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

/// Opens for reading. Not the C library's function, nor are the next ones: a thread that has been told to end by
/// pthread_cancel(3) would do so in those, with locks of the heap in its hands.
pub fn open(path: &CStr, more_flags: c_int) -> Option<c_int> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | more_flags;
    // SAFETY:
    // - the path ends with NUL.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    (file >= 0).then_some(file as c_int)
}

/// Closes a descriptor of our own.
///
/// # Safety
/// The caller has opened the descriptor, and nobody uses it any more.
pub unsafe fn close(file: c_int) {
    // SAFETY:
    // - the caller's promise.
    unsafe { libc::syscall(libc::SYS_close, file) };
}

/// Reads once, whatever signals come in between; 0 at the end.
pub fn read(file: c_int, buffer: &mut [u8]) -> Option<usize> {
    loop {
        // SAFETY:
        // - the kernel writes to nothing but the buffer, which is exclusively ours.
        let count = unsafe { libc::syscall(libc::SYS_read, file, buffer.as_mut_ptr(), buffer.len()) };
        if count >= 0 || last_error() != libc::EINTR {
            return usize::try_from(count).ok();
        }
    }
}

/// Writes once; nothing can be done where it is not taken.
pub fn write(file: c_int, bytes: &[u8]) {
    // SAFETY:
    // - the bytes are readable for their whole length.
    unsafe { libc::syscall(libc::SYS_write, file, bytes.as_ptr(), bytes.len()) };
}

/// Reads a file into a buffer, as far as it fits; the number of bytes read.
pub fn read_file(path: &CStr, buffer: &mut [u8]) -> Option<usize> {
    let file = open(path, 0)?;
    let mut length = 0;
    while length < buffer.len() {
        match read(file, &mut buffer[length..]) {
            Some(count) if count > 0 => length += count,
            _ => break,
        }
    }
    // SAFETY:
    // - opened above, and used no more.
    unsafe { close(file) };
    Some(length)
}

/// Reads memory of this process by the kernel's hand; false where it is not mapped or may not be read.
pub fn read_own(address: usize, into: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: into.len() };
    // SAFETY:
    // - both vectors are one iovec, and the kernel writes to nothing but `into`, which is exclusively ours.
    // - what is read is looked up by the kernel, for which an address that cannot be read is an error.
    let read = unsafe {
        libc::syscall(libc::SYS_process_vm_readv, libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    read == into.len() as c_long || read_own_by_file(address, into)
}

/// For processes that may not call process_vm_readv(2).
fn read_own_by_file(address: usize, into: &mut [u8]) -> bool {
    let Some(memory) = open(c"/proc/self/mem", 0) else { return false };
    // SAFETY:
    // - the kernel writes to nothing but `into`, which is exclusively ours.
    let read = unsafe { libc::syscall(libc::SYS_pread64, memory, into.as_mut_ptr(), into.len(), address) };
    // SAFETY:
    // - opened above, and used no more.
    unsafe { close(memory) };
    read == into.len() as c_long
}

/// One line on standard error, without buffers or allocation.
pub fn say(text: &str) {
    write(2, text.as_bytes());
}

/// Milliseconds of a clock that costs no system call.
pub fn milliseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY:
    // - the place for the time is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Sleeps for a moment, or until a signal comes.
pub fn pause() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
    // SAFETY:
    // - the time is valid and the rest is not asked for.
    unsafe { libc::syscall(libc::SYS_nanosleep, &time, core::ptr::null_mut::<libc::timespec>()) };
}

/// Size of an ordinary page.
pub fn base_page() -> usize {
    // SAFETY:
    // - getauxval only looks a number up.
    (unsafe { libc::getauxval(libc::AT_PAGESZ) }) as usize
}

/// A table of plain records in a mapping of its own, growing as needed.
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

    /// Room for one more; false where there is no memory for it.
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
            let moved = unsafe { libc::mremap(self.start.cast(), old, bytes, libc::MREMAP_MAYMOVE) };
            (moved != libc::MAP_FAILED).then_some(moved as usize)
        };
        let Some(start) = start else { return false };
        self.start = start as *mut T;
        self.capacity = bytes / size_of::<T>();
        true
    }

    /// Inserts where [`Table::make_room`] has said yes.
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
