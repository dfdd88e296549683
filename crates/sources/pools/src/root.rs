//! Files below a root folder, which may be the image of another machine: its links are resolved as that machine resolves
//! them, and none leads outside.

use linux::unasked::target_of;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// Maximum length of a file that is read; Pagelift's have less than one kilobyte.
const LONGEST: u64 = 1 << 20;
/// Maximum number of attempts while somebody renames folders on the way (`EAGAIN`, openat2(2)).
const ATTEMPTS: u32 = 16;
/// A folder as a place, in which names are opened, made and removed.
const FOLDER: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY);
/// Errors for a path without a folder.
const NO_FOLDER: [io::ErrorKind; 2] = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
const LINK: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW);
/// A pipe is not waited for.
const READ: OFlag = OFlag::O_NONBLOCK.union(OFlag::O_NOCTTY);
const NEW: OFlag = OFlag::O_WRONLY.union(OFlag::O_CREAT).union(OFlag::O_EXCL).union(OFlag::O_NOFOLLOW);

/// An open root folder. Paths are relative to it.
#[derive(Debug)]
pub(crate) struct Root {
    open: OwnedFd,
    /// True for the root folder of this machine, whose links are the administrator's.
    is_own: bool,
}

impl Root {
    pub fn open(path: &Path) -> io::Result<Self> {
        let open = nix::fcntl::open(path, FOLDER | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self { open, is_own: path == Path::new("/") })
    }

