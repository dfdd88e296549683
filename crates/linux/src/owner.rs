//! Whose a program is, and who runs it.

use crate::text::text_of;
use nix::unistd::geteuid;
use std::ffi::CString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

const ROOT: u32 = 0;

/// True where a file of this user may decide what this process does: root's and its own.
pub fn is_trusted(owner: u32) -> bool {
    owner == ROOT || owner == geteuid().as_raw()
}

/// True where root or this process's user owns the file.
pub fn is_of_trusted_user(file: &Metadata) -> bool {
    is_trusted(file.uid())
}

/// True where root or this process's user owns the file that a process executes. A file system that does not answer is not
/// waited for.
pub fn executes_trusted_file(pid: i32) -> bool {
    let Ok(path) = CString::new(format!("/proc/{pid}/exe")) else { return false };
    linux_raw::cached_status(&path).is_ok_and(|status| is_trusted(status.stx_uid))
}

/// The real user ID of a process, which the owner of its files in `/proc` need not be.
pub fn user_of(pid: i32) -> Option<u32> {
    let status = text_of(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_and_its_user_are_known() {
        let own = std::process::id() as i32;
        assert_eq!(user_of(own), Some(nix::unistd::getuid().as_raw()));
        let owner = std::fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(executes_trusted_file(own), is_of_trusted_user(&owner));
        assert!(is_trusted(ROOT) && !is_trusted(u32::MAX));
    }
}
