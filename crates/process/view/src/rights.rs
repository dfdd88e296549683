//! Rights of a process, to be compared with this program's rights before it executes a program that the process chose.

use crate::{ObservationError, ProcessFiles};
use address_space::FileNumbers;
use linux::unasked;
use nix::libc;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// The namespaces of a process (namespaces(7)), as links in `/proc/PID/ns`.
const NAMESPACES: [&str; 8] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];

/// Identity and rights of a process, as `/proc` shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRights {
    /// Real, effective, saved and file system user ID.
    pub users: [u32; 4],
    /// Real, effective, saved and file system group ID.
    pub group_ids: [u32; 4],
    /// Supplementary groups.
    pub groups: BTreeSet<u32>,
    /// Inheritable, permitted, bounding and ambient capabilities.
    capabilities: [u64; 4],
    /// No program that it executes gains privileges.
    pub no_new_privileges: bool,
    /// Mode of seccomp and number of filters.
    seccomp: (u64, u64),
    /// The namespaces' links; `None` where the kernel has no such namespace.
    namespaces: [Option<PathBuf>; 8],
    /// Device and inode of its root folder.
    root: FileNumbers,
    /// The label of the security module; empty without one.
    label: Vec<u8>,
}

/// A right that this program has and a process has not, or an identity in which they differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RightsDifference {
    /// Other user or group IDs, or other groups.
    User,
    /// Anything else, in words that follow "it has".
    Other(&'static str),
}

impl ProcessRights {
    /// Reads the rights of process `pid`.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn of(pid: i32) -> Result<Self, ObservationError> {
        let files = ProcessFiles::of(pid);
        let failed = |name: &str, source| files.explain(&files.path(name), source);
        let status = files.text("status")?;
        let parsed = StatusRights::parse(&status).ok_or(std::io::ErrorKind::InvalidData.into());
        let status = parsed.map_err(|error| failed("status", error))?;
        let mut namespaces = [const { None }; 8];
        for (name, place) in NAMESPACES.iter().zip(&mut namespaces) {
            let path = format!("ns/{name}");
            match fs::read_link(files.path(&path)) {
                Ok(link) => *place = Some(link),
                // A kernel without this namespace.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && files.path("ns").exists() => {}
                Err(error) => return Err(failed(&path, error)),
            }
        }
        // Its root may be a file system that its user serves, which is not asked.
        let root = unasked::place(&files.path("root")).and_then(unasked::of).map_err(|error| failed("root", error))?;
        let label = match files.bytes("attr/current") {
            Ok(label) => label,
            Err(ObservationError::Io { source, .. }) if is_without_labels(&source) => Vec::new(),
            Err(error) => return Err(error),
        };
        let StatusRights { users, group_ids, groups, capabilities, no_new_privileges, seccomp } = status;
        let root = FileNumbers { device: root.device, inode: root.inode };
        Ok(Self { users, group_ids, groups, capabilities, no_new_privileges, seccomp, namespaces, root, label })
    }

    /// The real, effective, saved and file system user ID of a process, as far as `/proc` shows them.
    pub(crate) fn users_of(files: &ProcessFiles) -> Option<[u32; 4]> {
        Some(StatusRights::parse(&files.text("status").ok()?)?.users)
    }

    /// Returns a right that a program started with these rights has and a program started with `other` lacks; `None` if
    /// there is no such right. `no_new_privs` is not compared: it can be set before the start.
    pub fn exceeds(&self, other: &Self) -> Option<RightsDifference> {
        let is_one = |ids: &[u32; 4]| ids.iter().all(|id| *id == ids[0]);
        let identity = |rights: &Self| (rights.users, rights.group_ids, rights.groups.clone());
        if !is_one(&other.users) || !is_one(&other.group_ids) || identity(self) != identity(other) {
            return Some(RightsDifference::User);
        }
        let differs = [
            (self.namespaces[0] != other.namespaces[0], "another user namespace"),
            (self.namespaces != other.namespaces, "other namespaces, as in a container"),
            (self.root != other.root, "another root folder"),
            (self.has_more_capabilities(other), "fewer capabilities"),
            (other.seccomp.0 != 0 && self.seccomp != other.seccomp, "a seccomp filter of its own"),
            (self.label != other.label, "another label of the security module"),
        ];
        differs.into_iter().find(|(differs, _)| *differs).map(|(_, what)| RightsDifference::Other(what))
    }

    /// Without root's user ID and with no_new_privs, nothing brings a capability of the bounding set.
    fn has_more_capabilities(&self, other: &Self) -> bool {
        let [inheritable, permitted, bounding, ambient] =
            std::array::from_fn(|set| self.capabilities[set] & !other.capabilities[set]);
        let bounding_counts = other.users[0] == 0 || !other.no_new_privileges;
        (inheritable | permitted | ambient) != 0 || bounding_counts && bounding != 0
    }
}

