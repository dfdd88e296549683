//! The pages that reservations under a name have added, recorded in a place that only root can write and that a boot
//! clears. A repeated reservation adds only the missing pages, and a release gives back the added pages, in use or not.

use crate::change::{Change, give_back, persistent, pool_of};
use crate::holder::Holder;
use crate::install::{InstallError, check_name};
use crate::reserve::reserve_beside;
use crate::{GivenBack, PoolError, PoolRequest, ReserveOptions, ReserveOutcome, Settings};
use linux::owner::is_trusted;
use machine_facts::Files;
use nix::fcntl::OFlag;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Root's own folder, which is empty after a boot, as the pools are.
pub(crate) const FOLDER: &str = "/run";
const PREFIX: &str = "pagelift-pool-";
const SUFFIX: &str = ".record";
/// A new one at each boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Maximum number of bytes of a record; a line for each size and node has about ten.
const LONGEST: u64 = 64 << 10;

/// The record of one name. [`crate::PoolLock`] must be held while it is used.
#[derive(Clone, Debug)]
pub struct ReservationRecord {
    folder: PathBuf,
    name: String,
}

/// The contents of a record.
#[derive(Debug, PartialEq, Eq)]
enum Recorded {
    /// Nothing was written since the boot.
    Nothing,
    /// The pages that were added and not given back.
    Changes(Vec<Change>),
    /// It cannot be used, for this reason.
    Unusable(String),
}

/// The pages of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedPages {
    /// The name of the record.
    pub name: String,
    /// The process that releases the pages when it ends; `None` if a user has named the reservation.
    pub holder: Option<i32>,
    /// The pages that were added and not given back, in use or not.
    pub changes: Vec<Change>,
}

/// The outcome of a reservation that is recorded.
#[derive(Debug)]
pub struct RecordedOutcome {
    /// The outcome of each request.
    pub outcomes: Vec<ReserveOutcome>,
    /// Why an existing record was not used.
    pub note: Option<String>,
}

/// The outcome for pages that a record names.
#[derive(Debug)]
pub struct RecordedRelease {
    /// The pages given back.
    pub given: Vec<GivenBack>,
    /// Why the pages that were named count in place of a record.
    pub note: Option<String>,
}

impl ReservationRecord {
    /// The record of `name` on this machine.
    ///
    /// # Errors
    /// [`InstallError::Name`].
    pub fn of(name: &str) -> Result<Self, InstallError> {
        Self::within(Path::new(FOLDER), name)
    }

    fn within(folder: &Path, name: &str) -> Result<Self, InstallError> {
        check_name(name)?;
        Ok(Self { folder: folder.to_owned(), name: name.to_owned() })
    }

    /// The record of a process.
    pub(crate) fn of_holder(folder: &Path, name: String) -> Self {
        Self { folder: folder.to_owned(), name }
    }

