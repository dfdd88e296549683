//! The segments of a family of processes, as the kernel shows them.

use super::asking::{Asking, Deadline, SkippedProcess};
use super::contents::contents;
use super::private::Unfinished;
use super::{InPlace, private};
use crate::SessionError;
use crate::names::runs_program;
use crate::running::{Chosen, answering};
use address_space::{AddressRange, Mapping, MappingUsage, PageSize, RangeSet};
use linux::bounded::{Budget, MAPPED_FILES};
use linux::capabilities::{self, CapabilitySet};
use linux::features;
use linux::pagemap::Pagemap;
use linux::pages::{base_page, transparent_huge_page};
use linux::process_handle::ProcessHandle;
use linux::release::kernel_release;
use machine_facts::{Files, System, THP, chosen_word, is_thp_off};
use nix::errno::Errno;
use process_view::{ObjectReader, ObservationError, ProcessFiles, TmpfsDevices, Unreadable, open_mapped};
use shared_memory::{Contents, Machine, Reason, Segment, SegmentKey, SegmentKind, View};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why processes are left out.
const NO_TIME: &str = "no time was left to read all its mappings";
const NO_MEMORY: &str = "it has more mappings than are kept";
const NO_MAP_FILES: &str = "the kernel does not let this process open /proc/PID/map_files; needed: CAP_CHECKPOINT_RESTORE (Linux \
     5.9), or CAP_SYS_ADMIN";
/// The release from which on the kernel collapses memory in place.
const COLLAPSES: (u32, u32) = (6, 1);
/// The release from which on the kernel fills no hole that a userfaultfd watches (commit ac492b9c70ca).
const ASKS_USERFAULTFD: (u32, u32) = (6, 4);
/// Time for reading the mappings of all processes.
const MOST_READING: Duration = Duration::from_secs(10);
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

impl Settings {
    /// The word of `shmem_enabled` of the size.
    pub fn word(&self) -> Option<&str> {
        self.of_size.as_deref()
    }
}

/// Reads the machine.
///
/// # Errors
/// It has no transparent huge pages, so that there is no block either.
pub(super) fn machine(memory: InPlace) -> Result<(Machine, Settings), SessionError> {
    let Some(huge) = transparent_huge_page() else {
        let reason = Reason::NoHugePages;
        return Err(SessionError::Refused(format!("{reason}; fix: {}", reason.fix().unwrap_or_default())));
    };
    let word = |path: &str| System.text(path).and_then(|text| chosen_word(&text).map(str::to_owned));
    let general = word(&format!("{THP}/shmem_enabled"));
    let release = kernel_release();
    let found = || format!("{}.{}", release.0, release.1);
    let is_shared = memory == InPlace::Shared;
    let no_fill = (is_shared && release < ASKS_USERFAULTFD).then(|| Reason::FillsUnasked { found: found() });
    let refused = match general.as_deref() {
        _ if release < COLLAPSES && features::collapse(huge).is_err() => Some(Reason::OldKernel { found: found() }),
        Some("deny") if is_shared => Some(Reason::Denied),
        _ => None,
    };
    let settings = Settings { of_size: word(&format!("{THP}/{}/shmem_enabled", huge.directory())) };
    Ok((Machine { huge, refused, never: general.as_deref() == Some("never"), no_fill }, settings))
}

/// The memory of some processes.
pub(super) struct Family {
    /// The segments.
    pub segments: Vec<Segment>,
    /// The file of each segment, where it could be opened.
    pub files: Vec<Option<File>>,
    /// The processes that have mapped a segment, opened before their mappings were read.
    pub processes: BTreeMap<i32, Arc<ProcessHandle>>,
    /// The processes that have switched transparent huge pages off for themselves.
    pub off: BTreeSet<i32>,
    /// The processes that were not read, or read in part only.
    pub skipped: Vec<SkippedProcess>,
}

