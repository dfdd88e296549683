//! Stops all other threads of the process for a moment, as collectors of garbage do: each is sent a signal whose
//! handler waits until it is let go.
//!
//! The signal is the one by which the C library has every thread change its user (`SIGSETXID`, nptl(7)): the functions
//! that block signals leave it out, so that also threads that block all signals get it. Ours carry a mark; what carries
//! none goes on to the C library's own handler. A call that a thread sleeps in goes on as if nothing had happened.

use crate::sys::{KeepErrno, map_anywhere, milliseconds, pause};
use crate::threads::{Call, MOST_THREADS, Threads, blocks, call_of};
use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

/// A thread that is not stopped within so many milliseconds will not be: it sleeps in the kernel and cannot be woken, or
/// blocks the signal by a system call of its own.
const PATIENCE: u64 = 5000;
/// Threads that sleep in the kernel are looked at after so many milliseconds.
const SLEEPERS_AFTER: u64 = 20;
/// `SIGSETXID`: the kernel's first real-time signal, 32, and one (glibc, internal-signals.h).
const SIGNAL: c_int = 33;

/// The present stop, counted from 1, while threads are to wait; else 0. The futex that they wait on.
static WAITING: AtomicU32 = AtomicU32::new(0);
static STOPS: AtomicU32 = AtomicU32::new(0);
static BUSY: AtomicBool = AtomicBool::new(false);

/// What is known of each thread that was sent the signal: a table that is mapped once and stays, since a handler that
/// comes late may look into it.
static PLACES: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Place {
    thread: u32,
    stopped: AtomicBool,
    call: Option<Call>,
}

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
    if PLACES.load(Relaxed) == 0 {
        PLACES.store(map_anywhere(MOST_THREADS * size_of::<Place>(), false, 0)?, Release);
    }
    take_signal()?;
    COUNT.store(0, SeqCst);
    WAITING.store(STOPS.fetch_add(1, SeqCst).wrapping_add(1).max(1), SeqCst);
    stop_all(&mut threads).then_some(stopped)
}

fn stop_all(threads: &mut Threads) -> bool {
    let start = milliseconds();
    // Ends with a list of which everyone had stopped before it was made: nobody is left who could start a thread.
    loop {
        let may_sleep = milliseconds() >= start + SLEEPERS_AFTER;
        let stands = |thread| {
            let stopped = place_of(thread).map(|place| place.stopped.load(SeqCst));
            stopped == Some(true) || stopped == Some(false) && may_sleep && is_harmless(thread)
        };
        let all = threads.others().iter().all(|&thread| stands(thread));
        if threads.list().is_none() || milliseconds() >= start + PATIENCE {
            return false;
        }
        let mut new = threads.others().iter().filter(|&&thread| place_of(thread).is_none()).peekable();
        if all && new.peek().is_none() {
            return true;
        }
        new.for_each(|&thread| send(thread));
        pause();
    }
}

/// True for a thread that sleeps in a call which does not write to memory, where no signal wakes it (a disk's work, for
/// example): the signal that it was sent comes before its next instruction.
fn is_harmless(thread: u32) -> bool {
    let calls = [
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_sync,
        libc::SYS_syncfs,
        libc::SYS_sync_file_range,
        libc::SYS_msync,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_pwrite64,
        libc::SYS_pwritev,
        libc::SYS_unlinkat,
        libc::SYS_renameat,
        libc::SYS_ftruncate,
        libc::SYS_fallocate,
        libc::SYS_close,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename,
    ];
    call_of(thread).is_some_and(|call| calls.contains(&call.number)) && !blocks(thread, SIGNAL)
}

fn places() -> &'static [Place] {
    let table = PLACES.load(Acquire) as *const Place;
    if table.is_null() {
        return &[];
    }
    // SAFETY:
    // - the table stays mapped, is zero at first, which is a valid place, and the first `COUNT` were written before they
    //   were counted.
    unsafe { core::slice::from_raw_parts(table, COUNT.load(SeqCst).min(MOST_THREADS)) }
}

fn place_of(thread: u32) -> Option<&'static Place> {
    places().iter().find(|place| place.thread == thread)
}

/// Notes a thread and sends it the signal.
fn send(thread: u32) {
    let at = COUNT.load(SeqCst);
    if at >= MOST_THREADS {
        return;
    }
    let place = Place { thread, stopped: AtomicBool::new(false), call: call_of(thread) };
    // SAFETY:
    // - the table has room, and nobody reads a place that is not counted yet.
    unsafe { (PLACES.load(Relaxed) as *mut Place).add(at).write(place) };
    COUNT.store(at + 1, SeqCst);
    let info = Info::ours();
    // SAFETY:
    // - the signal's handler is ours; a thread that has ended meanwhile is not there to get it.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), thread, SIGNAL, &info) };
}

