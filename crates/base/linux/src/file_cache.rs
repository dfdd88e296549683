//! The part of a file that is in the page cache (cachestat(2)).

pub use linux_raw::CachedPages;
use nix::sys::statfs::FsType;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// System call `cachestat` (Linux 6.5): one number on every architecture.
pub const SYS_CACHESTAT: libc::c_long = 451;

/// `OVERLAYFS_SUPER_MAGIC` (`linux/magic.h`).
const OVERLAYFS: FsType = FsType(0x794c_7630);

/// Counts the base pages of a part of a file that are in the page cache. Nothing is read.
///
/// # Errors
/// `ENOSYS` before Linux 6.5; `EPERM` since 6.15 where the caller neither owns the file nor may write it; `EOPNOTSUPP`
/// for hugetlbfs, and for overlayfs, where the kernel counts the pages of the file above the layers, which never has any
/// (seen with 7.3).
pub fn cached_pages(file: &File, offsets: Range<u64>) -> io::Result<CachedPages> {
    let length = offsets.end.saturating_sub(offsets.start);
    // The kernel would count the rest of the file.
    if length == 0 {
        return Ok(CachedPages::default());
    }
    if nix::sys::statfs::fstatfs(file)?.filesystem_type() == OVERLAYFS {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    linux_raw::cached_pages(file.as_raw_fd(), offsets.start, length).map_err(io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::base_page;

    #[test]
    fn what_was_just_written_is_in_the_cache() {
        let path = std::env::temp_dir().join(format!("pagelift-cached-{}", std::process::id()));
        let page = base_page().bytes();
        std::fs::write(&path, vec![1; 3 * page as usize]).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        match cached_pages(&file, page..3 * page) {
            Ok(pages) => assert_eq!(pages.cached, 2),
            Err(error) => assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS)), "{error}"),
        }
        assert!(cached_pages(&file, page..page).is_ok_and(|pages| pages == CachedPages::default()));
    }
}
