//! Attributes of files besides their mode: those of chattr(1) and of statx(2).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `FS_SECRM_FL` of linux/fs.h.
pub const SECURE_REMOVAL: u32 = 0x1;
/// `FS_UNRM_FL`.
pub const UNDELETE: u32 = 0x2;
/// `FS_SYNC_FL`.
pub const SYNC: u32 = 0x8;
/// `FS_IMMUTABLE_FL`.
pub const IMMUTABLE: u32 = 0x10;
/// `FS_APPEND_FL`.
pub const APPEND: u32 = 0x20;
/// `FS_NODUMP_FL`.
pub const NO_DUMP: u32 = 0x40;
/// `FS_NOATIME_FL`.
pub const NO_ACCESS_TIME: u32 = 0x80;
/// `FS_JOURNAL_DATA_FL`.
pub const JOURNAL_DATA: u32 = 0x4000;
/// `STATX_ATTR_ENCRYPTED` of linux/stat.h.
pub const ENCRYPTED: u64 = 0x800;
/// `STATX_ATTR_VERITY`.
pub const VERITY: u64 = 0x10_0000;

mod calls {
    // The argument of both is an `int`, though their numbers say `long` (ioctl_iflags(2)).
    nix::ioctl_read!(get, b'f', 1, libc::c_long);
    nix::ioctl_write_ptr!(set, b'f', 2, libc::c_long);
}

/// The attributes of chattr(1).
///
/// # Errors
/// The kernel's: `ENOTTY` where the file system has none.
pub fn flags(file: &File) -> io::Result<u32> {
    let mut flags: libc::c_long = 0;
    // SAFETY:
    // - the kernel writes an `int` into a variable that is no shorter.
    unsafe { calls::get(file.as_raw_fd(), &raw mut flags) }?;
    Ok(flags as u32)
}

/// Sets the attributes of chattr(1).
///
/// # Errors
/// The kernel's: `EPERM` without the right to set one.
pub fn set_flags(file: &File, flags: u32) -> io::Result<()> {
    let flags = libc::c_long::from(flags);
    // SAFETY:
    // - the kernel reads an `int` from a variable that is no shorter.
    unsafe { calls::set(file.as_raw_fd(), &raw const flags) }?;
    Ok(())
}

/// The attributes of statx(2).
///
/// # Errors
/// The kernel's.
pub fn shown(file: &File) -> io::Result<u64> {
    let status = linux_raw::status_of(file.as_raw_fd());
    status.map(|status| status.stx_attributes).map_err(io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_neither_encrypted_nor_immutable() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(shown(&file).unwrap() & (ENCRYPTED | VERITY), 0);
        // Some file systems have no such attributes.
        assert_eq!(flags(&file).unwrap_or(0) & (IMMUTABLE | APPEND), 0);
    }
}
