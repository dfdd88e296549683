//! Pages that a process holds until it ends. A record in /run names them while the process lives.

use crate::change::{Change, GivenBack, give_back, part_of};
use crate::holder::Holder;
use crate::record::{FOLDER, ReservationRecord};
use crate::{PoolError, PoolLock, PoolRequest, Settings};
use std::path::Path;

/// Pages that this process gives back before it ends.
#[derive(Debug)]
pub struct HeldPages {
    changes: Vec<Change>,
    record: Option<ReservationRecord>,
}

impl HeldPages {
    /// Records the pages that this process has added; [`PoolLock`] must be held. Returns also why they are not recorded.
    pub fn new(settings: &impl Settings, changes: Vec<Change>) -> (Self, Option<PoolError>) {
        Self::within(Path::new(FOLDER), settings, std::process::id() as i32, changes)
    }

    fn within(folder: &Path, settings: &impl Settings, pid: i32, changes: Vec<Change>) -> (Self, Option<PoolError>) {
        let record = Holder::of(settings, pid).map(|holder| ReservationRecord::of_holder(folder, holder.name()));
        let held = Self { changes, record };
        let failed = held.write(settings).err();
        (held, failed)
    }

    /// True if no pages are held.
    pub fn is_empty(&self) -> bool {
        self.changes.iter().all(|change| change.pages == 0)
    }

    /// Gives back the pages that the requests name.
    ///
    /// # Errors
    /// The lock's, or the first refusal. The pages concerned stay held.
    pub fn give_back_part(
        &mut self,
        settings: &impl Settings,
        lock: Result<PoolLock, PoolError>,
        requests: &[PoolRequest],
    ) -> Result<Vec<GivenBack>, PoolError> {
        let _lock = lock?;
        let part: Vec<_> = requests.iter().flat_map(|request| part_of(&mut self.changes, request)).collect();
        self.give_back_each(settings, part)
    }

    /// Gives back all pages, also without the lock: sizes change by differences, and this process is the only one that knows
    /// the pages.
    ///
    /// # Errors
    /// The first refusal.
    pub fn give_back_all(
        &mut self,
        settings: &impl Settings,
        lock: Result<PoolLock, PoolError>,
    ) -> Result<Vec<GivenBack>, PoolError> {
        let _lock = lock;
        let all = std::mem::take(&mut self.changes);
        self.give_back_each(settings, all)
    }

    fn give_back_each(&mut self, settings: &impl Settings, part: Vec<Change>) -> Result<Vec<GivenBack>, PoolError> {
        let (mut given, mut failed) = (Vec::new(), None);
        for change in part.into_iter().filter(|change| change.pages > 0) {
            match give_back(settings, &[change]) {
                Ok(one) => given.extend(one),
                Err(error) => {
                    self.changes.push(change);
                    failed = failed.or(Some(error));
                }
            }
        }
        // The pages are more important than their record, which ends with this process.
        let _ = self.write(settings);
        failed.map_or(Ok(given), Err)
    }

