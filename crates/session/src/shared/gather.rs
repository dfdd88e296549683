//! The segments of a family of processes, as the kernel shows them.

use super::contents::contents;
use crate::SessionError;
use crate::names::process_name;
use crate::running::{Chosen, answering};
use address_space::{Mapping, MappingUsage, PageSize};
use linux::bounded::{Budget, MAPPED_FILES};
use linux::features;
use linux::pagemap::Pagemap;
use linux::pages::{base_page, transparent_huge_page};
use linux::process_handle::ProcessHandle;
use linux::release::kernel_release;
use machine_facts::{Files, System, THP, chosen_word, is_thp_off};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use process_view::{ObservationError, ProcessFiles, TmpfsDevices, open_mapped};
use serde::Serialize;
use shared_memory::{Contents, Machine, Reason, Segment, SegmentKey, SegmentKind, View};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Why processes are left out.
const NO_TIME: &str = "no time was left to look at all of its mappings";
const NO_MEMORY: &str = "it has more mappings than are kept";
/// The release from which on the kernel collapses shared memory.
const COLLAPSES: (u32, u32) = (6, 1);
/// The release from which on the kernel fills no hole that a userfaultfd watches (commit ac492b9c70ca).
const ASKS_USERFAULTFD: (u32, u32) = (6, 4);
/// Time for reading the mappings of all processes.
const MOST_READING: Duration = Duration::from_secs(10);
/// Time for counting the contents of all segments.
const MOST_LOOKING: Duration = Duration::from_secs(10);
/// Mappings of one segment that are kept. One is enough for a lift; others take over if its process ends.
const MOST_VIEWS: usize = 1024;
/// Descriptors that are left for what a lift reads.
const RESERVE: usize = 16;
/// Most descriptors that reading the mounts of a process takes at a time.
const DESCRIPTORS_OF_MOUNTS: usize = 4;
/// Bytes that are counted for one part of a mapping that is huge already.
const PER_PART: u64 = 48;

/// Settings of the machine that permit huge pages of shared memory.
pub(super) struct Settings {
    /// `shmem_enabled` of the size, from Linux 6.11 on.
    of_size: Option<String>,
}

/// Reads the machine.
///
/// # Errors
/// It has no transparent huge pages, so that there is no block either.
pub(super) fn machine() -> Result<(Machine, Settings), SessionError> {
    let Some(huge) = transparent_huge_page() else {
        let reason = Reason::NoHugePages;
        return Err(SessionError::Refused(format!("{reason}; fix: {}", reason.fix().unwrap_or_default())));
    };
    let word = |path: &str| System.text(path).and_then(|text| chosen_word(&text).map(str::to_owned));
    let general = word(&format!("{THP}/shmem_enabled"));
    let release = kernel_release();
    let found = || format!("{}.{}", release.0, release.1);
    let no_fill = (release < ASKS_USERFAULTFD).then(|| Reason::FillsUnasked { found: found() });
    let refused = match general.as_deref() {
        _ if release < COLLAPSES && features::collapse(huge).is_err() => Some(Reason::OldKernel { found: found() }),
        Some("deny") => Some(Reason::Denied),
        _ => None,
    };
    let settings = Settings { of_size: word(&format!("{THP}/{}/shmem_enabled", huge.directory())) };
    Ok((Machine { huge, refused, never: general.as_deref() == Some("never"), no_fill }, settings))
}

/// A process that was not read, or read in part only.
#[derive(Clone, Debug, Serialize)]
pub struct SkippedProcess {
    /// Its PID.
    pub pid: i32,
    /// The words by which messages name it.
    #[serde(skip)]
    pub name: String,
    /// Why.
    pub reason: String,
}

impl SkippedProcess {
    fn new(pid: i32, reason: impl Into<String>) -> Self {
        Self { pid, name: process_name(pid), reason: reason.into() }
    }
}

/// The shared memory of some processes.
pub(super) struct Family {
    /// The segments.
    pub segments: Vec<Segment>,
    /// The file of each segment, where it could be opened.
    pub files: Vec<Option<File>>,
    /// The processes that have mapped a segment, opened before their mappings were read.
    pub processes: BTreeMap<i32, ProcessHandle>,
    /// The processes that were not read, or read in part only.
    pub skipped: Vec<SkippedProcess>,
}