impl Family {
    /// Looks at these processes. One that ends meanwhile, or has lost the property by which it was chosen, is left out.
    ///
    /// # Errors
    /// No process was read.
    pub fn of(
        pids: &[i32],
        chosen: Chosen<'_>,
        looking: &Looking,
        unfinished: &mut Unfinished,
        asking: &mut Asking,
    ) -> Result<Self, SessionError> {
        linux::descriptors::allow_most();
        let reserve: Vec<_> = (0..RESERVE).filter_map(|_| File::open("/dev/null").ok()).collect();
        let (deadline, mut found) = (asking.deadline(MOST_READING), Found::new());
        let (mut reader, mut off) = (ObjectReader::new(), BTreeSet::new());
        let (mut processes, mut skipped, mut looked, mut failed) = (BTreeMap::new(), Vec::new(), 0, None);
        let (answering, silent) = answering(pids);
        for process in silent {
            failed = Some(SessionError::Refused(process.to_string()));
            skipped.push(SkippedProcess::from(&process));
        }
        for pid in answering {
            let until = asking.end_of(deadline);
            if Instant::now() >= until {
                skipped.push(asking.skipped(pid, NO_TIME));
                continue;
            }
            let (own, program, mut images) = (looking.clone(), chosen.program().map(str::to_owned), reader);
            let work = move || {
                let read = own.read(pid, program.as_deref(), &mut images);
                (read, images)
            };
            reader = ObjectReader::new();
            let read = match asking.once_more(pid, work) {
                Ok((read, images)) => {
                    reader = images;
                    read
                }
                Err(process) => {
                    failed = Some(SessionError::Refused(process.to_string()));
                    continue;
                }
            };
            // Processes chosen by a property were listed some time ago.
            if chosen.program().is_none() && !chosen.includes(pid) {
                continue;
            }
            match read {
                Ok(Some(read)) if read.handle.is_alive() => {
                    let Looked { handle, is_off, has_views, left_out } = found.take(read, until);
                    looked += 1;
                    off.extend((is_off && has_views && looking.memory != InPlace::Shared).then_some(pid));
                    skipped.extend(left_out.map(|why| asking.skipped(pid, why)));
                    processes.extend(has_views.then(|| (pid, Arc::new(handle))));
                }
                Ok(_) => {}
                // One that has ended has no memory.
                Err(error @ SessionError::Process(ObservationError::NoSuchProcess { .. })) => failed = Some(error),
                Err(error) => {
                    skipped.push(asking.skipped(pid, error.in_full()));
                    failed = Some(error);
                }
            }
        }
        if looked == 0 {
            let ended = || SessionError::Refused("no process was read: all have ended".to_owned());
            return Err(failed.unwrap_or_else(ended));
        }
        let (segments, files) = found.opened(looking, unfinished, asking).into_iter().unzip();
        drop(reserve);
        asking.add_silent(&mut skipped);
        Ok(Self { segments, files, processes, off, skipped })
    }
}

/// The segments that were found, and what may still be spent on them.
struct Found {
    segments: BTreeMap<SegmentKey, Seen>,
    memory: Budget,
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
    fn new() -> Self {
        Self { segments: BTreeMap::new(), memory: MAPPED_FILES.budget() }
    }

    /// Adds the segments of a process.
    fn take(&mut self, process: Read, until: Instant) -> Looked {
        let Read { handle, is_off, shown } = process;
        let mut looked = Looked { handle, is_off, has_views: false, left_out: None };
        for (key, mut shown) in shown {
            if is_off && !key.kind.is_private() {
                shown.view.refused = Some(Reason::OffInProcess);
            }
            if Instant::now() >= until {
                looked.left_out = Some(NO_TIME);
                break;
            }
            if !self.add(key, shown) {
                looked.left_out = Some(NO_MEMORY);
                break;
            }
            looked.has_views = true;
        }
        looked
    }

    /// Counts what the segments hold. Private memory of a process that stops answering is left out.
    fn opened(
        self,
        looking: &Looking,
        unfinished: &mut Unfinished,
        asking: &mut Asking,
    ) -> Vec<(Segment, Option<File>)> {
        let (deadline, mut opened) = (asking.deadline(looking.counting), Vec::new());
        for (key, Seen { name, views, differ }) in unfinished.order(self.segments) {
            if key.kind.is_private() {
                let views = views.into_iter().map(|shown| shown.view).collect();
                let counted = private::contents(key, views, looking.huge, deadline, unfinished, asking);
                opened.extend(counted.map(|(views, contents)| {
                    let name = asking.name(key.scope as i32);
                    (Segment { key, name, views, contents: Ok(contents) }, None)
                }));
                continue;
            }
            let (mut contents, file) = open(&key, &views, looking.huge, deadline, asking);
            unfinished.end(key, is_cut(&contents).then_some(0));
            if let (Ok(contents), true) = (&mut contents, differ) {
                contents.unseen.get_or_insert(Reason::TooManyMappings { most: MOST_VIEWS });
            }
            let views = views.into_iter().map(|shown| shown.view).collect();
            opened.push((Segment { key, name, views, contents }, file));
        }
        opened.sort_by_key(|(segment, _)| segment.key);
        opened
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
        if seen.views.len() < MOST_VIEWS || key.kind.is_private() {
            seen.views.push(shown);
        } else {
            let place = |view: &View| (view.offset, view.range.len());
            seen.differ |= seen.views.first().is_none_or(|first| place(&first.view) != place(&shown.view));
        }
        true
    }
}