/// What comes with a signal (`siginfo_t`), as far as it concerns a queued one.
#[repr(C)]
struct Info {
    signal: c_int,
    error: c_int,
    code: c_int,
    pad: c_int,
    process: c_int,
    user: u32,
    value: usize,
    rest: [u64; 12],
}

impl Info {
    fn ours() -> Self {
        // SAFETY:
        // - getpid and getuid only ask.
        let (process, user) = unsafe { (libc::getpid(), libc::getuid()) };
        let value = WAITING.as_ptr() as usize;
        Self { signal: SIGNAL, error: 0, code: libc::SI_QUEUE, pad: 0, process, user, value, rest: [0; 12] }
    }

    fn is_ours(&self) -> bool {
        self.code == libc::SI_QUEUE && self.value == WAITING.as_ptr() as usize
    }
}

/// An action as the kernel keeps it (rt_sigaction(2)). The C library hides the signals that it uses itself.
#[derive(Clone, Copy)]
#[repr(C)]
struct Action {
    handler: usize,
    flags: c_ulong,
    restorer: usize,
    mask: u64,
}

/// The C library's handler.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Puts our handler before the C library's, which is there as soon as the process has had a second thread.
fn take_signal() -> Option<()> {
    let mut action = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let exchange = |new: *const Action, old: *mut Action| {
        // SAFETY:
        // - both are null or an action in the kernel's form, whose signal set has 8 bytes.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, SIGNAL, new, old, size_of::<u64>()) == 0 }
    };
    if !exchange(core::ptr::null(), &mut action) {
        return None;
    }
    let ours = arrived as extern "C" fn(c_int, *mut Info, *mut libc::ucontext_t) as usize;
    if action.handler == ours {
        return Some(());
    }
    if action.handler == libc::SIG_DFL || action.handler == libc::SIG_IGN {
        return None;
    }
    NEXT.store(action.handler, SeqCst);
    // The restorer stays the C library's.
    action.handler = ours;
    action.flags |= (libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK) as c_ulong;
    action.mask = !0;
    exchange(&action, core::ptr::null_mut()).then_some(())
}

extern "C" fn arrived(signal: c_int, info: *mut Info, context: *mut libc::ucontext_t) {
    // SAFETY:
    // - the kernel hands both over to a handler with SA_SIGINFO, and they live as long as the handler runs.
    unsafe {
        if (*info).is_ours() {
            return wait(&mut *context);
        }
        let next = NEXT.load(SeqCst);
        if next != 0 {
            type Handler = extern "C" fn(c_int, *mut Info, *mut libc::ucontext_t);
            core::mem::transmute::<usize, Handler>(next)(signal, info, context);
        }
    }
}

/// Notes that the thread stands still, and waits. It also waits where it comes too late to be counted.
fn wait(context: &mut libc::ucontext_t) {
    let _keep = KeepErrno::new();
    let stop = WAITING.load(SeqCst);
    // SAFETY:
    // - gettid has no arguments.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let place = place_of(thread);
    if let Some(place) = place {
        place.stopped.store(true, SeqCst);
    }
    while stop != 0 && WAITING.load(SeqCst) == stop {
        // SAFETY:
        // - waits on a word of our own; spurious returns are caught by the loop.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                WAITING.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                stop,
                core::ptr::null::<c_void>(),
            );
        }
    }
    if let Some(call) = place.and_then(|place| place.call) {
        call_again(context, &call);
    }
}

/// Lets a call that ended with `EINTR` because of our signal begin again: some do so whatever the handler's flags are
/// (signal(7)), and the program need not know of this signal.
fn call_again(context: &mut libc::ucontext_t, call: &Call) {
    const INTERRUPTED: i64 = -(libc::EINTR as i64);
    let machine = &mut context.uc_mcontext;
    #[cfg(target_arch = "x86_64")]
    {
        const CALL: [u8; 2] = [0x0f, 0x05];
        let register = |number: c_int| machine.gregs[number as usize];
        let same = register(libc::REG_RAX) == INTERRUPTED
            && register(libc::REG_RIP) as u64 == call.next_instruction
            && [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX].map(|number| register(number) as u64) == call.arguments;
        let before = (call.next_instruction as usize).wrapping_sub(CALL.len());
        // SAFETY:
        // - the thread has executed the instruction before this one, a system call, and so it can be read.
        if same && unsafe { (before as *const [u8; 2]).read() } == CALL {
            machine.gregs[libc::REG_RAX as usize] = call.number;
            machine.gregs[libc::REG_RIP as usize] = before as i64;
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        const CALL: u32 = 0xd400_0001;
        let same = machine.regs[0] as i64 == INTERRUPTED
            && machine.pc == call.next_instruction
            && machine.regs[8] == call.number as u64
            && machine.regs[1..3] == call.arguments[1..];
        let before = (call.next_instruction as usize).wrapping_sub(size_of::<u32>());
        // SAFETY:
        // - as above.
        if same && unsafe { (before as *const u32).read() } == CALL {
            machine.regs[0] = call.arguments[0];
            machine.pc = before as u64;
        }
    }
}
