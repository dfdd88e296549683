//! Determines who can read a source and who can change it, from its mode, its folders and their access control lists.
//!
//! The rules are simpler than the kernel's and never grant more: a file is readable by everybody if no user and no
//! group is denied any right that reading it needs. Automatic images are made only from files on which the kernel would
//! honour a set-user-ID bit for root, so a user who can change or exchange such a file does not need an image to harm
//! others.

use linux::attributes;
use linux::file_systems::XFS_SUPER_MAGIC;
use linux::watch::watched;
use nix::errno::Errno;
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, statfs,
};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::AccessFlags;
use process_view::{FileIdentity, FoundFile};
use std::ffi::{CStr, CString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Images belong to this user.
pub(crate) const ROOT: u32 = 0;

/// Read permission of owner, group and others (inode(7)).
const READ_BY_ALL: u32 = 0o444;
/// Search permission of a folder, of the same.
const SEARCH_BY_ALL: u32 = 0o111;
/// Write permission of group and others.
const WRITE_BY_OTHERS: u32 = 0o022;
/// The access control list of a file (acl(5)); its group bits are the most that any named user or group gets.
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// File systems on which mode and [`ACCESS_LIST`] are the only access rules, among them squashfs, erofs and ramfs
/// (`linux/magic.h`).
const BY_MODE: [FsType; 6] =
    [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC];
const ALSO_BY_MODE: [u32; 3] = [0x7371_7368, 0xe0f5_e1e2, 0x8584_58f6];

/// True if the file of this identity is at `path`, and its mode, its folders' modes and access control lists let
/// everybody read it there. A file that is not found there, because it was removed or is in a container, counts as not
/// readable, and so does one on a file system that a user's program serves.
pub(crate) fn is_readable_by_everybody(path: &Path, identity: &FileIdentity) -> bool {
    let mut device = None;
    is_answered(path)
        && path.is_absolute()
        && path.ancestors().all(|part| {
            let Ok(found) = fs::symlink_metadata(part) else { return false };
            let granted = match part == path {
                true => is_it(&found, identity) && found.mode() & READ_BY_ALL == READ_BY_ALL,
                false => found.is_dir() && found.mode() & SEARCH_BY_ALL == SEARCH_BY_ALL,
            };
            let is_known = device == Some(found.dev()) || goes_by_mode(part);
            device = Some(found.dev());
            granted && is_known && has_no_access_list(part)
        })
}

/// True if a regular file is at the path, and no program of a user serves a file system on the way: the calls below would wait
/// for that program.
fn is_answered(path: &Path) -> bool {
    watched(|| format!("looking for {}", path.display()), || FoundFile::at(path)).is_ok_and(|found| found.is_some())
}

/// True if the caller can read the file at this path.
pub(crate) fn is_readable_by_us(path: &Path) -> bool {
    let flags = nix::fcntl::AtFlags::AT_EACCESS;
    is_answered(path) && nix::unistd::faccessat(nix::fcntl::AT_FDCWD, path, AccessFlags::R_OK, flags).is_ok()
}

/// The reason why a file is not root's own; `None` if it is at its path, only root can write it, and the mount allows
/// set-user-ID programs.
pub(crate) fn not_roots_own(path: &Path, identity: &FileIdentity) -> Option<String> {
    let Some(found) = at_its_path(path, identity) else {
        return Some("it is not found at its path from here".to_owned());
    };
    if found.uid() != ROOT {
        return Some(format!("its owner is user {}", found.uid()));
    }
    if found.mode() & WRITE_BY_OTHERS != 0 {
        return Some(format!("others than root may write it (mode {:o})", found.mode() & 0o7777));
    }
    match statvfs(path) {
        Ok(mount) if !mount.flags().contains(FsFlags::ST_NOSUID) => None,
        Ok(_) => Some("it is on a mount with `nosuid`".to_owned()),
        Err(error) => Some(format!("its mount cannot be read: {error}")),
    }
}

/// Returns the metadata of the path's last component, if it is the file with this identity and not a link to it.
fn at_its_path(path: &Path, identity: &FileIdentity) -> Option<Metadata> {
    if !path.is_absolute() || !is_answered(path) {
        return None;
    }
    fs::symlink_metadata(path).ok().filter(|found| is_it(found, identity))
}

fn is_it(found: &Metadata, identity: &FileIdentity) -> bool {
    found.is_file() && FileIdentity::of(found) == *identity
}

fn goes_by_mode(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| {
        let kind = found.filesystem_type();
        BY_MODE.contains(&kind) || ALSO_BY_MODE.contains(&(kind.0 as u32))
    })
}