/// A process that was read, with its segments.
struct Read {
    handle: ProcessHandle,
    /// It has switched transparent huge pages off for itself.
    is_off: bool,
    shown: Vec<(SegmentKey, Shown)>,
}

/// A process whose segments were added.
struct Looked {
    handle: ProcessHandle,
    /// It has switched transparent huge pages off for itself.
    is_off: bool,
    /// It has mapped a segment.
    has_views: bool,
    /// Why a part of its mappings was left out.
    left_out: Option<&'static str>,
}

/// The memory that is read.
#[derive(Clone)]
pub(super) struct Looking {
    /// Its kind.
    pub memory: InPlace,
    /// The break (brk(2)) counts as anonymous memory.
    pub with_break: bool,
    /// Huge page size.
    pub huge: PageSize,
    /// Time for counting the contents of all segments.
    pub counting: Duration,
    /// Settings of the machine.
    pub settings: Arc<Settings>,
}

impl Looking {
    /// Reads the segments of a process; `None` if it has ended, or no longer runs the program by whose name it was chosen.
    fn read(&self, pid: i32, program: Option<&str>, reader: &mut ObjectReader) -> Result<Option<Read>, SessionError> {
        let files = ProcessFiles::of(pid);
        let handle = match ProcessHandle::open(pid) {
            Ok(handle) => handle,
            Err(error) => {
                // The error of this access says most.
                files.maps()?;
                let has_ended = error.raw_os_error() == Some(Errno::ESRCH as i32);
                return if has_ended {
                    Ok(None)
                } else {
                    Err(SessionError::io(format!("opening process {pid}"), error))
                };
            }
        };
        let shown = match self.memory {
            InPlace::Shared => self.shared(&files),
            InPlace::Anonymous | InPlace::Jit => self.private(pid, reader),
        };
        let reading = |error| SessionError::io(format!("reading process {pid}"), error);
        let status = std::fs::read(files.path("status")).map_err(reading);
        let is_chosen = program.is_none_or(|name| runs_program(pid, name));
        if !is_chosen || !handle.is_alive() {
            return Ok(None);
        }
        let is_off = is_thp_off(&String::from_utf8_lossy(&status?));
        Ok(Some(Read { handle, is_off, shown: shown? }))
    }

    fn shared(&self, files: &ProcessFiles) -> Result<Vec<(SegmentKey, Shown)>, SessionError> {
        let usages = files.smaps()?;
        // A list of mounts that cannot be opened would hide all segments.
        let spare = (0..DESCRIPTORS_OF_MOUNTS).map(|_| File::open(files.path("status")));
        let spare = spare.collect::<io::Result<Vec<_>>>();
        drop(spare.map_err(|error| SessionError::io(format!("reading process {}", files.pid()), error))?);
        let devices = TmpfsDevices::seen_by(files);
        let namespace = std::fs::metadata(files.path("ns/ipc")).map_or(0, |metadata| metadata.ino());
        let is_large = |usage: &&MappingUsage| usage.mapping.range.len() >= self.huge.bytes();
        let mut all = Vec::new();
        for usage in usages.iter().filter(|usage| usage.mapping.shared).filter(is_large) {
            let Some(special) = special(usage, &devices) else { continue };
            let mapping = &usage.mapping;
            let kind = SegmentKind::of(mapping, devices.is_internal(mapping.device));
            let scope = if kind == SegmentKind::SystemV { namespace } else { 0 };
            let key = SegmentKey { device: mapping.device, inode: mapping.inode, kind, scope };
            let view = View {
                offset: mapping.offset,
                refused: refusal(usage, kind, self.huge, &self.settings),
                watched: usage.has_flag("um"),
                ..view(files.pid(), usage)
            };
            all.push((key, Shown { view, mapping: mapping.clone(), special }));
        }
        find_huge(files.pid(), views_in(&mut all), self.huge, Pagemap::huge);
        Ok(all)
    }

