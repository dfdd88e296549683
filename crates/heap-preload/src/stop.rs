//! Stops all other threads of the process for a moment, as collectors of garbage do: each is sent a signal whose
//! handler waits until it is let go.

use crate::sys::{map_anywhere, milliseconds, unmap};
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// Threads that are not stopped within so many milliseconds will not be: they block the signal or sleep in the kernel.
const PATIENCE: u64 = 1000;
/// Most threads that can be stopped.
const MOST_THREADS: usize = 32768;

/// 1 while threads are to wait; the futex that they wait on.
static WAITING: AtomicU32 = AtomicU32::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static PLACES: AtomicUsize = AtomicUsize::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static BUSY: AtomicBool = AtomicBool::new(false);

/// All other threads stand still while this lives.
pub struct Stopped(());

impl Drop for Stopped {
    fn drop(&mut self) {
        WAITING.store(0, SeqCst);
        // SAFETY:
        // - wakes threads that wait on a word of our own.
        unsafe {
            libc::syscall(libc::SYS_futex, WAITING.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX)
        };
        BUSY.store(false, SeqCst);
    }
}

/// Stops every other thread; `None` where one does not stop, and then all run on.
pub fn stop_others() -> Option<Stopped> {
    if BUSY.swap(true, SeqCst) {
        return None;
    }
    // From here on, dropping lets all go.
    let stopped = Stopped(());
    let mut threads = Threads::new()?;
    threads.list()?;
    if threads.others().is_empty() {
        return Some(stopped);
    }
    let signal = own_signal()?;
    let places = map_anywhere(MOST_THREADS * size_of::<u32>(), false, 0)?;
    PLACES.store(places, SeqCst);
    COUNT.store(0, SeqCst);
    WAITING.store(1, SeqCst);
    let all = stop_all(&mut threads, signal);
    // Handlers that come late find no place and do not wait.
    let late = PLACES.swap(0, SeqCst);
    if all {
        unmap(late, MOST_THREADS * size_of::<u32>());
        return Some(stopped);
    }
    // A late handler may still be about to write into the table, which therefore stays.
    None
}

fn stop_all(threads: &mut Threads, signal: c_int) -> bool {
    let deadline = milliseconds() + PATIENCE;
    // Ends with a list of which everyone had stopped before it was made: nobody is left who could start a thread.
    loop {
        let stopped_before = COUNT.load(SeqCst);
        if threads.list().is_none() {
            return false;
        }
        let running = |&&thread: &&u32| !has_stopped(thread, stopped_before);
        if threads.others().iter().filter(running).count() == 0 {
            return true;
        }
        if milliseconds() >= deadline {
            return false;
        }
        for &thread in threads.others().iter().filter(running) {
            if threads.is_new(thread) {
                // SAFETY:
                // - the signal's handler is ours; a thread that has ended meanwhile is not there to get it.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
            }
        }
        threads.all_known();
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
        // SAFETY:
        // - the time is valid and the rest is not asked for.
        unsafe { libc::nanosleep(&pause, core::ptr::null_mut()) };
    }
}

fn has_stopped(thread: u32, count: usize) -> bool {
    let places = PLACES.load(SeqCst) as *const AtomicU32;
    // SAFETY:
    // - the table has room for all places that were given out, and lives until all have stopped.
    (0..count.min(MOST_THREADS)).any(|at| unsafe { (*places.add(at)).load(SeqCst) } == thread)
}

/// The handler: notes the thread and waits.
extern "C" fn wait(_signal: c_int) {
    let keep = crate::sys::KeepErrno::new();
    let places = PLACES.load(SeqCst) as *const AtomicU32;
    if WAITING.load(SeqCst) == 0 || places.is_null() {
        return;
    }
    let at = COUNT.load(SeqCst);
    if at >= MOST_THREADS {
        return;
    }
    // SAFETY:
    // - gettid has no arguments.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    // The place is taken first, then written, then counted: whoever reads the count finds the place written.
    let mut place = at;
    // SAFETY:
    // - the table has room for so many places, and stays for as long as anyone may come here.
    unsafe {
        while place < MOST_THREADS && (*places.add(place)).compare_exchange(0, thread, SeqCst, SeqCst).is_err() {
            place += 1;
        }
    }
    COUNT.fetch_add(1, SeqCst);
    while WAITING.load(SeqCst) == 1 {
        // SAFETY:
        // - waits on a word of our own; spurious returns are caught by the loop.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                WAITING.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                1,
                core::ptr::null::<c_void>(),
            );
        }
    }
    drop(keep);
}

/// A real-time signal that the program does not use, with our handler; it stays ours, since one may be on its way.
fn own_signal() -> Option<c_int> {
    let known = SIGNAL.load(Relaxed);
    if known != 0 {
        return Some(known);
    }
    for signal in (libc::SIGRTMIN() + 1..libc::SIGRTMAX()).rev() {
        // SAFETY:
        // - both structures are valid; the handler has the type that goes with flags without SA_SIGINFO.
        unsafe {
            let mut now: libc::sigaction = core::mem::zeroed();
            if libc::sigaction(signal, core::ptr::null(), &mut now) != 0 || now.sa_sigaction != libc::SIG_DFL {
                continue;
            }
            let mut ours: libc::sigaction = core::mem::zeroed();
            ours.sa_sigaction = wait as extern "C" fn(c_int) as usize;
            ours.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigfillset(&mut ours.sa_mask);
            if libc::sigaction(signal, &ours, core::ptr::null_mut()) == 0 {
                SIGNAL.store(signal, Relaxed);
                return Some(signal);
            }
        }
    }
    None
}

/// The other threads of this process, in memory of its own.
struct Threads {
    start: usize,
    count: usize,
    known: usize,
    known_count: usize,
}

const LIST_BYTES: usize = MOST_THREADS * size_of::<u32>();

impl Threads {
    fn new() -> Option<Self> {
        let start = map_anywhere(2 * LIST_BYTES, false, 0)?;
        Some(Self { start, count: 0, known: start + LIST_BYTES, known_count: 0 })
    }

    fn others(&self) -> &[u32] {
        // SAFETY:
        // - `list` has written so many numbers.
        unsafe { core::slice::from_raw_parts(self.start as *const u32, self.count) }
    }

    fn known(&self) -> &[u32] {
        // SAFETY:
        // - `all_known` has written so many numbers.
        unsafe { core::slice::from_raw_parts(self.known as *const u32, self.known_count) }
    }

    fn is_new(&self, thread: u32) -> bool {
        !self.known().contains(&thread)
    }

    /// Every thread of the list has been sent the signal.
    fn all_known(&mut self) {
        crate::sys::copy(self.start, self.known, self.count * size_of::<u32>());
        self.known_count = self.count;
    }

    /// Reads the list; `None` where the kernel does not show it, or it is too long.
    fn list(&mut self) -> Option<()> {
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
        unmap(self.start, 2 * LIST_BYTES);
    }
}
