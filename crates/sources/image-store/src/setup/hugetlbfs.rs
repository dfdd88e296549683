//! The options of a mounted hugetlbfs, which a remount does not change (`hugetlbfs_fs_context_ops`, fs/hugetlbfs/inode.c).

use super::{DEVICE, StoreMount, StoreSize};
use crate::StoreError;
use crate::file_system::mounted_on;
use address_space::{PageSize, format_bytes};
use foreign_text::quoted_path;
use machine_facts::pool_directory;
use nix::sys::statvfs::statvfs;
use std::fs;

/// Options of a mounted hugetlbfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountedOptions {
    pub page_size: PageSize,
    /// Limit in pages; `None` if only the pool limits it.
    pub limit: Option<u64>,
    /// Present number of pages in the pool, of which a share is computed.
    pub pool: u64,
}

impl MountedOptions {
    /// The limit in bytes.
    pub(super) fn limit(self) -> Option<StoreSize> {
        self.limit.map(|pages| StoreSize::Bytes(pages.saturating_mul(self.page_size.bytes())))
    }

    /// True if a mount with this size has the same limit. The kernel rounds down to pages.
    fn has_limit(self, size: StoreSize) -> bool {
        let pages = match size {
            StoreSize::Bytes(bytes) => bytes / self.page_size.bytes(),
            StoreSize::Percent(percent) => self.pool.saturating_mul(percent.into()) / 100,
        };
        self.limit == Some(pages)
    }
}

impl StoreMount {
    /// The options of this directory's store, if it is a mounted hugetlbfs.
    pub(super) fn mounted_hugetlbfs(&self) -> Option<MountedOptions> {
        let mounted = mounted_on(&self.directory)?;
        if mounted.kind != "hugetlbfs" || mounted.source != DEVICE {
            return None;
        }
        let found = statvfs(&self.directory).ok()?;
        let page_size = PageSize::new(found.block_size()).ok()?;
        // Without a limit it has no blocks.
        let limit = Some(found.blocks()).filter(|&blocks| blocks != 0 && blocks != u64::MAX);
        let pool = fs::read_to_string(format!("{}/nr_hugepages", pool_directory(page_size, None))).unwrap_or_default();
        Some(MountedOptions { page_size, limit, pool: pool.trim().parse().unwrap_or(0) })
    }

    /// Checks that the mounted store has this page size and this size, where they are requested.
    ///
    /// # Errors
    /// [`StoreError::NotReplaced`].
    pub(super) fn refuse_other_options(&self, mounted: MountedOptions) -> Result<(), StoreError> {
        let is_same_page = self.page_size.is_none_or(|size| size == mounted.page_size);
        if is_same_page && (self.keeps_size || self.size.is_none_or(|size| mounted.has_limit(size))) {
            return Ok(());
        }
        let limit = match mounted.limit() {
            Some(StoreSize::Bytes(bytes)) => format!("a limit of {}", format_bytes(bytes)),
            _ => "no limit".to_owned(),
        };
        Err(StoreError::NotReplaced {
            path: self.directory.clone(),
            found: format!("a mounted hugetlbfs with {} pages and {limit}", mounted.page_size),
            needed: "the same --page-size and --size, since only a new mount changes them",
            fix: format!("umount {}", quoted_path(&self.directory)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileSystem;
    use std::path::Path;

    fn checked(page_size: Option<u64>, size: Option<StoreSize>, limit: Option<u64>) -> Result<(), String> {
        let page = |bytes| PageSize::new(bytes).unwrap();
        let path = Path::new("/run/pagelift/images");
        let mount = StoreMount::new(path, FileSystem::Hugetlbfs, page_size.map(page), size, 0o755).unwrap();
        let mounted = MountedOptions { page_size: page(2 << 20), limit, pool: 33 };
        mount.refuse_other_options(mounted).map_err(|error| error.to_string())
    }

    #[test]
    fn a_mounted_hugetlbfs_takes_no_other_options() {
        let (megabytes, share) = (|number: u64| Some(StoreSize::Bytes(number << 20)), Some(StoreSize::Percent(50)));
        for (page_size, size, limit) in [
            (None, None, None),
            (None, None, Some(32)),
            (Some(2 << 20), megabytes(64), Some(32)),
            (None, megabytes(65), Some(32)),
            (None, share, Some(16)),
        ] {
            assert_eq!(checked(page_size, size, limit), Ok(()), "{page_size:?} {size:?} {limit:?}");
        }
        for (page_size, size, limit) in [
            (Some(1 << 30), None, None),
            (None, megabytes(64), None),
            (None, megabytes(64), Some(16)),
            (None, share, Some(32)),
            (None, share, None),
        ] {
            let error = checked(page_size, size, limit).unwrap_err();
            assert!(error.contains("fix: `umount /run/pagelift/images`"), "{error}");
        }
        let kept = StoreMount::new(Path::new("/srv/none"), FileSystem::Hugetlbfs, None, None, 0o755).unwrap();
        let nowhere = Path::new("/srv/none/none");
        let kept = StoreMount { size: share, ..kept.with_present_size(nowhere, nowhere) };
        let mounted = MountedOptions { page_size: PageSize::new(2 << 20).unwrap(), limit: Some(32), pool: 33 };
        assert!(kept.refuse_other_options(mounted).is_ok(), "a size that nobody has requested");
        let error = checked(Some(1 << 30), None, Some(32)).unwrap_err();
        assert!(
            error.contains("found a mounted hugetlbfs with 2 MiB pages and a limit of 64.0 MiB, needed"),
            "{error}"
        );
    }
}
