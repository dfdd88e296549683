//! Stops all other threads of the process, as garbage collectors do: each is sent a signal whose handler waits until the
//! stop ends.
//!
//! The signal is `SIGSETXID`, by which the C library has every thread change its user (nptl(7)). The C library's functions
//! that block signals leave it out, so threads that block all signals receive it too. Signals of a stop carry a mark;
//! others are passed to the C library's own handler. An interrupted system call is continued (`again`).

use crate::again::{Action, Next, prepare};
use crate::frame::Frame;
use crate::places::{self, place_of};
use crate::sys::{KeepErrno, milliseconds, pause, system_call};
use crate::threads::{Threads, blocks, call_of, has_ended, own_sleeps, own_thread};
use core::ffi::{c_int, c_ulong};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};

/// Longest wait for threads to stop, in milliseconds. A thread that has not stopped by then sleeps uninterruptibly in
/// the kernel, or blocks the signal by a direct system call.
const MAX_WAIT_MS: u64 = 5000;
/// Time in milliseconds after which threads that have not stopped are checked for sleeping in the kernel.
const SLEEPERS_AFTER: u64 = 20;
/// `SIGSETXID`: the kernel's first real-time signal, 32, and one (glibc, internal-signals.h).
const SIGNAL: c_int = 33;

/// The number of the present stop, counted from 1, while threads must wait; otherwise 0. Threads wait on it as a futex.
static WAITING: AtomicU32 = AtomicU32::new(0);
static STOPS: AtomicU32 = AtomicU32::new(0);
static BUSY: AtomicBool = AtomicBool::new(false);

/// All other threads are stopped as long as this exists.
pub struct Stopped(());

impl Drop for Stopped {
    fn drop(&mut self) {
        WAITING.store(0, SeqCst);
        linux_raw::futex_wake(&WAITING, false);
        BUSY.store(false, SeqCst);
    }
}

/// Stops every other thread. If one does not stop, all continue and the result is `None`.
pub fn stop_others() -> Option<Stopped> {
    if BUSY.swap(true, SeqCst) {
        return None;
    }
    // From here on, dropping this ends the stop.
    let stopped = Stopped(());
    let mut threads = Threads::new()?;
    threads.list()?;
    if threads.others().is_empty() {
        return Some(stopped);
    }
    places::clear()?;
    take_signal()?;
    map_handler();
    let stop = STOPS.fetch_add(1, SeqCst).wrapping_add(1).max(1);
    WAITING.store(stop, SeqCst);
    stop_all(&mut threads, stop).then_some(stopped)
}

fn stop_all(threads: &mut Threads, stop: u32) -> bool {
    let start = milliseconds();
    // Ends with a list whose threads had all stopped before it was read: no thread runs that could start another.
    loop {
        let may_sleep = milliseconds() >= start + SLEEPERS_AFTER;
        let stands = |thread| {
            let stands = place_of(thread, stop).map(|place| place.stands(stop));
            stands == Some(true) || stands == Some(false) && may_sleep && (is_harmless(thread) || has_ended(thread))
        };
        let all = threads.others().iter().all(|&thread| stands(thread));
        if threads.list().is_none() || milliseconds() >= start + MAX_WAIT_MS {
            return false;
        }
        let mut new = threads.others().iter().filter(|&&thread| place_of(thread, stop).is_none()).peekable();
        if all && new.peek().is_none() {
            return true;
        }
        if new.any(|&thread| matches!(send(thread, stop), Sending::Refused)) {
            return false;
        }
        pause();
    }
}

/// True for a thread that sleeps uninterruptibly (for a disk, for example) in a call that does not write to memory: the
/// signal that it was sent is delivered before its next instruction.
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

/// Result of sending the signal.
enum Sending {
    Done,
    /// The thread has ended, or the user's queue of signals is full (EAGAIN, RLIMIT_SIGPENDING in getrlimit(2)), which may
    /// change. The thread is not noted, so that the signal is sent again if the thread still exists.
    NotNow,
    /// The kernel or a system call filter refuses, or the table of threads is full.
    Refused,
}

