//! Files that this program writes under a name that its user has given, or a fixed one.
//!
//! Any user who can write to the folder may have put a link there that leads to a file which this program may write. The link may
//! be symbolic, or a hard link if fs.protected_hardlinks is 0.

use crate::owner::is_trusted;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{O_NOCTTY, O_NOFOLLOW, O_NONBLOCK};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name of the standard output, as for other commands. A file of this name is `./-`.
pub const STANDARD_OUTPUT: &str = "-";
/// Links that are followed one after the other, as by the kernel.
const MOST_LINKS: usize = 40;

/// Mode of a file of [`create_anew`]; the umask applies.
const NEW_MODE: u32 = 0o644;

/// Opens a file for writing, or duplicates the standard output for [`STANDARD_OUTPUT`]. Creates a file if it is missing,
/// and truncates it otherwise. A symbolic link is followed only if root or this process's user has made it.
///
/// # Errors
/// The link of another user, a file with several hard links, or the kernel's.
pub fn create(path: &Path) -> io::Result<File> {
    let file = open(path, OpenOptions::new().write(true).create(true).truncate(false))?;
    // O_TRUNC would act before the checks.
    if !is_standard_output(path) && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Creates a file that is renamed to its final name later. An existing file of the name is removed and never opened, because any
/// user who can write to the folder may have put a link there.
///
/// # Errors
/// The kernel's; `AlreadyExists` if another process makes a file of the name meanwhile.
pub fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(NEW_MODE).open(path)
}

/// Opens a file as [`create`] does, to write behind what it holds.
///
/// # Errors
/// As [`create`].
pub fn append(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().append(true).create(true))
}

/// True for [`STANDARD_OUTPUT`].
pub fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == STANDARD_OUTPUT
}

fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    if is_standard_output(path) {
        return io::stdout().as_fd().try_clone_to_owned().map(File::from);
    }
    match target(path)? {
        Target::Name(path) => open_name(&path, options),
        Target::Descriptor(path) => options.custom_flags(O_NOCTTY).open(path),
    }
}

/// A pipe of another user is not waited for until somebody reads it.
fn open_name(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let is_foreign_pipe = |found: &Metadata| found.file_type().is_fifo() && !is_trusted(found.uid());
    let refused = |found: &Metadata| {
        let needed = "needed a file, or a pipe of root or of this user; fix: another name";
        io::Error::other(format!("found a pipe of user {}, {needed}", found.uid()))
    };
    match path.symlink_metadata() {
        Ok(found) if is_foreign_pipe(&found) => return Err(refused(&found)),
        Ok(found) if found.file_type().is_fifo() => return options.custom_flags(O_NOFOLLOW | O_NOCTTY).open(path),
        _ => {}
    }
    // It may have become one since.
    let file = options.custom_flags(O_NOFOLLOW | O_NOCTTY | O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if is_foreign_pipe(&found) {
        return Err(refused(&found));
    }
    refuse_other_names(path, &found)?;
    let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}

/// A user may have given a file of root another name, and may remove that name at any time: one reading of the name finds both
/// the file and its only link.
fn refuse_other_names(path: &Path, opened: &Metadata) -> io::Result<()> {
    if !opened.is_file() {
        return Ok(());
    }
    let named = path.symlink_metadata()?;
    let found = match named.nlink() {
        _ if (named.dev(), named.ino()) != (opened.dev(), opened.ino()) => {
            "a name that leads to another file by now".to_owned()
        }
        0 | 1 => return Ok(()),
        links => format!("a file with {links} hard links"),
    };
    Err(io::Error::other(format!("found {found}, needed a file with one name; fix: another name")))
}

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A name that is no link.
    Name(PathBuf),
    /// A link of /proc to something that this process has open, such as /dev/stdout; it may have no name.
    Descriptor(PathBuf),
}

