//! Layouts that `pagelift cache keep` repeats.

use super::obstacles::{is_installed_as, locally_diverted_to, privilege, signed};
use super::relayout::{brings, copied, replace_file};
use super::{AlignArgs, Asker, Attributes, Target};
use address_space::PageSize;
use anyhow::{Context, anyhow, bail};
use linux::bounded::ELF_HEADERS;
use linux::file_flags;
use linux::owner::{Lasting, foreign_part, is_of_trusted_user};
use linux::pages::base_page;
use nix::libc::EOPNOTSUPP;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{getegid, geteuid};
use object::ReadCache;
use options::Edges;
use page_cache::alignment::{Relayout, RelayoutError, Segments};
use page_cache::replacement::{Change, write_copy};
use process_view::{BoundedFile, FileIdentity, open_regular_file, printable};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The extended attribute of a diverted file's copy: the identity of the original.
const SOURCE: &CStr = c"user.pagelift.align.source";

/// Extended attributes that a copy gets from its file: the label of SELinux, and the access control list.
const COPIED: [&CStr; 2] = [c"security.selinux", c"system.posix_acl_access"];

/// Files of a list that get another layout, and again after each upgrade.
#[derive(Debug)]
pub struct Layouts {
    huge: PageSize,
    /// The state of each file at the last call.
    seen: BTreeMap<PathBuf, Seen>,
}

/// The identities of a file and of the diverted file of its package, and whether a package's file may be changed.
type Seen = ([Option<FileIdentity>; 2], bool);

impl Layouts {
    /// No file was seen yet.
    pub fn new(huge: PageSize) -> Self {
        Self { huge, seen: BTreeMap::new() }
    }

    /// Gives a file its layout, unless it, the diverted file of its package and the list are as at the last call. Returns
    /// the gain of a new layout. A file of a package without a local diversion is changed only if it is `packaged`.
    ///
    /// # Errors
    /// Why the file has not got the layout.
    pub fn keep(&mut self, path: &Path, packaged: bool) -> anyhow::Result<Option<String>> {
        let diverted = locally_diverted_to(path);
        let is_diverted = diverted.is_some() && is_installed_as(path);
        let other = diverted.filter(|other| other.exists());
        let may_change = packaged || is_diverted;
        let now = ([identity(path), other.as_deref().and_then(identity)], may_change);
        if self.seen.get(path) == Some(&now) {
            return Ok(None);
        }
        let result = match &other {
            Some(source) => copy(path, source, self.huge),
            None if copied_from(path).is_some() => Err(anyhow!(
                "found a copy of a diverted file that is gone, needed that file; fix: remove the entry and the copy, \
                 then `dpkg-divert --rename --remove`"
            )),
            None => in_place(path, may_change, self.huge),
        };
        // After a change the next call finds another file, as it does after an upgrade during this call.
        self.seen.insert(path.to_owned(), now);
        result
    }
}

/// True if a file is on a file system that is mounted read-only here, as in the sandbox of a unit.
pub fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
}

fn identity(path: &Path) -> Option<FileIdentity> {
    std::fs::metadata(path).ok().map(|found| FileIdentity::of(&found))
}

/// An error if the path has links, or if other users can change its file. After an upgrade this program runs as root.
fn check_path(path: &Path) -> anyhow::Result<()> {
    let own = std::fs::canonicalize(path)?;
    if own != path {
        bail!(
            "found a path with links, needed the path of the file; fix: list {}",
            printable(&own.display().to_string())
        );
    }
    check_folders(path)
}

fn check_folders(path: &Path) -> anyhow::Result<()> {
    if geteuid().is_root()
        && let Some(found) = foreign_part(path, Lasting::Now)?
    {
        bail!("found that {found}, needed a path that only root can change; fix: chown and chmod it");
    }
    Ok(())
}

/// Opens a program that root or this process's user owns.
fn opened(path: &Path) -> anyhow::Result<(File, FileIdentity)> {
    check_path(path)?;
    let file = open_regular_file(path)?.context("found a non-regular file, needed a program")?;
    let found = file.metadata()?;
    if !is_of_trusted_user(&found) {
        bail!("found a file of user {}, needed one of root or of this user", found.uid());
    }
    Ok((file, FileIdentity::of(&found)))
}

fn plan(file: &File, identity: FileIdentity, huge: PageSize) -> Result<Relayout, RelayoutError> {
    let data = ReadCache::new(BoundedFile::new(file, identity.size, ELF_HEADERS.bytes()));
    Relayout::plan(&data, huge, base_page(), false, Edges::Exact)
}

