//! File systems that a user's program serves (FUSE), and their files. A read of such a file waits for that program.
//!
//! The kernel lists mounted file systems with their devices, and maps shows the device of each mapped file, so that such a
//! file is recognised before it is asked for anything. Programs of root, and of the user who runs Pagelift, are trusted to
//! answer. A mount that neither this program's nor the process's namespace shows may be anything.

use crate::mounts::{Device, FileMount, MountList, Mounts};
use crate::{ProcessFiles, ProcessRights};
use address_space::{AddressSpace, Mapping, RangeSet};
use linux::unasked;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;

/// Why a file is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// The file is on a file system that a program of this user serves.
    ByUser {
        /// The type, such as `fuse.sshfs`.
        kind: String,
        /// The user, if the mount's options name one.
        user: Option<u32>,
    },
    /// The file system was mounted in a separate user namespace, over file systems that users of the namespace may serve.
    InUserNamespace {
        /// The type.
        kind: String,
    },
    /// The file system is mounted neither in this program's namespace nor in the process's namespace.
    Unknown {
        /// Its device.
        device: Device,
    },
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByUser { kind, user: Some(user) } => {
                write!(f, "it is on a file system ({kind}) that a program of user {user} serves")?;
            }
            Self::ByUser { kind, user: None } => {
                write!(f, "it is on a file system ({kind}) that a user's program serves")?
            }
            Self::InUserNamespace { kind } => {
                write!(f, "it is on a file system ({kind}) that was mounted in another user namespace")?;
            }
            Self::Unknown { device: (major, minor) } => {
                write!(
                    f,
                    "it is on a file system (device {major}:{minor}) that is mounted neither here nor in its process"
                )?;
            }
        }
        f.write_str(", which may never answer, and is not read; fix: run this command as the user of the process")
    }
}

/// The mounts of this program's namespace.
fn own_mounts() -> &'static MountList {
    static OWN: OnceLock<MountList> = OnceLock::new();
    OWN.get_or_init(|| MountList::of(&ProcessFiles::own()))
}

fn is_shared_memory(device: Device) -> bool {
    static OWN: OnceLock<Option<Device>> = OnceLock::new();
    *OWN.get_or_init(|| unasked::device_of_shared_memory().ok()) == Some(device)
}

/// True for a file system on a block device: only root can mount such a file system of FUSE.
fn is_on_disk((major, _): Device) -> bool {
    major != 0
}

/// The devices of the tmpfs file systems that are mounted for this program or for a process, and of the kernel's internal one,
/// which holds shared memory without a file.
#[derive(Clone, Debug, Default)]
pub struct TmpfsDevices {
    mounted: BTreeSet<Device>,
    internal: Option<Device>,
}

impl TmpfsDevices {
    /// Reads the mounts of this program and of a process.
    pub fn seen_by(process: &ProcessFiles) -> Self {
        let theirs = MountList::of(process);
        let mounted = [own_mounts(), &theirs].iter().flat_map(|list| list.current().devices_of("tmpfs")).collect();
        Self { mounted, internal: unasked::device_of_shared_memory().ok() }
    }

    /// True for the kernel's internal tmpfs.
    pub fn is_internal(&self, device: (u32, u32)) -> bool {
        self.internal == Some(device)
    }

    /// True for any tmpfs.
    pub fn contains(&self, device: (u32, u32)) -> bool {
        self.is_internal(device) || self.mounted.contains(&device)
    }
}

/// Tells which files one process has on file systems that are not asked.
#[derive(Debug)]
pub(crate) struct Servers {
    process: ProcessFiles,
    view: OnceLock<View>,
}

/// Relation of a process to this program.
#[derive(Debug)]
enum View {
    /// It belongs to the same user in the same namespaces, or to the ordinary user who runs Pagelift.
    Own,
    /// Mounts of the process's namespace; `None` if it is this program's namespace.
    Foreign { mounts: Option<MountList>, own_user_namespace: bool },
}

