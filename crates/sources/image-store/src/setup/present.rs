//! The mode and size of the present store, which the setup keeps.

use super::hugetlbfs::MountedOptions;
use super::uninstall::text_of;
use super::{DEVICE, StoreMount, StoreSize, is_fit};
use crate::FileSystem;
use crate::access::ROOT;
use crate::file_system::mounted_on;
use crate::store::ONLY_ON_REQUEST;
use address_space::{PageSize, parse_bytes};
use machine_facts::{Files, System, default_hugetlb};
use nix::sys::statvfs::statvfs;
use nix::sys::sysinfo::sysinfo;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The mode of a store's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreMode {
    /// Permissions, from 700 to 755.
    pub permissions: u32,
    /// Lifts may make images in it.
    pub automatic: bool,
}

/// The mode of a new store.
impl Default for StoreMode {
    fn default() -> Self {
        Self { permissions: 0o755, automatic: true }
    }
}

impl StoreMode {
    /// `None` for a mode that no store has.
    fn of(mode: u32) -> Option<Self> {
        let permissions = mode & 0o7777 & !ONLY_ON_REQUEST;
        is_fit(permissions).then_some(Self { permissions, automatic: mode & ONLY_ON_REQUEST == 0 })
    }

    /// The mode in a list of mount options.
    fn in_options(options: &str) -> Option<Self> {
        let mode = options.split(',').find_map(|option| option.strip_prefix("mode="))?;
        Self::of(u32::from_str_radix(mode, 8).ok()?)
    }
}

impl StoreMount {
    /// The mode that this mount gives the directory.
    pub fn mode(&self) -> StoreMode {
        StoreMode { permissions: self.mode, automatic: self.automatic }
    }

    /// The mode of the mounted store; if none is mounted, [`Self::mode_at_boot`]. Every user can read it.
    pub fn present_mode(&self, folder: &Path, fstab: &Path) -> Option<StoreMode> {
        self.mounted_mode().or_else(|| self.mode_at_boot(folder, fstab))
    }

    /// The mode in this directory's mount unit in `folder`, or in its line in `fstab`; `None` if neither has one.
    pub fn mode_at_boot(&self, folder: &Path, fstab: &Path) -> Option<StoreMode> {
        self.at_boot(folder, fstab, StoreMode::in_options)
    }

    /// Returns the mount with the size limit of the present store: the limit of the mounted store; if none is mounted, the one in
    /// its mount unit or in its line in `fstab`. The size stays if there is no store on this type of file system, or no limit.
    pub fn with_present_size(self, folder: &Path, fstab: &Path) -> Self {
        let at_boot = self.at_boot(folder, fstab, |options| self.size_in_options(options));
        let present = match self.mounted_hugetlbfs().filter(|_| self.file_system == FileSystem::Hugetlbfs) {
            Some(mounted) => size_of_mounted(mounted, at_boot),
            None => self.mounted_size().or(at_boot),
        };
        Self { size: present.or(self.size), keeps_size: true, ..self }
    }

    /// Returns the mount with the page size of the present store on hugetlbfs, unless a page size is given. The kernel's
    /// default size stays unnamed, unless the configuration names it.
    pub fn with_present_page_size(self, folder: &Path, fstab: &Path) -> Self {
        if self.file_system != FileSystem::Hugetlbfs || self.page_size.is_some() {
            return self;
        }
        let mounted = self.mounted_hugetlbfs().map(|mounted| mounted.page_size);
        let usual = default_hugetlb(&System.text("/proc/meminfo").unwrap_or_default());
        let page_size = page_size_of(mounted, self.at_boot(folder, fstab, page_size_in), usual);
        Self { page_size, ..self }
    }

    /// Applies `read` to the options in this directory's mount unit. If it finds nothing there, applies it to the options in the
    /// directory's line of an fstab(5).
    fn at_boot<T>(&self, folder: &Path, fstab: &Path, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let unit = text_of(&folder.join(self.systemd_unit().0)).unwrap_or_default();
        let options = unit.lines().find_map(|line| line.strip_prefix("Options="));
        // A unit has the sign of a share twice (systemd.unit(5), "Specifiers").
        let in_unit = options.and_then(|options| read(&options.replace("%%", "%")));
        in_unit.or_else(|| {
            fs::read_to_string(fstab).ok()?.lines().find_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let [DEVICE, place, _, options, ..] = fields[..] else { return None };
                if Path::new(place) == self.directory { read(options) } else { None }
            })
        })
    }

    fn size_in_options(&self, options: &str) -> Option<StoreSize> {
        let is_tmpfs = options.split(',').any(|option| option.starts_with("huge="));
        let size = options.split(',').find_map(|option| option.strip_prefix("size="))?;
        if is_tmpfs == (self.file_system == FileSystem::Tmpfs) { size.parse().ok() } else { None }
    }

    /// The limit of a mounted tmpfs, as a share of memory if it is exactly one (`shmem_parse_one`, mm/shmem.c).
    fn mounted_size(&self) -> Option<StoreSize> {
        let mounted = mounted_on(&self.directory)?;
        if self.file_system != FileSystem::Tmpfs || mounted.kind != "tmpfs" || mounted.source != DEVICE {
            return None;
        }
        let found = statvfs(&self.directory).ok()?;
        let (page, size) = (found.fragment_size(), found.blocks() * found.fragment_size());
        let memory = sysinfo().ok()?.ram_total();
        let share = (1..=100).find(|&percent| (memory * u64::from(percent) / 100).abs_diff(size) <= page);
        (size > 0).then(|| share.map_or(StoreSize::Bytes(size), StoreSize::Percent))
    }

    fn mounted_mode(&self) -> Option<StoreMode> {
        let mounted = mounted_on(&self.directory)?;
        let found = fs::symlink_metadata(&self.directory).ok()?;
        let is_store = mounted.source == DEVICE && found.uid() == ROOT;
        StoreMode::of(found.mode()).filter(|_| is_store)
    }
}

