//! Tries the kernel's features, and measures the host. Before rights are given up.

use crate::facts::{Attempt, Feature, Measured};
use address_space::{Address, AddressRange};
use linux::features::{self, ChildAttempts, ThpSetting};
use linux::pagemap::Pagemap;
use linux::pages::{base_page, transparent_huge_page};
use machine_facts::usual_huge_page;
use nix::errno::Errno;
use perf_event::Builder;
use perf_event::events::{Event, Hardware, Software};
use std::io;
use std::time::Duration;
use translation::tlb_probe::{Options, Probe};
use translation::working_set::{HeldPages, Reach};

/// The probe's duration and memory: enough to distinguish a split huge page from a whole one.
const PROBE_TIME: Duration = Duration::from_secs(3);
/// On a CPU that is too slow for it.
const MOST_PROBE_TIME: Duration = Duration::from_secs(9);
const PROBE_MEMORY: u64 = 256 << 20;

/// The attempts and measurements.
pub struct Tried {
    pub(super) attempts: Vec<(Feature, Attempt)>,
    pub(super) thp_setting: Option<ThpSetting>,
    pub(super) tracepoints: bool,
    pub(super) measured: Option<Measured>,
    held: HeldPages,
}

impl Tried {
    /// The reach of this machine's TLBs: as measured, otherwise from CPUID.
    pub fn reach(&self) -> Reach {
        Reach::of_this_cpu().with_measured(self.held)
    }
}

/// Tries all features; with `measures` the host is measured too, which takes some seconds.
pub fn try_features(measures: bool) -> Tried {
    let base = base_page();
    let thp_setting = features::own_thp_setting();
    let thp = transparent_huge_page();
    let off = thp_setting == Some(ThpSetting::Off);
    let collapse = match thp {
        None => Attempt::NotMade("this kernel has no transparent huge pages"),
        Some(_) if off => Attempt::NotMade("they are switched off for this process"),
        Some(size) => attempt(features::collapse(size)),
    };
    let anywhere = AddressRange::sized(Address(base.bytes()), base.bytes());
    let scan = Pagemap::open(std::process::id() as i32, base).and_then(|pagemap| pagemap.huge(anywhere));
    let no_pool = Attempt::NotMade("this kernel has no huge pages");
    let mut attempts = vec![
        (Feature::PagemapScan, attempt(scan)),
        (Feature::Collapse, collapse),
        (Feature::Populate, attempt(features::populate(base))),
        (Feature::MovePool, usual_huge_page().map_or(no_pool, |size| attempt(features::move_pool_mapping(size)))),
        (Feature::PoolFile, attempt(features::pool_file())),
        (Feature::Userfaultfd, attempt(features::userfaultfd())),
        (Feature::ExecutableCopy, attempt(features::executable_copy(base))),
        (Feature::AuxiliaryVector, attempt(features::auxiliary_vector_can_be_set())),
        (Feature::Events, count(Software::TASK_CLOCK)),
        (Feature::CpuCounters, count(Hardware::CPU_CYCLES)),
    ];
    attempts.extend(on_child(off, collapse));
    let tracepoints = linux::tracefs::text_below("events/raw_syscalls/sys_enter/id").is_ok();
    let probe = measures.then(measure);
    let held = probe.as_ref().map(held).unwrap_or_default();
    Tried { attempts, thp_setting, tracepoints, measured: probe.as_ref().map(measured), held }
}

fn on_child(off: bool, in_this_process: Attempt) -> Vec<(Feature, Attempt)> {
    match features::act_on_child(transparent_huge_page().filter(|_| !off)) {
        Ok(ChildAttempts { traced, collapsed }) => {
            // If this process's own memory cannot be collapsed, that failure is reported.
            let other = collapsed.filter(|_| in_this_process == Attempt::Works);
            let other = other.map_or(Attempt::NotMade("MADV_COLLAPSE was not tried or does not work"), attempt);
            vec![(Feature::Trace, attempt(traced)), (Feature::CollapseOther, other)]
        }
        Err(_) => vec![(Feature::Trace, Attempt::NotMade("no child process could be made"))],
    }
}

fn attempt<T>(result: io::Result<T>) -> Attempt {
    match result {
        Ok(_) => Attempt::Works,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            Attempt::Refused { errno, words: Errno::from_raw(errno).desc() }
        }
    }
}

fn count(event: impl Event) -> Attempt {
    attempt(Builder::new(event).build())
}

fn measure() -> Probe {
    let available = machine_facts::machine_facts(std::process::id() as i32).memory_available;
    let memory = PROBE_MEMORY.min(available / 4).next_multiple_of(base_page().bytes());
    translation::tlb_probe::probe(&Options { time: PROBE_TIME, most: MOST_PROBE_TIME, memory })
}

fn held(probe: &Probe) -> HeldPages {
    HeldPages { code: probe.code.pages_held(), data: probe.data.pages_held() }
}

fn measured(probe: &Probe) -> Measured {
    let verdict = probe.verdict.as_ref();
    Measured {
        splintered: verdict.and_then(|verdict| Some(verdict.splintered? && verdict.virtual_machine != Some(false))),
        needed: verdict.and_then(|verdict| verdict.needed),
        reach: probe.data.reaches,
        code_reach: probe.code.reaches,
        others: probe.load.map(|load| load.others),
    }
}
