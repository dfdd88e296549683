//! The running kernel, as a lift of shared memory needs it.

use super::contents::data_in;
use address_space::{AddressRange, PageSize};
use linux::advice::collapse_in;
use linux::process_handle::ProcessHandle;
use linux::watch::watched;
use machine_facts::{Cgroups, Files, System, meminfo_bytes};
use nix::errno::Errno;
use process_view::ProcessFiles;
use shared_memory::{Kernel, Reason, Refusal, Segment, SegmentKey, View};
use std::collections::BTreeMap;
use std::fs::File;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The share of the machine's memory that stays available: one part in so many.
const SHARE_LEFT_ALONE: u64 = 16;

/// The processes and files of one lift.
pub(super) struct Live<'a> {
    segments: &'a [Segment],
    files: &'a [Option<File>],
    processes: &'a BTreeMap<i32, ProcessHandle>,
    cgroups: BTreeMap<i32, Cgroups>,
    huge: PageSize,
    begin: Instant,
}

impl<'a> Live<'a> {
    pub fn new(
        segments: &'a [Segment],
        files: &'a [Option<File>],
        processes: &'a BTreeMap<i32, ProcessHandle>,
        huge: PageSize,
        begin: Instant,
    ) -> Self {
        Self { segments, files, processes, cgroups: BTreeMap::new(), huge, begin }
    }

    /// The new huge page is charged to the cgroup of the process that maps it, whoever was charged for the old pages.
    fn has_room(&mut self, pid: i32, bytes: u64) -> Result<(), Reason> {
        let cgroups = self.cgroups.entry(pid).or_insert_with(|| Cgroups::of(&System, &format!("/proc/{pid}")));
        let limit = cgroups.limits(&System, &[]).memory;
        // Other allocations need memory, too: the next blocks may take half of the rest at most.
        if let Some((left, directory)) = limit.filter(|(left, _)| left / 2 < bytes) {
            return Err(Reason::CgroupLimit { directory, left });
        }
        let meminfo = System.text("/proc/meminfo").unwrap_or_default();
        let field = |name| meminfo_bytes(&meminfo, name).unwrap_or(0);
        let (available, floor) = (field("MemAvailable"), field("MemTotal") / SHARE_LEFT_ALONE);
        if available < floor.saturating_add(bytes) { Err(Reason::MachineLow { available, floor }) } else { Ok(()) }
    }
}

impl Kernel for Live<'_> {
    fn ready(&mut self, segment: usize, view: &View, addresses: AddressRange, bytes: u64) -> Result<(), Reason> {
        let handle = self.processes.get(&view.pid).ok_or(Reason::Gone)?;
        let still_shows = shows(view, &self.segments[segment].key, addresses);
        // The mappings were read by process number: they are this process's only if it is still alive.
        if !still_shows || !handle.is_alive() {
            return Err(Reason::Gone);
        }
        self.has_room(view.pid, bytes)
    }

    fn data(&mut self, segment: usize, block: u64) -> u64 {
        self.files[segment].as_ref().and_then(|file| data_in(file, self.huge, block).ok()).unwrap_or(0)
    }

    fn collapse(&mut self, pid: i32, addresses: AddressRange) -> Result<(), Refusal> {
        let handle = self.processes.get(&pid).ok_or(Refusal::Ended)?;
        loop {
            let what = || format!("collapsing {addresses} of process {pid}");
            let Err(error) = watched(what, || collapse_in(handle, addresses)) else { return Ok(()) };
            return Err(match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EINTR) => continue,
                Some(Errno::EAGAIN) => Refusal::Busy,
                Some(Errno::ENOMEM) => Refusal::NoPage,
                Some(Errno::EBUSY) => Refusal::NotCharged,
                Some(Errno::ESRCH) => Refusal::Ended,
                Some(Errno::EPERM) => Refusal::NotPermitted,
                _ => Refusal::Other(error.to_string()),
            });
        }
    }

    fn elapsed(&mut self) -> Duration {
        self.begin.elapsed()
    }

    fn pause(&mut self, time: Duration) {
        sleep(time);
    }
}

/// True if the process still shows the segment at these addresses, in one mapping or several.
fn shows(view: &View, key: &SegmentKey, addresses: AddressRange) -> bool {
    let Ok(space) = ProcessFiles::of(view.pid).maps() else { return false };
    let expected = view.range.start().0.wrapping_sub(view.offset);
    let mut shown = addresses.start();
    for mapping in space.mappings().iter().filter(|mapping| mapping.range.overlaps(addresses)) {
        let is_same = mapping.shared
            && (mapping.device, mapping.inode) == (key.device, key.inode)
            && mapping.range.start().0.wrapping_sub(mapping.offset) == expected;
        if !is_same || mapping.range.start() > shown {
            return false;
        }
        shown = mapping.range.end();
    }
    shown >= addresses.end()
}
