//! The mode and size of the present store, which the setup keeps.

use super::uninstall::text_of;
use super::{DEVICE, StoreMount, StoreSize, is_fit};
use crate::FileSystem;
use crate::access::ROOT;
use crate::file_system::mounted_on;
use crate::store::ONLY_ON_REQUEST;
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

    /// The size limit of the mounted store; if none is mounted, the one in its mount unit or in its line in `fstab`. `None` if
    /// there is no store on this type of file system, or the mounted one has no limit.
    pub fn present_size(&self, folder: &Path, fstab: &Path) -> Option<StoreSize> {
        let at_boot = self.at_boot(folder, fstab, |options| self.size_in_options(options));
        match self.mounted_hugetlbfs().filter(|_| self.file_system == FileSystem::Hugetlbfs) {
            // A share stays one.
            Some(mounted) => at_boot.filter(|&size| mounted.has_limit(size)).or(mounted.limit()),
            None => self.mounted_size().or(at_boot),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileSystem;

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
        let read = |kind| sized(kind, None).present_size(folder.path(), &fstab);
        assert_eq!(read(FileSystem::Tmpfs), None);
        sized(FileSystem::Tmpfs, Some(StoreSize::Bytes(3 << 30))).install_fstab_line(&fstab).unwrap();
        assert_eq!(read(FileSystem::Tmpfs), Some(StoreSize::Bytes(3 << 30)));
        assert_eq!(read(FileSystem::Hugetlbfs), None, "a size of another file system");
        let in_unit = sized(FileSystem::Tmpfs, Some(StoreSize::Percent(40)));
        in_unit.install_units(folder.path(), Path::new("/usr/bin/pagelift")).unwrap();
        assert_eq!(read(FileSystem::Tmpfs), Some(StoreSize::Percent(40)));
    }
}
