//! The record of lifts in `/run`. It lasts as long as the lifts themselves: until the next boot.
//!
//! An entry is written before each lift and again after it, each time as a whole file that replaces the other by rename. After
//! a crash, "before" without "after" marks a process that must be examined, and not lifted again.

use crate::decision::{ExecutedFile, Identity, Program, Progress, Reason, Refusal, State, over_memory};
use crate::rules::Settings;
use crate::worker::{Answer, Share, SourceBytes};
use linux::written_file;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Version of the format.
const VERSION: u32 = 1;
/// Largest size of the file in bytes. [`MOST_ENTRIES`] and [`MOST_BLOCKED`] with the longest texts, all escaped, need less.
const LARGEST: u64 = 64 << 20;
/// Most processes with an entry. With so many, no other one is lifted.
const MOST_ENTRIES: usize = 4_000;
/// Longest reason in bytes.
const LONGEST_REASON: usize = 600;
/// Longest name of a program in bytes.
const LONGEST_NAME: usize = 256;
/// Longest path of a cgroup in bytes. A longer one is named by its beginning and a hash.
const LONGEST_CGROUP: usize = 256;
/// Most builds that are blocked. The oldest are forgotten, and blocks by processes of root that execute files of root
/// only if no others are left.
const MOST_BLOCKED: usize = 1000;
const ROOT: u32 = 0;
/// Name of the file.
pub(super) const NAME: &str = "lifts.json";
/// Name of a file that was not understood. The agent has one at most.
pub(super) const ASIDE: &str = "lifts.damaged.json";

/// The file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    version: u32,
    boot: String,
    /// Processes on which a worker was started.
    pub lifts: Vec<Entry>,
    /// Builds that are not lifted any more.
    pub blocked: Vec<Block>,
    /// Counts since the boot.
    pub counts: Counts,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Which.
    pub identity: Identity,
    /// The file that it executes.
    pub file: ExecutedFile,
    /// Name of the program.
    pub program: String,
    /// Build of the program.
    pub build: String,
    /// Owner of its file.
    #[serde(default)]
    pub owner: u32,
    /// User of the process.
    #[serde(default)]
    pub user: u32,
    /// Name of the rule.
    pub rule: String,
    /// cgroup, as [`cgroup_name`] returns it.
    pub cgroup: String,
    /// Kinds of memory.
    pub kinds: Vec<String>,
    /// Options of the lift, as in the key of verdicts.
    #[serde(default)]
    pub options: String,
    /// State. `lifting` is "before" without "after".
    pub progress: Progress,
    /// Bytes on huge pages, as the kernel showed them after the lift.
    pub covered: u64,
    /// Bytes that were copied to huge pages, or are huge in the page cache, by source.
    #[serde(default)]
    pub sources: Vec<SourceBytes>,
    /// Bytes of copied code and constants that are no longer on huge pages.
    #[serde(default)]
    pub lost: u64,
    /// Bytes that the lift has made resident.
    pub resident: u64,
    /// The part of both that no restore undoes.
    #[serde(default)]
    pub lasting: Share,
    /// Number of processes that were forked from it and stayed lifted when it was restored.
    #[serde(default)]
    pub forks: u64,
    /// Longest pause in microseconds.
    pub pause_microseconds: u64,
    /// Seconds since 1970 of the last change.
    pub changed: u64,
    /// Why it was refused or undone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub refusal: Option<Refusal>,
}

impl Entry {
    /// The entry before anything is done with a process.
    pub fn new(
        identity: Identity,
        file: ExecutedFile,
        program: &Program,
        rule: &str,
        kinds: &[&str],
        progress: Progress,
        changed: u64,
    ) -> Self {
        Self {
            identity,
            file,
            program: program.shown_name().to_owned(),
            build: program.build.clone(),
            owner: program.owner,
            user: program.user,
            rule: rule.to_owned(),
            cgroup: cgroup_name(&program.cgroup).into_owned(),
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            options: String::new(),
            progress,
            covered: 0,
            sources: Vec::new(),
            lost: 0,
            resident: 0,
            lasting: Share::default(),
            forks: 0,
            pause_microseconds: 0,
            changed,
            refusal: None,
        }
    }

    /// False if nothing is lost with it: it is plain, and all its memory is as before.
    fn must_stay(&self) -> bool {
        let is_plain = matches!(self.progress.state, State::Refused | State::Restored | State::Eligible);
        !is_plain || self.forks > 0 || self.lasting != Share::default()
    }

    /// The entry with texts of a bounded length: users choose names, and thereby parts of reasons.
    fn bounded(self) -> Self {
        let refusal = self.refusal.map(|why| Refusal { text: shortened(&why.text, LONGEST_REASON), ..why });
        Self { program: shortened(&self.program, LONGEST_NAME), refusal, ..self }
    }