    fn private(&self, pid: i32, reader: &mut ObjectReader) -> Result<Vec<(SegmentKey, Shown)>, SessionError> {
        let kind = if self.memory == InPlace::Jit { SegmentKind::Jit } else { SegmentKind::Private };
        let key = SegmentKey { device: (0, 0), inode: 0, kind, scope: pid as u64 };
        let shown = |usage: &MappingUsage| {
            let view = View { refused: private::refusal(usage), ..view(pid, usage) };
            (key, Shown { view, mapping: usage.mapping.clone(), special: None })
        };
        let usages = private::mappings(pid, self.memory, self.with_break, self.huge, reader)?;
        let mut all: Vec<_> = usages.iter().map(shown).collect();
        find_huge(pid, views_in(&mut all), self.huge, Pagemap::huge_private);
        Ok(all)
    }
}

fn views_in(all: &mut [(SegmentKey, Shown)]) -> impl Iterator<Item = &mut View> {
    all.iter_mut().map(|(_, shown)| &mut shown.view)
}

/// The views of private mappings, with their huge parts.
pub(super) fn private_views(pid: i32, usages: &[&MappingUsage], huge: PageSize) -> Vec<View> {
    let mut views: Vec<View> = usages.iter().map(|usage| view(pid, usage)).collect();
    find_huge(pid, views.iter_mut(), huge, Pagemap::huge_private);
    views
}

/// A mapping whose offsets are its addresses.
fn view(pid: i32, usage: &MappingUsage) -> View {
    let range = usage.mapping.range;
    View {
        pid,
        range,
        offset: range.start().0,
        huge: usage.huge(),
        huge_parts: RangeSet::new(),
        resident: usage.resident,
        refused: None,
        watched: false,
    }
}