/// A kernel or a security module without labels of processes.
fn is_without_labels(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP))
}

/// Rights that `/proc/PID/status` shows (proc_pid_status(5)).
struct StatusRights {
    users: [u32; 4],
    group_ids: [u32; 4],
    groups: BTreeSet<u32>,
    capabilities: [u64; 4],
    no_new_privileges: bool,
    seccomp: (u64, u64),
}

impl StatusRights {
    /// `None` where a field is missing that every kernel has.
    fn parse(text: &str) -> Option<Self> {
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let ids = |name| {
            let all: Option<Vec<u32>> = field(name)?.split_whitespace().map(|id| id.parse().ok()).collect();
            all?.try_into().ok()
        };
        let set = |name| u64::from_str_radix(field(name)?, 16).ok();
        let number = |name| field(name)?.parse::<u64>().ok();
        let groups: Option<_> = field("Groups")?.split_whitespace().map(|group| group.parse().ok()).collect();
        Some(Self {
            users: ids("Uid")?,
            group_ids: ids("Gid")?,
            groups: groups?,
            // Ambient ones since Linux 4.3.
            capabilities: [set("CapInh")?, set("CapPrm")?, set("CapBnd")?, set("CapAmb").unwrap_or(0)],
            no_new_privileges: number("NoNewPrivs")? != 0,
            // Missing in a kernel without seccomp; the number of filters came with Linux 5.10.
            seccomp: (number("Seccomp").unwrap_or(0), number("Seccomp_filters").unwrap_or(u64::MAX)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> ProcessRights {
        ProcessRights::of(std::process::id() as i32).unwrap()
    }

    #[test]
    fn a_process_does_not_exceed_itself() {
        let own = own();
        let is_one_user = own.users.iter().all(|user| *user == own.users[0]);
        assert!(is_one_user && own.exceeds(&own).is_none(), "{own:?}");
    }

    #[test]
    fn every_right_that_is_missing_is_seen() {
        let own = ProcessRights { capabilities: [0, 6, 7, 0], seccomp: (0, 0), ..own() };
        let missing = |change: fn(&mut ProcessRights)| {
            let mut other = own.clone();
            change(&mut other);
            own.exceeds(&other)
        };
        for change in [
            (|other| other.users[2] += 1) as fn(&mut ProcessRights),
            |other| other.users = [other.users[0] + 1; 4],
            |other| other.group_ids = [other.group_ids[0] + 1; 4],
            |other| other.groups.extend([u32::MAX - 1]),
        ] {
            assert_eq!(missing(change), Some(RightsDifference::User));
        }
        for (change, what) in [
            ((|other| other.namespaces[0] = Some("user:[1]".into())) as fn(&mut ProcessRights), "user namespace"),
            (|other| other.namespaces[1] = Some("mnt:[1]".into()), "container"),
            (|other| other.namespaces[7] = Some("time:[1]".into()), "container"),
            (|other| other.root.inode += 1, "root folder"),
            (|other| other.capabilities[1] = 2, "capabilities"),
            (|other| (other.users, other.capabilities[2]) = ([0; 4], 3), "capabilities"),
            (|other| other.seccomp = (2, 1), "seccomp"),
            (|other| other.label.push(b'x'), "label"),
        ] {
            let own = ProcessRights { users: [0; 4], ..own.clone() };
            let mut other = own.clone();
            change(&mut other);
            assert!(
                matches!(own.exceeds(&other), Some(RightsDifference::Other(said)) if said.contains(what)),
                "{what}"
            );
        }
        // More than this program has is no reason.
        assert_eq!(missing(|other| other.capabilities = [u64::MAX; 4]), None);
        let user = ProcessRights { users: [1; 4], capabilities: [0, 0, 7, 0], ..own.clone() };
        let without = ProcessRights { no_new_privileges: true, capabilities: [0; 4], ..user.clone() };
        assert_eq!(user.exceeds(&without), None);
    }

    #[test]
    fn a_status_without_ids_is_none() {
        assert!(StatusRights::parse("Name:\tx\n").is_none());
        let text = "Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapInh:\t0\nCapPrm:\ta\nCapBnd:\tff\n\
                    CapAmb:\t0\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n";
        let found = StatusRights::parse(text).unwrap();
        assert_eq!((found.users, found.group_ids, found.capabilities), ([1, 2, 3, 4], [5, 6, 7, 8], [0, 10, 255, 0]));
        assert!(found.no_new_privileges && found.seccomp == (2, 3) && found.groups == BTreeSet::from([9, 10]));
    }
}
