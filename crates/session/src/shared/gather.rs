//! The segments of a family of processes, as the kernel shows them.

use super::contents::contents;
use crate::SessionError;
use address_space::{Mapping, MappingUsage, PageSize};
use linux::features;
use linux::pagemap::Pagemap;
use linux::pages::{base_page, transparent_huge_page};
use linux::process_handle::ProcessHandle;
use linux::release::kernel_release;
use machine_facts::{Files, System, THP, chosen_word, is_thp_off};
use process_view::{ProcessFiles, TmpfsDevices, open_mapped};
use shared_memory::{Contents, Machine, Reason, Segment, SegmentKey, SegmentKind, View};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// The release from which on the kernel collapses shared memory.
const COLLAPSES: (u32, u32) = (6, 1);
/// The release from which on the kernel fills no hole that a userfaultfd watches (commit ac492b9c70ca).
const ASKS_USERFAULTFD: (u32, u32) = (6, 4);
/// Time for counting the contents of all segments.
const MOST_LOOKING: Duration = Duration::from_secs(10);

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

/// The shared memory of some processes.
pub(super) struct Family {
    /// The segments.
    pub segments: Vec<Segment>,
    /// The file of each segment, where it could be opened.
    pub files: Vec<Option<File>>,
    /// The processes, opened before their mappings were read.
    pub processes: BTreeMap<i32, ProcessHandle>,
}

impl Family {
    /// Looks at these processes. One that ends meanwhile is left out.
    ///
    /// # Errors
    /// No process can be read.
    pub fn of(pids: &[i32], machine: &Machine, settings: &Settings) -> Result<Self, SessionError> {
        let (mut found, mut processes, mut failed) = (Found::default(), BTreeMap::new(), None);
        for &pid in pids {
            match look(pid, machine.huge, settings, &mut found) {
                Ok(Some(handle)) => {
                    processes.insert(pid, handle);
                }
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed.filter(|_| processes.is_empty()) {
            return Err(error);
        }
        let until = Instant::now() + MOST_LOOKING;
        let (mut segments, mut files) = (Vec::new(), Vec::new());
        for (key, (name, views)) in found.0 {
            let views: Vec<_> = views.into_iter().filter(|seen| processes.contains_key(&seen.view.pid)).collect();
            let (contents, file) = open(&key, &views, machine.huge, until);
            if !views.is_empty() {
                let views = views.into_iter().map(|seen| seen.view).collect();
                segments.push(Segment { key, name, views, contents });
                files.push(file);
            }
        }
        Ok(Self { segments, files, processes })
    }
}

/// Name and mappings of each segment.
#[derive(Default)]
struct Found(BTreeMap<SegmentKey, (String, Vec<Seen>)>);

/// A mapping of a segment.
struct Seen {
    view: View,
    mapping: Mapping,
    /// It is no shared memory that can be collapsed.
    special: Option<Reason>,
}

/// Adds the segments of one process; `None` where it has ended.
fn look(
    pid: i32,
    huge: PageSize,
    settings: &Settings,
    found: &mut Found,
) -> Result<Option<ProcessHandle>, SessionError> {
    let files = ProcessFiles::of(pid);
    let Ok(handle) = ProcessHandle::open(pid) else {
        // The error of this access says most.
        files.maps()?;
        return Ok(None);
    };
    let usages = files.smaps()?;
    let devices = TmpfsDevices::seen_by(&files);
    let is_off = is_thp_off(&files.text("status").unwrap_or_default());
    let namespace = std::fs::metadata(files.path("ns/ipc")).map_or(0, |metadata| metadata.ino());
    let pagemap = Pagemap::open(pid, base_page()).ok();
    if !handle.is_alive() {
        return Ok(None);
    }
    for usage in usages.iter().filter(|usage| usage.mapping.shared && usage.mapping.range.len() >= huge.bytes()) {
        let mapping = &usage.mapping;
        let Some(special) = special(usage, &devices) else { continue };
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
        let name = mapping.path().unwrap_or_default().to_owned();
        let (_, views) = found.0.entry(key).or_insert_with(|| (name, Vec::new()));
        views.push(Seen { view, mapping: mapping.clone(), special });
    }
    Ok(Some(handle))
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
fn open(key: &SegmentKey, views: &[Seen], huge: PageSize, until: Instant) -> (Result<Contents, Reason>, Option<File>) {
    let mut refused = Reason::Gone;
    for seen in views {
        if let Some(reason) = &seen.special {
            return (Err(reason.clone()), None);
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