    /// Writes the record, or removes it if no pages are held.
    fn write(&self, settings: &impl Settings) -> Result<(), PoolError> {
        let changes: Vec<_> = self.changes.iter().filter(|change| change.pages > 0).copied().collect();
        match &self.record {
            Some(record) if changes.is_empty() => record.remove(),
            Some(record) => record.write(settings, &changes),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::records_in;
    use crate::release;
    use crate::simulated::{Simulated, SimulatedNode};
    use std::time::Duration;

    fn machine() -> Simulated {
        Simulated::new(&[SimulatedNode { total: 10, free: 10, ..SimulatedNode::default() }; 2])
    }

    fn changes() -> Vec<Change> {
        let size = "2M".parse().unwrap();
        [3, 4].into_iter().zip(0..).map(|(pages, node)| Change { size, node: Some(node), pages }).collect()
    }

    fn held(folder: &Path, machine: &Simulated) -> HeldPages {
        let (held, failed) = HeldPages::within(folder, machine, Simulated::PID, changes());
        assert!(failed.is_none(), "{failed:?}");
        held
    }

    fn locked() -> Result<PoolLock, PoolError> {
        Err(PoolError::Locked { path: "lock".into(), waited: Duration::from_secs(600) })
    }

    fn lock(folder: &Path) -> Result<PoolLock, PoolError> {
        PoolLock::take_in(folder, Duration::ZERO)
    }

    #[test]
    fn pages_go_back_although_the_lock_is_not_had() {
        let (folder, machine) = (tempfile::tempdir().unwrap(), machine());
        let mut held = held(folder.path(), &machine);
        let part = [Simulated::request("2M:2@0")];
        assert!(held.give_back_part(&machine, locked(), &part).is_err());
        assert_eq!(machine.totals(), [10, 10]);
        assert_eq!(held.give_back_part(&machine, lock(folder.path()), &part).unwrap().len(), 1);
        assert_eq!(machine.totals(), [8, 10]);
        assert_eq!(held.give_back_all(&machine, locked()).unwrap().len(), 2);
        assert_eq!((machine.totals(), held.is_empty()), (vec![7, 6], true));
    }

    #[test]
    fn a_part_that_the_kernel_keeps_goes_back_at_the_end() {
        let (folder, mut machine) = (tempfile::tempdir().unwrap(), machine());
        let mut held = held(folder.path(), &machine);
        machine.refuses = Some(("node1/", 22));
        let parts = [Simulated::request("2M:2@1"), Simulated::request("2M:1@0")];
        assert!(held.give_back_part(&machine, lock(folder.path()), &parts).is_err());
        assert_eq!(machine.totals(), [9, 10]);
        machine.refuses = None;
        held.give_back_all(&machine, lock(folder.path())).unwrap();
        assert_eq!(machine.totals(), [7, 6]);
    }

    #[test]
    fn pages_whose_counts_cannot_be_read_afterwards_go_back_once() {
        let (folder, mut machine) = (tempfile::tempdir().unwrap(), machine());
        let mut held = held(folder.path(), &machine);
        machine.unreadable_after = Some(1);
        held.give_back_part(&machine, lock(folder.path()), &[Simulated::request("2M:2@1")]).unwrap();
        assert_eq!(machine.totals(), [10, 8]);
        machine.unreadable_after = None;
        held.give_back_all(&machine, lock(folder.path())).unwrap();
        assert_eq!(machine.totals(), [7, 6]);
    }

    #[test]
    fn no_size_is_set_from_counts_that_cannot_be_read() {
        let (folder, mut machine) = (tempfile::tempdir().unwrap(), machine());
        let mut held = held(folder.path(), &machine);
        machine.unreadable_after = Some(0);
        assert!(held.give_back_all(&machine, lock(folder.path())).is_err());
        machine.unreadable_after = None;
        assert_eq!((machine.totals(), held.is_empty()), (vec![10, 10], false));
    }

    #[test]
    fn all_does_not_include_held_pages() {
        let (folder, machine) = (tempfile::tempdir().unwrap(), machine());
        let mut held = held(folder.path(), &machine);
        let records = || records_in(folder.path(), &machine);
        let released = release(&machine, &records(), &"2M:all".parse().unwrap()).unwrap();
        assert_eq!((released.pages, machine.totals()), (13, vec![3, 4]));
        assert_eq!(released.recorded[0].holder, Some(Simulated::PID));
        held.give_back_part(&machine, lock(folder.path()), &[Simulated::request("2M:3@0")]).unwrap();
        assert_eq!(records()[0].changes, changes()[1..]);
        held.give_back_all(&machine, lock(folder.path())).unwrap();
        assert!(records().is_empty());
        let others = folder
            .path()
            .read_dir()
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".record"));
        assert_eq!(others.count(), 0, "a record was left");
    }

    #[test]
    fn the_record_of_a_process_that_was_killed_does_not_count() {
        let (folder, machine) = (tempfile::tempdir().unwrap(), machine());
        for holder in [Holder { pid: Simulated::PID, start: 1 }, Holder { pid: 1 + Simulated::PID, start: 1 }] {
            assert_eq!(Holder::named(&holder.name()), Some(holder));
            ReservationRecord::of_holder(folder.path(), holder.name()).write(&machine, &changes()).unwrap();
        }
        assert!(records_in(folder.path(), &machine).is_empty());
        assert!(["db", "held", "held.1", "held.x.1"].iter().all(|name| Holder::named(name).is_none()));
    }
}