    /// The path of its file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(format!("{PREFIX}{}{SUFFIX}", self.name))
    }

    /// Reserves the requested pages that the record lacks, and adds them to the record.
    ///
    /// # Errors
    /// As [`crate::reserve`]; [`PoolError::ReservationRecord`] if it cannot be written: then nothing stays added.
    pub fn reserve(
        &self,
        settings: &impl Settings,
        requests: &[PoolRequest],
        options: &ReserveOptions,
    ) -> Result<RecordedOutcome, PoolError> {
        let (held, note) = match self.read(settings) {
            Recorded::Nothing => (Vec::new(), None),
            Recorded::Changes(changes) => (self.still_there(settings, changes), None),
            Recorded::Unusable(why) => {
                (Vec::new(), Some(format!("{why}; all pages are added, and a new one is written")))
            }
        };
        let outcomes = reserve_beside(settings, &held, requests, options)?;
        let added: Vec<_> = outcomes.iter().flat_map(|outcome| outcome.changes.clone()).collect();
        if let Err(error) = self.write(settings, &[held, added.clone()].concat()) {
            give_back(settings, &added)?;
            return Err(error);
        }
        Ok(RecordedOutcome { outcomes, note })
    }

    /// Gives back the pages of the record, or `named` if there is no record. Pages in use become surplus: they leave
    /// when they are freed.
    ///
    /// # Errors
    /// The first refusal, which keeps its pages in the record; [`PoolError::ReservationRecord`].
    pub fn release(&self, settings: &impl Settings, named: &[PoolRequest]) -> Result<RecordedRelease, PoolError> {
        let (recorded, why) = match self.read(settings) {
            Recorded::Changes(changes) => (Some(changes), String::new()),
            Recorded::Nothing => (None, format!("found no {}", self.path().display())),
            Recorded::Unusable(why) => (None, why),
        };
        let note = recorded.is_none().then(|| format!("{why}; the named pages are used instead"));
        let changes = recorded.unwrap_or_else(|| named.iter().map(Change::of).collect());
        let there = self.still_there(settings, changes);
        let given = self.give_back_each(settings, &there)?;
        Ok(RecordedRelease { given, note })
    }

    /// Gives back changes and takes each out of the record before: if the record cannot be written, its pages stay in the
    /// pool. A record with pages that are not in the pool would count the pages of others.
    ///
    /// # Errors
    /// The first refusal, which keeps its pages in the record; [`PoolError::ReservationRecord`].
    fn give_back_each(&self, settings: &impl Settings, changes: &[Change]) -> Result<Vec<GivenBack>, PoolError> {
        let (mut given, mut kept, mut failed) = (Vec::new(), Vec::new(), None);
        for (index, change) in changes.iter().enumerate() {
            self.write(settings, &[&kept, &changes[index + 1..]].concat())?;
            match give_back(settings, &[*change]) {
                Ok(one) => given.extend(one),
                Err(error) => {
                    kept.push(*change);
                    failed = failed.or(Some(error));
                }
            }
        }
        // An empty record means that all pages were given back, and keeps a second release from taking others' pages.
        self.write(settings, &kept)?;
        failed.map_or(Ok(given), Err)
    }

    /// The part of these changes that the pools still contain besides other records' pages, since anybody may have
    /// released pages.
    fn still_there(&self, settings: &impl Settings, changes: Vec<Change>) -> Vec<Change> {
        let others = self.of_others(settings);
        let there = |change: Change| {
            let pool = pool_of(settings, change.size).ok()?;
            let is_same =
                |other: &&Change| other.size == change.size && (change.node.is_none() || other.node == change.node);
            let taken: u64 = others.iter().filter(is_same).map(|other| other.pages).sum();
            let pages = change.pages.min(persistent(&pool, change.node).saturating_sub(taken));
            (pages > 0).then_some(Change { pages, ..change })
        };
        changes.into_iter().filter_map(there).collect()
    }

    fn of_others(&self, files: &impl Files) -> Vec<Change> {
        let others = records_in(&self.folder, files).into_iter().filter(|record| record.name != self.name);
        others.flat_map(|record| record.changes).collect()
    }

    fn read(&self, files: &impl Files) -> Recorded {
        let path = self.path();
        let unusable = |why: String| Recorded::Unusable(format!("{}: {why}", path.display()));
        match own_text(&path) {
            Ok(text) => parse(&text, &boot_id(files)).unwrap_or_else(unusable),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Recorded::Nothing,
            Err(error) => unusable(error.to_string()),
        }
    }

    pub(crate) fn remove(&self) -> Result<(), PoolError> {
        let path = self.path();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(PoolError::ReservationRecord { path, error }),
            _ => Ok(()),
        }
    }

    /// Writes a new file in the place of the old one, which is whole at any moment.
    pub(crate) fn write(&self, settings: &impl Settings, changes: &[Change]) -> Result<(), PoolError> {
        let (path, new) = (self.path(), self.folder.join(format!("{PREFIX}{}.new", self.name)));
        let write = || {
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
            file.write_all(self.text(&boot_id(settings), changes).as_bytes())?;
            fs::rename(&new, &path)
        };
        write().map_err(|error| PoolError::ReservationRecord { path, error })
    }

    fn text(&self, boot: &str, changes: &[Change]) -> String {
        let name = &self.name;
        let title = match Holder::named(name) {
            Some(Holder { pid, .. }) => format!("Pages that process {pid} releases when it ends."),
            None => format!(
                "Pages that `pagelift pool reserve --record {name}` has added; `pagelift pool release --record {name}` releases them."
            ),
        };
        let mut text = format!("# {title}\nboot {boot}\n");
        for change in summed(changes) {
            let Change { size, node, pages } = change;
            text += &format!("{}\n", PoolRequest { size, pages, node });
        }
        text
    }
}

/// The usable records of this machine, in the order of their names.
pub fn records(files: &impl Files) -> Vec<RecordedPages> {
    records_in(Path::new(FOLDER), files)
}

pub(crate) fn records_in(folder: &Path, files: &impl Files) -> Vec<RecordedPages> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    let record = |name: String| {
        let holder = Holder::named(&name);
        let record = match holder {
            // A process that was killed releases nothing.
            Some(holder) if !holder.is_there(files) => return None,
            Some(_) => ReservationRecord::of_holder(folder, name.clone()),
            None => ReservationRecord::within(folder, &name).ok()?,
        };
        let Recorded::Changes(changes) = record.read(files) else { return None };
        Some(RecordedPages { name, holder: holder.map(|holder| holder.pid), changes })
    };
    names.into_iter().filter_map(record).collect()
}

/// Adds up changes of the same pool and node.
fn summed(changes: &[Change]) -> Vec<Change> {
    let mut sums: Vec<Change> = Vec::new();
    for change in changes {
        match sums.iter_mut().find(|sum| (sum.size, sum.node) == (change.size, change.node)) {
            Some(sum) => sum.pages = sum.pages.saturating_add(change.pages),
            None => sums.push(*change),
        }
    }
    sums
}

fn parse(text: &str, boot: &str) -> Result<Recorded, String> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let of_boot = lines.next().and_then(|line| line.strip_prefix("boot "));
    let of_boot = of_boot.ok_or("found no line `boot ID`, needed: a record as Pagelift writes it")?;
    let change = |line: &str| line.parse().map(|request| Change::of(&request)).map_err(|error| error.to_string());
    let changes = lines.map(change).collect::<Result<Vec<_>, _>>()?;
    // The pools of another boot are gone.
    Ok(if of_boot == boot { Recorded::Changes(changes) } else { Recorded::Nothing })
}

fn boot_id(files: &impl Files) -> String {
    files.text(BOOT_ID).map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// The text of a file that only root or this user can have written.
fn own_text(path: &Path) -> io::Result<String> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    let own = nix::unistd::geteuid().as_raw();
    if !metadata.is_file() || !is_trusted(metadata.uid()) || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!(
            "found {} of user {} with mode {:o}, needed: a file of root or user {own} that no other can write",
            if metadata.is_file() { "a file" } else { "not a regular file" },
            metadata.uid(),
            metadata.mode() & 0o7777
        )));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests;
