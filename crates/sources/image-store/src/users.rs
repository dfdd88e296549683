//! Finds which processes map which image.

use crate::{Image, StoreError};
use nix::sys::stat::{major, minor};
use process_view::{ObservationError, ProcessFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Who maps images now.
#[derive(Clone, Debug, Default)]
pub struct Users {
    by_file: BTreeMap<((u32, u32), u64), BTreeSet<i32>>,
    /// Number of processes that this user cannot inspect; some of them may map images too.
    pub not_permitted: u64,
}

impl Users {
    /// Reads the mappings of every process.
    ///
    /// # Errors
    /// [`StoreError::Io`] where `/proc` cannot be listed. A process that ends while it is read is skipped.
    pub fn read() -> Result<Self, StoreError> {
        let failed = |error| StoreError::io("listing /proc", error);
        let mut users = Self::default();
        for entry in fs::read_dir("/proc").map_err(failed)? {
            let Some(pid) = entry.map_err(failed)?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match ProcessFiles::of(pid).maps() {
                Ok(space) => {
                    let files = space.mappings().iter().filter(|mapping| mapping.inode != 0);
                    for mapping in files {
                        users.by_file.entry((mapping.device, mapping.inode)).or_default().insert(pid);
                    }
                }
                Err(ObservationError::NotPermitted { .. }) => users.not_permitted += 1,
                Err(_) => {}
            }
        }
        Ok(users)
    }

    /// The processes that map an image.
    pub fn of(&self, image: &Image) -> Vec<i32> {
        let (device, inode) = image.device_and_inode();
        let device = (major(device) as u32, minor(device) as u32);
        self.by_file.get(&(device, inode)).into_iter().flatten().copied().collect()
    }
}
