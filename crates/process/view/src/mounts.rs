//! The file systems that a process sees mounted, as mountinfo lists them.

use crate::ProcessFiles;
use linux::bounded::KERNEL_TEXT;
use linux::unasked::Unasked;
use linux::watch::watched;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::close;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Major and minor number of a file system's device, as maps and mountinfo have them.
pub(crate) type Device = (u32, u32);

/// The device and the mount of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileMount {
    pub device: Device,
    /// Number of the mount in mountinfo, where it is known.
    pub mount: Option<u64>,
}

impl From<&Unasked> for FileMount {
    fn from(found: &Unasked) -> Self {
        Self { device: found.device, mount: found.mount }
    }
}

/// The mounts that a process sees, and whose answers are waited for there.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    by_number: BTreeMap<u64, Mount>,
    by_device: BTreeMap<Device, Mount>,
}

/// One mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub kind: String,
    /// `user_id` of FUSE: who serves it.
    pub user: Option<u32>,
}

impl Mount {
    /// True for a file system that a program serves.
    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.") || self.kind == "fuseblk"
    }
}

impl Mounts {
    /// Fields as in proc_pid_mountinfo(5): the device is the third; the type, the source and the file system's own options
    /// follow the lone hyphen.
    pub fn parse(mountinfo: &str) -> Self {
        let mount = |line: &str| {
            let (before, after) = line.split_once(" - ")?;
            let mut before = before.split(' ');
            let number = before.next()?.parse::<u64>().ok()?;
            let (major, minor) = before.nth(1)?.split_once(':')?;
            let mut after = after.split(' ');
            let (kind, options) = (after.next()?.to_owned(), after.nth(1).unwrap_or_default());
            let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
            Some((number, (major.parse().ok()?, minor.parse().ok()?), Mount { kind, user }))
        };
        let mut mounts = Self::default();
        for (number, device, mount) in mountinfo.lines().filter_map(mount) {
            mounts.by_number.insert(number, mount.clone());
            mounts.by_device.insert(device, mount);
        }
        mounts
    }

    /// btrfs has separate devices for its subvolumes, which mountinfo does not list; the number of the mount identifies it.
    pub fn find(&self, place: &FileMount) -> Option<&Mount> {
        let by_number = place.mount.and_then(|number| self.by_number.get(&number));
        by_number.or_else(|| self.by_device.get(&place.device))
    }

    /// The devices of the file systems of a type.
    pub fn devices_of(&self, kind: &str) -> Vec<Device> {
        self.by_device.iter().filter(|(_, mount)| mount.kind == kind).map(|(device, _)| *device).collect()
    }
}

/// The current mounts of one namespace. The kernel reuses the numbers of unmounted file systems, so an old list is wrong, not
/// only incomplete.
#[derive(Debug)]
pub(crate) struct MountList {
    path: PathBuf,
    last: Mutex<Read>,
}

/// The list as it was last read.
#[derive(Debug, Default)]
struct Read {
    /// An open mountinfo file, which can be polled for changes. `None` where it cannot be opened.
    file: Option<Watched>,
    mounts: Mounts,
}

impl MountList {
    /// Reads the mounts that a process sees. Later changes are found without the right to read the process, as long as nobody
    /// closes this program's descriptors.
    pub fn of(files: &ProcessFiles) -> Self {
        Self::at(&files.path("mountinfo"))
    }

    fn at(mountinfo: &Path) -> Self {
        Self { path: mountinfo.to_owned(), last: Mutex::new(Read::new(mountinfo)) }
    }

    /// The mounts of this moment.
    pub fn current(&self) -> Current<'_> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.file.as_ref().is_some_and(Watched::has_changed) {
            *last = Read::new(&self.path);
        }
        Current(last)
    }
}

/// The list, locked while it is read.
pub(crate) struct Current<'a>(MutexGuard<'a, Read>);