/// Finds the target of a path; links on the way to its folder are not checked.
///
/// # Errors
/// It is the link of another user, or one of a long chain.
pub fn target(path: &Path) -> io::Result<Target> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(found) = path.symlink_metadata() else { return Ok(Target::Name(path)) };
        if !found.is_symlink() {
            return Ok(Target::Name(path));
        }
        if !is_trusted(found.uid()) {
            let needed = "needed a file, or a link of root or of this user; fix: another name";
            return Err(io::Error::other(format!("found a link of user {}, {needed}", found.uid())));
        }
        if path.parent().and_then(|folder| folder.canonicalize().ok()).is_some_and(|folder| folder.starts_with("/proc"))
        {
            return Ok(Target::Descriptor(path));
        }
        let next = path.read_link()?;
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(io::Error::from_raw_os_error(nix::libc::ELOOP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::symlink;

    #[test]
    fn a_hyphen_is_the_standard_output() {
        let same = |file: &File| {
            let (found, own) = (file.metadata().unwrap(), std::fs::metadata("/proc/self/fd/1").unwrap());
            (found.dev(), found.ino()) == (own.dev(), own.ino())
        };
        let path = Path::new("-");
        assert!(is_standard_output(path) && !is_standard_output(Path::new("./-")));
        assert!(same(&create(path).unwrap()) && same(&append(path).unwrap()));
        assert!(!path.exists());
    }

    #[test]
    fn a_file_with_several_hard_links_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let [secret, name] = ["secret", "name"].map(|name| folder.path().join(name));
        fs::write(&secret, "text").unwrap();
        fs::hard_link(&secret, &name).unwrap();
        for open in [create, append] {
            let error = open(&name).unwrap_err().to_string();
            assert!(error.contains("found a file with 2 hard links, needed"), "{error}");
            assert_eq!(fs::read(&secret).unwrap(), b"text");
        }
        create_anew(&name).unwrap().write_all(b"new").unwrap();
        let texts = [&secret, &name].map(|path| fs::read_to_string(path).unwrap());
        assert_eq!(texts, ["text", "new"]);
        create(&name).unwrap().write_all(b"x").unwrap();
        assert_eq!(fs::read_to_string(&name).unwrap(), "x", "an earlier text is shortened");
    }

    #[test]
    fn a_file_made_anew_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let [target, name] = ["target", "name"].map(|name| folder.path().join(name));
        fs::write(&target, "text").unwrap();
        symlink(&target, &name).unwrap();
        create_anew(&name).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "text");
        assert!(name.symlink_metadata().unwrap().is_file());
        fs::remove_file(&name).unwrap();
        fs::create_dir(&name).unwrap();
        assert!(create_anew(&name).is_err() && name.is_dir());
    }

    #[test]
    fn a_link_or_pipe_of_another_user_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        create(&file).unwrap().write_all(b"one").unwrap();
        symlink(&file, &link).unwrap();
        append(&link).unwrap().write_all(b"two").unwrap();
        let text = || {
            let mut text = String::new();
            File::open(&file).unwrap().read_to_string(&mut text).map(|_| text).unwrap()
        };
        assert_eq!(text(), "onetwo");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::lchown(&link, Some(7), None).unwrap();
            let error = create(&link).unwrap_err().to_string();
            assert!(error.contains("a link of user 7") && append(&link).is_err(), "{error}");
            assert_eq!(text(), "onetwo");
        }
        assert_eq!(target(Path::new("/proc/self/fd/1")).unwrap(), Target::Descriptor("/proc/self/fd/1".into()));
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&pipe, Some(7), None).unwrap();
            assert!(create(&pipe).unwrap_err().to_string().contains("a pipe of user 7"));
        }
        let flags = fcntl(append(&file).unwrap(), FcntlArg::F_GETFL).unwrap();
        assert_eq!(flags & O_NONBLOCK, 0);
        let circle = folder.path().join("circle");
        symlink(&circle, &circle).unwrap();
        assert!(create(&circle).is_err());
    }
}
