//! Facts about files that the kernel knows by itself.
//!
//! A file system may be a program's (FUSE), which answers as late as it likes. Opening a path that leads to one of its files
//! only as a place (`O_PATH`), and reading its device without synchronisation, sends the program no request; almost every
//! other call does, and waits.

use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Metadata of a file that the kernel has without asking the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unasked {
    /// Major and minor number of the file system's device, as maps and mountinfo have them, but on btrfs.
    pub device: (u32, u32),
    /// Number of the mount, as mountinfo has it (Linux 5.8).
    pub mount: Option<u64>,
    /// Type and permissions, as last known.
    pub mode: u32,
    /// Number of the file in its file system.
    pub inode: u64,
    /// Length in bytes, as last known.
    pub length: u64,
}

/// Opens the file that a link of `/proc` leads to as a place: it can be neither read nor written.
///
/// # Errors
/// The kernel's.
pub fn place(path: &Path) -> io::Result<OwnedFd> {
    Ok(nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Opens a name in a folder as a place; a symbolic link is not followed, unless asked for.
///
/// # Errors
/// The kernel's.
pub fn place_in(folder: impl AsFd, name: &Path, follow: bool) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | if follow { OFlag::empty() } else { OFlag::O_NOFOLLOW };
    Ok(openat(folder, name, flags, Mode::empty())?)
}

/// Opens what a path leads to as a place, if the kernel knows the whole way already (openat2(2), RESOLVE_CACHED): no file system
/// is asked, nor a disk read.
///
/// # Errors
/// `EAGAIN` where something is not known, `ENOSYS` before Linux 5.6, `EINVAL` before 5.12; otherwise the kernel's.
pub fn known_place(path: &Path) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(RESOLVE_CACHED);
    Ok(openat2(AT_FDCWD, path, how)?)
}

/// Opens what a path leads to below `root` as a place: neither a parent, nor an absolute link, nor a link of `/proc` to an
/// open file leads outside (openat2(2), Linux 5.6). Every file system on the way is asked. The last link is followed only
/// if asked for.
///
/// # Errors
/// `ELOOP` for a link of `/proc`, `EAGAIN` where something was renamed meanwhile, `ENOSYS` before Linux 5.6; otherwise the
/// kernel's.
pub fn place_in_root(root: impl AsFd, path: &Path, follow: bool) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | if follow { OFlag::empty() } else { OFlag::O_NOFOLLOW };
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    Ok(openat2(root, path, OpenHow::new().flags(flags).resolve(resolve))?)
}

/// Opens what a path leads to below `root` as a place, as [`place_in_root`] does, if the kernel knows the whole way already.
/// The last link is followed.
///
/// # Errors
/// As [`known_place`] and [`place_in_root`].
pub fn known_place_in_root(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS | RESOLVE_CACHED;
    Ok(openat2(root, path, OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve))?)
}

/// `RESOLVE_CACHED` (`linux/openat2.h`).
const RESOLVE_CACHED: ResolveFlag = ResolveFlag::from_bits_retain(0x20);

/// Reads what the kernel holds of an open file or place.
///
/// # Errors
/// The kernel's.
pub fn of(place: impl AsFd) -> io::Result<Unasked> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY:
    // - the path is an empty text that ends with NUL, and `found` is a whole statx structure, which the kernel fills.
    let result = unsafe {
        let mask = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_INO | libc::STATX_SIZE | libc::STATX_MNT_ID;
        libc::statx(place.as_fd().as_raw_fd(), c"".as_ptr(), flags, mask, found.as_mut_ptr())
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY:
    // - all of its fields are integers, for which zeros are valid, and the kernel has filled it.
    let found = unsafe { found.assume_init() };
    let mount = (found.stx_mask & libc::STATX_MNT_ID != 0).then_some(found.stx_mnt_id);
    let device = (found.stx_dev_major, found.stx_dev_minor);
    Ok(Unasked { device, mount, mode: found.stx_mode.into(), inode: found.stx_ino, length: found.stx_size })
}

impl Unasked {
    /// True for the same file.
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// The target of an open symbolic link.
///
/// # Errors
/// The kernel's: `ENOENT` or `EINVAL` for anything else.
pub fn target_of(link: impl AsFd) -> io::Result<OsString> {
    Ok(nix::fcntl::readlinkat(link, "")?)
}

/// Opens an open place for reading, without waiting for a pipe's other end, and without a terminal becoming this process's.
///
/// # Errors
/// The kernel's.
pub fn reopen(place: impl AsFd) -> io::Result<std::fs::File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let path = format!("/proc/self/fd/{}", place.as_fd().as_raw_fd());
    Ok(nix::fcntl::open(path.as_str(), flags, Mode::empty())?.into())
}

