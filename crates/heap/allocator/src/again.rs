//! Continues the system call that a stop's signal has interrupted, so that the program does not notice the stop.
//!
//! The kernel restarts most calls by itself, since the handler has SA_RESTART. Others return EINTR after any handler
//! (signal(7)); `linux::interrupted` lists the calls that can be restarted, and how.
//! - A call that can be restarted with the same arguments goes back to its instruction.
//! - If the kernel knows the remaining time of a call, restart_syscall(2) continues the call, without rt_sigreturn(2)
//!   (`frame`).
//! - For other waits the elapsed time is not known. They are restarted with their whole timeout. If one stop follows
//!   another, the restarts last no longer than that timeout in all; the call then returns EINTR, as it may at any time.
//! - If a signal of the program's own arrives during the stop, its handler runs next, and the call returns EINTR if that
//!   handler would have ended it. A signal that arrives between this check and rt_sigreturn finds the thread about to
//!   make its call.

use crate::call::Call;
use crate::frame::{Frame, State};
use crate::places::calls_of;
use crate::sys::{milliseconds, read_own, system_call};
use core::ffi::{c_int, c_ulong};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use linux::interrupted::{Length, Repetition, after_own_handler, ends_without_sa_restart};

/// The way in which the thread continues.
pub enum Next {
    /// The handler returns.
    Return,
    /// The thread leaves the handler for this frame, which is about to make restart_syscall.
    Leave(Frame),
}

/// Changes the handler's frame so that the interrupted call continues. `signal`: the signal of the stop itself;
/// `sleeps`: number of the thread's sleeps when the handler began.
pub fn prepare(mut frame: Frame, thread: u32, signal: c_int, sleeps: u64) -> Next {
    if let Some(unfinished) = frame.unfinished_leave() {
        return Next::Leave(unfinished);
    }
    if frame.is_before_restart() {
        return if frame.can_be_left() { Next::Leave(frame) } else { Next::Return };
    }
    let fits = |call: &Call| frame.state(call) != State::Elsewhere;
    // The call in which the thread slept last has priority over notes of earlier stops.
    let found = calls_of(thread).filter(fits).max_by_key(|call| call.sleeps == sleeps);
    let handler = own_handler(frame.signal_mask(), signal);
    let Some(call) = found else {
        return if handler.is_none() { wait_on(frame) } else { Next::Return };
    };
    let state = frame.state(&call);
    match (state, handler) {
        (State::AboutToCall, Some(Handler { restarts: false }))
            if ends_without_sa_restart(call.number, &call.arguments) =>
        {
            frame.give_error(&call);
        }
        (State::Ended, None) => return repeat(frame, thread, &call, sleeps),
        _ => {}
    }
    Next::Return
}

/// Continues a call that was not observed, if the frame has enough information. Calls that the kernel continues by
/// itself need no arguments; they return EINTR if another handler has ended them.
fn wait_on(mut frame: Frame) -> Next {
    let Some(call) = frame.ended_call() else { return Next::Return };
    if after_own_handler(call.number, &call.arguments) != Repetition::WithTimeLeft || !frame.can_be_left() {
        return Next::Return;
    }
    frame.make_restart(&call);
    Next::Leave(frame)
}

/// If the thread has slept since it was seen in `call`, the present call may be another one. If the frame does not show
/// all arguments, an argument may differ, so the call is not made again and returns EINTR. Calls that the kernel
/// continues by itself need no arguments.
fn repeat(mut frame: Frame, thread: u32, call: &Call, sleeps: u64) -> Next {
    let is_same_call = call.sleeps == sleeps;
    match after_own_handler(call.number, &call.arguments) {
        Repetition::Never => {}
        Repetition::WithTimeLeft if frame.can_be_left() => {
            frame.make_restart(call);
            return Next::Leave(frame);
        }
        Repetition::WithTimeLeft => {}
        _ if !is_same_call => {}
        Repetition::AsItWas => frame.make_again(call),
        Repetition::WithWholeTime(length) => match milliseconds_of(length) {
            Limit::None => frame.make_again(call),
            Limit::Milliseconds(length) if may_last_longer(thread, call, length) => frame.make_again(call),
            Limit::Milliseconds(_) | Limit::Unknown => {}
        },
    }
    Next::Return
}

enum Limit {
    None,
    Milliseconds(u64),
    Unknown,
}

