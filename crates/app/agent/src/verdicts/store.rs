//! The file of all verdicts: one record a line, replaced as a whole.

use super::record::{DAY, Key, Measurement, Standing, VerdictRecord};
use crate::installation;
use foreign_text::printable;
use linux::bounded::VERDICTS;
use linux::lock_file::{LockError, LockFile};
use linux::written_file;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

/// Name of the file in the agent's directory.
pub const FILE: &str = "verdicts.jsonl";
/// Records kept; the one with the oldest last measurement goes first.
pub const MOST_KEYS: usize = 1_000;
const NEW_FILE: &str = "verdicts.jsonl.new";
const LOCK: &str = "verdicts.lock";
/// Time for which another writer is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A line that is not a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Number of the line, from 1.
    pub line: usize,
    /// Description of the line or its error.
    pub found: String,
}

/// Why verdicts cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The kernel refuses.
    #[error("reading or writing {path}")]
    Io {
        /// The file.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another process writes.
    #[error("{path}: another process changes the verdicts; fix: try again")]
    Busy {
        /// The lock.
        path: String,
    },
    /// An imported line is not a record.
    #[error("line {line}: {found}; needed: a line of `pagelift agent verdicts export`")]
    Import {
        /// Number of the line, from 1.
        line: usize,
        /// Description of the line or its error.
        found: String,
    },
}

/// All verdicts of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Store {
    records: Vec<VerdictRecord>,
    /// Lines of the file that were not understood. They are dropped at the next write.
    problems: Vec<Problem>,
}

impl Store {
    /// Reads the file of a directory; a missing file is an empty store. A line that is not understood is left out: a damaged
    /// file must not stop the agent.
    ///
    /// # Errors
    /// [`StoreError::Io`], also if the file is longer than any that was written.
    pub fn load(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        let of_path = |source| StoreError::Io { path: path.display().to_string(), source };
        let file =
            match OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW).open(&path)
            {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
                Err(error) => return Err(of_path(error)),
            };
        let bytes = VERDICTS.read_rest(file).map_err(of_path)?;
        Ok(Self::parse(&bytes))
    }

    /// Parses the text of a file.
    fn parse(bytes: &[u8]) -> Self {
        let mut store = Self::default();
        for (line, result) in records(bytes) {
            match result {
                Ok(record) if store.records.len() < MOST_KEYS && store.record(&record.key).is_none() => {
                    store.records.push(record);
                }
                Ok(_) => store.problems.push(Problem { line, found: "a repeated key, or one too many".to_owned() }),
                Err(found) => store.problems.push(Problem { line, found }),
            }
        }
        store
    }

    /// Reads the verdicts of a directory, changes them and replaces the file by rename. Other processes wait for the end.
    ///
    /// # Errors
    /// [`StoreError`]; the file is then as it was.
    pub fn update<T>(
        directory: &Path,
        change: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let of_path = |source| StoreError::Io { path: directory.display().to_string(), source };
        fs::create_dir_all(directory).map_err(of_path)?;
        let folder = File::open(directory).map_err(of_path)?;
        let _lock = LockFile::take(&folder, LOCK, LOCK_TIMEOUT).map_err(|error| match error {
            LockError::Held(_) => StoreError::Busy { path: directory.join(LOCK).display().to_string() },
            LockError::OfAnotherUser(user) => of_path(io::Error::other(format!("{LOCK} belongs to user {user}"))),
            LockError::Refused(error) => of_path(error.into()),
        })?;
        installation::mark(directory, &[FILE]).map_err(of_path)?;
        let mut store = Self::load(directory)?;
        let result = change(&mut store)?;
        store.write(directory).map_err(of_path)?;
        folder.sync_all().map_err(of_path)?;
        Ok(result)
    }

    fn write(&self, directory: &Path) -> io::Result<()> {
        let new = directory.join(NEW_FILE);
        let mut file = written_file::create_anew(&new)?;
        file.write_all(self.export().as_bytes())?;
        file.sync_all()?;
        fs::rename(new, directory.join(FILE))
    }

    /// Adds a measurement.
    pub fn add(&mut self, key: Key, program: &str, measurement: Measurement, now: u64) {
        self.merge(VerdictRecord { measurements: vec![measurement], ..VerdictRecord::new(key, program) }, now);
    }

    fn merge(&mut self, record: VerdictRecord, now: u64) {
        // The names of programs are the users' text.
        let program = printable(&record.program).chars().take(32).collect::<String>();
        let index = self.records.iter().position(|known| known.key == record.key);
        let index = index.unwrap_or_else(|| {
            self.records.push(VerdictRecord::new(record.key.clone(), &program));
            self.records.len() - 1
        });
        for measurement in record.measurements {
            self.records[index].add(measurement, now);
        }
        self.records.retain(|record| !record.measurements.is_empty());
        self.records.sort_by_key(|record| std::cmp::Reverse(record.last()));
        self.records.truncate(MOST_KEYS);
    }

    /// The record of a key.
    pub fn record(&self, key: &Key) -> Option<&VerdictRecord> {
        self.records.iter().find(|record| record.key == *key)
    }

    /// The verdict on a key.
    pub fn standing(&self, key: &Key, now: u64) -> Standing {
        self.record(key).map_or(Standing::Unknown, |record| record.standing(now))
    }

    /// All records, the last measured first.
    pub fn records(&self) -> &[VerdictRecord] {
        &self.records
    }

    /// Lines of the file that were not understood.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Removes the records of a build, or of all builds of programs with this name; returns how many. An abbreviated build ID has
    /// at least eight digits.
    pub fn forget(&mut self, build_or_name: &str) -> usize {
        let before = self.records.len();
        let is_build = |build: &str| build_or_name.len() >= 8 && build.starts_with(build_or_name);
        self.records.retain(|record| record.program != build_or_name && !is_build(&record.key.build));
        before - self.records.len()
    }

    /// Removes all records; returns how many.
    pub fn forget_all(&mut self) -> usize {
        std::mem::take(&mut self.records).len()
    }

    /// All records as text, one JSON document a line.
    pub fn export(&self) -> String {
        self.records.iter().filter_map(|record| Some(serde_json::to_string(record).ok()? + "\n")).collect()
    }

    /// Adds the records of an exported text, of this or of another machine; returns how many. Measurements that are known are
    /// not added twice.
    ///
    /// # Errors
    /// [`StoreError::Import`] for the first line that is not a record, or has a measurement of the future, which would count for
    /// ever; nothing is added then.
    pub fn import(&mut self, bytes: &[u8], now: u64) -> Result<usize, StoreError> {
        let mut imported = Vec::new();
        for (line, result) in records(bytes) {
            let record = result.and_then(|record| future_measurement(&record, now).map_or(Ok(record), Err));
            imported.push(record.map_err(|found| StoreError::Import { line, found })?);
            if imported.len() > MOST_KEYS {
                return Err(StoreError::Import { line, found: format!("more than {MOST_KEYS} records") });
            }
        }
        let number = imported.len();
        imported.into_iter().for_each(|record| self.merge(record, now));
        Ok(number)
    }
}