    /// Creates a file that `write` fills, in a folder that is created if it is missing. An incomplete file is removed.
    pub fn create(&self, path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        let (folder, name) = self.made_folder_of(path)?;
        // O_EXCL also refuses an existing link there.
        let mut file = File::from(openat(&folder, name, NEW | OFlag::O_CLOEXEC, Mode::from_bits_truncate(0o644))?);
        let written = write(&mut file).and_then(|()| file.sync_all());
        written.inspect_err(|_| {
            let _ = unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir);
        })
    }

    /// Creates a symbolic link, in a folder that is created if it is missing.
    pub fn link(&self, path: &Path, target: &str) -> io::Result<()> {
        let (folder, name) = self.made_folder_of(path)?;
        Ok(symlinkat(target, folder, name)?)
    }

    /// Removes a file or link.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = parts(path)?;
        let folder = self.find(parent, FOLDER)?;
        Ok(unlinkat(folder, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// The target of a symbolic link; an error for other files.
    pub fn target_of(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(target_of(self.find(path, LINK)?)?.into())
    }

    /// True if there is no file or link.
    pub fn is_missing(&self, path: &Path) -> bool {
        self.find(path, LINK).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// The text of a file; the last link is followed inside the root folder.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::InvalidInput`] for anything other than a regular file; [`io::ErrorKind::FileTooLarge`]:
    /// the end of a file can be the part that counts.
    pub fn text(&self, path: &Path) -> io::Result<String> {
        // As a place first: opening a device can change its state.
        let is_file = |file: &File| Ok::<_, io::Error>(file.metadata()?.is_file());
        let irregular = || io::Error::new(io::ErrorKind::InvalidInput, "found no regular file, needed one");
        if !is_file(&File::from(self.find(path, OFlag::O_PATH)?))? {
            return Err(irregular());
        }
        let file = File::from(self.find(path, READ)?);
        if !is_file(&file)? {
            return Err(irregular());
        }
        let mut bytes = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LONGEST {
            let why = format!("found more than {} KiB, needed a file that is not longer", LONGEST >> 10);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The names in a folder, sorted; none if there is no folder, or only a link that leads outside.
    ///
    /// # Errors
    /// The kernel's.
    pub fn names_in(&self, folder: &Path) -> io::Result<Vec<String>> {
        // An open folder, since /proc is missing while an image is made.
        let open = match self.find(folder, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Err(error) if NO_FOLDER.contains(&error.kind()) || error.raw_os_error() == Some(Errno::EXDEV as i32) => {
                return Ok(Vec::new());
            }
            found => found?,
        };
        let entries = Dir::from_fd(open)?.into_iter().collect::<nix::Result<Vec<_>>>()?;
        let is_own = |name: &&CStr| ![c".", c".."].contains(name);
        let names = entries.iter().map(|entry| entry.file_name()).filter(is_own);
        let mut names: Vec<_> = names.filter_map(|name| name.to_str().ok().map(str::to_owned)).collect();
        names.sort();
        Ok(names)
    }

    /// Opens the folder of a path, and creates the missing folders on the way.
    fn made_folder_of<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let (parent, name) = parts(path)?;
        let (mut way, mut folder) = (PathBuf::from("."), self.open.try_clone()?);
        for part in parent.components() {
            way.push(part);
            folder = match self.find(&way, FOLDER) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match mkdirat(&folder, part.as_os_str(), Mode::from_bits_truncate(0o777)) {
                        Ok(()) => self.find(&way, FOLDER)?,
                        Err(Errno::EEXIST) => self.find(&way, FOLDER).map_err(|_| dangling(&way))?,
                        Err(error) => return Err(error.into()),
                    }
                }
                result => result?,
            };
        }
        Ok((folder, name))
    }

    /// Opens an existing file or folder below the root folder.
    fn find(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let flags = flags | OFlag::O_CLOEXEC;
        let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        for _ in 0..ATTEMPTS {
            match openat2(&self.open, path, OpenHow::new().flags(flags).resolve(resolve)) {
                Err(Errno::EAGAIN) => {}
                // Linux before 5.6, or a filter of system calls that does not know openat2.
                Err(Errno::ENOSYS | Errno::EPERM) => return self.find_by_parts(path, flags),
                result => return Ok(result?),
            }
        }
        Err(Errno::EAGAIN.into())
    }

    /// Opens a path without openat2(2). Links are refused (`ELOOP`, `ENOTDIR`), unless the root folder is this machine's.
    fn find_by_parts(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        if self.is_own {
            return Ok(openat(&self.open, path, flags, Mode::empty())?);
        }
        let mut found = self.open.try_clone()?;
        let mut parts = path.components().filter(|part| *part != Component::CurDir).peekable();
        while let Some(part) = parts.next() {
            let Component::Normal(name) = part else { return Err(Errno::EXDEV.into()) };
            let flags = if parts.peek().is_some() { FOLDER | OFlag::O_CLOEXEC } else { flags };
            found = openat(&found, name, flags | OFlag::O_NOFOLLOW, Mode::empty())?;
        }
        Ok(found)
    }
}

fn dangling(way: &Path) -> io::Error {
    let way = way.strip_prefix(".").unwrap_or(way);
    io::Error::other(format!("found {} as a link to no folder below the root folder, needed a folder", way.display()))
}

/// The folder and the name of a path.
fn parts(path: &Path) -> io::Result<(&Path, &OsStr)> {
    path.parent().zip(path.file_name()).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_incomplete_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (root, path) = (Root::open(folder.path()).unwrap(), Path::new("etc/unit"));
        let fill = |file: &mut File| file.write_all(b"[Unit]").and(Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(root.create(path, fill).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(root.is_missing(path) && root.names_in(Path::new("etc")).unwrap().is_empty());
        root.create(path, |_| Ok(())).unwrap();
        assert_eq!(root.create(path, fill).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(!root.is_missing(path), "the file of somebody else was removed");
    }

    #[test]
    fn links_lead_to_places_below_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("root"), folder.path().join("outside"));
        fs::create_dir_all(inside.join("inner")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "x").unwrap();
        symlink("/inner", inside.join("absolute")).unwrap();
        symlink(&outside, inside.join("out")).unwrap();
        symlink("../outside", inside.join("up")).unwrap();
        symlink("../../outside/file", inside.join("inner/file")).unwrap();
        let root = Root::open(&inside).unwrap();
        root.create(Path::new("absolute/made/new"), |file| file.write_all(b"new")).unwrap();
        assert_eq!(root.text(Path::new("inner/made/new")).unwrap(), "new");
        for way in ["out", "up"] {
            let path = Path::new(way).join("file");
            assert!(root.text(&path).is_err() && root.remove(&path).is_err(), "{way}");
            assert!(root.create(&path, |_| Ok(())).is_err() && root.link(&path, "x").is_err(), "{way}");
            assert!(root.names_in(Path::new(way)).is_ok_and(|names| names.is_empty()), "{way}");
            assert!(root.find_by_parts(&path, OFlag::O_PATH).is_err(), "{way}");
        }
        assert!(root.text(Path::new("inner/file")).is_err());
        assert!(root.find_by_parts(Path::new("inner/made/new"), READ).is_ok());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        root.remove(Path::new("inner/file")).unwrap();
        assert!(outside.join("file").exists());
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&folder.path().join("pipe"), Mode::S_IRWXU).unwrap();
        let root = Root::open(folder.path()).unwrap();
        assert_eq!(root.text(Path::new("pipe")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(root.text(Path::new("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
    #[test]
    fn a_long_file_is_refused_rather_than_cut() {
        let folder = tempfile::tempdir().unwrap();
        let (root, path) = (Root::open(folder.path()).unwrap(), Path::new("grub"));
        let text = |length: u64| "#".repeat(length as usize) + "end";
        fs::write(folder.path().join(path), text(LONGEST - 3)).unwrap();
        assert!(root.text(path).unwrap().ends_with("end"));
        fs::write(folder.path().join(path), text(LONGEST - 2)).unwrap();
        assert_eq!(root.text(path).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_not_empty() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        fs::write(folder.path().join("file"), "x").unwrap();
        assert_eq!(root.names_in(Path::new(".")).unwrap(), ["file"]);
        assert!(root.names_in(Path::new("none")).unwrap().is_empty());
        assert!(root.names_in(Path::new("file")).unwrap().is_empty());
        symlink("loop", folder.path().join("loop")).unwrap();
        assert!(root.names_in(Path::new("loop")).is_err());
    }
}