impl Servers {
    /// Nothing is read yet.
    pub fn of(process: &ProcessFiles) -> Self {
        Self { process: process.clone(), view: OnceLock::new() }
    }

    /// Reads everything that [`Servers::refuse`] may need. This requires the right to read the process.
    pub fn read(&self) {
        self.view();
        own_mounts();
    }

    fn view(&self) -> &View {
        self.view.get_or_init(|| View::of(&self.process))
    }

    /// Why files of this file system are not read; `None` where they may be.
    pub fn refuse(&self, place: &FileMount) -> Option<Served> {
        if is_on_disk(place.device) {
            return None;
        }
        match self.view() {
            View::Own => None,
            View::Foreign { mounts, own_user_namespace } => {
                let theirs = mounts.as_ref().map(MountList::current);
                refuse(place, &own_mounts().current(), theirs.as_deref(), *own_user_namespace, own_user())
            }
        }
    }

    /// True if no file is refused.
    pub fn trust_all(&self) -> bool {
        matches!(self.view(), View::Own)
    }

    /// The mappings whose pages are not read.
    pub fn refused_ranges(&self, space: &AddressSpace) -> RangeSet {
        let mapped = space.mappings().iter().filter(|mapping| mapping.inode != 0 && !is_on_disk(mapping.device));
        let place = |mapping: &Mapping| FileMount { device: mapping.device, mount: None };
        mapped.filter(|mapping| self.refuse(&place(mapping)).is_some()).map(|mapping| mapping.range).collect()
    }
}

impl View {
    fn of(process: &ProcessFiles) -> Self {
        let own = ProcessFiles::own();
        let user = own_user();
        let is_own_user = || ProcessRights::users_of(process).is_some_and(|users| users.iter().all(|id| *id == user));
        let same = |name: &str| {
            let link = |files: &ProcessFiles| std::fs::read_link(files.path(name)).ok();
            link(process).is_some_and(|found| Some(found) == link(&own))
        };
        let is_own = is_own_user();
        if is_own && user != 0 {
            return Self::Own;
        }
        let (mounts, users) = (same("ns/mnt"), same("ns/user"));
        match is_own && mounts && users {
            true => Self::Own,
            false => Self::Foreign { mounts: (!mounts).then(|| MountList::of(process)), own_user_namespace: users },
        }
    }
}

/// Why a file of this program's own namespace is not read by user `user`; `None` where it may be.
pub(crate) fn refuse_here(place: &FileMount) -> Option<Served> {
    if is_on_disk(place.device) {
        return None;
    }
    let own = own_mounts().current();
    refuse(place, &own, Some(&own), true, own_user())
}

