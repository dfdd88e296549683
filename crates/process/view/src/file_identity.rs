//! The identity of a file in one state.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

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
    /// The identity of the file that this metadata belongs to.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Major and minor number of a device as stat(2) packs them (makedev(3)).
pub(crate) fn device_numbers(device: u64) -> (u32, u32) {
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
            assert_eq!(device_numbers(device), (libc::major(device), libc::minor(device)), "{device:#x}");
        }
    }
}