    /// Adds the memory of one more lift: an earlier one may have been refused after it had lifted memory in place.
    #[must_use]
    pub fn with(self, answer: &Answer) -> Self {
        Self {
            covered: self.covered.saturating_add(answer.covered),
            resident: self.resident.saturating_add(answer.resident),
            lasting: self.lasting.and(answer.lasting),
            sources: [self.sources, answer.sources.clone()].concat(),
            ..self
        }
    }

    /// The entry before a lift. Until an answer follows, everything that the lift may add counts as resident.
    #[must_use]
    pub fn begun(self, adds: u64) -> Self {
        let can_be_undone = |kind: &String| ["text", "rodata"].contains(&kind.as_str());
        let lasts = if self.kinds.iter().all(can_be_undone) { 0 } else { adds };
        let lasting = self.lasting.and(Share { covered: 0, resident: lasts });
        Self { resident: self.resident.saturating_add(adds), lasting, ..self }
    }

    /// The entry after a restore, which leaves memory that was lifted in place.
    #[must_use]
    pub fn restored(self, progress: Progress, changed: u64) -> Self {
        let Share { covered, resident } = self.lasting;
        Self { progress, covered, resident, changed, sources: Vec::new(), lost: 0, ..self }
    }
}

/// A build that is not lifted any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The build.
    pub build: String,
    /// Owner of the file: a copy that another user makes, or a file with the same build ID, is not this build.
    #[serde(default)]
    pub owner: u32,
    /// User of the process that caused the block. It applies to processes of this user, and if it is root, to all: a user can run
    /// any program of the system, and make it crash.
    #[serde(default)]
    pub user: u32,
    /// Name of its program.
    pub program: String,
    /// The reason.
    pub why: String,
}

/// Counts since the boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Scans.
    pub scans: u64,
    /// Scans that the budget of CPU time did not permit.
    #[serde(default)]
    pub dropped_scans: u64,
    /// Lifts.
    pub lifts: u64,
    /// Lifts that were undone.
    pub restored: u64,
    /// Lifts that mode `observe` has planned and not made.
    #[serde(default)]
    pub observed: u64,
    /// Programs that were killed by a signal, or ended in an unknown way before Linux 6.15, within a minute after their lift, in a
    /// lift or in a measurement.
    #[serde(default)]
    pub crashes: u64,
    /// Measurements that ended with a decision or undecided.
    #[serde(default)]
    pub measurements: u64,
    /// Blocks of all measurements.
    #[serde(default)]
    pub measured_blocks: u64,
    /// Refusals by reason; a waiting process counts once for each reason.
    pub refusals: BTreeMap<Reason, u64>,
}

impl Counts {
    /// Counts since an earlier moment of this boot.
    pub(super) fn since(&self, before: &Self) -> Self {
        let refusals = self.refusals.iter().filter_map(|(&reason, &number)| {
            let new = number.saturating_sub(before.refusals.get(&reason).copied().unwrap_or(0));
            (new > 0).then_some((reason, new))
        });
        Self {
            scans: self.scans.saturating_sub(before.scans),
            dropped_scans: self.dropped_scans.saturating_sub(before.dropped_scans),
            lifts: self.lifts.saturating_sub(before.lifts),
            restored: self.restored.saturating_sub(before.restored),
            observed: self.observed.saturating_sub(before.observed),
            crashes: self.crashes.saturating_sub(before.crashes),
            measurements: self.measurements.saturating_sub(before.measurements),
            measured_blocks: self.measured_blocks.saturating_sub(before.measured_blocks),
            refusals: refusals.collect(),
        }
    }
}

