//! Keeps files in huge folios: after they were replaced, and after reclaim has dropped them.

use crate::attempts::was_tried;
use crate::{Budget, Effort, HugeExtents, Prepared, Refusal, loaded_offsets, prepare};
use address_space::{PageSize, format_bytes};
use linux::file_mapping::FileMapping;
use linux::owner::is_of_trusted_user;
use process_view::{FileIdentity, open_regular_file};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A file to be kept, and who decides that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPath {
    /// The path.
    pub path: PathBuf,
    /// The user whose processes execute the file, if it is kept for that reason; `None` if the file itself was named.
    pub user: Option<u32>,
}

impl From<PathBuf> for KeptPath {
    fn from(path: PathBuf) -> Self {
        Self { path, user: None }
    }
}

/// The outcome for one file in one round.
#[derive(Debug)]
pub enum KeptFile {
    /// As before: its state is unchanged, or the earlier report is still true.
    Same,
    /// Something was made, or it is seen for the first time.
    Prepared(Prepared),
    /// No part is in huge folios.
    Refused(Refusal),
    /// It cannot be opened.
    Unreadable(io::Error),
}

/// The locked part of one file.
#[derive(Debug)]
pub enum LockedFile {
    /// The number of bytes in huge folios, all of which are held.
    All(u64),
    /// The budget ended.
    OverBudget {
        /// Bytes locked.
        locked: u64,
        /// Bytes in huge folios.
        of: u64,
    },
    /// The kernel refused.
    Refused(io::Error),
}

impl std::fmt::Display for LockedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All(bytes) => write!(f, "{} locked", format_bytes(*bytes)),
            Self::OverBudget { locked, of } => write!(
                f,
                "found {} of the budget left for it, needed {}; fix: a larger --budget",
                format_bytes(*locked),
                format_bytes(*of)
            ),
            Self::Refused(error) => write!(
                f,
                "cannot be locked: {error}; needed: root, or a larger RLIMIT_MEMLOCK (`ulimit -l`, LimitMEMLOCK= of systemd)"
            ),
        }
    }
}

/// A report on one file.
#[derive(Debug)]
pub struct KeeperReport {
    /// The file.
    pub path: PathBuf,
    /// Its outcome.
    pub kept: KeptFile,
    /// Its locked part; `None` if that was reported before, or if no locks were requested.
    pub locked: Option<LockedFile>,
}

/// Prepares files round by round, and holds them in memory if requested.
#[derive(Debug)]
pub struct Keeper {
    huge: PageSize,
    /// Bytes that may be locked; `None` if nothing is locked.
    lock: Option<u64>,
    files: BTreeMap<PathBuf, Known>,
    /// Why files cannot be opened, as it was reported.
    unreadable: BTreeMap<PathBuf, String>,
}

#[derive(Debug)]
struct Known {
    identity: FileIdentity,
    /// The user whose processes execute the file, if it is kept for that reason.
    user: Option<u32>,
    /// The text of the last refusal.
    refusal: Option<String>,
    /// The parts in huge folios.
    huge: Vec<Range<u64>>,
    locks: Locks,
}

impl Known {
    fn new(identity: FileIdentity) -> Self {
        Self { identity, user: None, refusal: None, huge: Vec::new(), locks: Locks::default() }
    }
}

/// The locked part of a file: the first parts in huge folios.
#[derive(Debug, Default)]
struct Locks {
    /// The locks end as soon as these are dropped.
    mappings: Vec<FileMapping>,
    /// Their bytes.
    bytes: u64,
    /// The last report about them.
    said: Option<String>,
}

impl Locks {
    /// Locks up to `left` more bytes of these parts, after the locked ones.
    fn extend(&mut self, file: &File, parts: &[Range<u64>], huge: PageSize, mut left: u64) -> io::Result<()> {
        let mut behind = self.bytes;
        for part in parts {
            let length = part.end - part.start;
            let done = behind.min(length);
            behind -= done;
            let more = (length - done).min(left);
            if more == 0 {
                continue;
            }
            let mapping = FileMapping::readable(file, part.start + done, more, huge)?;
            mapping.lock_part(0, more)?;
            self.mappings.push(mapping);
            self.bytes += more;
            left -= more;
        }
        Ok(())
    }
}

