//! The verdicts of this machine, read again when their file has changed.

use crate::decision::{Order, Program};
use crate::verdicts::{FILE, Key, Measurement, Scope, Standing, Store, StoreError, Summary};
use linux::FileIdentity;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time after which measurements may count less, so that processes that were left plain are considered again.
const FRESH: Duration = Duration::from_secs(3600);

/// The verdicts.
#[derive(Debug)]
pub(super) struct Known {
    folder: PathBuf,
    scope: Scope,
    store: Store,
    changed: Option<FileIdentity>,
    read: Instant,
}

/// The identity of the file of verdicts in a folder; `None` if there is no file.
pub(super) fn identity_of_store(folder: &Path) -> Option<FileIdentity> {
    fs::metadata(folder.join(FILE)).ok().map(|file| FileIdentity::of(&file))
}

impl Known {
    /// Reads the verdicts of a folder; with the reason if they cannot be read.
    pub(super) fn start(folder: &Path) -> (Self, Option<StoreError>) {
        let mut known = Self {
            folder: folder.to_owned(),
            scope: Scope::default(),
            store: Store::default(),
            changed: None,
            read: Instant::now(),
        };
        let error = known.read_again().err();
        (known, error)
    }

    /// Reads the file if it has changed. Returns true if verdicts may differ from those before.
    ///
    /// # Errors
    /// The file cannot be read. The verdicts stay as they were.
    pub(super) fn follow(&mut self) -> Result<bool, StoreError> {
        if identity_of_store(&self.folder) == self.changed && self.read.elapsed() < FRESH {
            return Ok(false);
        }
        self.read_again().map(|()| true)
    }

    fn read_again(&mut self) -> Result<(), StoreError> {
        // Before the file is read: a later change is seen at the next look.
        let changed = identity_of_store(&self.folder);
        // Settings of transparent huge pages may have changed.
        self.scope = Scope::read();
        self.store = Store::load(&self.folder)?;
        (self.changed, self.read) = (changed, Instant::now());
        Ok(())
    }

    /// The key of a lift.
    pub(super) fn key(&self, program: &Program, order: &Order) -> Key {
        self.scope.key(&program.build_of_user(), &order.kind_words(), order.pages, order.max_memory)
    }

    /// The measurements of a lift, at a time in seconds since 1970, on the machine with this boot ID.
    pub(super) fn summary(&self, program: &Program, order: &Order, boot: &str, now: u64) -> Summary {
        let builds = program.builds_of_verdicts().into_iter();
        let keys = builds.map(|build| self.scope.key(&build, &order.kind_words(), order.pages, order.max_memory));
        Summary::of_keys(&self.store, keys, boot, now)
    }

    /// The verdict of a key now.
    pub(super) fn standing(&self, key: &Key) -> Standing {
        self.store.standing(key, super::unix_time())
    }

    /// Adds a measurement, also to the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn add(&mut self, key: Key, program: &str, measurement: Measurement) -> Result<(), StoreError> {
        let at = measurement.at;
        Store::update(&self.folder, |store| {
            store.add(key, program, measurement, at);
            Ok(())
        })?;
        self.read_again()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::sequential::Decision;

    #[test]
    fn verdicts_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let program = Program { build: "b".to_owned(), ..Program::default() };
        let order = Order {
            kinds: options::Kinds::of(&[options::Kind::Text]),
            pages: options::Pages::Auto,
            max_memory: None,
            keep: crate::rules::Keep::IfItPays,
        };
        let (mut known, error) = Known::start(folder.path());
        assert!(error.is_none() && !known.follow().unwrap());
        let measurement = |at| Measurement {
            decision: Decision::Harm,
            boot: "boot".to_owned(),
            at,
            blocks: 9,
            log_evidence: 0.0,
            gain: None,
        };
        known.add(known.key(&program, &order), "server", measurement(5)).unwrap();
        let summary = known.summary(&program, &order, "boot", 5);
        assert_eq!((summary.standing, summary.here, summary.harms), (Standing::DoesNotPay, 1, 1));
        let of_user = Program { owner: 1000, ..program.clone() };
        assert_eq!(known.summary(&of_user, &order, "boot", 5), Summary::default(), "a user's file with this build ID");
        let by_user = Program { user: 1000, ..program.clone() };
        assert_eq!(known.summary(&by_user, &order, "boot", 5).standing, Standing::DoesNotPay, "root's applies to all");
        let other = Program { build: "c".to_owned(), ..by_user };
        known.add(known.key(&other, &order), "server", measurement(5)).unwrap();
        assert_eq!(known.summary(&other, &order, "boot", 5).standing, Standing::DoesNotPay);
        for user in [0, 1001] {
            let of_other_user = Program { user, ..other.clone() };
            assert_eq!(known.summary(&of_other_user, &order, "boot", 5), Summary::default(), "measured by a user");
        }
        assert!(!known.follow().unwrap(), "its own change");
        let forgotten = Store::update(folder.path(), |store| Ok(store.forget_all())).unwrap();
        assert!(forgotten == 2 && known.follow().unwrap());
        assert_eq!(known.summary(&program, &order, "boot", 5), Summary::default());
        fs::remove_file(folder.path().join(FILE)).unwrap();
        fs::create_dir(folder.path().join(FILE)).unwrap();
        assert!(known.follow().is_err());
        assert!(known.follow().is_err(), "the file is read again until it can be read");
    }
}
