//! The running kernel, as a lift in place needs it.

use super::asking::{Asking, SkippedProcess};
use super::cgroup::memory_left;
use super::compaction::compact;
use super::contents::{held_in, room};
use super::gather::Family;
use super::private;
use super::private::Unfinished;
use crate::SessionError;
use crate::running::{Chosen, Selected, Suspended};
use address_space::{AddressRange, PageSize};
use linux::advice::collapse_in;
use linux::process_handle::ProcessHandle;
use linux::urgency::LargestShare;
use linux::watch::watched;
use machine_facts::{Files, System, meminfo_bytes};
use nix::errno::Errno;
use nix::unistd::{Pid, gettid};
use process_view::{ObjectReader, ProcessFiles};
use shared_memory::{Collapse, Held, Kernel, Margins, Reason, Refusal, SegmentKey, Shown, View};
use std::collections::BTreeMap;
use std::fs::File;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The share of the machine's memory that stays available: one part in so many.
const SHARE_LEFT_ALONE: u64 = 16;

/// Rooms of memory cgroups, by directory, and of tmpfs file systems, as one or several lifts have found them, and what these have
/// not counted yet.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    of_cgroups: Margins<String>,
    /// Bytes that the lifts have added to memory cgroups, by directory.
    added: BTreeMap<String, u64>,
    pub of_tmpfs: Margins<(u32, u32)>,
    pub unfinished: Unfinished,
    /// The lifts may compact memory.
    may_compact: bool,
}

impl Rooms {
    /// The rooms of several lifts that may compact memory.
    pub fn that_may_compact() -> Self {
        Self { may_compact: true, ..Self::default() }
    }
}

/// The processes and files of one lift.
pub(super) struct Live<'a> {
    family: &'a Family,
    /// The process whose PR_SET_THP_DISABLE is suspended.
    suspended: Option<Suspended>,
    /// Number of processes for which that was done.
    number_suspended: usize,
    rooms: &'a mut Rooms,
    /// Directory of the memory cgroup that was checked last.
    cgroup: Option<String>,
    huge: PageSize,
    begin: Instant,
    asking: Asking,
    /// The thread that has traced processes.
    tracer: Option<Pid>,
}

impl<'a> Live<'a> {
    pub fn new(family: &'a Family, huge: PageSize, begin: Instant, rooms: &'a mut Rooms) -> Self {
        for segment in &family.segments {
            // The room before the lift counts, not the room that other blocks have left.
            if let Some(room) = segment.contents.as_ref().ok().and_then(|contents| contents.room) {
                let _ = rooms.of_tmpfs.check(segment.key.device, room, 0);
            }
        }
        let asking = Asking::default();
        Self { family, suspended: None, number_suspended: 0, rooms, cgroup: None, huge, begin, asking, tracer: None }
    }

    /// Number of processes whose PR_SET_THP_DISABLE was suspended.
    pub fn suspended(&self) -> usize {
        self.number_suspended
    }

    fn file(&self, segment: usize) -> Result<&File, String> {
        self.family.files[segment].as_ref().ok_or_else(|| "it is not open".to_owned())
    }

    /// The thread that has traced processes last. It ends soon after `self` is dropped, unless a process stopped answering.
    pub fn tracer(&self) -> Option<Pid> {
        self.tracer
    }

    /// Adds the processes that stopped answering.
    pub fn add_silent(&self, skipped: &mut Vec<SkippedProcess>) {
        self.asking.add_silent(skipped);
    }
}

fn suspend(pid: i32, handle: Option<&ProcessHandle>) -> Result<Suspended, SessionError> {
    let process = Selected { pid, chosen: Chosen::ByNumber, handle };
    let gone = || SessionError::Refused("the process has ended".to_owned());
    Suspended::begin(process.open()?.ok_or_else(gone)?, &mut ObjectReader::new())
}

