//! Attempts that failed, kept so that no start repeats one in vain.
//!
//! One small file for each state of a file: its name holds device, inode, size and times, its contents the boot, the
//! blocks that stayed small and why. Everybody may read it. The lock that lets one process at a time prepare the file is a
//! file beside it that nobody else can open. root keeps them in `/run/pagelift/page-cache`, other users in
//! `pagelift/page-cache` below `$XDG_RUNTIME_DIR`, or in a directory of their own below the one for temporary files.

use linux::lock_file::{LockError, PassingLock};
use linux::text::text_of;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use process_view::{FileIdentity, ProcessFiles};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const ROOTS: &str = "/run/pagelift/page-cache";
/// Time after which an attempt that failed for lack of memory or time is repeated.
const REPEAT_AFTER: Duration = Duration::from_secs(600);
/// The first pause after an attempt that failed for a temporary reason.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Maximum time to wait for a process that prepares the same file, whatever the budget. Most end within this time.
const LOCKED_AT_MOST: Duration = Duration::from_secs(300);
/// Limits for one user: records, and bytes in them. Beyond a limit the oldest half is removed, so that a user who
/// changes files repeatedly does not fill `/run`.
const MOST_RECORDS: usize = 1024;
const MOST_BYTES: u64 = 16 << 20;
/// End of the name of a record's lock.
const LOCK_SUFFIX: &str = ".lock";
/// End of the name of a record that is being written.
const NEW_SUFFIX: &str = ".new";

/// The time during which an attempt is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Lasting {
    /// To the next boot.
    ToBoot,
    /// While any of these processes runs: number and start time, in clock ticks since boot (proc_pid_stat(5)).
    WhileAlive(Vec<(i32, u64)>),
    /// Until a pause is over, or until all these processes have ended.
    PauseWhileAlive {
        /// As of [`Lasting::WhileAlive`].
        processes: Vec<(i32, u64)>,
        /// In seconds since 1970.
        since: u64,
        /// Its length.
        seconds: u64,
    },
    /// For [`REPEAT_AFTER`] from this time, in seconds since 1970.
    AWhile(u64),
    /// For this number of seconds from this time on.
    Pause {
        /// In seconds since 1970.
        since: u64,
        /// Its length.
        seconds: u64,
    },
}

impl Lasting {
    /// As long as one of `processes` runs.
    pub fn while_alive(processes: &[i32]) -> Self {
        Self::WhileAlive(with_start_times(processes))
    }

    /// As long as one of `processes` runs, but no longer than a pause: they may have mapped the file for a moment only.
    pub fn pause_while_alive(processes: &[i32], before: Option<&Self>) -> Self {
        Self::PauseWhileAlive {
            processes: with_start_times(processes),
            since: now(),
            seconds: Self::length_of_pause(before),
        }
    }

    /// From now on.
    pub fn a_while() -> Self {
        Self::AWhile(now())
    }

    /// A pause after a temporary failure.
    pub fn pause_after(before: Option<&Self>) -> Self {
        Self::Pause { since: now(), seconds: Self::length_of_pause(before) }
    }

    /// Twice as long as the last pause if the attempt before ended so too, in seconds.
    fn length_of_pause(before: Option<&Self>) -> u64 {
        match before {
            Some(Self::Pause { seconds, .. } | Self::PauseWhileAlive { seconds, .. }) => {
                seconds.saturating_mul(2).min(REPEAT_AFTER.as_secs())
            }
            _ => FIRST_PAUSE.as_secs(),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::ToBoot => false,
            Self::WhileAlive(processes) => !is_any_alive(processes),
            Self::PauseWhileAlive { processes, since, seconds } => {
                is_paused_long_enough(*since, *seconds) || !is_any_alive(processes)
            }
            Self::AWhile(since) => now().abs_diff(*since) > REPEAT_AFTER.as_secs(),
            Self::Pause { since, seconds } => is_paused_long_enough(*since, *seconds),
        }
    }
}

/// Those that run, with their start times.
fn with_start_times(processes: &[i32]) -> Vec<(i32, u64)> {
    processes.iter().filter_map(|&pid| Some((pid, ProcessFiles::of(pid).start_time()?))).collect()
}

