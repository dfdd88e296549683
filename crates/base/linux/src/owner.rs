//! Whose a program is, and who runs it.

use crate::attributes;
use crate::text::text_of;
use nix::unistd::geteuid;
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const ROOT: u32 = 0;
/// The access control list of a file (acl(5)): a version of four bytes, then entries of tag, permissions and ID.
const ACCESS_LIST: &CStr = c"system.posix_acl_access";
/// The longest list that is read, in bytes: 511 entries.
const LONGEST_LIST: usize = 4096;
/// `ACL_USER` and `ACL_GROUP` of linux/posix_acl.h: entries for a user or group with an ID.
const NAMED: [u16; 2] = [2, 8];
/// `ACL_WRITE`.
const WRITE: u16 = 2;

/// True if a file of this user may control this process. The trusted users are root and this process's user.
pub fn is_trusted(owner: u32) -> bool {
    owner == ROOT || owner == geteuid().as_raw()
}

/// True where root or this process's user owns the file.
pub fn is_of_trusted_user(file: &Metadata) -> bool {
    is_trusted(file.uid())
}

/// True where root or this process's user owns the file that a process executes. A file system that does not answer is not
/// waited for.
pub fn executes_trusted_file(pid: i32) -> bool {
    let Ok(path) = CString::new(format!("/proc/{pid}/exe")) else { return false };
    linux_raw::cached_status(&path).is_ok_and(|status| is_trusted(status.stx_uid))
}

/// The real user ID of a process, which the owner of its files in `/proc` need not be.
pub fn user_of(pid: i32) -> Option<u32> {
    let status = text_of(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

/// The user to whom a process counts. A user who has subordinate IDs can have processes of thousands of IDs in a user namespace:
/// there it is the user who has made the outermost namespace that is not this program's, unless that is root.
pub fn accountable_user_of(pid: i32) -> Option<u32> {
    let maker = maker_of_namespace(pid).filter(|maker| *maker != ROOT);
    maker.or_else(|| user_of(pid))
}

/// The user who has made the outermost user namespace of a process; `None` for a process in this program's namespace.
fn maker_of_namespace(pid: i32) -> Option<u32> {
    let identity = |file: &File| file.metadata().ok().map(|found| (found.dev(), found.ino()));
    let own = identity(&File::open("/proc/self/ns/user").ok()?)?;
    let mut namespace = File::open(format!("/proc/{pid}/ns/user")).ok()?;
    if identity(&namespace)? == own {
        return None;
    }
    // No parent is shown of this program's own namespace and above it (ioctl_nsfs(2)).
    while let Some(parent) = parent_of(&namespace).filter(|parent| identity(parent) != Some(own)) {
        namespace = parent;
    }
    let mut user = 0u32;
    // SAFETY:
    // - the kernel writes one user ID of four bytes.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID as libc::Ioctl, &raw mut user) };
    (result == 0).then_some(user)
}

fn parent_of(namespace: &File) -> Option<File> {
    // SAFETY:
    // - the call takes no argument, and returns a new descriptor.
    let parent = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT as libc::Ioctl) };
    // SAFETY:
    // - the descriptor is new, and nobody else has it.
    (parent >= 0).then(|| unsafe { File::from_raw_fd(parent) })
}

/// Opens the parent of a namespace (`linux/nsfs.h`; Linux 4.9).
pub const NS_GET_PARENT: u32 = 0xb702;
/// Returns the user who has made a user namespace (`linux/nsfs.h`; Linux 4.11).
pub const NS_GET_OWNER_UID: u32 = 0xb704;

/// A part of a path that others than root can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignPart {
    /// The file, or the folder on the way to it.
    pub path: PathBuf,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    mode: u32,
}

impl fmt::Display for ForeignPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, user, mode, .. } = self;
        match *user {
            ROOT => write!(f, "{} has mode {mode:o}, with which others than root can write to it", path.display()),
            user => write!(f, "{} belongs to user {user}", path.display()),
        }
    }
}

/// Period during which a path must lead to the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// Now. In a folder with the sticky bit, such as /tmp, nobody can exchange what is root's.
    Now,
    /// After each boot. A file in such a folder may be gone by then, and another user may have put another file there.
    EachBoot,
}

/// Finds a part of a path, from `/` to the file itself, that others than root can change: one that another user owns, that
/// everybody may write to, or a group other than root's, or a user of its access control list. Links are resolved; what they
/// lead through counts as well.
///
/// # Errors
/// The path cannot be resolved or examined.
pub fn foreign_part(path: &Path, lasting: Lasting) -> io::Result<Option<ForeignPart>> {
    // Both the named path, since a link in a user's folder belongs to that user, and the path that it resolves to.
    let named = std::path::absolute(path)?;
    for path in [named.canonicalize()?, named] {
        let mut parts: Vec<&Path> = path.ancestors().collect();
        parts.reverse();
        for part in parts {
            let found = part.symlink_metadata()?;
            let (user, group, mode) = (found.uid(), found.gid(), found.mode() & 0o7777);
            let is_sticky = found.is_dir() && mode & 0o1000 != 0 && lasting == Lasting::Now;
            // Bits of the group are the most that a list permits, if there is one.
            let may_write = mode & 0o002 != 0 || (mode & 0o020 != 0 && (group != ROOT || is_listed_for_others(part)));
            if user != ROOT || (may_write && !is_sticky && !found.file_type().is_symlink()) {
                return Ok(Some(ForeignPart { path: part.to_owned(), user, group, mode }));
            }
        }
    }
    Ok(None)
}