impl Keeper {
    /// A keeper that locks at most `lock` bytes, `None` for no lock at all.
    pub fn new(huge: PageSize, lock: Option<u64>) -> Self {
        Self { huge, lock, files: BTreeMap::new(), unreadable: BTreeMap::new() }
    }

    /// Checks these files and prepares the files that are not in huge folios, unless an earlier attempt failed for a reason
    /// that still holds. Files that are not named any more are released. The first files are locked first. Files that the
    /// processes of one user execute get no more than that user's share of the budget, and are left alone if neither root
    /// nor this process's user owns the file.
    pub fn round(&mut self, paths: &[KeptPath]) -> Vec<KeeperReport> {
        let is_named = |path: &PathBuf| paths.iter().any(|kept| kept.path == *path);
        self.files.retain(|path, _| is_named(path));
        self.unreadable.retain(|path, _| is_named(path));
        let users: BTreeSet<u32> = paths.iter().filter_map(|kept| kept.user).collect();
        let share = self.lock.unwrap_or(0) / users.len().max(1) as u64;
        paths.iter().map(|kept| self.keep(&kept.path, kept.user, share)).collect()
    }

    fn keep(&mut self, path: &Path, user: Option<u32>, share: u64) -> KeeperReport {
        let report = |kept, locked| KeeperReport { path: path.to_owned(), kept, locked };
        let opened = open_regular_file(path).and_then(|file| file.ok_or_else(|| io::ErrorKind::InvalidInput.into()));
        let opened = opened.and_then(|file| match user.is_none() || is_of_trusted_user(&file.metadata()?) {
            true => Ok(file),
            false => Err(io::Error::other("found a file of another user, needed one of root or of this user")),
        });
        let (file, identity) = match opened.and_then(|file| Ok((FileIdentity::of(&file.metadata()?), file))) {
            Ok((identity, file)) => (file, identity),
            Err(error) => {
                self.files.remove(path);
                let before = self.unreadable.insert(path.to_owned(), error.to_string());
                let is_same = before.is_some_and(|before| before == error.to_string());
                return report(if is_same { KeptFile::Same } else { KeptFile::Unreadable(error) }, None);
            }
        };
        self.unreadable.remove(path);
        // The locks of a file that was replaced would keep the old one.
        let before = self.files.remove(path).filter(|known| known.identity == identity);
        let has_tried = before.is_some() || was_tried(&identity);
        let effort = if has_tried { Effort::Once } else { Effort::Always };
        let offsets = loaded_offsets(&file).unwrap_or(0..u64::MAX);
        match prepare(&file, path, offsets, self.huge, effort, Budget::UNLIMITED) {
            Ok(prepared) => {
                let is_same = before.as_ref().is_some_and(|known| known.huge == prepared.extents.huge);
                let (known, locked) = self.lock(&file, identity, before, &prepared.extents, user, share);
                self.files.insert(path.to_owned(), known);
                report(if is_same { KeptFile::Same } else { KeptFile::Prepared(prepared) }, locked)
            }
            Err(refusal) => {
                let text = refusal.to_string();
                // An attempt that is not repeated has been reported.
                let is_known = |known: &Known| {
                    known.refusal.as_ref().is_some_and(|before| *before == text || text.contains(before.as_str()))
                };
                let is_same = before.as_ref().is_some_and(is_known);
                let first = before.filter(|_| is_same).and_then(|known| known.refusal).unwrap_or(text);
                let known = Known { user, refusal: Some(first), ..Known::new(identity) };
                self.files.insert(path.to_owned(), known);
                report(if is_same { KeptFile::Same } else { KeptFile::Refused(refusal) }, None)
            }
        }
    }