/// True if another process of this list runs. The calling process no longer maps the file when it asks.
fn is_any_alive(processes: &[(i32, u64)]) -> bool {
    let own = std::process::id() as i32;
    processes.iter().any(|&(pid, start)| pid != own && ProcessFiles::of(pid).start_time() == Some(start))
}

fn is_paused_long_enough(since: u64, seconds: u64) -> bool {
    now().abs_diff(since) >= seconds
}

/// The failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    boot: String,
    /// Numbers of the blocks that stayed small, sorted.
    pub blocks: Vec<u64>,
    /// Text of the refusal.
    pub reason: String,
    lasting: Lasting,
}

impl Attempt {
    /// An attempt of this boot.
    pub fn new(blocks: Vec<u64>, reason: String, lasting: Lasting) -> Self {
        Self { boot: boot(), blocks, reason, lasting }
    }

    fn is_of_this_boot(&self) -> bool {
        !self.boot.is_empty() && self.boot == boot()
    }

    fn counts(&self) -> bool {
        self.is_of_this_boot() && !self.lasting.is_over()
    }
}

/// The directory of one user's attempts.
#[derive(Debug)]
pub(crate) struct Attempts {
    directory: OwnedFd,
    /// Path of the directory, for messages.
    path: PathBuf,
}

impl Attempts {
    /// The directory of this user, made if necessary; `None` if there is no safe place for one.
    pub fn of_this_user() -> Option<Self> {
        if geteuid().is_root() {
            return Self::below(Path::new("/run"), &["pagelift", "page-cache"]);
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let own = || Self::below(&std::env::temp_dir(), &[&format!("pagelift-{}", geteuid()), "page-cache"]);
        runtime.and_then(|path| Self::below(&path, &["pagelift", "page-cache"])).or_else(own)
    }

    /// The directory that leads there from `start`. Below `start` each part must belong to this user and be writable for
    /// nobody else.
    fn below(start: &Path, parts: &[&str]) -> Option<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_PATH;
        let mut directory = nix::fcntl::open(start, flags, Mode::empty()).ok()?;
        for part in parts {
            let mode = Mode::from_bits_truncate(0o755);
            if mkdirat(&directory, *part, mode).is_ok() {
                // Others read there, whatever this process's umask is.
                let _ = fchmodat(&directory, *part, mode, FchmodatFlags::FollowSymlink);
            }
            let next = nix::fcntl::openat(&directory, *part, flags | OFlag::O_NOFOLLOW, Mode::empty()).ok()?;
            let found = fstat(&next).ok()?;
            if found.st_uid != geteuid().as_raw() || found.st_mode & 0o022 != 0 {
                return None;
            }
            directory = next;
        }
        Some(Self { directory, path: parts.iter().fold(start.to_owned(), |path, part| path.join(part)) })
    }

    /// The attempt with a file, if it still counts.
    fn attempt(&self, identity: &FileIdentity) -> Option<Attempt> {
        read_in(&self.directory, &name_of(identity)).filter(Attempt::counts)
    }

    /// Locks the record of a file. Waits until no other process holds it, for `most` or [`LOCKED_AT_MOST`], whichever
    /// is shorter. `None` if it cannot be locked.
    pub fn record(&self, identity: &FileIdentity, most: Duration) -> Option<Result<AttemptRecord, Held>> {
        let name = name_of(identity);
        let lock = format!("{name}{LOCK_SUFFIX}");
        match PassingLock::take(&self.directory, &lock, most.min(LOCKED_AT_MOST)) {
            Ok(lock) => Some(Ok(AttemptRecord { _lock: lock, directory: self.directory.try_clone().ok()?, name })),
            Err(LockError::Held(waited)) => Some(Err(Held { waited, lock: self.path.join(lock) })),
            Err(LockError::OfAnotherUser(_) | LockError::Refused(_)) => None,
        }
    }
}

/// Another process holds the record.
#[derive(Debug)]
pub(crate) struct Held {
    /// Time waited.
    pub waited: Duration,
    /// The lock's file.
    pub lock: PathBuf,
}

/// The record of one file in one state, locked.
#[derive(Debug)]
pub(crate) struct AttemptRecord {
    _lock: PassingLock,
    directory: OwnedFd,
    name: String,
}