impl Family {
    /// Looks at these processes. One that ends meanwhile, or has lost the property by which it was chosen, is left out.
    ///
    /// # Errors
    /// No process was read.
    pub fn of(pids: &[i32], chosen: Chosen<'_>, machine: &Machine, settings: &Settings) -> Result<Self, SessionError> {
        allow_descriptors();
        let reserve: Vec<_> = (0..RESERVE).filter_map(|_| File::open("/dev/null").ok()).collect();
        let mut found = Found::new(Instant::now() + MOST_READING);
        let (mut processes, mut skipped, mut looked, mut failed) = (BTreeMap::new(), Vec::new(), 0, None);
        let (answering, silent) = answering(pids);
        for process in silent {
            let why = process.to_string();
            skipped.push(SkippedProcess::new(process.pid, why.clone()));
            failed = Some(SessionError::Refused(why));
        }
        for pid in answering {
            if found.is_late() {
                skipped.push(SkippedProcess::new(pid, NO_TIME));
                continue;
            }
            match look(pid, chosen, machine.huge, settings, &mut found) {
                Ok(Some(Looked { handle, has_views, left_out })) => {
                    looked += 1;
                    skipped.extend(left_out.map(|why| SkippedProcess::new(pid, why)));
                    processes.extend(has_views.then_some((pid, handle)));
                }
                Ok(None) => {}
                // One that has ended has no memory.
                Err(error @ SessionError::Process(ObservationError::NoSuchProcess { .. })) => failed = Some(error),
                Err(error) => {
                    skipped.push(SkippedProcess::new(pid, error.in_full()));
                    failed = Some(error);
                }
            }
        }
        if looked == 0 {
            let ended = || SessionError::Refused("no process was looked at: all have ended meanwhile".to_owned());
            return Err(failed.unwrap_or_else(ended));
        }
        let until = Instant::now() + MOST_LOOKING;
        let (mut segments, mut files) = (Vec::new(), Vec::new());
        for (key, Seen { name, views, differ }) in found.segments {
            let (mut contents, file) = open(&key, &views, machine.huge, until);
            if let (Ok(contents), true) = (&mut contents, differ) {
                contents.unseen.get_or_insert(Reason::TooManyMappings { most: MOST_VIEWS });
            }
            let views = views.into_iter().map(|shown| shown.view).collect();
            segments.push(Segment { key, name, views, contents });
            files.push(file);
        }
        drop(reserve);
        Ok(Self { segments, files, processes, skipped })
    }
}

/// Each process and each segment takes a descriptor. Where the limit cannot be raised, the kernel refuses those for which there
/// is none.
fn allow_descriptors() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// The segments that were found, and what may still be spent on them.
struct Found {
    segments: BTreeMap<SegmentKey, Seen>,
    memory: Budget,
    until: Instant,
}

/// A segment.
struct Seen {
    name: String,
    views: Vec<Shown>,
    /// Mappings were left out that differ from the first one, so that they may show other parts.
    differ: bool,
}

/// A mapping of a segment.
struct Shown {
    view: View,
    mapping: Mapping,
    /// It is no shared memory that can be collapsed.
    special: Option<Reason>,
}

