//! Signals of this process, each with its origin.

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::ffi::c_void;
use std::io::{self, Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, Ordering};

/// Length of the message of one signal: its number, and whether it is the kernel's.
const MESSAGE: usize = 2;

/// The socket that the handler writes to; it is never closed.
static TO: AtomicI32 = AtomicI32::new(-1);

/// A signal that this process has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The signal.
    pub signal: Signal,
    /// True for a signal of the kernel, as for the keys of a terminal; false for one that a process has sent.
    pub by_kernel: bool,
}

/// Signals in the order of their arrival. One value at a time receives them.
#[derive(Debug)]
pub struct ReceivedSignals {
    from: UnixStream,
    to: UnixStream,
}

impl ReceivedSignals {
    /// Receives these signals from now on, instead of their actions. Programs that are started later have the default
    /// action for them, even if this process was started with another one (execve(2)).
    ///
    /// # Errors
    /// Those of socketpair(2) and sigaction(2).
    pub fn of(signals: &[Signal]) -> io::Result<Self> {
        let (from, to) = UnixStream::pair()?;
        TO.store(to.try_clone()?.into_raw_fd(), Ordering::Relaxed);
        let action = SigAction::new(SigHandler::SigAction(note), SaFlags::SA_RESTART, SigSet::empty());
        for &signal in signals {
            // SAFETY:
            // - the handler makes one call that is safe in handlers (signal-safety(7)), and keeps errno.
            unsafe { sigaction(signal, &action) }?;
        }
        Ok(Self { from, to })
    }

    /// Waits for the next signal. Returns `None` after [`Self::end`].
    pub fn next(&self) -> Option<Received> {
        let mut message = [0; MESSAGE];
        (&self.from).read_exact(&mut message).ok()?;
        let [signal, by_kernel] = message;
        Some(Received { signal: Signal::try_from(i32::from(signal)).ok()?, by_kernel: by_kernel != 0 })
    }

    /// Ends the wait of another thread, after the signals that have come before.
    pub fn end(&self) {
        let _ = (&self.to).write_all(&[0; MESSAGE]);
    }
}

extern "C" fn note(signal: i32, information: *mut libc::siginfo_t, _: *mut c_void) {
    let errno = Errno::last_raw();
    // SAFETY:
    // - the kernel passes the information of this signal to a handler with SA_SIGINFO, which nix sets.
    let by_kernel = unsafe { (*information).si_code } == libc::SI_KERNEL;
    let message: [u8; MESSAGE] = [signal as u8, by_kernel.into()];
    // SAFETY:
    // - the bytes of an array of this function are read.
    unsafe {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        libc::send(TO.load(Ordering::Relaxed), message.as_ptr().cast(), message.len(), flags);
    }
    Errno::set_raw(errno);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{kill, raise};
    use nix::unistd::Pid;

    #[test]
    fn signals_come_in_order_with_their_origin() {
        let signals = ReceivedSignals::of(&[Signal::SIGUSR1, Signal::SIGURG]).unwrap();
        kill(Pid::this(), Signal::SIGUSR1).unwrap();
        assert_eq!(signals.next(), Some(Received { signal: Signal::SIGUSR1, by_kernel: false }));
        raise(Signal::SIGURG).unwrap();
        signals.end();
        assert_eq!(signals.next(), Some(Received { signal: Signal::SIGURG, by_kernel: false }));
        assert_eq!(signals.next(), None);
    }
}