impl AttemptRecord {
    /// The attempt that still counts.
    pub fn attempt(&self) -> Option<Attempt> {
        self.read().filter(Attempt::counts)
    }

    /// The condition that the previous attempt waits for, or has waited for.
    pub fn lasting_before(&self) -> Option<Lasting> {
        self.read().filter(Attempt::is_of_this_boot).map(|attempt| attempt.lasting)
    }

    fn read(&self) -> Option<Attempt> {
        read_in(&self.directory, &self.name)
    }

    /// Replaces the attempt at once, or removes the record if there is none. A record that cannot be written counts as
    /// none.
    pub fn keep(&mut self, attempt: Option<&Attempt>) {
        let text = attempt.and_then(|attempt| serde_json::to_string(attempt).ok());
        let text = text.filter(|text| text.len() as u64 <= linux::bounded::PAGE_CACHE_RECORD.bytes());
        if text.is_none_or(|text| self.replace(&text).is_err()) {
            self.remove(&self.name);
        }
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        make_room(&self.directory)?;
        let new = format!("{}{NEW_SUFFIX}", self.name);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // One that is left is of a process that was killed: the lock is held.
        self.remove(&new);
        let file = openat(&self.directory, new.as_str(), flags, Mode::from_bits_truncate(0o644))?;
        File::from(file).write_all(text.as_bytes())?;
        Ok(renameat(&self.directory, new.as_str(), &self.directory, self.name.as_str())?)
    }

    fn remove(&self, name: &str) {
        let _ = unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir);
    }
}

/// Removes the oldest half of the records if there are too many. Locks stay: another process may hold them.
fn make_room(directory: &OwnedFd) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut records = Vec::new();
    for entry in nix::dir::Dir::openat(directory, ".", flags, Mode::empty())?.iter() {
        let name = entry?.file_name().to_owned();
        let Ok(found) = fstatat(directory, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
        let is_record = found.st_mode & nix::libc::S_IFMT == nix::libc::S_IFREG;
        if is_record && !name.to_bytes().ends_with(LOCK_SUFFIX.as_bytes()) {
            records.push(((found.st_mtime, found.st_mtime_nsec), found.st_size as u64, name));
        }
    }
    let bytes: u64 = records.iter().map(|(_, size, _)| size).sum();
    if records.len() < MOST_RECORDS && bytes < MOST_BYTES {
        return Ok(());
    }
    records.sort();
    let (mut number, mut left) = (records.len(), bytes);
    for (_, size, name) in records {
        if number <= MOST_RECORDS / 2 && left <= MOST_BYTES / 2 {
            break;
        }
        let _ = unlinkat(directory, name.as_c_str(), UnlinkatFlags::NoRemoveDir);
        (number, left) = (number - 1, left - size);
    }
    Ok(())
}

/// The attempt of this user or of root with a file that still counts.
pub(crate) fn recorded(identity: &FileIdentity) -> Option<Attempt> {
    let own = || Attempts::of_this_user()?.attempt(identity);
    own().or_else(|| attempt_of_root(identity))
}

/// True if an attempt with a file has failed at this boot, also if its reason no longer holds.
pub(crate) fn was_tried(identity: &FileIdentity) -> bool {
    let own = || read_in(&Attempts::of_this_user()?.directory, &name_of(identity)).filter(Attempt::is_of_this_boot);
    own().is_some() || attempt_of_root(identity).is_some()
}

/// The attempt of root with a file, which every user can read.
pub(crate) fn attempt_of_root(identity: &FileIdentity) -> Option<Attempt> {
    let path = Path::new(ROOTS).join(name_of(identity));
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    (fstat(&file).ok()?.st_uid == 0).then(|| read(&file)).flatten().filter(Attempt::counts)
}

/// The attempt in a record of this user.
fn read_in(directory: &OwnedFd, name: &str) -> Option<Attempt> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let file = openat(directory, name, flags, Mode::empty()).ok()?;
    (fstat(&file).ok()?.st_uid == geteuid().as_raw()).then(|| read(&File::from(file))).flatten()
}