impl Found {
    fn new(until: Instant) -> Self {
        Self { segments: BTreeMap::new(), memory: MAPPED_FILES.budget(), until }
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Keeps a mapping. Returns false if no memory is left for it.
    fn add(&mut self, key: SegmentKey, shown: Shown) -> bool {
        let path = shown.mapping.path().unwrap_or_default();
        let parts = shown.view.huge_parts.iter().count() as u64;
        if !self.memory.spend((size_of::<Shown>() + 2 * path.len()) as u64 + parts * PER_PART) {
            return false;
        }
        let name = || path.to_owned();
        let seen = self.segments.entry(key).or_insert_with(|| Seen { name: name(), views: Vec::new(), differ: false });
        if seen.views.len() < MOST_VIEWS {
            seen.views.push(shown);
        } else {
            let place = |view: &View| (view.offset, view.range.len());
            seen.differ |= seen.views.first().is_none_or(|first| place(&first.view) != place(&shown.view));
        }
        true
    }
}

/// A process that was read.
struct Looked {
    handle: ProcessHandle,
    /// It has mapped a segment.
    has_views: bool,
    /// Why a part of its mappings was left out.
    left_out: Option<&'static str>,
}

/// Adds the segments of one process; `None` if it has ended, or has lost the property by which it was chosen.
fn look(
    pid: i32,
    chosen: Chosen<'_>,
    huge: PageSize,
    settings: &Settings,
    found: &mut Found,
) -> Result<Option<Looked>, SessionError> {
    let files = ProcessFiles::of(pid);
    let handle = match ProcessHandle::open(pid) {
        Ok(handle) => handle,
        Err(error) => {
            // The error of this access says most.
            files.maps()?;
            let has_ended = error.raw_os_error() == Some(Errno::ESRCH as i32);
            return if has_ended { Ok(None) } else { Err(SessionError::io(format!("opening process {pid}"), error)) };
        }
    };
    let usages = files.smaps()?;
    let pagemap = Pagemap::open(pid, base_page()).ok();
    let reading = |error| SessionError::io(format!("reading process {pid}"), error);
    let status = std::fs::read(files.path("status")).map_err(reading);
    // A list of mounts that cannot be opened would hide all segments.
    let spare = (0..DESCRIPTORS_OF_MOUNTS).map(|_| File::open(files.path("status"))).collect::<io::Result<Vec<_>>>();
    let spare = spare.map(drop).map_err(reading);
    let devices = TmpfsDevices::seen_by(&files);
    let namespace = std::fs::metadata(files.path("ns/ipc")).map_or(0, |metadata| metadata.ino());
    // Processes chosen by a property were listed some time ago.
    if !chosen.includes(pid) || !handle.is_alive() {
        return Ok(None);
    }
    spare?;
    let is_off = is_thp_off(&String::from_utf8_lossy(&status?));
    let mut looked = Looked { handle, has_views: false, left_out: None };
    for usage in usages.iter().filter(|usage| usage.mapping.shared && usage.mapping.range.len() >= huge.bytes()) {
        let mapping = &usage.mapping;
        let Some(special) = special(usage, &devices) else { continue };
        if found.is_late() {
            looked.left_out = Some(NO_TIME);
            break;
        }
        let kind = SegmentKind::of(mapping, devices.is_internal(mapping.device));
        let namespace = if kind == SegmentKind::SystemV { namespace } else { 0 };
        let key = SegmentKey { device: mapping.device, inode: mapping.inode, kind, namespace };
        let view = View {
            pid,
            range: mapping.range,
            offset: mapping.offset,
            huge: usage.huge(),
            // Kernels before 6.7 do not report these; a second collapse of a huge page changes nothing.
            huge_parts: pagemap.as_ref().and_then(|map| map.huge(mapping.range).ok()).unwrap_or_default(),
            resident: usage.resident,
            refused: refusal(usage, kind, is_off, huge, settings),
            watched: usage.has_flag("um"),
        };
        if !found.add(key, Shown { view, mapping: mapping.clone(), special }) {
            looked.left_out = Some(NO_MEMORY);
            break;
        }
        looked.has_views = true;
    }
    Ok(Some(looked))
}

/// `None` for what is no shared memory; otherwise why it is shared memory of a kind that is never collapsed, if it is.
fn special(usage: &MappingUsage, devices: &TmpfsDevices) -> Option<Option<Reason>> {
    let is_secret = usage.mapping.path().is_some_and(|path| path == "/secretmem") && usage.mapping.device.0 == 0;
    match usage {
        _ if usage.has_flag("ht") => Some(Some(Reason::Pool)),
        _ if devices.contains(usage.mapping.device) => Some(None),
        _ if is_secret => Some(Some(Reason::Secret)),
        _ => None,
    }
}

fn refusal(
    usage: &MappingUsage,
    kind: SegmentKind,
    is_off: bool,
    size: PageSize,
    settings: &Settings,
) -> Option<Reason> {
    let of_size = settings.of_size.as_deref().filter(|_| kind != SegmentKind::SystemV);
    match of_size {
        _ if is_off => Some(Reason::OffInProcess),
        _ if usage.has_flag("nh") => Some(Reason::AdvisedAgainst),
        Some(word @ ("never" | "advise" | "madvise")) if word == "never" || !usage.has_flag("hg") => {
            Some(Reason::SizeOff { size, word: word.to_owned() })
        }
        _ => None,
    }
}

/// Opens a segment through the first mapping that allows it, and counts what it holds.
fn open(key: &SegmentKey, views: &[Shown], huge: PageSize, until: Instant) -> (Result<Contents, Reason>, Option<File>) {
    let mut refused = Reason::Gone;
    for seen in views {
        if let Some(reason) = &seen.special {
            return (Err(reason.clone()), None);
        }
        if Instant::now() >= until {
            return (Err(Reason::TooScattered), None);
        }
        match open_mapped(&ProcessFiles::of(seen.view.pid), &seen.mapping) {
            Ok(Some((file, identity))) if identity.inode == key.inode => match contents(&file, huge, until) {
                Ok(contents) => return (Ok(contents), Some(file)),
                Err(reason) => refused = reason,
            },
            Ok(_) => refused = Reason::Changed,
            Err(error) => refused = Reason::Unreadable { why: error.to_string() },
        }
    }
    (Err(refused), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{Address, AddressRange, MappingName, Protection, RangeSet};

    fn family(pids: &[i32], chosen: Chosen<'_>) -> Result<Family, SessionError> {
        let machine = Machine { huge: PageSize::new(2 << 20).unwrap(), refused: None, never: false, no_fill: None };
        Family::of(pids, chosen, &machine, &Settings { of_size: None })
    }

    #[test]
    fn a_process_is_looked_at_only_if_it_has_the_property() {
        let own = std::process::id() as i32;
        let name = crate::names::program_name(own);
        assert!(family(&[own], Chosen::ByProgram(&name)).is_ok_and(|family| family.skipped.is_empty()));
        let refused = family(&[own], Chosen::ByProgram("another")).err().map(|error| error.to_string());
        assert_eq!(refused.as_deref(), Some("no process was looked at: all have ended meanwhile"));
        // One that has ended is no reason to call the family incomplete, unless it was the only one.
        assert!(family(&[own, i32::MAX], Chosen::ByNumber).is_ok_and(|family| family.skipped.is_empty()));
        assert!(family(&[i32::MAX], Chosen::ByNumber).is_err());
    }

    #[test]
    fn no_more_mappings_of_a_segment_are_kept_than_one_needs() {
        let mut found = Found::new(Instant::now());
        let shown = |offset: u64| {
            let range = AddressRange::sized(Address(1 << 40), 2 << 20);
            let name = MappingName::File { path: "/dev/zero".to_owned(), deleted: true };
            let (protection, device) = (Protection::READ, (0, 1));
            let mapping = Mapping { range, protection, shared: true, offset, device, inode: 1, name };
            let (huge_parts, refused) = (RangeSet::new(), None);
            let view = View { pid: 1, range, offset, huge: 0, huge_parts, resident: 0, refused, watched: false };
            Shown { view, mapping, special: None }
        };
        let key = SegmentKey { device: (0, 1), inode: 1, kind: SegmentKind::Anonymous, namespace: 0 };
        for _ in 0..=MOST_VIEWS {
            assert!(found.add(key, shown(0)));
        }
        assert!(found.segments[&key].views.len() == MOST_VIEWS && !found.segments[&key].differ);
        assert!(found.add(key, shown(2 << 20)) && found.segments[&key].differ);
    }

    #[test]
    fn the_first_system_v_segment_of_a_namespace_is_shared_memory() {
        let own = ProcessFiles::of(std::process::id() as i32);
        let devices = TmpfsDevices::seen_by(&own);
        let (major, minor) = linux::unasked::device_of_shared_memory().unwrap();
        let text = |device: &str, inode: u32| {
            format!("7f0000000000-7f0000200000 rw-s 0 {device} {inode} /SYSV00000000 (deleted)\n")
        };
        let usages = |device: &str| address_space::parse_smaps(&text(device, 0)).unwrap();
        assert_eq!(special(&usages(&format!("{major:x}:{minor:x}"))[0], &devices), Some(None));
        assert_eq!(special(&usages("00:00")[0], &devices), None);
    }
}
