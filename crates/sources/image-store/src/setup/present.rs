//! The mode of the present store, which the setup keeps.

use super::uninstall::text_of;
use super::{DEVICE, StoreMount, is_fit, mounted_type};
use crate::access::ROOT;
use crate::store::ONLY_ON_REQUEST;
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
        let unit = text_of(&folder.join(self.systemd_unit().0)).unwrap_or_default();
        let options = unit.lines().find_map(|line| line.strip_prefix("Options="));
        options.and_then(StoreMode::in_options).or_else(|| self.mode_in_table(&fs::read_to_string(fstab).ok()?))
    }

    fn mounted_mode(&self) -> Option<StoreMode> {
        let file_system = mounted_type(&self.directory)?;
        let found = fs::symlink_metadata(&self.directory).ok()?;
        let is_store = ["tmpfs", "hugetlbfs"].contains(&file_system.as_str()) && found.uid() == ROOT;
        StoreMode::of(found.mode()).filter(|_| is_store)
    }

    /// The mode in this directory's line of an fstab(5).
    fn mode_in_table(&self, table: &str) -> Option<StoreMode> {
        table.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [DEVICE, place, _, options, ..] = fields[..] else { return None };
            StoreMode::in_options(options).filter(|_| Path::new(place) == self.directory)
        })
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
}