    /// Locks the parts in huge folios that are not locked, within the budget. The files of one user get `share` bytes.
    fn lock(
        &self,
        file: &File,
        identity: FileIdentity,
        before: Option<Known>,
        extents: &HugeExtents,
        user: Option<u32>,
        share: u64,
    ) -> (Known, Option<LockedFile>) {
        let before = before.unwrap_or_else(|| Known::new(identity));
        let huge = extents.huge.clone();
        // The locks of other parts end here.
        let locks =
            if before.huge == huge { before.locks } else { Locks { said: before.locks.said, ..Locks::default() } };
        let mut known = Known { identity, user, refusal: None, huge, locks };
        let Some(budget) = self.lock else { return (known, None) };
        let taken = |of: &dyn Fn(&Known) -> bool| {
            self.files.values().filter(|known| of(known)).map(|known| known.locks.bytes).sum::<u64>()
                + known.locks.bytes
        };
        let left = budget.saturating_sub(taken(&|_| true));
        let of_user = user.map_or(left, |_| share.saturating_sub(taken(&|known| known.user == user)));
        let left = left.min(of_user) / self.huge.bytes() * self.huge.bytes();
        let refused = known.locks.extend(file, &known.huge, self.huge, left).err();
        let (locked, of) = (known.locks.bytes, extents.bytes());
        let result = match refused {
            Some(error) => LockedFile::Refused(error),
            None if locked == of => LockedFile::All(of),
            None => LockedFile::OverBudget { locked, of },
        };
        let before = known.locks.said.replace(result.to_string());
        let is_same = before.as_deref() == known.locks.said.as_deref();
        (known, Some(result).filter(|_| !is_same))
    }
}

/// One line of a list of files to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListEntry {
    /// A file, by its absolute path.
    File(PathBuf),
    /// Programs and libraries of an installed package.
    Package(String),
    /// The files that the processes of a program execute.
    Running(String),
    /// Files that get another layout (`pagelift align --relayout`), and are kept then.
    Relayout {
        /// The files, by their absolute paths.
        paths: Vec<PathBuf>,
        /// True if files of packages may be changed.
        packaged: bool,
    },
}

/// Reads a list: one entry a line, `/PATH`, `package NAME`, `running NAME`, `relayout = ["/PATH", …]` or `relayout-packaged =
/// ["/PATH", …]`; `#` begins a comment.
///
/// # Errors
/// The first invalid line, with its number.
pub fn parse_list(text: &str) -> Result<Vec<ListEntry>, String> {
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let entry = match line.split_once(char::is_whitespace) {
            _ if line.is_empty() || line.starts_with('#') => continue,
            _ if line.starts_with('/') => ListEntry::File(PathBuf::from(line)),
            Some(("package", name)) => ListEntry::Package(name.trim().to_owned()),
            Some(("running", name)) => ListEntry::Running(name.trim().to_owned()),
            _ => {
                let needed = r#"needed `/PATH`, `package NAME`, `running NAME` or `relayout = ["/PATH", …]`"#;
                relayout(line).ok_or_else(|| format!("line {}: found `{line}`, {needed}", index + 1))?
            }
        };
        entries.push(entry);
    }
    Ok(entries)
}

fn relayout(line: &str) -> Option<ListEntry> {
    let (key, value) = line.split_once('=')?;
    let packaged = match key.trim_end() {
        "relayout" => false,
        "relayout-packaged" => true,
        _ => return None,
    };
    let paths: Vec<PathBuf> = serde_json::from_str(value.trim_start()).ok()?;
    let is_list = !paths.is_empty() && paths.iter().all(|path| path.is_absolute());
    is_list.then_some(ListEntry::Relayout { paths, packaged })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let text = "# comment\n\n /usr/bin/a b \npackage  nodejs\nrunning java\nrelayout = [\"/opt/a b\", \"/c=\"]\n\
                    relayout-packaged=[\"/d\"]\n";
        let expected = [
            ListEntry::File("/usr/bin/a b".into()),
            ListEntry::Package("nodejs".to_owned()),
            ListEntry::Running("java".to_owned()),
            ListEntry::Relayout { paths: vec!["/opt/a b".into(), "/c=".into()], packaged: false },
            ListEntry::Relayout { paths: vec!["/d".into()], packaged: true },
        ];
        assert_eq!(parse_list(text).unwrap(), expected);
        for text in
            ["relative/path", "package", "other x", "/a\npackage", "relayout = []", "relayout = [\"a\"]", "relayout /a"]
        {
            assert!(parse_list(text).unwrap_err().contains("needed"), "{text}");
        }
    }
}