fn own_user() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Pure: `own` has the mounts of this program's namespace, `theirs` has the mounts of the process's namespace if it is
/// another one.
fn refuse(
    place: &FileMount,
    own: &Mounts,
    theirs: Option<&Mounts>,
    own_user_namespace: bool,
    user: u32,
) -> Option<Served> {
    if let Some(mount) = own.find(place) {
        // A user namespace numbers its users itself, but its mounts do not appear here.
        let is_trusted = !mount.is_fuse() || mount.user.is_some_and(|server| server == 0 || server == user);
        return (!is_trusted).then(|| Served::ByUser { kind: mount.kind.clone(), user: mount.user });
    }
    match theirs.and_then(|mounts| mounts.find(place)) {
        Some(mount) if mount.is_fuse() => Some(Served::ByUser { kind: mount.kind.clone(), user: None }),
        // Its layers may be served by whoever has mounted it.
        Some(mount) if mount.kind == "overlay" && !own_user_namespace => {
            Some(Served::InUserNamespace { kind: mount.kind.clone() })
        }
        Some(_) => None,
        None if is_shared_memory(place.device) => None,
        None => Some(Served::Unknown { device: place.device }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
25 30 0:23 / /proc rw,relatime shared:12 - proc proc rw
30 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
31 30 0:50 / /home/u/mnt rw,nosuid,nodev shared:9 - fuse.sshfs host: rw,user_id=1000,group_id=1000
32 30 0:51 / /pool rw - fuse.mergerfs a:b rw,user_id=0,group_id=0,allow_other
33 30 0:52 / /srv rw - overlay overlay rw,lowerdir=/a
34 30 0:53 / /odd rw - fuse x rw
no mount
";
    const OTHERS: &str = "\
40 1 0:60 / / rw - overlay overlay rw,lowerdir=/x
41 40 0:61 / /mnt rw - fuse y rw,user_id=0,group_id=0
42 40 0:62 / /tmp rw - tmpfs tmpfs rw
";

    fn refused(device: Device, own_user_namespace: bool, user: u32) -> Option<Served> {
        let place = FileMount { device, mount: None };
        refuse(&place, &Mounts::parse(MOUNTS), Some(&Mounts::parse(OTHERS)), own_user_namespace, user)
    }

    #[test]
    fn servers_of_root_and_of_this_user_are_asked() {
        let kind = "fuse.sshfs".to_owned();
        assert_eq!(refused((0, 50), true, 0), Some(Served::ByUser { kind, user: Some(1000) }));
        assert_eq!(refused((0, 50), true, 1000), None);
        assert!([(0, 51), (0, 52), (0, 23), (254, 0)].iter().all(|device| refused(*device, true, 0).is_none()));
        assert!(refused((0, 53), true, 0).is_some(), "nobody is named");
    }

    #[test]
    fn the_number_of_the_mount_tells_where_the_device_does_not() {
        let found = |mount| refuse(&FileMount { device: (0, 99), mount }, &Mounts::parse(MOUNTS), None, true, 0);
        assert_eq!((found(Some(33)), found(Some(7)).is_some(), found(Some(31)).is_some()), (None, true, true));
    }

    #[test]
    fn in_another_namespace_nobody_is_trusted_to_serve() {
        assert!(matches!(refused((0, 61), true, 0), Some(Served::ByUser { user: None, .. })));
        assert!(refused((0, 60), true, 0).is_none() && refused((0, 62), false, 0).is_none());
        assert!(matches!(refused((0, 60), false, 0), Some(Served::InUserNamespace { .. })));
        assert_eq!(refused((0, 99), true, 0), Some(Served::Unknown { device: (0, 99) }));
        let shared = unasked::device_of_shared_memory().unwrap();
        assert_eq!(refused(shared, false, 0), None);
    }

    #[test]
    fn tmpfs_is_known_by_its_device() {
        let devices = TmpfsDevices::seen_by(&ProcessFiles::of(std::process::id() as i32));
        let shared = unasked::device_of_shared_memory().unwrap();
        assert!(devices.is_internal(shared) && devices.contains(shared));
        let on_shm = tempfile::tempfile_in("/dev/shm").unwrap();
        let place = unasked::of(&on_shm).unwrap().device;
        assert!(devices.contains(place) && !devices.is_internal(place));
        assert!(!devices.contains(unasked::of(std::fs::File::open("/proc/self/stat").unwrap()).unwrap().device));
    }

    #[test]
    fn own_files_are_read() {
        let process = ProcessFiles::of(std::process::id() as i32);
        let space = process.maps().unwrap();
        let servers = Servers::of(&process);
        assert!(servers.refused_ranges(&space).is_empty());
        let nowhere = FileMount { device: (0, 4_000_000), mount: None };
        assert_eq!(servers.refuse(&nowhere), None, "its own mounts are not even read");
    }

    #[test]
    fn a_message_says_whose_it_is() {
        let said = refused((0, 50), true, 0).unwrap().to_string();
        assert!(said.contains("(fuse.sshfs) that a program of user 1000 serves, which may never answer"), "{said}");
    }
}