/// The page size that a configuration names for a store, which is mounted with pages of the size `mounted`.
fn page_size_of(mounted: Option<PageSize>, at_boot: Option<PageSize>, usual: Option<PageSize>) -> Option<PageSize> {
    let is_kept = |at_boot: &PageSize| mounted.is_none_or(|mounted| mounted == *at_boot);
    at_boot.filter(is_kept).or(mounted.filter(|_| mounted != usual))
}

fn page_size_in(options: &str) -> Option<PageSize> {
    let size = options.split(',').find_map(|option| option.strip_prefix("pagesize="))?;
    PageSize::new(parse_bytes(size).ok()?).ok()
}

/// The size of a mounted hugetlbfs. A share in its configuration stays one, although the mount has the share of the pool as
/// it was then.
fn size_of_mounted(mounted: MountedOptions, at_boot: Option<StoreSize>) -> Option<StoreSize> {
    let is_kept = |size: &StoreSize| matches!(size, StoreSize::Percent(_)) && mounted.limit().is_some();
    at_boot.filter(is_kept).or(mounted.limit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::USUAL_SHARE;

    fn on(directory: &str, permissions: u32) -> StoreMount {
        StoreMount::new(Path::new(directory), FileSystem::Tmpfs, None, None, permissions).unwrap()
    }

    #[test]
    fn the_mode_of_the_next_boot_is_read_from_a_unit_or_a_table() {
        let folder = tempfile::tempdir().unwrap();
        let fstab = folder.path().join("fstab");
        let read = || on("/srv/no-such-store", 0o755).present_mode(folder.path(), &fstab);
        assert_eq!(read(), None);
        on("/srv/other", 0o750).install_fstab_line(&fstab).unwrap();
        assert_eq!(read(), None);

        let in_table = on("/srv/no-such-store", 0o755).with_automatic_images(false);
        in_table.install_fstab_line(&fstab).unwrap();
        assert_eq!(read(), Some(StoreMode { permissions: 0o755, automatic: false }));

        let in_unit = on("/srv/no-such-store", 0o700).with_automatic_images(false);
        let units = in_unit.install_units(folder.path(), Path::new("/usr/bin/pagelift")).unwrap();
        assert_eq!(read(), Some(in_unit.mode()));
        let text = fs::read_to_string(&units[0]).unwrap();
        fs::write(&units[0], text.replace("mode=01700", "mode=0777")).unwrap();
        assert_eq!(read(), Some(in_table.mode()), "a mode that no store has");
    }

    #[test]
    fn the_size_of_the_next_boot_is_read_from_a_unit_or_a_table() {
        let folder = tempfile::tempdir().unwrap();
        let fstab = folder.path().join("fstab");
        let sized = |kind, size| StoreMount::new(Path::new("/srv/no-such-store"), kind, None, size, 0o755).unwrap();
        let read = |kind| sized(kind, None).with_present_size(folder.path(), &fstab).size;
        assert_eq!(read(FileSystem::Tmpfs), Some(USUAL_SHARE));
        sized(FileSystem::Tmpfs, Some(StoreSize::Bytes(3 << 30))).install_fstab_line(&fstab).unwrap();
        assert_eq!(read(FileSystem::Tmpfs), Some(StoreSize::Bytes(3 << 30)));
        assert_eq!(read(FileSystem::Hugetlbfs), None, "a size of another file system");
        let in_unit = sized(FileSystem::Tmpfs, Some(StoreSize::Percent(40)));
        in_unit.install_units(folder.path(), Path::new("/usr/bin/pagelift")).unwrap();
        assert_eq!(read(FileSystem::Tmpfs), Some(StoreSize::Percent(40)));
    }

    #[test]
    fn a_store_keeps_its_page_size() {
        let [large, huge] = [1 << 30, 2 << 20].map(|bytes| PageSize::new(bytes).ok());
        for (mounted, at_boot, expected) in [
            (large, None, large),
            (huge, None, None),
            (huge, huge, huge),
            (large, huge, large),
            (huge, large, None),
            (None, large, large),
            (None, None, None),
        ] {
            assert_eq!(page_size_of(mounted, at_boot, huge), expected, "{mounted:?} {at_boot:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let fstab = folder.path().join("fstab");
        let path = Path::new("/srv/no-such-store");
        let on = |size| StoreMount::new(path, FileSystem::Hugetlbfs, size, None, 0o755).unwrap();
        on(large).install_fstab_line(&fstab).unwrap();
        let kept = |size| on(size).with_present_page_size(folder.path(), &fstab).page_size;
        assert_eq!([kept(None), kept(huge)], [large, huge]);
    }

    #[test]
    fn a_share_stays_one_although_the_pool_has_another_size_now() {
        let mounted = |limit| MountedOptions { page_size: PageSize::new(2 << 20).unwrap(), limit, pool: 100 };
        let (share, bytes) = (Some(StoreSize::Percent(50)), |pages: u64| Some(StoreSize::Bytes(pages << 21)));
        for (at_boot, limit, expected) in [
            (share, Some(16), share),
            (share, Some(50), share),
            (share, None, None),
            (bytes(8), Some(16), bytes(16)),
            (None, Some(16), bytes(16)),
        ] {
            assert_eq!(size_of_mounted(mounted(limit), at_boot), expected, "{at_boot:?} {limit:?}");
        }
    }
}