/// Adds which parts are huge. Kernels before 6.7 report these only by their sum; a second collapse of a huge page changes nothing.
fn find_huge<'a>(
    pid: i32,
    views: impl Iterator<Item = &'a mut View>,
    size: PageSize,
    huge: impl Fn(&Pagemap, AddressRange) -> io::Result<RangeSet>,
) {
    let Ok(pagemap) = Pagemap::open(pid, base_page()) else { return };
    for view in views.filter(|view| view.huge > 0) {
        view.huge_parts = huge(&pagemap, view.range).unwrap_or_else(|_| private::huge_by_sum(view, size));
    }
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

/// Returns the reason why the program or a setting keeps a mapping of shared memory off huge pages, if one does.
pub(super) fn refusal(usage: &MappingUsage, kind: SegmentKind, size: PageSize, settings: &Settings) -> Option<Reason> {
    let of_size = settings.of_size.as_deref().filter(|_| kind != SegmentKind::SystemV);
    match of_size {
        _ if usage.has_flag("nh") => Some(Reason::AdvisedAgainst),
        Some(word @ ("never" | "advise" | "madvise")) if word == "never" || !usage.has_flag("hg") => {
            Some(Reason::SizeOff { size, word: word.to_owned() })
        }
        _ => None,
    }
}

/// Opens a segment through the first mapping that allows it, and counts what it holds.
fn open(
    key: &SegmentKey,
    views: &[Shown],
    huge: PageSize,
    deadline: Deadline,
    asking: &mut Asking,
) -> (Result<Contents, Reason>, Option<File>) {
    let mut refused = Reason::Gone;
    for seen in views {
        if let Some(reason) = &seen.special {
            return (Err(reason.clone()), None);
        }
        let until = asking.end_of(deadline);
        if Instant::now() >= until {
            return (Err(Reason::TooScattered), None);
        }
        let (pid, mapping) = (seen.view.pid, seen.mapping.clone());
        let Some(opened) = asking.with(pid, move || open_mapped(&ProcessFiles::of(pid), &mapping)) else { continue };
        match opened {
            Ok(Some((file, identity))) if identity.inode == key.inode => match contents(&file, huge, until) {
                Ok(contents) => return (Ok(contents), Some(file)),
                Err(reason) => refused = reason,
            },
            // Most such memory has no path by which it could be opened instead.
            Ok(None) | Err(Unreadable::Missing | Unreadable::Replaced) if !may_follow_mappings() => {
                refused = Reason::Unreadable { why: NO_MAP_FILES.to_owned() };
            }
            Ok(_) => refused = Reason::Changed,
            Err(error) => refused = Reason::Unreadable { why: error.to_string() },
        }
    }
    (Err(refused), None)
}

/// True if a segment was counted in part only.
fn is_cut(contents: &Result<Contents, Reason>) -> bool {
    let unseen = contents.as_ref().map_or_else(Some, |contents| contents.unseen.as_ref());
    matches!(unseen, Some(Reason::TooScattered))
}

/// True if this process may follow the links in `/proc/PID/map_files` (proc_pid_map_files(5)).
fn may_follow_mappings() -> bool {
    let any = [CapabilitySet::CHECKPOINT_RESTORE, CapabilitySet::SYS_ADMIN];
    capabilities::of_this_thread().is_ok_and(|own| any.into_iter().any(|needed| own.effective.contains(needed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{Address, MappingName, Protection};
    use linux::file_mapping::FileMapping;

    fn family(pids: &[i32], chosen: Chosen<'_>) -> Result<Family, SessionError> {
        let (huge, settings) = (PageSize::new(2 << 20).unwrap(), Arc::new(Settings { of_size: None }));
        Family::of(
            pids,
            chosen,
            &Looking { memory: InPlace::Shared, with_break: false, huge, counting: Duration::from_secs(10), settings },
            &mut Unfinished::default(),
            &mut Asking::default(),
        )
    }

    #[test]
    fn a_process_is_looked_at_only_if_it_has_the_property() {
        let own = std::process::id() as i32;
        let name = crate::names::program_name(own);
        assert!(family(&[own], Chosen::ByProgram(&name)).is_ok_and(|family| family.skipped.is_empty()));
        let refused = family(&[own], Chosen::ByProgram("another")).err().map(|error| error.to_string());
        assert_eq!(refused.as_deref(), Some("no process was read: all have ended"));
        // One that has ended is no reason to call the family incomplete, unless it was the only one.
        assert!(family(&[own, i32::MAX], Chosen::ByNumber).is_ok_and(|family| family.skipped.is_empty()));
        assert!(family(&[i32::MAX], Chosen::ByNumber).is_err());
    }

    #[test]
    fn shared_memory_that_took_all_the_time_is_the_last_at_the_next_look() {
        let (huge, settings) = (PageSize::new(2 << 20).unwrap(), Arc::new(Settings { of_size: None }));
        let map = || {
            let file = tempfile::tempfile_in("/dev/shm").unwrap();
            file.set_len(2 << 20).unwrap();
            FileMapping::readable(&file, 0, 2 << 20, huge).unwrap()
        };
        let _mapped = [map(), map()];
        let looking = Looking { memory: InPlace::Shared, with_break: false, huge, counting: Duration::ZERO, settings };
        let (mut unfinished, pids) = (Unfinished::default(), [std::process::id() as i32]);
        let family = Family::of(&pids, Chosen::ByNumber, &looking, &mut unfinished, &mut Asking::default()).unwrap();
        let keys: Vec<_> = family.segments.iter().map(|segment| segment.key).collect();
        assert!(family.segments.iter().any(|segment| segment.contents == Err(Reason::TooScattered)));
        let next = unfinished.order(keys.iter().map(|key| (*key, ())).collect());
        assert_eq!(next.last(), Some(&(keys[0], ())));
    }

    #[test]
    fn no_more_mappings_of_a_segment_are_kept_than_one_needs() {
        let mut found = Found::new();
        let shown = |offset: u64| {
            let range = AddressRange::sized(Address(1 << 40), 2 << 20);
            let name = MappingName::File { path: "/dev/zero".to_owned(), deleted: true };
            let (protection, device) = (Protection::READ, (0, 1));
            let mapping = Mapping { range, protection, shared: true, offset, device, inode: 1, name };
            let (huge_parts, refused) = (RangeSet::new(), None);
            let view = View { pid: 1, range, offset, huge: 0, huge_parts, resident: 0, refused, watched: false };
            Shown { view, mapping, special: None }
        };
        let key = SegmentKey { device: (0, 1), inode: 1, kind: SegmentKind::Anonymous, scope: 0 };
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