impl Ledger {
    /// Reads the file of this boot; an empty ledger if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn load(directory: &Path, boot: &str) -> io::Result<Self> {
        let fresh = Self { version: VERSION, boot: boot.to_owned(), ..Self::default() };
        let file = match File::open(directory.join(NAME)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(fresh),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes)?;
        let damaged = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{NAME}: {why}"));
        if bytes.len() as u64 > LARGEST {
            return Err(damaged(format!("more than {} MiB", LARGEST >> 20)));
        }
        let ledger: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if ledger.version != VERSION {
            return Err(damaged(format!("found version {}, needed {VERSION}", ledger.version)));
        }
        Ok(if ledger.boot == boot { ledger } else { fresh })
    }

    /// Reads the file of this boot as [`Self::load`] does. A file that is damaged, too large or of another version is renamed, and an
    /// empty ledger returned with the reason: it must not keep the agent from its start, or lifts from being undone.
    ///
    /// # Errors
    /// The file cannot be read or renamed.
    pub fn load_or_move_aside(directory: &Path, boot: &str) -> io::Result<(Self, Option<String>)> {
        let error = match Self::load(directory, boot) {
            Ok(ledger) => return Ok((ledger, None)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => error,
            Err(error) => return Err(error),
        };
        let aside = directory.join(ASIDE);
        fs::rename(directory.join(NAME), &aside)?;
        let what = format!(
            "the record of lifts was renamed to {}: {error}; fix: `pagelift detach PID` for lifted processes",
            aside.display()
        );
        let fresh = Self { version: VERSION, boot: boot.to_owned(), ..Self::default() };
        Ok((fresh, Some(what)))
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn save(&self, directory: &Path) -> io::Result<()> {
        replace(directory, NAME, self)
    }

    /// The entry of a process.
    pub fn entry(&mut self, identity: Identity) -> Option<&mut Entry> {
        self.lifts.iter_mut().find(|entry| entry.identity == identity)
    }

    /// Adds an entry, or replaces the entry of the same process. If there are too many, the oldest entry of a plain process is
    /// forgotten.
    pub fn put(&mut self, entry: Entry) {
        let entry = entry.bounded();
        if let Some(own) = self.entry(entry.identity) {
            *own = entry;
            return;
        }
        if self.lifts.len() >= MOST_ENTRIES {
            let plain = self.lifts.iter().enumerate().filter(|(_, entry)| !entry.must_stay());
            if let Some((oldest, _)) = plain.min_by_key(|(_, entry)| entry.changed) {
                self.lifts.remove(oldest);
            }
        }
        self.lifts.push(entry);
    }

    /// Why no other process is lifted: an entry of each lifted process must stay, so that its lift can be undone.
    pub fn is_full(&self) -> Option<Refusal> {
        let number = self.lifts.iter().filter(|entry| entry.must_stay()).count();
        let text = || format!("the agent has entries of {number} lifted processes; needed: fewer than {MOST_ENTRIES}");
        (number >= MOST_ENTRIES).then(|| Refusal::new(Reason::TooManyLifted, text()))
    }

    /// Bytes that lifts have made resident in all processes, and in the processes of this cgroup.
    pub fn resident_of_lifts(&self, cgroup: &str) -> (u64, u64) {
        let sum = |all: u64, entry: &Entry| all.saturating_add(entry.resident);
        let cgroup = cgroup_name(cgroup);
        let of_cgroup = self.lifts.iter().filter(|entry| entry.cgroup == cgroup);
        (self.lifts.iter().fold(0, sum), of_cgroup.fold(0, sum))
    }

    /// Why a lift in this cgroup that may make this number of bytes resident does not fit into the budgets of memory.
    pub fn over_memory(&self, cgroup: &str, adds: u64, settings: &Settings) -> Option<Refusal> {
        let (all, of_cgroup) = self.resident_of_lifts(cgroup);
        over_memory(all, adds, settings.max_memory, "on this machine")
            .or_else(|| over_memory(of_cgroup, adds, settings.max_memory_per_cgroup, "in its cgroup"))
    }

    /// Why this build in a file of this owner is not lifted any more in processes of this user.
    pub fn block_of(&self, build: &str, owner: u32, user: u32) -> Option<Refusal> {
        let applies = |block: &&Block| block.user == user || block.user == ROOT;
        let mut blocks = self.blocked.iter().filter(applies);
        let block = blocks.find(|block| block.build == build && block.owner == owner)?;
        Some(Refusal::new(Reason::Blocked, format!("this build is blocked until the next boot: {}", block.why)))
    }

    /// Blocks a build.
    pub fn block(&mut self, block: Block) {
        let (program, why) = (shortened(&block.program, LONGEST_NAME), shortened(&block.why, LONGEST_REASON));
        let block = Block { program, why, ..block };
        self.blocked.retain(|other| (&other.build, other.owner, other.user) != (&block.build, block.owner, block.user));
        if self.blocked.len() >= MOST_BLOCKED {
            // A user can make as many builds as fit.
            let oldest = self.blocked.iter().position(|other| other.owner != ROOT || other.user != ROOT);
            self.blocked.remove(oldest.unwrap_or(0));
        }
        self.blocked.push(block);
    }

    /// Counts a refusal.
    pub fn count(&mut self, reason: Reason) {
        *self.counts.refusals.entry(reason).or_default() += 1;
    }
}

/// The name of a cgroup in an entry.
fn cgroup_name(path: &str) -> Cow<'_, str> {
    if path.len() <= LONGEST_CGROUP {
        return Cow::Borrowed(path);
    }
    let hash: String = Sha256::digest(path).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    Cow::Owned(shortened(path, LONGEST_CGROUP - 2 * hash.len()) + &hash)
}

/// The text, cut off after this number of bytes.
fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// Replaces a file by a JSON document, so that its readers see the old or the new one as a whole.
///
/// # Errors
/// The kernel's.
pub fn replace(directory: &Path, name: &str, document: &impl Serialize) -> io::Result<()> {
    let (path, next) = (directory.join(name), directory.join(format!(".{name}.new")));
    let text = foreign_text::escaped_json(&serde_json::to_string(document)?);
    let mut file = written_file::create_anew(&next)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    fs::rename(next, path)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
pub(super) mod tests;
