//! The other threads of this process, as the kernel lists them, and what each is doing.

use crate::sys::{map_anywhere, read_file, unmap};
use core::ffi::{CStr, c_long};

/// Most threads that can be dealt with.
pub const MOST_THREADS: usize = 32768;

/// How often a list is read for one that is complete; threads that begin and end without a pause can spoil many.
const MOST_LISTINGS: usize = 10_000;

const LIST_BYTES: usize = MOST_THREADS * size_of::<u32>();

/// A list of threads, in memory of its own.
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
        // - `list` has written so many numbers.
        unsafe { core::slice::from_raw_parts(self.start as *const u32, self.count) }
    }

    /// Reads the list; `None` where the kernel does not show it, or it is too long. A thread that ends while the kernel
    /// lists can hide others; so the list is read again until it has as many as there are.
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
        let mut buffer = [0u64; 512];
        // SAFETY:
        // - gettid has no arguments; the path ends with NUL.
        let (own, directory) = unsafe {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
            (libc::syscall(libc::SYS_gettid) as u32, libc::open(c"/proc/self/task".as_ptr(), flags))
        };
        if directory < 0 {
            return None;
        }
        let whole = loop {
            // SAFETY:
            // - the kernel writes whole records into the buffer, at most its length.
            let length =
                unsafe { libc::syscall(libc::SYS_getdents64, directory, buffer.as_mut_ptr(), size_of_val(&buffer)) };
            if length <= 0 {
                break length == 0;
            }
            if !self.take_records(&buffer, length as usize, own) {
                break false;
            }
        };
        // SAFETY:
        // - the descriptor is ours.
        unsafe { libc::close(directory) };
        whole.then_some(())
    }

    /// Records of getdents64(2): inode and offset (8 bytes each), length (2), type (1), name.
    fn take_records(&mut self, buffer: &[u64; 512], length: usize, own: u32) -> bool {
        let mut at = 0;
        while at < length {
            // SAFETY:
            // - the kernel wrote whole records up to `length`, each with its own length and a name that ends with NUL.
            let (size, name) = unsafe {
                let record = buffer.as_ptr().cast::<u8>().add(at);
                (record.add(16).cast::<u16>().read_unaligned() as usize, CStr::from_ptr(record.add(19).cast()))
            };
            at += size;
            let thread = name.to_str().ok().and_then(|name| name.parse::<u32>().ok());
            if let Some(thread) = thread.filter(|&thread| thread != own) {
                if self.count == MOST_THREADS {
                    return false;
                }
                // SAFETY:
                // - the list has room for MOST_THREADS numbers.
                unsafe { (self.start as *mut u32).add(self.count).write(thread) };
                self.count += 1;
            }
        }
        true
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        unmap(self.start, LIST_BYTES);
    }
}

/// How many threads there are: field 20 of `/proc/self/stat`. The name, field 2, may hold anything (proc_pid_stat(5)).
fn number_of_threads() -> Option<usize> {
    let mut buffer = [0u8; 1024];
    let length = read_file(c"/proc/self/stat", &mut buffer)?;
    let behind_name = &buffer[buffer[..length].iter().rposition(|&byte| byte == b')')? + 1..length];
    core::str::from_utf8(behind_name).ok()?.split_ascii_whitespace().nth(17)?.parse().ok()
}

/// The system call that a thread is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub number: c_long,
    /// The first three.
    pub arguments: [u64; 3],
    /// Where the thread goes on after it.
    pub next_instruction: u64,
}

/// Looks at a thread; `None` where it is in no system call, or the kernel does not say.
pub fn call_of(thread: u32) -> Option<Call> {
    let mut buffer = [0u8; 512];
    let length = read_of_thread(thread, b"/syscall\0", &mut buffer)?;
    // The number, six arguments, the stack pointer, the instruction pointer (proc_pid_syscall(5)).
    let mut fields = core::str::from_utf8(&buffer[..length]).ok()?.split_ascii_whitespace();
    let number = fields.next()?.parse().ok().filter(|&number| number >= 0)?;
    let mut words = [0; 8];
    for word in &mut words {
        *word = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(Call { number, arguments: [words[0], words[1], words[2]], next_instruction: words[7] })
}

/// True where a thread has blocked a signal, or the kernel does not say.
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
