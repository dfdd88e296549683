//! Information of the kernel on the file system of an open file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Maximum length in bytes of the name that the kernel returns (`linux/fs.h`).
const LONGEST_NAME: usize = 128;

/// `struct fs_sysfs_path` (`linux/fs.h`).
#[repr(C)]
pub struct SysfsPath {
    length: u8,
    name: [u8; LONGEST_NAME],
}

mod request {
    use super::SysfsPath;

    nix::ioctl_read!(
        /// `FS_IOC_GETFSSYSFSPATH` (Linux 6.10, `linux/fs.h`).
        get_sysfs_path, 0x15, 1, SysfsPath
    );
}

/// Returns the name below `/sys/fs` of the directory that the kernel keeps for the file's mounted file system, such as
/// `ext4/sda1`.
///
/// # Errors
/// The kernel's: `ENOTTY` before Linux 6.10 and on file systems without such a directory.
pub fn sysfs_path(file: &File) -> io::Result<String> {
    let mut path = SysfsPath { length: 0, name: [0; LONGEST_NAME] };
    // SAFETY:
    // - `path` has the layout that the request names, and the call writes no more than that.
    unsafe { request::get_sysfs_path(file.as_raw_fd(), &raw mut path) }?;
    let name = path.name.get(..usize::from(path.length)).unwrap_or_default();
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8(name.to_vec()).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_that_is_told_is_there() {
        // /proc has none on any kernel; other file systems depend on the machine.
        assert!(sysfs_path(&File::open("/proc/self/status").unwrap()).is_err());
        if let Ok(path) = sysfs_path(&File::open(std::env::current_exe().unwrap()).unwrap()) {
            assert!(std::path::Path::new("/sys/fs").join(&path).is_dir(), "{path}");
        }
    }
}