impl Kernel for Live<'_> {
    fn begin(&mut self, segment: usize) -> Result<(), Reason> {
        let key = &self.family.segments[segment].key;
        let pid = key.scope as i32;
        if key.kind.is_private() && self.family.off.contains(&pid) {
            let handle = self.family.processes.get(&pid).cloned();
            let begun = self.asking.with(pid, move || (gettid(), suspend(pid, handle.as_deref())));
            let (tracer, suspended) = begun.ok_or(Reason::Gone)?;
            self.tracer = Some(tracer);
            self.suspended = Some(suspended.map_err(|error| Reason::NotSuspended { why: error.in_full() })?);
            self.number_suspended += 1;
        }
        Ok(())
    }

    fn end(&mut self, segment: usize) -> Result<(), Reason> {
        let Some(suspended) = self.suspended.take() else { return Ok(()) };
        let pid = self.family.segments[segment].key.scope as i32;
        // It may answer again.
        let ended = self.asking.once_more(pid, move || suspended.end());
        let why = ended.unwrap_or_else(|silent| {
            Some(format!("{silent}; its own setting is still suspended, and `pagelift detach {pid}` restores it"))
        });
        why.map_or(Ok(()), |why| Err(Reason::NotSuspended { why }))
    }

    fn shows(&mut self, segment: usize, view: &View, addresses: AddressRange) -> Shown {
        let (pid, key) = (view.pid, self.family.segments[segment].key);
        // The address of the first offset.
        let start = view.range.start().0.wrapping_sub(view.offset);
        let still_shows = self.asking.with(pid, move || match key.kind.is_private() {
            true => private::shows(pid, key.kind, addresses),
            false => shows(pid, start, key, addresses),
        });
        // The mappings were read by process number: they are this process's only if it is still alive.
        let is_alive = self.family.processes.get(&pid).is_some_and(|handle| handle.is_alive());
        match still_shows.filter(|_| is_alive) {
            None => Shown::Ended,
            Some(true) => Shown::Segment,
            Some(false) => Shown::Other,
        }
    }

    /// The new huge page is charged to the cgroup of the process that maps it, regardless of who was charged for the old pages.
    fn has_memory(&mut self, pid: i32, bytes: u64) -> Result<(), Reason> {
        self.cgroup = None;
        if let Some((left, directory)) = memory_left(&System, pid) {
            let added = *self.rooms.added.entry(directory.clone()).or_default();
            let checked = self.rooms.of_cgroups.check_beside(directory.clone(), left, bytes, added);
            self.cgroup = Some(directory.clone());
            checked.map_err(|kept| Reason::CgroupLimit { directory, left, kept })?;
        }
        let meminfo = System.text("/proc/meminfo").unwrap_or_default();
        let field = |name| meminfo_bytes(&meminfo, name).unwrap_or(0);
        // Pages of pools are never available.
        let others = field("MemTotal").saturating_sub(field("Hugetlb"));
        let (available, floor) = (field("MemAvailable"), others / SHARE_LEFT_ALONE);
        if available < floor.saturating_add(bytes) { Err(Reason::MachineLow { available, floor }) } else { Ok(()) }
    }

    fn added(&mut self, bytes: u64) {
        if let Some(added) = self.cgroup.as_ref().and_then(|directory| self.rooms.added.get_mut(directory)) {
            *added = added.saturating_add(bytes);
        }
    }

    fn has_room(&mut self, segment: usize, holes: u64) -> Result<(), Reason> {
        if self.family.segments[segment].key.kind.is_private() {
            return Ok(());
        }
        let why = |why: String| Reason::Unreadable { why };
        let left = room(self.file(segment).map_err(why)?).map_err(|error| why(error.to_string()))?;
        let Some(left) = left else { return Ok(()) };
        let device = self.family.segments[segment].key.device;
        self.rooms.of_tmpfs.check(device, left, holes).map_err(|kept| Reason::Quota { left, kept })
    }

    fn held(&mut self, segment: usize, block: u64) -> Result<Held, String> {
        let key = &self.family.segments[segment].key;
        let (pid, huge) = (key.scope as i32, self.huge);
        let held = match key.kind.is_private() {
            true => {
                let held = self.asking.with(pid, move || private::held_by(pid, huge, block));
                held.ok_or_else(|| "its process does not answer".to_owned())?
            }
            false => held_in(self.file(segment)?, huge, block),
        };
        held.map_err(|error| error.to_string())
    }

    fn collapse(&mut self, pid: i32, addresses: AddressRange) -> Collapse {
        let handle = self.family.processes.get(&pid).cloned();
        let collapsed = handle.and_then(|handle| {
            self.asking.with(pid, move || {
                // A thread that waits for a CPU during the call keeps the block's pages locked: with a hundred clients on two CPUs
                // for half a second.
                let _share = LargestShare::take();
                let begin = Instant::now();
                Collapse { result: collapse(pid, &handle, addresses), took: begin.elapsed() }
            })
        });
        collapsed.unwrap_or(Collapse { result: Err(Refusal::Ended), took: Duration::ZERO })
    }

    fn compact(&mut self) -> bool {
        self.rooms.may_compact && compact()
    }

    /// Without the time spent on waiting for processes that did not answer.
    fn elapsed(&mut self) -> Duration {
        self.begin.elapsed().saturating_sub(self.asking.waited())
    }

    fn pause(&mut self, time: Duration) {
        sleep(time);
    }
}

