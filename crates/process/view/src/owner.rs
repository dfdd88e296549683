//! A thread that has the rights to files of another process and runs work with them.
//!
//! It is started before this program gives up the right to act as that user, and needs no rights afterwards. Its work may
//! wait for a file system that does not answer, so the caller waits no longer than a limit.

use linux::file_rights::FileRights;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

type Work = Box<dyn FnOnce() + Send>;

/// The thread. It ends once this value is dropped and it has nothing left to do.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    work: Sender<Work>,
    /// It exceeded a limit once, and gets no more work.
    is_stuck: Arc<AtomicBool>,
}

/// The thread has not answered within the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TookTooLong;

impl Owner {
    /// Starts a thread with these rights.
    ///
    /// # Errors
    /// The kernel's, where this program may not take them on.
    pub fn with(rights: FileRights) -> io::Result<Self> {
        let (work, incoming) = mpsc::channel::<Work>();
        let (ready, started) = mpsc::channel();
        let has_taken_them_on = ready.clone();
        let act = move || {
            linux::watch::block_signals();
            let acted = rights.act(move || {
                // If the receiver is gone, nobody needs the thread.
                let _ = has_taken_them_on.send(Ok(()));
                incoming.into_iter().for_each(|work| work());
            });
            let _ = acted.map_err(|error| ready.send(Err(error)));
        };
        thread::Builder::new().name("owner".to_owned()).spawn(act)?;
        started.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { work, is_stuck: Arc::default() })
    }

    /// Has the thread do something, and waits for its result.
    ///
    /// # Errors
    /// [`TookTooLong`], now or at an earlier time.
    pub fn act<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, TookTooLong> {
        if self.is_stuck.load(Ordering::Relaxed) {
            return Err(TookTooLong);
        }
        let (done, result) = mpsc::channel();
        let work = Box::new(move || {
            // The receiver is gone if the limit has passed.
            let _ = done.send(work());
        });
        self.work.send(work).map_err(|_| TookTooLong)?;
        result.recv_timeout(limit).map_err(|_| {
            self.is_stuck.store(true, Ordering::Relaxed);
            TookTooLong
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn own_rights() -> FileRights {
        FileRights::of_status(&fs::read_to_string("/proc/self/status").unwrap()).unwrap()
    }

    #[test]
    fn work_is_done_in_turn_without_capabilities() {
        let owner = Owner::with(own_rights()).unwrap();
        let status = owner.act(Duration::MAX, || fs::read_to_string("/proc/thread-self/status").unwrap()).unwrap();
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
        assert_eq!(owner.act(Duration::MAX, || 7), Ok(7));
    }

    #[test]
    fn nobody_waits_longer_than_the_limit() {
        let owner = Owner::with(own_rights()).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let wait = move || held.recv().is_ok();
        assert_eq!(owner.act(Duration::ZERO, wait), Err(TookTooLong));
        assert_eq!(owner.clone().act(Duration::MAX, || true), Err(TookTooLong), "it is still at the first");
        drop(release);
    }

    #[test]
    fn rights_that_may_not_be_taken_on_are_an_error() {
        let other = FileRights { user: own_rights().user + 1, ..own_rights() };
        let may = nix::unistd::geteuid().is_root();
        assert_eq!(Owner::with(other).is_ok(), may);
    }
}
