//! Information of the kernel on the file system of an open file.

use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `linux/magic.h`; nix has it for glibc only.
pub const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342);
/// `linux/magic.h`; nix has it for some C libraries only.
pub const OVERLAYFS_SUPER_MAGIC: FsType = FsType(0x794c_7630);

/// True for file systems that give a file a new time of change whenever it is changed, by `write` and through mappings: their
/// `page_mkwrite` calls `file_update_time` when a page that can be written is mapped (read in Linux 6.18). On tmpfs no
/// write through a mapping does. On overlayfs it is the file system below that does or does not.
pub fn records_changes(kind: FsType) -> bool {
    [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC].contains(&kind)
}

/// True for file systems that cannot be written: squashfs and erofs (`linux/magic.h`). Their files have the times that the maker
/// of the medium chose.
pub fn cannot_be_written(kind: FsType) -> bool {
    [0x7371_7368, 0xe0f5_e1e2].contains(&(kind.0 as u32))
}

/// Maximum length in bytes of the name that the kernel returns (`linux/fs.h`).
const LONGEST_NAME: usize = 128;

/// `struct fs_sysfs_path` (`linux/fs.h`).
#[repr(C)]
pub struct SysfsPath {
    length: u8,
    name: [u8; LONGEST_NAME],
}

/// `struct btrfs_ioctl_fs_info_args` (`linux/btrfs.h`) up to the identifier; the rest is not read.
#[repr(C)]
pub struct BtrfsInformation {
    highest_device: u64,
    devices: u64,
    identifier: [u8; 16],
    rest: [u64; 124],
}

mod request {
    use super::{BtrfsInformation, SysfsPath};

    nix::ioctl_read!(
        /// `FS_IOC_GETFSSYSFSPATH` (Linux 6.10, `linux/fs.h`).
        get_sysfs_path, 0x15, 1, SysfsPath
    );
    nix::ioctl_read!(
        /// `BTRFS_IOC_FS_INFO` (`linux/btrfs.h`), which needs no rights.
        get_btrfs_information, 0x94, 31, BtrfsInformation
    );
}

/// Returns the name below `/sys/fs` of the directory that the kernel keeps for the file's mounted file system, such as
/// `ext4/sda1`.
///
/// btrfs does not report it (`ENOTTY` on 6.18); its directory, new at each mount, is named by its identifier.
///
/// # Errors
/// The kernel's: `ENOTTY` on file systems without such a directory, and on others than btrfs before Linux 6.10.
pub fn sysfs_path(file: &File) -> io::Result<String> {
    match told_path(file) {
        Err(error) if error.raw_os_error() == Some(nix::libc::ENOTTY) => btrfs_path(file),
        told => told,
    }
}

fn btrfs_path(file: &File) -> io::Result<String> {
    let mut information = BtrfsInformation { highest_device: 0, devices: 0, identifier: [0; 16], rest: [0; 124] };
    // SAFETY:
    // - `information` has the size that the request names, and the call writes no more than that.
    unsafe { request::get_btrfs_information(file.as_raw_fd(), &raw mut information) }?;
    Ok(format!("btrfs/{}", hyphenated(information.identifier)))
}

/// As the kernel writes an identifier (`%pU`).
fn hyphenated(identifier: [u8; 16]) -> String {
    let digits: String = identifier.iter().map(|byte| format!("{byte:02x}")).collect();
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &digits[group]).join("-")
}

fn told_path(file: &File) -> io::Result<String> {
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
    fn an_identifier_has_five_groups() {
        assert_eq!(size_of::<BtrfsInformation>(), 1024);
        let bytes = [0xdd, 0x0e, 0x82, 0x2d, 0xd2, 0x6f, 0x43, 0xdd, 0xb5, 0xaa, 0xb8, 0x32, 0xca, 0x1b, 0xa1, 0x06];
        assert_eq!(hyphenated(bytes), "dd0e822d-d26f-43dd-b5aa-b832ca1ba106");
    }

    #[test]
    fn the_folder_that_is_told_is_there() {
        // /proc has none on any kernel; other file systems depend on the machine.
        assert!(sysfs_path(&File::open("/proc/self/status").unwrap()).is_err());
        if let Ok(path) = sysfs_path(&File::open(std::env::current_exe().unwrap()).unwrap()) {
            assert!(std::path::Path::new("/sys/fs").join(&path).is_dir(), "{path}");
        }
    }
}
