//! A folder for tests, on a file system whose server never answers.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// Longer than any look-up that asks no such file system.
const LIMIT: Duration = Duration::from_secs(5);

/// A mount of FUSE in this thread's own namespace of mounts, served by nobody's user.
pub(crate) struct SilentFolder {
    folder: TempDir,
    /// The server's end. Requests fail once it is closed.
    server: Option<File>,
}

impl SilentFolder {
    /// Mounts it; `None` if that is not permitted: needed are root and `/dev/fuse`.
    pub fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().ok()?;
        let server = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        unshare(CloneFlags::CLONE_NEWNS).ok()?;
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).ok()?;
        let fd = server.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=65534,group_id=65534,allow_other");
        mount(Some("silent"), folder.path(), Some("fuse"), MsFlags::MS_NOSUID, Some(options.as_str())).ok()?;
        Some(Self { folder, server: Some(server) })
    }

    /// The mounted folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the result of `work`, done in another thread; `None` if it waits for the server.
    pub fn within_limit<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = mpsc::channel();
        // The thread inherits the namespace, and ends at the latest once the server's end is closed.
        std::thread::spawn(move || sender.send(work()));
        receiver.recv_timeout(LIMIT).ok()
    }
}

impl Drop for SilentFolder {
    fn drop(&mut self) {
        drop(self.server.take());
        // Otherwise the temporary folder could not be removed.
        let _ = nix::mount::umount2(self.folder.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}