fn milliseconds_of(length: Length) -> Limit {
    let time_at = |address: u64| match (word_at(address), word_at(address.wrapping_add(8))) {
        (Some(seconds), Some(nanoseconds)) => {
            Limit::Milliseconds(seconds.saturating_mul(1000).saturating_add(nanoseconds.div_ceil(1_000_000)))
        }
        _ => Limit::Unknown,
    };
    match length {
        Length::Milliseconds(milliseconds) => Limit::Milliseconds(milliseconds),
        Length::At(address) => time_at(address),
        Length::AtAddressIn(place) => match word_at(place) {
            Some(0) => Limit::None,
            Some(address) => time_at(address),
            None => Limit::Unknown,
        },
        Length::OptionOf { socket, option } => {
            let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
            let mut size = size_of::<libc::timeval>() as libc::socklen_t;
            // SAFETY:
            // - the kernel writes at most `size` bytes to `time`, and the size itself.
            let result = unsafe {
                let [time, size] = [&raw mut time as usize, &raw mut size as usize];
                system_call(
                    libc::SYS_getsockopt,
                    [socket as usize, libc::SOL_SOCKET as usize, option as usize, time, size],
                )
            };
            let milliseconds = time.tv_sec as u64 * 1000 + (time.tv_usec as u64).div_ceil(1000);
            // A file that is not a socket has no such limit.
            if result.is_err() || milliseconds == 0 { Limit::None } else { Limit::Milliseconds(milliseconds) }
        }
    }
}

fn word_at(address: u64) -> Option<u64> {
    let mut word = [0; size_of::<u64>()];
    read_own(address as usize, &mut word).then(|| u64::from_ne_bytes(word))
}

/// A wait that was restarted with its whole timeout. If two threads hash to the same place, one replaces the other.
struct Repeated {
    thread: AtomicU32,
    call: AtomicU64,
    /// Times of the first and the last restart, in milliseconds.
    first: AtomicU64,
    last: AtomicU64,
}

const PLACES: usize = 1024;
static REPEATED: [Repeated; PLACES] = [const {
    Repeated { thread: AtomicU32::new(0), call: AtomicU64::new(0), first: AtomicU64::new(0), last: AtomicU64::new(0) }
}; PLACES];

/// False if a wait of `length` milliseconds has been restarted over at least that time already.
fn may_last_longer(thread: u32, call: &Call, length: u64) -> bool {
    let (now, sum) = (milliseconds(), checksum(call));
    let repeated = &REPEATED[thread as usize % PLACES];
    let last = repeated.last.load(Relaxed);
    // A wait that was last restarted longer ago than it lasts has ended: this is another one.
    let is_same = repeated.thread.load(Relaxed) == thread
        && repeated.call.load(Relaxed) == sum
        && now.saturating_sub(last) <= length;
    if is_same && now.saturating_sub(repeated.first.load(Relaxed)) >= length {
        repeated.thread.store(0, Relaxed);
        return false;
    }
    if !is_same {
        repeated.thread.store(thread, Relaxed);
        repeated.call.store(sum, Relaxed);
        repeated.first.store(now, Relaxed);
    }
    repeated.last.store(now, Relaxed);
    true
}

/// FNV-1a over the words of a call.
fn checksum(call: &Call) -> u64 {
    let words = [call.number as u64, call.stack, call.next_instruction].into_iter().chain(call.arguments);
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The program's signal handler that runs next.
struct Handler {
    /// It has SA_RESTART.
    restarts: bool,
}

/// The handler of the first pending signal that `mask` does not block. The kernel delivers the lowest number first.
fn own_handler(mask: u64, own: c_int) -> Option<Handler> {
    let mut pending = 0u64;
    // SAFETY:
    // - the kernel writes a signal set of eight bytes, the size that is passed.
    let _ = unsafe { system_call(libc::SYS_rt_sigpending, [&raw mut pending as usize, size_of::<u64>()]) };
    let waiting = pending & !mask & !(1 << (own - 1));
    (1..=u64::BITS as c_int).filter(|signal| waiting >> (signal - 1) & 1 != 0).find_map(|signal| {
        let action = Action::of(signal)?;
        let is_handled = action.handler != libc::SIG_DFL && action.handler != libc::SIG_IGN;
        is_handled.then_some(Handler { restarts: action.flags & libc::SA_RESTART as c_ulong != 0 })
    })
}

/// An action as the kernel keeps it (rt_sigaction(2)). The C library hides the signals that it uses itself.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Action {
    pub handler: usize,
    pub flags: c_ulong,
    pub restorer: usize,
    pub mask: u64,
}

impl Action {
    /// The action of a signal; `None` if the kernel does not report one.
    pub fn of(signal: c_int) -> Option<Self> {
        let mut action = Self { handler: 0, flags: 0, restorer: 0, mask: 0 };
        let arguments = [signal as usize, 0, &raw mut action as usize, size_of::<u64>()];
        // SAFETY:
        // - the kernel writes one action in its form, whose signal set has 8 bytes.
        unsafe { system_call(libc::SYS_rt_sigaction, arguments) }.ok()?;
        Some(action)
    }

    /// Sets it as the action of a signal; false if the kernel refuses.
    ///
    /// # Safety
    /// The handler and the restorer must be functions of the kinds that the flags say, and fit for any thread of the
    /// process at any moment.
    pub unsafe fn set(&self, signal: c_int) -> bool {
        let arguments = [signal as usize, core::ptr::from_ref(self) as usize, 0, size_of::<u64>()];
        // SAFETY:
        // - the action is in the kernel's form, whose signal set has 8 bytes; the caller's promise for its functions.
        unsafe { system_call(libc::SYS_rt_sigaction, arguments) }.is_ok()
    }
}