fn collapse(pid: i32, handle: &ProcessHandle, addresses: AddressRange) -> Result<(), Refusal> {
    loop {
        let what = || format!("collapsing {addresses} of process {pid}");
        let Err(error) = watched(what, || collapse_in(handle, addresses)) else { return Ok(()) };
        return Err(match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EINTR) => continue,
            Some(Errno::EAGAIN) => Refusal::Busy,
            Some(Errno::ENOMEM) => Refusal::NoPage,
            Some(Errno::EBUSY) => Refusal::NotCharged,
            Some(Errno::ESRCH) => Refusal::Ended,
            Some(Errno::EPERM | Errno::EACCES) => Refusal::NotPermitted,
            _ => Refusal::Other(error.to_string()),
        });
    }
}

/// True if the process still shows the segment at these addresses, in one mapping or several. The first offset would be at `start`.
fn shows(pid: i32, start: u64, key: SegmentKey, addresses: AddressRange) -> bool {
    let Ok(space) = ProcessFiles::of(pid).maps() else { return false };
    let mut shown = addresses.start();
    for mapping in space.mappings().iter().filter(|mapping| mapping.range.overlaps(addresses)) {
        let is_same = mapping.shared
            && mapping.file_numbers() == key.numbers()
            && mapping.range.start().0.wrapping_sub(mapping.offset) == start;
        if !is_same || mapping.range.start() > shown {
            return false;
        }
        shown = mapping.range.end();
    }
    shown >= addresses.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{Address, RangeSet};
    use shared_memory::{Contents, Segment, SegmentKind};
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    #[test]
    fn a_process_that_stops_answering_counts_as_ended_and_is_named() {
        let (pid, huge) = (std::process::id() as i32, PageSize::new(2 << 20).unwrap());
        let memory = vec![1_u8; 8 << 20];
        let block = (memory.as_ptr() as u64).div_ceil(huge.bytes());
        let addresses = AddressRange::sized(Address(block * huge.bytes()), huge.bytes());
        let (offset, huge_parts) = (addresses.start().0, RangeSet::new());
        let view =
            View { pid, range: addresses, offset, huge: 0, huge_parts, resident: 0, refused: None, watched: false };
        let key = SegmentKey { device: (0, 0), inode: 0, kind: SegmentKind::Private, scope: pid as u64 };
        let contents = Ok(Contents::default());
        let family = Family {
            segments: vec![Segment { key, name: String::new(), views: vec![view.clone()], contents }],
            files: vec![None],
            processes: BTreeMap::from([(pid, Arc::new(ProcessHandle::open(pid).unwrap()))]),
            off: BTreeSet::new(),
            skipped: Vec::new(),
        };
        let mut rooms = Rooms::default();
        let mut live = Live::new(&family, huge, Instant::now(), &mut rooms);
        assert_eq!(live.shows(0, &view, addresses), Shown::Segment);
        assert_eq!(live.held(0, block).unwrap().present, huge.bytes());
        live.asking.silence(pid);
        assert_eq!(live.shows(0, &view, addresses), Shown::Ended);
        assert_eq!(live.collapse(pid, addresses).result, Err(Refusal::Ended));
        assert!(live.held(0, block).is_err());
        let mut skipped = Vec::new();
        live.add_silent(&mut skipped);
        assert_eq!(skipped.iter().map(|process| process.pid).collect::<Vec<_>>(), [pid]);
        assert!(memory.iter().all(|byte| *byte == 1));
    }
}