/// Why a record is not imported whose last measurement is later than differences of clocks and time zones explain.
fn future_measurement(record: &VerdictRecord, now: u64) -> Option<String> {
    let ahead = record.last().saturating_sub(now);
    let hours = ahead / 3600;
    let text =
        || format!("a measurement is {hours} h ahead of this machine's clock; fix: set the clocks of both machines");
    (ahead >= DAY).then(text)
}

/// The records of a text, by line; an error names the defect.
fn records(bytes: &[u8]) -> impl Iterator<Item = (usize, Result<VerdictRecord, String>)> {
    let lines = bytes.split(|&byte| byte == b'\n').enumerate();
    lines.filter(|(_, line)| !line.trim_ascii().is_empty()).map(|(index, line)| {
        let record = serde_json::from_slice::<VerdictRecord>(line).map_err(|error| description(&error));
        let checked = record.and_then(|record| record.problem().map_or(Ok(record), Err));
        (index + 1, checked)
    })
}

/// The description of an error in one line of JSON. Its own line number is always 1.
fn description(error: &serde_json::Error) -> String {
    let text = printable(&error.to_string());
    match text.rsplit_once(" at line 1 column ") {
        Some((what, column)) => format!("column {column}: {what}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::sequential::Decision;
    use proptest::prelude::*;

    const NOW: u64 = 1_700_000_000;

    fn key(build: &str) -> Key {
        let text = |text: &str| text.to_owned();
        Key { build: text(build), cpu: text("c"), kernel: text("6.18"), thp: text("madvise"), options: text("text") }
    }

    fn kept(boot: &str, at: u64) -> Measurement {
        let (decision, boot) = (Decision::Keep, boot.to_owned());
        Measurement { decision, boot, at, blocks: 12, log_evidence: 6.4, gain: Some([0.01, 0.02, 0.03]) }
    }

    fn three_kept() -> Store {
        let mut store = Store::default();
        for (boot, at) in [("a", NOW - 3), ("a", NOW - 2), ("b", NOW - 1)] {
            store.add(key("0123456789"), "server", kept(boot, at), NOW);
        }
        store
    }

    fn write(folder: &Path, content: &Store) {
        let replace = |store: &mut Store| {
            store.clone_from(content);
            Ok(())
        };
        Store::update(folder, replace).unwrap();
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Store::load(folder.path()).unwrap(), Store::default());
        write(folder.path(), &three_kept());
        let read = Store::load(folder.path()).unwrap();
        assert_eq!(read, three_kept());
        assert_eq!(read.standing(&key("0123456789"), NOW), Standing::Pays);
        assert_eq!(read.standing(&key("other"), NOW), Standing::Unknown);
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 3, "the file, its lock and the marks: {names:?}");
    }

    #[test]
    fn a_failed_change_leaves_the_file_alone() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &three_kept());
        let failed = Store::update(folder.path(), |store| {
            store.forget_all();
            store.import(b"{}", NOW)
        });
        assert!(failed.is_err_and(
            |error| error.to_string().contains("missing field") && !error.to_string().contains(" at line ")
        ));
        assert_eq!(Store::load(folder.path()).unwrap(), three_kept());
    }

    #[test]
    fn a_damaged_line_costs_only_itself() {
        let text = format!("no json\n{}\n\n{{\"build\":1}}\n", three_kept().export());
        let store = Store::parse(text.as_bytes());
        assert_eq!(store.records(), three_kept().records());
        assert_eq!(store.problems().iter().map(|problem| problem.line).collect::<Vec<_>>(), [1, 5]);
    }

    #[test]
    fn hostile_values_are_refused() {
        let sound = three_kept().export();
        for (from, to) in [
            ("server", "\\u001b[2J"),
            ("server", &*"x".repeat(300)),
            ("6.4", "1e999"),
            ("0.01,", "-7.0,"),
            ("0.03", "null"),
            ("\"keep\"", "\"perhaps\""),
        ] {
            let hostile = sound.replace(from, to);
            assert!(hostile != sound && Store::parse(hostile.as_bytes()).records().is_empty(), "{to}");
            assert!(Store::default().import(hostile.as_bytes(), NOW).is_err(), "{to}");
        }
        assert!(Store::parse(&[b'['; 100_000]).records().is_empty());
        assert!(Store::parse(b"\xff\xfe\n").records().is_empty());
    }

    #[test]
    fn the_number_of_keys_is_bounded_and_the_oldest_go() {
        let mut store = Store::default();
        for number in 0..MOST_KEYS + 50 {
            store.add(key(&format!("{number:08}")), "p", kept("a", NOW + number as u64), NOW + 2_000);
        }
        assert_eq!(store.records().len(), MOST_KEYS);
        assert!(store.record(&key("00000049")).is_none() && store.record(&key("00000050")).is_some());
        assert!((store.export().len() as u64) < VERDICTS.bytes() / 4);
    }

    #[test]
    fn verdicts_travel_between_machines() {
        let (mut here, mut there) = (Store::default(), Store::default());
        let build = key("0123456789");
        here.add(build.clone(), "server", kept("a", NOW), NOW);
        here.add(build.clone(), "server", kept("a", NOW + 1), NOW);
        there.add(build.clone(), "server", kept("b", NOW), NOW);
        assert_eq!(there.import(here.export().as_bytes(), NOW).unwrap(), 1);
        assert_eq!(there.import(here.export().as_bytes(), NOW).unwrap(), 1, "twice");
        assert_eq!(there.record(&build).unwrap().measurements.len(), 3);
        assert_eq!(there.standing(&build, NOW), Standing::Pays);
        assert_eq!((there.forget("0123"), there.forget("01234567"), there.records().len()), (0, 1, 0));
        assert_eq!((here.forget("server"), here.forget_all()), (1, 0));
    }

    /// It would count as of now, whenever that is, and be the last to go.
    #[test]
    fn no_measurement_of_the_future_is_imported() {
        let (mut here, mut there) = (Store::default(), Store::default());
        here.add(key("0123456789"), "server", kept("a", NOW + DAY - 1), NOW);
        there.import(here.export().as_bytes(), NOW).unwrap();
        here.add(key("0123456789"), "server", kept("a", NOW + 400 * DAY), NOW);
        let error = there.import(here.export().as_bytes(), NOW).unwrap_err().to_string();
        assert!(error.starts_with("line 1: a measurement is 9600 h ahead of"), "{error}");
        assert_eq!(there.record(&key("0123456789")).unwrap().measurements.len(), 1);
    }

    /// A clock that was far ahead for a moment deleted the records of all builds.
    #[test]
    fn a_clock_that_is_ahead_for_a_moment_deletes_no_record() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &three_kept());
        let later = NOW + 9_000 * DAY;
        let add = |store: &mut Store| {
            store.add(key("other"), "p", kept("a", later), later);
            Ok(())
        };
        Store::update(folder.path(), add).unwrap();
        let store = Store::load(folder.path()).unwrap();
        assert_eq!(store.standing(&key("0123456789"), later), Standing::Unknown);
        assert_eq!(store.standing(&key("0123456789"), NOW + 1), Standing::Pays, "the clock was set back");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let store = Store::parse(&bytes);
            prop_assert!(store.records().len() <= MOST_KEYS);
        }
    }
}