fn has_no_access_list(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let length = attributes::length_without_following(&path, ACCESS_LIST);
    length.is_err_and(|error| {
        [Some(Errno::ENODATA as i32), Some(Errno::EOPNOTSUPP as i32)].contains(&error.raw_os_error())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    /// A file below a folder, both for everybody.
    struct Place {
        folder: tempfile::TempDir,
        path: PathBuf,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().canonicalize().unwrap().join("file");
            fs::write(&path, "x").unwrap();
            set(folder.path(), 0o755);
            set(&path, 0o644);
            Self { folder, path }
        }

        fn is_everybodys(&self) -> bool {
            is_readable_by_everybody(&self.path, &FileIdentity::of(&self.path.metadata().unwrap()))
        }

        /// As far as the temporary folder itself can be reached.
        fn is_reachable(&self) -> bool {
            let above = self.path.parent().unwrap().ancestors().skip(1);
            above.into_iter().all(|p| p.metadata().unwrap().mode() & SEARCH_BY_ALL == SEARCH_BY_ALL)
        }
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn whoever_is_denied_makes_a_file_private() {
        let place = Place::new();
        assert_eq!(place.is_everybodys(), place.is_reachable());
        for mode in [0o640, 0o604, 0o044, 0o600, 0o711] {
            set(&place.path, mode);
            assert!(!place.is_everybodys(), "file of mode {mode:o}");
        }
        set(&place.path, 0o644);
        for mode in [0o700, 0o705, 0o750, 0o744] {
            set(place.folder.path(), mode);
            assert!(!place.is_everybodys(), "folder of mode {mode:o}");
        }
        set(place.folder.path(), 0o711);
        assert_eq!(place.is_everybodys(), place.is_reachable());
    }

    #[test]
    fn a_file_that_was_moved_is_not_found_through_a_link() {
        let place = Place::new();
        let identity = FileIdentity::of(&place.path.metadata().unwrap());
        let hidden = place.folder.path().canonicalize().unwrap().join("hidden");
        fs::create_dir(&hidden).unwrap();
        set(&hidden, 0o700);
        let (inner, outer) = (hidden.join("inner"), place.folder.path().canonicalize().unwrap().join("outer"));
        fs::create_dir(&inner).unwrap();
        set(&inner, 0o755);
        fs::rename(&place.path, inner.join("file")).unwrap();
        let identity =
            FileIdentity { changed: FileIdentity::of(&inner.join("file").metadata().unwrap()).changed, ..identity };
        symlink(&inner, &outer).unwrap();
        assert!(outer.join("file").metadata().is_ok());
        assert!(!is_readable_by_everybody(&outer.join("file"), &identity));
        symlink(inner.join("file"), &place.path).unwrap();
        assert!(!is_readable_by_everybody(&place.path, &identity));
    }

    #[test]
    fn what_others_decide_on_is_not_roots_own() {
        let place = Place::new();
        let why = || not_roots_own(&place.path, &FileIdentity::of(&place.path.metadata().unwrap()));
        let owned = place.path.metadata().unwrap().uid() == ROOT;
        let nosuid = statvfs(&place.path).unwrap().flags().contains(FsFlags::ST_NOSUID);
        assert_eq!(why().is_none(), owned && !nosuid, "{:?}", why());
        set(&place.path, 0o664);
        assert!(why().is_some());
        assert!(
            not_roots_own(Path::new("/no/such/file"), &FileIdentity::of(&place.path.metadata().unwrap())).is_some()
        );
    }
}
