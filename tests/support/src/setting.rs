//! A setting of the kernel that a test changes: restored when dropped, and also after the test that held it was killed.
//!
//! While a setting is changed, a file under `/run/lock` records its old value and is locked. A record without a lock
//! belongs to a killed test: each test program restores such settings before its first test.

use crate::need::is_root;
use anyhow::{Context as _, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FOLDER: &str = "/run/lock/pagelift-settings";
/// How long khugepaged waits between two scans, in milliseconds; a write wakes it
/// (Documentation/admin-guide/mm/transhuge.rst).
const SCAN_SLEEP: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs";

/// Holds a setting until dropped. Others who want to change it wait.
#[derive(Debug)]
pub struct Setting {
    file: PathBuf,
    before: String,
    record: Flock<File>,
}

impl Setting {
    /// Writes a value to a setting's file.
    ///
    /// # Errors
    /// The kernel has no such setting, or does not take the value.
    pub fn change(file: impl AsRef<Path>, value: &str) -> Result<Self> {
        let setting = Self::keep(file)?;
        fs::write(&setting.file, value)
            .with_context(|| format!("cannot write {value} to {}", setting.file.display()))?;
        Ok(setting)
    }

    /// Pauses khugepaged, for a test that counts huge pages which nobody has requested; `None` if the kernel has no
    /// khugepaged.
    ///
    /// # Errors
    /// As for [`Setting::change`].
    pub fn khugepaged_at_rest() -> Result<Option<Self>> {
        let an_hour = Duration::from_secs(3600).as_millis().to_string();
        Path::new(SCAN_SLEEP).exists().then(|| Self::change(SCAN_SLEEP, &an_hour)).transpose()
    }

    /// Changes nothing, and restores a setting that the test lets others change.
    ///
    /// # Errors
    /// The kernel has no such setting, or no record can be written.
    pub fn keep(file: impl AsRef<Path>) -> Result<Self> {
        let file = file.as_ref().to_owned();
        fs::create_dir_all(FOLDER).with_context(|| format!("cannot make {FOLDER}"))?;
        let record = record_of(&file)?;
        let opened = File::options().create(true).append(true).open(&record);
        let opened = opened.with_context(|| format!("cannot open {}", record.display()))?;
        let mut lock = Flock::lock(opened, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        put_right(&file, &record, &lock)?;
        let before = chosen(&fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?);
        write!(lock, "{before}").with_context(|| format!("cannot write {}", record.display()))?;
        Ok(Self { file, before, record: lock })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.file, &self.before).and_then(|()| clear(&self.record)) {
            eprintln!("{} could not be put back to {}: {error}", self.file.display(), self.before);
        }
    }
}

/// Restores settings that killed tests have left changed.
///
/// # Errors
/// A setting cannot be restored.
pub fn put_settings_right() -> Result<()> {
    let Ok(records) = fs::read_dir(FOLDER) else { return Ok(()) };
    if !is_root() {
        return Ok(());
    }
    for record in records {
        let record = record?;
        let name = record.file_name();
        let file = PathBuf::from(name.to_string_lossy().replace('!', "/"));
        let opened = File::options().append(true).open(record.path())?;
        if let Ok(lock) = Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            put_right(&file, &record.path(), &lock)?;
        }
    }
    Ok(())
}

/// Restores the value of a record that was never cleared. Its lock must be held.
fn put_right(file: &Path, record: &Path, lock: &File) -> Result<()> {
    let value = fs::read_to_string(record)?;
    if value.is_empty() {
        return Ok(());
    }
    let is_a_setting = file.starts_with("/sys") || file.starts_with("/proc/sys");
    ensure!(is_a_setting, "{} names {}, which is no setting", record.display(), file.display());
    eprintln!("{}: what a killed test has changed is put back to {value}", file.display());
    fs::write(file, &value).with_context(|| format!("cannot write {value} to {}", file.display()))?;
    Ok(clear(lock)?)
}

fn clear(record: &File) -> std::io::Result<()> {
    record.set_len(0)
}

/// Path of the record of a setting.
fn record_of(file: &Path) -> Result<PathBuf> {
    let path = file.to_str().context("a setting has a name in UTF-8")?;
    ensure!(!path.contains('!'), "{path}: the records have no name for it");
    Ok(Path::new(FOLDER).join(path.replace('/', "!")))
}

/// The value of a setting; in `always [madvise] never`, the word in brackets.
fn chosen(text: &str) -> String {
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    word.unwrap_or(text).trim().to_owned()
}