/// Notes a thread and sends it the signal.
fn send(thread: u32, stop: u32) -> Sending {
    if !places::note(thread, stop, call_of(thread)) {
        return Sending::Refused;
    }
    let info = Info::ours();
    // SAFETY:
    // - the signal's handler is ours; for a thread that has ended the call fails.
    let sent = unsafe {
        let arguments = [linux_raw::process_id() as usize, thread as usize, SIGNAL as usize, &raw const info as usize];
        system_call(libc::SYS_rt_tgsigqueueinfo, arguments)
    };
    let Err(error) = sent else { return Sending::Done };
    places::forget_last();
    if [libc::EAGAIN, libc::ESRCH].contains(&error) { Sending::NotNow } else { Sending::Refused }
}

/// `siginfo_t` of a queued signal.
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
        // - only asks.
        let user = unsafe { system_call(libc::SYS_getuid, []) }.unwrap_or_default() as u32;
        let process = linux_raw::process_id();
        let value = WAITING.as_ptr() as usize;
        Self { signal: SIGNAL, error: 0, code: libc::SI_QUEUE, pad: 0, process, user, value, rest: [0; 12] }
    }

    fn is_ours(&self) -> bool {
        self.code == libc::SI_QUEUE && self.value == WAITING.as_ptr() as usize
    }
}

/// The C library's handler.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Installs our handler in front of the C library's, which exists once the process has had a second thread.
fn take_signal() -> Option<()> {
    let mut action = Action::of(SIGNAL)?;
    let ours = arrived as Handler as usize;
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
    // SAFETY:
    // - `arrived` is a handler with SA_SIGINFO in a library that is never unloaded, keeps errno, takes no lock and
    //   allocates nothing; the restorer is the C library's own.
    unsafe { action.set(SIGNAL) }.then_some(())
}

/// Makes the kernel map the handler's first code. Otherwise threads that run it for the first time at the same moment
/// would wait for each other's lock on its pages in the page cache. After such a sleep [`prepare`] cannot determine on
/// AArch64 whether a thread is still in its call, which then returns EINTR.
fn map_handler() {
    let code = arrived as Handler as *const u8;
    // SAFETY:
    // - the function's first byte, which is mapped for reading as long as this code is.
    let _ = unsafe { code.read_volatile() };
    let _keep = KeepErrno::new();
    let _ = own_sleeps();
}

/// A handler with SA_SIGINFO.
type Handler = unsafe extern "C" fn(c_int, *mut Info, *mut libc::ucontext_t);

/// The handler of [`SIGNAL`].
///
/// # Safety
/// The caller is the kernel, or a handler that passes on the kernel's arguments and does not use its own variables
/// afterwards.
unsafe extern "C" fn arrived(signal: c_int, info: *mut Info, context: *mut libc::ucontext_t) {
    // SAFETY:
    // - the kernel hands a description of the signal over to a handler with SA_SIGINFO.
    if !unsafe { (*info).is_ours() } {
        let next = NEXT.load(SeqCst);
        if next != 0 {
            // SAFETY:
            // - the C library's handler for this signal takes the three arguments of one with SA_SIGINFO, and gets those
            //   that the kernel has handed over.
            unsafe { core::mem::transmute::<usize, Handler>(next)(signal, info, context) };
        }
        return;
    }
    let Some(context) = NonNull::new(context) else { return };
    let next = {
        let _keep = KeepErrno::new();
        let (thread, sleeps) = (own_thread(), own_sleeps());
        wait(thread);
        // SAFETY:
        // - the kernel has handed the frame over to this handler, which does not return before the last use.
        prepare(unsafe { Frame::of(context) }, thread, SIGNAL, sleeps)
    };
    if let Next::Leave(frame) = next {
        // SAFETY:
        // - the functions above that frame are this handler's, which holds nothing any more. If this handler has
        //   interrupted the way out of another one, that one's functions are also above it, and hold nothing either.
        // - `prepare` returns this only for frames that can be left and whose program counter is at restart_syscall.
        unsafe { frame.leave() }
    }
}

/// Notes that the thread has stopped, and waits for the end of the stop. A thread that is not in this stop's table has
/// received the signal of an earlier stop; it is sent another one.
fn wait(thread: u32) {
    let stop = WAITING.load(SeqCst);
    let Some(place) = place_of(thread, stop) else { return };
    place.stand(stop);
    while stop != 0 && WAITING.load(SeqCst) == stop {
        linux_raw::futex_wait(&WAITING, stop, false);
    }
}
