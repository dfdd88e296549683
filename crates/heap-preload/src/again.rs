//! What becomes of the system call that the signal of a stop has interrupted: the program must see nothing of it.
//!
//! The kernel makes most calls again by itself, since the handler has SA_RESTART. Others give EINTR behind any handler
//! (signal(7)); which of them can be made again, and how, stands in `kernel_calls::interrupted`.
//! - What can be made again as it was goes back to its instruction.
//! - What has time left that the kernel knows goes on by restart_syscall(2), without rt_sigreturn(2) (`frame`).
//! - Of other waits nobody knows how much time has passed. They are made again with their whole time; but where stop
//!   follows stop, for no longer than that in all: then they give EINTR, which such calls may give at any time.
//! - Where a signal of the program's own has come during the stop, its handler runs next, and the call gives EINTR if
//!   that handler would have ended it. A signal that comes between this look and rt_sigreturn finds the thread about to
//!   make its call.

use crate::frame::{Frame, State};
use crate::places::calls_of;
use crate::sys::{milliseconds, read_own};
use crate::threads::Call;
use core::ffi::{c_int, c_ulong};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use kernel_calls::interrupted::{Length, Repetition, after_own_handler, ends_without_sa_restart};

/// How the thread goes on.
pub enum Next {
    /// By the handler's return.
    Return,
    /// By leaving the handler for this frame, which is about to make restart_syscall.
    Leave(Frame),
}

/// Changes the handler's frame so that the interrupted call goes on. `signal`: the signal of the stop itself.
pub fn prepare(mut frame: Frame, thread: u32, signal: c_int) -> Next {
    if let Some(unfinished) = frame.unfinished_leave() {
        return Next::Leave(unfinished);
    }
    if frame.is_before_restart() {
        return if frame.can_be_left() { Next::Leave(frame) } else { Next::Return };
    }
    let found = calls_of(thread).find_map(|call| match frame.state(&call) {
        State::Elsewhere => None,
        state => Some((call, state)),
    });
    let Some((call, state)) = found else { return Next::Return };
    let handler = own_handler(frame.signal_mask(), signal);
    match (state, handler) {
        (State::AboutToCall, Some(Handler { restarts: false }))
            if ends_without_sa_restart(call.number, &call.arguments) =>
        {
            frame.give_error(&call);
        }
        (State::Ended, None) => return repeat(frame, thread, &call),
        _ => {}
    }
    Next::Return
}

fn repeat(mut frame: Frame, thread: u32, call: &Call) -> Next {
    match after_own_handler(call.number, &call.arguments) {
        Repetition::Never => {}
        Repetition::AsItWas => frame.make_again(call),
        Repetition::WithTimeLeft if frame.can_be_left() => {
            frame.make_restart(call);
            return Next::Leave(frame);
        }
        Repetition::WithTimeLeft => {}
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
            let result =
                unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, option, (&raw mut time).cast(), &raw mut size) };
            let milliseconds = time.tv_sec as u64 * 1000 + (time.tv_usec as u64).div_ceil(1000);
            // What is no socket has no such limit.
            if result != 0 || milliseconds == 0 { Limit::None } else { Limit::Milliseconds(milliseconds) }
        }
    }
}

fn word_at(address: u64) -> Option<u64> {
    let mut word = [0; size_of::<u64>()];
    read_own(address as usize, &mut word).then(|| u64::from_ne_bytes(word))
}

/// A wait that was made again with its whole time. Where two threads fall on the same place, the one forgets the other's.
struct Repeated {
    thread: AtomicU32,
    call: AtomicU64,
    /// Milliseconds: when it was made again first and last.
    first: AtomicU64,
    last: AtomicU64,
}

const PLACES: usize = 1024;
static REPEATED: [Repeated; PLACES] = [const {
    Repeated { thread: AtomicU32::new(0), call: AtomicU64::new(0), first: AtomicU64::new(0), last: AtomicU64::new(0) }
}; PLACES];

/// False where a wait of so many milliseconds has been made again for as long as that already.
fn may_last_longer(thread: u32, call: &Call, length: u64) -> bool {
    let (now, sum) = (milliseconds(), checksum(call));
    let repeated = &REPEATED[thread as usize % PLACES];
    let last = repeated.last.load(Relaxed);
    // One that was made again longer ago than it lasts has ended: this is another.
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

/// The handler of the program's that runs next.
struct Handler {
    /// It has SA_RESTART.
    restarts: bool,
}

/// The first signal that waits to be handled under this mask (the kernel takes the lowest number first).
fn own_handler(mask: u64, own: c_int) -> Option<Handler> {
    let mut pending = 0u64;
    // SAFETY:
    // - the kernel writes a signal set of eight bytes, as it is told.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, size_of::<u64>()) };
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
    /// The action of a signal; `None` where the kernel does not tell.
    pub fn of(signal: c_int) -> Option<Self> {
        let mut action = Self { handler: 0, flags: 0, restorer: 0, mask: 0 };
        let none = core::ptr::null::<Self>();
        // SAFETY:
        // - the kernel writes one action in its form, whose signal set has 8 bytes.
        let result = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, none, &raw mut action, size_of::<u64>()) };
        (result == 0).then_some(action)
    }

    /// Makes it the action of a signal; false where the kernel refuses.
    ///
    /// # Safety
    /// The handler and the restorer must be functions of the kinds that the flags say, and fit for any thread of the
    /// process at any moment.
    pub unsafe fn set(&self, signal: c_int) -> bool {
        let none = core::ptr::null_mut::<Self>();
        // SAFETY:
        // - the action is in the kernel's form, whose signal set has 8 bytes; the caller's promise for what it does.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, self, none, size_of::<u64>()) == 0 }
    }
}