impl Deref for Current<'_> {
    type Target = Mounts;

    fn deref(&self) -> &Mounts {
        &self.0.mounts
    }
}

impl Read {
    fn new(mountinfo: &Path) -> Self {
        let file = File::open(mountinfo).ok();
        // A list that cannot be read names nothing, and what nobody names is not asked.
        let mounts = file.as_ref().and_then(|file| read(file).ok()).unwrap_or_default();
        Self { file: file.and_then(Watched::new), mounts }
    }
}

/// An open file that detects whether other code has closed its descriptor: a helper closes all inherited descriptors, and the
/// number may belong to another file afterwards.
#[derive(Debug)]
struct Watched {
    file: ManuallyDrop<File>,
    identity: (u64, u64),
}

impl Watched {
    fn new(file: File) -> Option<Self> {
        let identity = identity(&file)?;
        Some(Self { file: ManuallyDrop::new(file), identity })
    }

    fn is_open(&self) -> bool {
        identity(&self.file) == Some(self.identity)
    }

    fn has_changed(&self) -> bool {
        !self.is_open() || has_changed(&self.file)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let file = self.file.as_raw_fd();
        if self.is_open() {
            let _ = close(file);
        }
    }
}

fn identity(file: &File) -> Option<(u64, u64)> {
    file.metadata().ok().map(|found| (found.dev(), found.ino()))
}

/// True if something was mounted or unmounted since the last call, or since the file was opened (proc_pid_mounts(5)).
fn has_changed(mountinfo: &File) -> bool {
    let mut asked = [PollFd::new(mountinfo.as_fd(), PollFlags::POLLPRI)];
    poll(&mut asked, PollTimeout::ZERO).is_err() || asked[0].any().unwrap_or(true)
}

fn read(mut mountinfo: &File) -> io::Result<Mounts> {
    let text = watched(
        || "reading the list of mounts".to_owned(),
        || mountinfo.rewind().and_then(|()| KERNEL_TEXT.read_rest(mountinfo)),
    )?;
    Ok(Mounts::parse(&String::from_utf8_lossy(&text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::unasked;
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    use nix::sched::{CloneFlags, unshare};
    use std::thread;

    #[test]
    fn a_list_whose_descriptor_was_closed_is_read_again() {
        let list = MountList::of(&ProcessFiles::own());
        let count = list.current().by_number.len();
        let number = list.last.lock().unwrap().file.as_ref().unwrap().file.as_raw_fd();
        // As by a helper; another file takes the number.
        close(number).unwrap();
        let other = File::open("/dev/null").unwrap();
        assert!(count > 0 && list.current().by_number.len() == count);
        drop(list);
        assert!(other.metadata().is_ok(), "a file of others was closed");
    }

    /// Only root may create the thread's separate mount namespace, which ends with the thread.
    #[test]
    fn what_is_mounted_later_is_found_and_what_is_unmounted_is_not() {
        let changed = || -> Option<()> {
            unshare(CloneFlags::CLONE_NEWNS).ok()?;
            let no = None::<&str>;
            mount(no, "/", no, MsFlags::MS_REC | MsFlags::MS_PRIVATE, no).ok()?;
            let list = MountList::at(Path::new("/proc/thread-self/mountinfo"));
            let folder = std::env::temp_dir();
            let place = || FileMount::from(&unasked::of(unasked::place(Path::new(&folder)).unwrap()).unwrap());
            for kind in ["tmpfs", "ramfs"] {
                mount(Some("none"), &folder, Some(kind), MsFlags::empty(), no).ok()?;
                let found = place();
                assert_eq!(list.current().find(&found).unwrap().kind, kind);
                umount2(&folder, MntFlags::MNT_DETACH).unwrap();
                assert!(list.current().find(&found).is_none(), "{kind} is still listed");
            }
            Some(())
        };
        let changed = thread::spawn(changed).join().unwrap();
        assert_eq!(changed.is_some(), nix::unistd::geteuid().is_root());
    }
}
