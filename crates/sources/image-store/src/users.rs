//! Finds which processes map which image.

use crate::{Image, StoreError};
use address_space::FileNumbers;
use linux::device_numbers;
use process_view::{ObservationError, ProcessFiles, Unanswered, each_process};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The processes that map images.
#[derive(Clone, Debug, Default)]
pub struct Users {
    by_file: BTreeMap<FileNumbers, BTreeSet<i32>>,
    /// Number of processes that this user cannot inspect; they may map images too.
    pub not_permitted: u64,
    /// Processes that do not answer.
    pub unanswered: Vec<Unanswered>,
}

impl Users {
    /// Reads the mappings of every process.
    ///
    /// # Errors
    /// [`StoreError::Io`] if `/proc` cannot be listed. A process that ends while it is read is skipped.
    pub fn read() -> Result<Self, StoreError> {
        let mut users = Self::default();
        each_process(ProcessFiles::maps, |pid, looked| match looked {
            Ok(Ok(space)) => {
                let files = space.mappings().iter().filter(|mapping| mapping.inode != 0);
                for mapping in files {
                    users.by_file.entry(mapping.file_numbers()).or_default().insert(pid);
                }
            }
            Ok(Err(ObservationError::NotPermitted { .. })) => users.not_permitted += 1,
            Ok(Err(_)) => {}
            Err(unanswered) => users.unanswered.push(unanswered),
        })
        .map_err(|error| StoreError::io("listing /proc", io::Error::other(error)))?;
        Ok(users)
    }

    /// Returns a process that does not answer and may map the image. The kernel refuses a write lease on an image that
    /// is open or mapped.
    pub fn unseen(&self, image: &Image) -> Option<&Unanswered> {
        self.unanswered.first().filter(|_| !image.is_unmapped())
    }

    /// The processes that map an image.
    pub fn of(&self, image: &Image) -> Vec<i32> {
        let (device, inode) = image.device_and_inode();
        let numbers = FileNumbers { device: device_numbers(device), inode };
        self.by_file.get(&numbers).into_iter().flatten().copied().collect()
    }
}
