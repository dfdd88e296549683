//! Locks that are files which only their owner can open.
//!
//! flock(2) needs no right to write: any process that can open a file or a directory for reading can lock it, and so
//! delay all others that wait for its lock. The files that these locks protect may be open to everybody; the locks are
//! separate files of mode 0600.

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Pauses between two checks of a lock that another process holds: each is twice as long as the previous one.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// Why a lock is not had.
#[derive(Debug, PartialEq, Eq)]
pub enum LockError {
    /// Another process has held it for so long.
    Held(Duration),
    /// The file belongs to the user with this number.
    OfAnotherUser(u32),
    /// The kernel refuses to open or lock the file.
    Refused(Errno),
}

impl From<Errno> for LockError {
    fn from(error: Errno) -> Self {
        Self::Refused(error)
    }
}

/// A lock that this process holds until it is dropped. Its file stays.
#[derive(Debug)]
pub struct LockFile {
    file: Flock<OwnedFd>,
}

impl LockFile {
    /// Takes the lock `name` in `directory`, and makes its file where necessary. A file of this user that others could
    /// open gets mode 0600. Waits for another holder for `most` at the longest.
    ///
    /// # Errors
    /// [`LockError`]; `ENOENT` where the directory was removed, `ELOOP` where the name is a symbolic link, `EINVAL` where
    /// it is no regular file.
    pub fn take(directory: impl AsFd, name: &str, most: Duration) -> Result<Self, LockError> {
        let begin = Instant::now();
        let [mut pause, longest] = PAUSES;
        loop {
            match Flock::lock(open(&directory, name)?, FlockArg::LockExclusiveNonblock) {
                Ok(file) => {
                    let lock = Self { file };
                    // The holder before may have removed the name, and another process made a new file.
                    if lock.is_named(&directory, name) {
                        return Ok(lock);
                    }
                }
                Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => {}
                Err((_, error)) => return Err(error.into()),
            }
            let left = most.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(LockError::Held(begin.elapsed()));
            }
            std::thread::sleep(pause.min(left));
            pause = longest.min(pause * 2);
        }
    }

    fn is_named(&self, directory: impl AsFd, name: &str) -> bool {
        let named = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        let place = |found: FileStat| (found.st_dev, found.st_ino);
        named.is_ok_and(|named| fstat(&*self.file).is_ok_and(|held| place(held) == place(named)))
    }
}

/// A process that inherits a duplicate of this descriptor holds the lock, too, if this process is killed. While this process
/// lives, the lock ends when it is dropped.
impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Opens the file so that nobody else can, now.
fn open(directory: impl AsFd, name: &str) -> Result<OwnedFd, LockError> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let own = Mode::S_IRUSR | Mode::S_IWUSR;
    let file = openat(directory, name, flags, own)?;
    let found = fstat(&file)?;
    if found.st_uid != geteuid().as_raw() {
        return Err(LockError::OfAnotherUser(found.st_uid));
    }
    if SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
        return Err(LockError::Refused(Errno::EINVAL));
    }
    if Mode::from_bits_truncate(found.st_mode).intersects(Mode::S_IRWXG | Mode::S_IRWXO) {
        fchmod(&file, own)?;
    }
    Ok(file)
}

/// A lock whose file is removed with it, so that locks on many things leave nothing behind. A holder that is killed leaves
/// the file, which the next holder removes.
#[derive(Debug)]
pub struct PassingLock {
    directory: OwnedFd,
    name: String,
    lock: LockFile,
}

impl PassingLock {
    /// Takes the lock `name` in `directory`, as [`LockFile::take`] does.
    ///
    /// # Errors
    /// As [`LockFile::take`].
    pub fn take(directory: impl AsFd, name: &str, most: Duration) -> Result<Self, LockError> {
        let lock = LockFile::take(&directory, name, most)?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = openat(&directory, ".", flags, Mode::empty())?;
        Ok(Self { directory, name: name.to_owned(), lock })
    }
}

/// As for [`LockFile`].
impl AsFd for PassingLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

impl Drop for PassingLock {
    fn drop(&mut self) {
        // A process that has opened the file and waits finds that the file no longer has a name.
        if self.lock.is_named(&self.directory, &self.name) {
            let _ = unlinkat(&self.directory, self.name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::PathBuf;

    const SHORT: Duration = Duration::from_millis(5);
    /// For what does not end.
    const LONG: Duration = Duration::from_secs(60);

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("pagelift-lock-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn open(&self) -> File {
            File::open(&self.0).unwrap()
        }

        fn names(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn one_process_at_a_time_has_a_lock_and_the_wait_ends() {
        let folder = Folder::new("held");
        let first = LockFile::take(folder.open(), "a", Duration::ZERO).unwrap();
        let Err(LockError::Held(waited)) = LockFile::take(folder.open(), "a", SHORT) else { panic!("had twice") };
        assert!(waited >= SHORT);
        assert!(LockFile::take(folder.open(), "b", Duration::ZERO).is_ok());
        drop(first);
        assert!(LockFile::take(folder.open(), "a", Duration::ZERO).is_ok());
        assert_eq!(folder.names(), 2);
    }

    #[test]
    fn nobody_else_can_open_a_lock_whatever_it_was_before() {
        let folder = Folder::new("mode");
        let path = folder.0.join("a");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        drop(LockFile::take(folder.open(), "a", Duration::ZERO).unwrap());
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        drop(LockFile::take(folder.open(), "a", Duration::ZERO).unwrap());
        // The same file: an older version that runs may have it locked.
        assert_eq!((mode(), fs::metadata(&path).unwrap().ino()), (0o600, inode));
    }

    #[test]
    fn links_and_pipes_are_no_locks() {
        let folder = Folder::new("kinds");
        fs::write(folder.0.join("file"), "").unwrap();
        std::os::unix::fs::symlink("file", folder.0.join("link")).unwrap();
        nix::unistd::mkfifo(&folder.0.join("pipe"), Mode::S_IRWXU).unwrap();
        let error = |name| LockFile::take(folder.open(), name, SHORT).unwrap_err();
        assert_eq!(error("link"), LockError::Refused(Errno::ELOOP));
        assert_eq!(error("pipe"), LockError::Refused(Errno::EINVAL));
        let gone = folder.open();
        drop(folder);
        assert_eq!(LockFile::take(gone, "a", SHORT).unwrap_err(), LockError::Refused(Errno::ENOENT));
    }

    #[test]
    fn passing_locks_leave_nothing_and_keep_others_out() {
        let folder = Folder::new("passing");
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lock = PassingLock::take(folder.open(), "a", LONG).unwrap();
                        let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        assert_eq!(others, 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(folder.names(), 0);
        // A file left by a killed holder is no obstacle.
        fs::write(folder.0.join("a"), "").unwrap();
        drop(PassingLock::take(folder.open(), "a", Duration::ZERO).unwrap());
        assert_eq!(folder.names(), 0);
    }
}