/// Replaces a file by itself in another layout.
fn in_place(path: &Path, packaged: bool, huge: PageSize) -> anyhow::Result<Option<String>> {
    let (file, identity) = opened(path)?;
    let relayout = match plan(&file, identity, huge) {
        Ok(relayout) => relayout,
        Err(RelayoutError::Done(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let name = printable(&path.display().to_string());
    let args = AlignArgs::for_list();
    let asker = Asker::List { packaged };
    replace_file(&Target { args: &args, asker, path, name: &name, file: &file, identity }, &relayout)?;
    Ok(Some(brings(&relayout, huge)))
}

/// Writes a package's file, which dpkg installs at `source`, to `path` in another layout. If it can have none, the bytes are the
/// same. A file that cannot be copied leaves the former version at `path`.
fn copy(path: &Path, source: &Path, huge: PageSize) -> anyhow::Result<Option<String>> {
    let (file, identity) = opened(source)?;
    let attributes = attributes_for_copy(&file).with_context(|| {
        format!("not copied, so that {} stays the former version", printable(&path.display().to_string()))
    })?;
    check_replaced(path)?;
    let relayout = plan(&file, identity, huge);
    let is_current = || copied_from(path).is_some_and(|found| found == text(&identity));
    let is_new = !is_current();
    if is_new {
        let mut change = relayout.as_ref().map(copied).unwrap_or_default();
        // The record of the former layout may leave no room for others, and is not needed beside the file itself.
        let of = (SOURCE.to_owned(), Some(text(&identity).into_bytes()));
        change.attributes = [vec![of], attributes, change.attributes].concat();
        write_copy(&file, path, &Change { only_if: Some(identity), ..change })?;
        if !is_current() {
            bail!(
                "found a file system without extended attributes, needed them to find later that the copy is current"
            );
        }
    }
    match relayout {
        Ok(relayout) => Ok(is_new.then(|| brings(&relayout, huge))),
        Err(RelayoutError::Done(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// An error if `path` leads to a file that is neither a program nor a copy, such as an administrator's script.
fn check_replaced(path: &Path) -> anyhow::Result<()> {
    let is_there = path.symlink_metadata().is_ok();
    check_folders(if is_there { path } else { path.parent().unwrap_or(path) })?;
    if !is_there || copied_from(path).is_some() {
        return Ok(());
    }
    let (file, identity) = opened(path)?;
    let data = ReadCache::new(BoundedFile::new(&file, identity.size, ELF_HEADERS.bytes()));
    Segments::read(&data)
        .context("found a file that is no program, needed a program or none; fix: remove the entry")?;
    Ok(())
}

/// The extended attributes that a copy needs. An error if it would lose something else that the file has.
fn attributes_for_copy(file: &File) -> anyhow::Result<Attributes> {
    let fix = "needed a file without; fix: remove the entry and the copy, then `dpkg-divert --rename --remove`";
    if let Some(privilege) = privilege(file)? {
        bail!("found {privilege}, {fix}");
    }
    if let Some(found) = signed(file) {
        bail!("{found}; {fix}");
    }
    if file_flags::shown(file).is_ok_and(|attributes| attributes & file_flags::VERITY != 0) {
        bail!("found a file that is protected by fs-verity, {fix}");
    }
    let found = file.metadata()?;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    if (found.uid(), found.gid()) != (user, group) {
        bail!(
            "found owner {}:{}, needed {user}:{group}, which the copy gets; fix: remove the entry and the copy, then \
             `dpkg-divert --rename --remove`",
            found.uid(),
            found.gid()
        );
    }
    let names = match linux::attributes::names_of(file) {
        Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => Vec::new(),
        names => names?,
    };
    let mut attributes = Attributes::new();
    for name in names {
        let is_of = |namespace: &str| name.to_bytes().starts_with(namespace.as_bytes());
        if COPIED.contains(&name.as_c_str()) {
            let value = linux::attributes::of_file(file, &name)?;
            attributes.push((name, Some(value)));
        } else if is_of("security.") || is_of("system.") {
            bail!("found the extended attribute {}, {fix}", printable(&name.to_string_lossy()));
        }
    }
    Ok(attributes)
}

/// The identity of the file of which the file at a path is a copy, as text.
fn copied_from(path: &Path) -> Option<String> {
    let file = open_regular_file(path).ok()??;
    String::from_utf8(linux::attributes::of_file(&file, SOURCE).ok()?).ok()
}

fn text(identity: &FileIdentity) -> String {
    // The number of a device can be another one after a boot.
    let FileIdentity { device: _, inode, size, modified, changed } = identity;
    format!("{inode:x}:{size:x}:{}.{}:{}.{}", modified.0, modified.1, changed.0, changed.1)
}