/// The device of memory that is shared without a file. The kernel keeps such memory, like files of memfd_create(2), in an
/// internal file system (tmpfs) that is mounted nowhere.
///
/// # Errors
/// The kernel's, and where `/proc` shows no such device.
pub fn device_of_shared_memory() -> io::Result<(u32, u32)> {
    let length = crate::pages::base_page().bytes() as usize;
    // SAFETY:
    // - a new mapping at an address of the kernel's choice, which nothing is read from, and which is removed below.
    let start = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, flags, -1, 0)
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let maps = crate::text::text_of("/proc/self/maps");
    // SAFETY:
    // - the mapping was made above, and nobody else uses it.
    unsafe { libc::munmap(start, length) };
    let space = address_space::AddressSpace::parse(&maps?).map_err(io::Error::other)?;
    let found = space.find(address_space::Address(start as u64)).map(|mapping| mapping.device);
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_place_has_the_device_that_stat_has_and_can_be_opened() {
        let place = place(Path::new("/proc/self/exe")).unwrap();
        let metadata = std::fs::metadata("/proc/self/exe").unwrap();
        let found = of(&place).unwrap();
        let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
        assert_eq!((found.device, found.mode, found.inode), (device, metadata.mode(), metadata.ino()));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let is_listed = |mount: u64| mounts.lines().any(|line| line.starts_with(&format!("{mount} ")));
        assert!(found.mount.is_none_or(is_listed), "{found:?}");
        let mut magic = [0; 4];
        reopen(&place).unwrap().read_exact(&mut magic).unwrap();
        assert_eq!(&magic, b"\x7fELF");
    }

    #[test]
    fn a_link_is_followed_only_if_asked_for() {
        let folder = std::env::temp_dir().join(format!("pagelift-unasked-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.join("link")).unwrap();
        let open = place(&folder).unwrap();
        let link = place_in(&open, Path::new("link"), false).unwrap();
        assert_eq!(of(&link).unwrap().mode & libc::S_IFMT, libc::S_IFLNK);
        assert_eq!(target_of(&link).unwrap(), "nowhere");
        assert!(place_in(&open, Path::new("link"), true).is_err() && target_of(&open).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn no_path_leads_out_of_a_root() {
        let folder = std::env::temp_dir().join(format!("pagelift-unasked-root-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, folder.join(name)).unwrap();
        link("/file", "absolute");
        link("nowhere", "dangling");
        std::fs::write(folder.join("file"), "inside").unwrap();
        let root = place(&folder).unwrap();
        let file = of(place(&folder.join("file")).unwrap()).unwrap();
        assert_eq!(file.length, 6);
        let found = |path: &str| place_in_root(&root, Path::new(path), true).map(|place| of(place).unwrap());
        if found("file").is_err_and(|error| matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))) {
            std::fs::remove_dir_all(&folder).unwrap();
            return;
        }
        for path in ["/file", "file", "/../../file", "absolute"] {
            assert_eq!(found(path).unwrap(), file, "{path}");
        }
        match known_place_in_root(&root, Path::new("/../file")) {
            Ok(known) => assert_eq!(of(known).unwrap(), file),
            Err(error) => assert!(matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINVAL)), "{error}"),
        }
        assert!(known_place_in_root(&root, Path::new("/etc/passwd")).is_err());
        assert!(found("/etc/passwd").is_err() && found("dangling").is_err());
        assert!(place_in_root(&root, Path::new("dangling"), false).is_ok());
        let magic = place_in_root(place(Path::new("/")).unwrap(), Path::new("/proc/self/root"), true);
        assert_eq!(magic.unwrap_err().raw_os_error(), Some(libc::ELOOP));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_way_that_is_known_is_gone_without_asking() {
        let own = std::env::current_exe().unwrap();
        match known_place(&own) {
            Ok(found) => assert_eq!(of(&found).unwrap(), of(place(&own).unwrap()).unwrap()),
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOSYS | libc::EINVAL | libc::EPERM)))
            }
        }
    }

    #[test]
    fn shared_memory_has_a_device() {
        assert_eq!(device_of_shared_memory().unwrap().0, 0);
    }
}
