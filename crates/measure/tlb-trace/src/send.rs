//! The connection to the reader.

use crate::{DONE, FIRST_STORE, STATE};
use estimate::tlb_model::trace::{MAGIC, block_head};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// The lowest number for the connection's descriptor: programs that check their own numbers still see low ones.
const LOWEST: i32 = 900;

/// The reader's end.
pub struct Receiver {
    stream: OwnedFd,
    /// The process that is traced; its children are not.
    process: u32,
    has_begun: Mutex<bool>,
}

impl Receiver {
    /// Connects.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connect(path: &str) -> io::Result<Self> {
        let stream = OwnedFd::from(UnixStream::connect(path)?);
        // SAFETY:
        // - the call takes no memory.
        let high = unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LOWEST) };
        let stream = match high {
            // The limit of descriptors is lower.
            -1 => stream,
            // SAFETY:
            // - the descriptor has just been made, and nobody else knows it.
            _ => unsafe { OwnedFd::from_raw_fd(high) },
        };
        Ok(Self { stream, process: std::process::id(), has_begun: Mutex::new(false) })
    }

    /// Sends a block. Where the reader has hung up, and in a child, tracing ends.
    pub fn send(&self, cpu: u32, words: &[u64]) {
        // Before the lock: another thread may have held it when this child was made.
        if std::process::id() != self.process {
            STATE.store(DONE, Ordering::Relaxed);
            return;
        }
        let Ok(mut has_begun) = self.has_begun.lock() else { return };
        let first = [MAGIC, FIRST_STORE.load(Ordering::Relaxed)];
        let begin = if *has_begun { &[][..] } else { &first };
        let head = [block_head(cpu, words.len())];
        *has_begun = true;
        if ![begin, &head, words].into_iter().all(|words| self.send_all(words)) {
            STATE.store(DONE, Ordering::Relaxed);
        }
    }

    /// Sends the end of the stream, and waits until the reader has read all: the maps of the process, which the reader
    /// needs, end with the process.
    pub fn finish(&self) {
        if std::process::id() != self.process {
            return;
        }
        let mut byte = 0_u8;
        // SAFETY:
        // - the second call writes one byte at most, into `byte`.
        unsafe {
            libc::shutdown(self.stream.as_raw_fd(), libc::SHUT_WR);
            libc::recv(self.stream.as_raw_fd(), (&raw mut byte).cast(), 1, 0);
        }
    }

    fn send_all(&self, words: &[u64]) -> bool {
        let mut bytes = size_of_val(words);
        let mut from = words.as_ptr().cast::<libc::c_void>();
        while bytes > 0 {
            // No signal: it would reach the program.
            // SAFETY:
            // - `bytes` bytes of `words` are left at `from`.
            let sent = unsafe { libc::send(self.stream.as_raw_fd(), from, bytes, libc::MSG_NOSIGNAL) };
            match usize::try_from(sent) {
                Ok(sent) => {
                    bytes -= sent;
                    // SAFETY:
                    // - no more than `bytes` bytes are sent.
                    from = unsafe { from.add(sent) };
                }
                Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}
