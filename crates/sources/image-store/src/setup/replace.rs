//! Replaces files of the machine's configuration.

use crate::StoreError;
use foreign_text::{quoted, quoted_path};
use linux::attributes;
use std::ffi::CStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// The mode of a new file.
const NEW_MODE: u32 = 0o644;
/// Attributes that the kernel computes from the contents.
const OF_CONTENTS: [&CStr; 2] = [c"security.ima", c"security.evm"];

/// Replaces a file, or the file that a link there leads to, at once: a reader, also after the machine lost its power, sees
/// the old contents or the new ones. Owner, group, mode and extended attributes stay; a new file has mode 644.
///
/// # Errors
/// [`StoreError::NotReplaced`] if there is no regular file, or one with several hard links; [`StoreError::Io`].
pub(super) fn replace(path: &Path, contents: &[u8]) -> Result<(), StoreError> {
    let (target, old) = present(path)?;
    let write = || {
        let folder = target.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::Builder::new().prefix(".pagelift").suffix(".new").tempfile_in(folder)?;
        file.write_all(contents)?;
        match &old {
            Some(old) => give_metadata(old, file.as_file())?,
            None => file.as_file().set_permissions(Permissions::from_mode(NEW_MODE))?,
        }
        file.as_file().sync_all()?;
        file.persist(&target)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|error| failed(path, error))
}

/// Refuses a unit that the administrator has masked (systemctl(1)): a link to /dev/null.
///
/// # Errors
/// [`StoreError::NotReplaced`].
pub(super) fn refuse_masked(folder: &Path, name: &str) -> Result<(), StoreError> {
    let path = folder.join(name);
    if path.is_symlink() && fs::canonicalize(&path).is_ok_and(|target| target == Path::new("/dev/null")) {
        let fix = format!("systemctl unmask {}", quoted(name));
        return Err(StoreError::NotReplaced {
            path,
            found: "it masked".to_owned(),
            needed: "no link to /dev/null",
            fix,
        });
    }
    Ok(())
}

/// Returns the path of the file that is replaced, and the file if there is one.
fn present(path: &Path) -> Result<(PathBuf, Option<File>), StoreError> {
    let refused = |found: String, needed, fix| StoreError::NotReplaced { path: path.to_owned(), found, needed, fix };
    let remove = || format!("rm {}", quoted_path(path));
    let target = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_dangling = path.is_symlink();
            let dangling = || refused("a link to a missing file".to_owned(), "a regular file", remove());
            return if is_dangling { Err(dangling()) } else { Ok((path.to_owned(), None)) };
        }
        found => found.map_err(|error| failed(path, error))?,
    };
    let metadata = fs::symlink_metadata(&target).map_err(|error| failed(path, error))?;
    if !metadata.is_file() {
        let found = format!("no regular file at {}", target.display());
        return Err(refused(found, "a regular file", remove()));
    }
    if metadata.nlink() > 1 {
        let (found, name) = (format!("{} hard links to it", metadata.nlink()), quoted_path(&target));
        let fix = format!("cp -a {name} {name}.new && mv {name}.new {name}");
        return Err(refused(found, "1, as the others would keep the old contents", fix));
    }
    let file = File::open(&target).map_err(|error| failed(path, error))?;
    Ok((target, Some(file)))
}

/// Gives a file the owner, the group, the mode and the extended attributes of another one, access control lists included.
fn give_metadata(old: &File, new: &File) -> io::Result<()> {
    let found = old.metadata()?;
    fchown(new, Some(found.uid()), Some(found.gid()))?;
    // A new owner takes mode bits away, and a new mode changes an access control list, so this order.
    new.set_permissions(Permissions::from_mode(found.mode() & 0o7777))?;
    let (wanted, given) = (attributes::all_of(old)?, attributes::all_of(new)?);
    for name in given.keys().filter(|name| !wanted.contains_key(*name)) {
        attributes::remove(new, name)?;
    }
    let is_kept = |name: &CStr| !OF_CONTENTS.contains(&name);
    for (name, value) in wanted.iter().filter(|(name, value)| is_kept(name) && given.get(*name) != Some(value)) {
        attributes::set(new, name, value)?;
    }
    Ok(())
}

fn failed(path: &Path, error: io::Error) -> StoreError {
    StoreError::io(format!("writing {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::geteuid;
    use std::os::unix::fs::{chown, symlink};

    /// A folder on the file system of the sources, since a tmpfs of an old kernel has no extended attributes of users.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
    }

    #[test]
    fn owner_group_mode_and_attributes_stay() {
        let folder = folder();
        let path = folder.path().join("fstab");
        fs::write(&path, "old").unwrap();
        if geteuid().is_root() {
            chown(&path, Some(12345), Some(54321)).unwrap();
        }
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let file = File::open(&path).unwrap();
        let has_extended = attributes::set(&file, c"user.pagelift-test", b"x").is_ok();
        // An access control list: owner rw-, user 7 r--, group r--, mask r--, others nothing (acl(5)).
        let entries: [(u16, u16, u32); 5] =
            [(1, 6, u32::MAX), (2, 4, 7), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            list.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        let has_list = attributes::set(&file, c"system.posix_acl_access", &list).is_ok();
        let before = (file.metadata().unwrap(), attributes::all_of(&file).unwrap());

        replace(&path, b"new").unwrap();
        let file = File::open(&path).unwrap();
        let (now, attributes) = (file.metadata().unwrap(), attributes::all_of(&file).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!((now.uid(), now.gid(), now.mode()), (before.0.uid(), before.0.gid(), before.0.mode()));
        assert_eq!(attributes, before.1);
        assert!(!has_extended || attributes.contains_key(c"user.pagelift-test"));
        assert!(!has_list || attributes[c"system.posix_acl_access"] == list);
    }

    #[test]
    fn a_file_with_other_names_stays_with_them() {
        let folder = folder();
        let [path, other] = ["fstab", "other"].map(|name| folder.path().join(name));
        fs::write(&path, "old").unwrap();
        fs::hard_link(&path, &other).unwrap();
        let error = replace(&path, b"new").unwrap_err().to_string();
        assert!(error.contains("found 2 hard links to it, needed 1"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);

        let fix = error.split('`').nth(1).unwrap();
        assert!(std::process::Command::new("sh").args(["-c", fix]).status().unwrap().success());
        replace(&path, b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read(&other).unwrap()), (b"new".to_vec(), b"old".to_vec()));
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let folder = folder();
        let [device, missing, link, file] = ["device", "missing", "link", "file"].map(|name| folder.path().join(name));
        // As /dev/null, which a broken version would replace.
        nix::sys::stat::mknod(&device, nix::sys::stat::SFlag::S_IFIFO, nix::sys::stat::Mode::S_IRUSR, 0).unwrap();
        for target in [&device, &folder.path().join("nowhere")] {
            let _ = fs::remove_file(&link);
            symlink(target, &link).unwrap();
            let error = replace(&link, b"new").unwrap_err().to_string();
            assert!(error.contains("needed a regular file; fix: `rm "), "{error}");
            assert_eq!(fs::read_link(&link).unwrap(), *target);
        }
        assert!(!fs::symlink_metadata(&device).unwrap().is_file());
        fs::remove_file(&link).unwrap();
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        replace(&link, b"new").unwrap();
        assert!(link.is_symlink() && fs::read(&file).unwrap() == b"new");
        replace(&missing, b"new").unwrap();
        assert_eq!(fs::metadata(&missing).unwrap().mode() & 0o777, NEW_MODE);
    }
}