fn read(file: &File) -> Option<Attempt> {
    let bytes = linux::bounded::PAGE_CACHE_RECORD.read_rest(file).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn name_of(identity: &FileIdentity) -> String {
    let FileIdentity { device, inode, size, modified, changed } = identity;
    format!("{device:x}-{inode:x}-{size:x}-{:x}.{:x}-{:x}.{:x}", modified.0, modified.1, changed.0, changed.1)
}

fn boot() -> String {
    text_of("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: FileIdentity = FileIdentity { device: 1, inode: 2, size: 3, modified: (-1, 5), changed: (6, 7) };

    const SHORT: Duration = Duration::from_millis(5);

    fn attempts() -> (tempfile::TempDir, Attempts) {
        let folder = tempfile::tempdir().unwrap();
        let attempts = Attempts::below(folder.path(), &["a", "b"]).unwrap();
        (folder, attempts)
    }

    fn kept(attempts: &Attempts) -> Option<Attempt> {
        attempts.record(&IDENTITY, Duration::ZERO).unwrap().unwrap().attempt()
    }

    #[test]
    fn an_attempt_is_kept_while_it_counts() {
        let (folder, attempts) = attempts();
        assert_eq!(kept(&attempts), None);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let lasting = Lasting::while_alive(&[child.id() as i32]);
        let attempt = Attempt::new(vec![1, 7], "it was so".to_owned(), lasting);
        assert_eq!(attempts.attempt(&IDENTITY), None);
        attempts.record(&IDENTITY, Duration::ZERO).unwrap().unwrap().keep(Some(&attempt));
        assert_eq!(attempts.attempt(&IDENTITY), Some(attempt.clone()));
        assert_eq!(kept(&attempts), Some(attempt));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(kept(&attempts), None);
        attempts.record(&IDENTITY, Duration::ZERO).unwrap().unwrap().keep(None);
        assert_eq!(std::fs::read_dir(folder.path().join("a/b")).unwrap().count(), 0);
        let other = FileIdentity { changed: (6, 8), ..IDENTITY };
        assert_eq!(attempts.record(&other, Duration::ZERO).unwrap().unwrap().attempt(), None);
    }

    #[test]
    fn a_process_that_may_only_have_looked_forbids_attempts_for_a_pause() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (other, own) = (child.id() as i32, std::process::id() as i32);
        let lasting = |pids: &[i32]| Lasting::pause_while_alive(pids, None);
        assert!(!lasting(&[own, other]).is_over() && lasting(&[own]).is_over());
        let old = |seconds: u64| match lasting(&[other]) {
            Lasting::PauseWhileAlive { processes, since, .. } => {
                Lasting::PauseWhileAlive { processes, since: since - 10, seconds }
            }
            other => panic!("{other:?}"),
        };
        assert!(old(9).is_over() && !old(60).is_over());
        let after = Lasting::pause_while_alive(&[other], Some(&old(60)));
        assert!(matches!(after, Lasting::PauseWhileAlive { seconds: 120, .. }), "{after:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(old(60).is_over());
    }

    #[test]
    fn records_do_not_grow_without_bound() {
        let (folder, attempts) = attempts();
        let attempt = Attempt::new(vec![], "it was so".to_owned(), Lasting::ToBoot);
        let keep = |number: u64, attempt: &Attempt| {
            let identity = FileIdentity { inode: number, ..IDENTITY };
            attempts.record(&identity, Duration::ZERO).unwrap().unwrap().keep(Some(attempt));
            attempts.attempt(&identity)
        };
        assert!((0..MOST_RECORDS as u64 + 10).all(|number| keep(number, &attempt).is_some()));
        let size = || {
            std::fs::read_dir(folder.path().join("a/b")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len())
        };
        assert!(size().count() <= MOST_RECORDS);
        let large = Attempt { blocks: (0..400_000).collect(), ..attempt.clone() };
        assert!((0..12).all(|number| keep(number, &large).is_some()));
        assert!(size().sum::<u64>() < 2 * MOST_BYTES);
        let larger = Attempt { blocks: (0..4_000_000).collect(), ..attempt };
        assert_eq!(keep(0, &larger), None);
    }

    #[test]
    fn attempts_of_another_boot_and_old_ones_do_not_count() {
        let attempt = Attempt::new(vec![], String::new(), Lasting::ToBoot);
        assert!(attempt.counts() && !Attempt { boot: "other".to_owned(), ..attempt.clone() }.counts());
        assert!(Attempt { lasting: Lasting::a_while(), ..attempt.clone() }.counts());
        assert!(!Attempt { lasting: Lasting::AWhile(now() - 2 * REPEAT_AFTER.as_secs()), ..attempt }.counts());
    }

    /// A process that reads the file while it is prepared ends soon.
    #[test]
    fn pauses_grow_and_end() {
        let (_folder, attempts) = attempts();
        let mut record = attempts.record(&IDENTITY, Duration::ZERO).unwrap().unwrap();
        let mut lengths = Vec::new();
        for _ in 0..12 {
            let lasting = Lasting::pause_after(record.lasting_before().as_ref());
            let Lasting::Pause { since, seconds } = lasting else { panic!("{lasting:?}") };
            lengths.push(seconds);
            let attempt = |since| Attempt::new(vec![1], String::new(), Lasting::Pause { since, seconds });
            record.keep(Some(&attempt(since)));
            assert!(record.attempt().is_some());
            record.keep(Some(&attempt(since - seconds)));
            assert!(record.attempt().is_none());
        }
        assert_eq!(lengths, [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600]);
        record.keep(Some(&Attempt::new(vec![1], String::new(), Lasting::a_while())));
        assert!(matches!(Lasting::pause_after(record.lasting_before().as_ref()), Lasting::Pause { seconds: 2, .. }));
    }

    #[test]
    fn one_process_at_a_time_has_the_record() {
        let (folder, attempts) = attempts();
        let first = attempts.record(&IDENTITY, Duration::ZERO).unwrap().unwrap();
        let held = attempts.record(&IDENTITY, SHORT).unwrap().unwrap_err();
        assert!(held.waited >= SHORT && held.lock.starts_with(folder.path()) && held.lock.exists(), "{held:?}");
        drop(first);
        assert!(attempts.record(&IDENTITY, Duration::ZERO).unwrap().is_ok());
        assert_eq!(std::fs::read_dir(folder.path().join("a/b")).unwrap().count(), 0);
    }

    /// Everybody can open a record, and lock it.
    #[test]
    fn a_lock_on_what_others_can_open_keeps_nobody_waiting() {
        use nix::fcntl::{Flock, FlockArg};
        use std::os::unix::fs::MetadataExt;
        let (folder, attempts) = attempts();
        let attempt = Attempt::new(vec![1], String::new(), Lasting::ToBoot);
        attempts.record(&IDENTITY, Duration::ZERO).unwrap().unwrap().keep(Some(&attempt));
        let shared = |file: File| Flock::lock(file, FlockArg::LockSharedNonblock).unwrap();
        let names = || std::fs::read_dir(folder.path().join("a/b")).unwrap().map(|entry| entry.unwrap().path());
        let _held: Vec<_> =
            names().chain([folder.path().join("a/b")]).map(|path| shared(File::open(path).unwrap())).collect();
        let record = attempts.record(&IDENTITY, Duration::ZERO).unwrap().unwrap();
        let open_to_others = |path: &PathBuf| std::fs::metadata(path).unwrap().mode() & 0o077 != 0;
        assert_eq!(names().filter(|path| !open_to_others(path)).count(), 1, "{:?}", names().collect::<Vec<_>>());
        assert_eq!(record.attempt(), Some(attempt));
    }

    #[test]
    fn directories_of_others_and_links_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", folder.path().join("link")).unwrap();
        assert!(Attempts::below(folder.path(), &["link", "x"]).is_none());
        std::fs::create_dir(folder.path().join("open")).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder.path().join("open"), open).unwrap();
        assert!(Attempts::below(folder.path(), &["open"]).is_none());
    }

    #[test]
    fn damaged_records_are_none() {
        let (folder, attempts) = attempts();
        let record = attempts.record(&IDENTITY, Duration::ZERO).unwrap().unwrap();
        std::fs::write(folder.path().join("a/b").join(name_of(&IDENTITY)), "{\"boot\":\"x\",").unwrap();
        assert_eq!(record.attempt(), None);
    }
}