/// True if the access control list of a file permits a user or a group other than root to write.
fn is_listed_for_others(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut list = [0; LONGEST_LIST];
    let length = match attributes::get(&path, ACCESS_LIST, &mut list) {
        Ok(length) => length,
        // So many entries are not all root's.
        Err(error) => return error.raw_os_error() == Some(libc::ERANGE),
    };
    let mut entries = list[..length].get(4..).unwrap_or_default().chunks_exact(8);
    entries.any(|entry| {
        let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let is_root = entry[4..] == [0; 4];
        NAMED.contains(&half(0)) && half(2) & WRITE != 0 && !is_root
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::process::{Child, Command, Stdio};

    #[test]
    fn what_others_can_change_is_found() {
        if !geteuid().is_root() {
            return;
        }
        let foreign_part = |path: &Path| foreign_part(path, Lasting::Now);
        let folder = tempfile::tempdir_in("/run").unwrap();
        let (inner, file) = (folder.path().join("inner"), folder.path().join("inner/file"));
        fs::create_dir(&inner).unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(foreign_part(&file).unwrap(), None);
        for (path, mode, owner) in [(&inner, 0o777, 0), (&inner, 0o755, 7), (&file, 0o755, 7), (&file, 0o757, 0)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            chown(path, Some(owner), None).unwrap();
            let found = foreign_part(&file).unwrap().unwrap();
            assert_eq!((&found.path, found.user), (path, owner), "{found}");
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
            chown(path, Some(0), None).unwrap();
        }
        let link = folder.path().join("link");
        symlink(&file, &link).unwrap();
        assert_eq!(foreign_part(&link).unwrap(), None);
        fs::set_permissions(&inner, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(foreign_part(&link).unwrap().map(|found| found.path), Some(inner.clone()));
        fs::set_permissions(&inner, Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(foreign_part(&file).unwrap(), None);
        assert_eq!(super::foreign_part(&file, Lasting::EachBoot).unwrap().map(|found| found.path), Some(inner));
    }

    #[test]
    fn a_list_may_permit_others_to_write() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = File::open(folder.path()).unwrap();
        let entry = |tag: u16, permissions: u16, id: u32| {
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
        };
        let is_listed = |tag: u16, permissions: u16, id: u32| {
            let none = u32::MAX;
            let [owner, group, others] = [(1, 7), (4, 5), (32, 5)].map(|(tag, may)| entry(tag, may, none));
            let named = entry(tag, permissions, id);
            // The kernel needs this order: entries of users precede the group's entry, and entries of groups follow.
            let entries = if tag == NAMED[0] { [owner, named, group] } else { [owner, group, named] };
            let list = [2u32.to_le_bytes().to_vec(), entries.concat(), entry(16, 7, none), others].concat();
            attributes::set(&file, ACCESS_LIST, &list).map(|()| is_listed_for_others(folder.path()))
        };
        // Not every kernel has lists on tmpfs.
        let Ok(found) = is_listed(NAMED[0], 7, 77) else { return };
        assert!(found && is_listed(NAMED[1], 2, 77).unwrap());
        assert!(!is_listed(NAMED[0], 5, 77).unwrap() && !is_listed(NAMED[1], 7, ROOT).unwrap());
        assert!(!is_listed_for_others(Path::new("/nowhere")));
        if geteuid().is_root() {
            assert!(is_listed(NAMED[0], 7, 77).unwrap());
            let found = foreign_part(folder.path(), Lasting::Now).unwrap().unwrap();
            assert_eq!((found.path.as_path(), found.user), (folder.path(), ROOT));
        }
    }

    /// Starts a program that waits for its input to end, and returns once it runs.
    fn waiting(words: &[&str]) -> (Child, i32) {
        let mut command = Command::new(words[0]);
        let wait = ["sh", "-c", "echo; read end"];
        let mut child =
            command.args(&words[1..]).args(wait).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = child.id() as i32;
        (child, pid)
    }

    #[test]
    fn processes_of_subordinate_ids_count_to_their_user() {
        let own = std::process::id() as i32;
        assert_eq!((accountable_user_of(own), maker_of_namespace(own)), (user_of(own), None));
        if !geteuid().is_root() {
            return;
        }
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "--user"];
        let may_unshare = Command::new(user[0]).args(&user[1..]).arg("true").status();
        if !may_unshare.is_ok_and(|status| status.success()) {
            return;
        }
        let (mut maker, pid) = waiting(&user);
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{pid}/{map}"), "0 65534 1\n1 100000 10\n").unwrap();
        }
        let target = format!("--target={pid}");
        let (mut other, inner) = waiting(&["nsenter", "--user", &target, "setpriv", "--reuid=5"]);
        let (mut nested, innermost) =
            waiting(&["nsenter", "--user", &target, "setpriv", "--reuid=6", "unshare", "--user"]);
        let found = [inner, innermost].map(|pid| (user_of(pid), accountable_user_of(pid)));
        for child in [&mut nested, &mut other, &mut maker] {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        assert_eq!(found, [(Some(100_004), Some(65534)), (Some(100_005), Some(65534))]);
    }

    #[test]
    fn this_program_and_its_user_are_known() {
        let own = std::process::id() as i32;
        assert_eq!(user_of(own), Some(nix::unistd::getuid().as_raw()));
        let owner = std::fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(executes_trusted_file(own), is_of_trusted_user(&owner));
        assert!(is_trusted(ROOT) && !is_trusted(u32::MAX));
    }
}
