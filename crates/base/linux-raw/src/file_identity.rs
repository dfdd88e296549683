//! The identity of a file in one state.

use crate::kernel::general::statx;

/// Device, inode, size and both times: a file that was replaced or written to has a different identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Device number as stat(2) gives it, which on btrfs and overlayfs is not the one in maps.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last change of the contents, in seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Last change of the inode, in seconds and nanoseconds.
    pub changed: (i64, i64),
}

impl FileIdentity {
    /// The identity of the file that this status belongs to.
    pub fn of_status(status: &statx) -> Self {
        Self {
            device: device_number(status.stx_dev_major, status.stx_dev_minor),
            inode: status.stx_ino,
            size: status.stx_size,
            modified: (status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec.into()),
            changed: (status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec.into()),
        }
    }

    /// The identity of the file that this metadata belongs to.
    #[cfg(feature = "std")]
    pub fn of(metadata: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A device number as stat(2) packs it (makedev(3)), from its major and minor number.
pub const fn device_number(major: u32, minor: u32) -> u64 {
    let (major, minor) = (major as u64, minor as u64);
    (major & 0xfff) << 8 | (major & 0xffff_f000) << 32 | minor & 0xff | (minor & 0xffff_ff00) << 12
}

/// Major and minor number of a device, from its number as stat(2) packs it.
pub const fn device_numbers(device: u64) -> (u32, u32) {
    let major = (device >> 8) & 0xfff | (device >> 32) & 0xffff_f000;
    let minor = device & 0xff | (device >> 12) & 0xffff_ff00;
    (major as u32, minor as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_agree_with_the_c_library() {
        for device in [0, 0xfe00, 0x1_0305, u64::MAX, 0x1234_5678_9abc_def0] {
            let (major, minor) = device_numbers(device);
            assert_eq!((major, minor), (libc::major(device), libc::minor(device)), "{device:#x}");
            assert_eq!(device_number(major, minor), device);
        }
    }

    #[test]
    #[cfg(feature = "std")]
    fn both_ways_to_read_a_file_give_one_identity() {
        use std::os::fd::AsRawFd;
        for path in ["/proc/self/exe", "/dev/null", "/proc/version"] {
            let file = std::fs::File::open(path).unwrap();
            let status = crate::status_of(file.as_raw_fd()).unwrap();
            assert_eq!(FileIdentity::of_status(&status), FileIdentity::of(&file.metadata().unwrap()), "{path}");
        }
    }
}
