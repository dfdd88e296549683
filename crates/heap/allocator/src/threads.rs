//! The other threads of this process, as the kernel lists them, and their states.

use crate::c_library::SINGLE_THREADED;
use crate::call::Call;
use crate::directory::for_each_number;
use crate::frame::Frame;
use crate::sys::{map_anywhere, read_file, system_call, unmap};
use address_space::ProcessStat;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

/// Highest number of threads that are supported.
pub const MOST_THREADS: usize = 32768;

/// Highest number of attempts to read a complete list. Threads that begin and end all the time make attempts fail.
const MOST_LISTINGS: usize = 10_000;

const LIST_BYTES: usize = MOST_THREADS * size_of::<u32>();

/// A list of threads, in separate memory.
pub struct Threads {
    start: usize,
    count: usize,
}

impl Threads {
    pub fn new() -> Option<Self> {
        Some(Self { start: map_anywhere(LIST_BYTES, false, 0)?, count: 0 })
    }

    pub fn others(&self) -> &[u32] {
        // SAFETY:
        // - `list` has written this number of thread IDs.
        unsafe { core::slice::from_raw_parts(self.start as *const u32, self.count) }
    }

    /// Reads the list; `None` if the kernel does not show it, or if it is too long. A thread that ends while the kernel
    /// lists can hide others, so the list is read again until it has as many entries as there are threads.
    pub fn list(&mut self) -> Option<()> {
        for _ in 0..MOST_LISTINGS {
            self.list_once()?;
            if number_of_threads()? == self.count + 1 {
                return Some(());
            }
        }
        None
    }

    fn list_once(&mut self) -> Option<()> {
        self.count = 0;
        let own = own_thread();
        for_each_number(c"/proc/self/task", |thread| {
            if thread == own {
                return true;
            }
            if self.count == MOST_THREADS {
                return false;
            }
            // SAFETY:
            // - the list has room for MOST_THREADS numbers.
            unsafe { (self.start as *mut u32).add(self.count).write(thread) };
            self.count += 1;
            true
        })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // SAFETY:
        // - the list's own mapping, as long as it was made; references into it borrow the list.
        unsafe { unmap(self.start, LIST_BYTES) };
    }
}

/// The calling thread's ID (gettid(2)).
pub fn own_thread() -> u32 {
    linux_raw::thread_id()
}

/// The number of threads.
fn number_of_threads() -> Option<usize> {
    let mut buffer = [0u8; 1024];
    let length = read_file(c"/proc/self/stat", &mut buffer)?;
    ProcessStat::parse(&buffer[..length])?.threads()
}

/// `__libc_single_threaded`, or null if the C library has none.
static IS_SINGLE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Looks up the variable that [`is_only_one`] reads. Called once, when the C library has been set up.
pub fn look_up_their_number() {
    if let Some(found) = SINGLE_THREADED.get() {
        IS_SINGLE.store(found.cast(), Release);
    }
}

/// True if the C library knows that the process has one thread (`__libc_single_threaded`, glibc 2.32 and later); false
/// if it does not report that. Threads that were created without the C library are not counted, so only speed may
/// depend on this.
pub fn is_only_one() -> bool {
    let single = IS_SINGLE.load(Acquire);
    // SAFETY:
    // - the C library's variable, which is there until the process ends. It changes only while one thread runs.
    !single.is_null() && unsafe { single.read_volatile() } != 0
}

/// True for a thread that has ended but is still listed: the first one, as long as there are others.
pub fn has_ended(thread: u32) -> bool {
    let mut buffer = [0u8; 1024];
    let length = read_of_thread(thread, b"/stat\0", &mut buffer);
    length.and_then(|length| ProcessStat::parse(&buffer[..length])).is_some_and(ProcessStat::has_ended)
}

/// The system call that a thread is in; `None` if it is in none, or if the kernel does not report it.
pub fn call_of(thread: u32) -> Option<Call> {
    let call = shown_call_of(thread)?;
    if Frame::SHOWS_ARGUMENTS {
        return Some(call);
    }
    // It is in the same call before and after the sleeps are read, so that they belong together.
    let sleeps = sleeps_of(thread)?;
    (shown_call_of(thread)? == call).then_some(Call { sleeps, ..call })
}

fn shown_call_of(thread: u32) -> Option<Call> {
    let mut buffer = [0u8; 512];
    let length = read_of_thread(thread, b"/syscall\0", &mut buffer)?;
    // The number, six arguments, the stack pointer, the instruction pointer (proc_pid_syscall(5)).
    let mut fields = core::str::from_utf8(&buffer[..length]).ok()?.split_ascii_whitespace();
    let number = fields.next()?.parse().ok().filter(|&number| number >= 0)?;
    let mut words = [0; 8];
    for word in &mut words {
        *word = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    let [a, b, c, d, e, f, stack, next_instruction] = words;
    Some(Call { number, arguments: [a, b, c, d, e, f], stack, next_instruction, sleeps: 0 })
}

/// Number of times that a thread has gone to sleep: `voluntary_ctxt_switches` (proc_pid_status(5)).
fn sleeps_of(thread: u32) -> Option<u64> {
    let mut buffer = [0u8; 4096];
    let length = read_of_thread(thread, b"/status\0", &mut buffer)?;
    let text = core::str::from_utf8(&buffer[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

/// Like [`sleeps_of`], for the calling thread (getrusage(2)); 0 if [`Frame::SHOWS_ARGUMENTS`].
pub fn own_sleeps() -> u64 {
    if Frame::SHOWS_ARGUMENTS {
        return 0;
    }
    // SAFETY:
    // - all fields are numbers, for which zero is a value; the kernel writes one such structure.
    unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        let _ = system_call(libc::SYS_getrusage, [libc::RUSAGE_THREAD as usize, &raw mut usage as usize]);
        usage.ru_nvcsw.cast_unsigned()
    }
}

/// True if a thread blocks a signal, or if the kernel does not report that.
pub fn blocks(thread: u32, signal: i32) -> bool {
    let mut buffer = [0u8; 4096];
    let Some(length) = read_of_thread(thread, b"/status\0", &mut buffer) else { return true };
    let text = core::str::from_utf8(&buffer[..length]).unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_none_or(|mask| mask >> (signal - 1) & 1 != 0)
}

/// Reads `/proc/self/task/THREAD` and `file`, which ends with NUL.
fn read_of_thread(thread: u32, file: &[u8], buffer: &mut [u8]) -> Option<usize> {
    const FOLDER: &[u8] = b"/proc/self/task/";
    let mut path = [0u8; 64];
    path[..FOLDER.len()].copy_from_slice(FOLDER);
    let digits = thread.checked_ilog10().unwrap_or(0) as usize + 1;
    for place in 0..digits {
        path[FOLDER.len() + digits - 1 - place] = b'0' + (thread / 10u32.pow(place as u32) % 10) as u8;
    }
    let end = FOLDER.len() + digits;
    path[end..end + file.len()].copy_from_slice(file);
    read_file(CStr::from_bytes_until_nul(&path).ok()?, buffer)
}
