//! Takes samples by perf_event_open(2).

use super::decoding::{self, Translation};
use super::pmu::Pmu;
use super::refills::{SampledWalks, Samples, Tally};
use crate::walk_counters::counting::{explained, is_refusal, online_cpus};
use crate::walk_counters::{Counts, CpuIdentity, NoCounters, Target};
use perf_event::data::Record;
use perf_event::{Builder, SampleFlag, Sampler};
use std::io;
use std::path::Path;

/// Operations between two samples of `ibs_op`; cycles if the CPU cannot count operations. 3 GHz at two operations a
/// cycle make 23,000 samples a second and CPU.
const OPERATIONS: u64 = 1 << 18;
/// Completed fetches between two samples of `ibs_fetch`.
const FETCHES: u64 = 1 << 16;
/// Bytes of one ring. A sample of some 100 bytes 23,000 times a second fills it in 57 ms.
const RING: usize = 128 << 10;
/// Maximum number of sampled threads of a process; the longest-running are sampled. Each has two rings, which count
/// towards the memory that a user may lock.
const THREADS: usize = 32;
/// Records that are taken from a ring at once, so that it cannot hold the reader for ever.
const AT_ONCE: usize = 20_000;

/// One PMU's rings, or why there are none.
struct Rings {
    samplers: Result<Vec<Sampler>, String>,
    tally: Tally,
}

impl Rings {
    fn open(devices: &Path, name: &str, switch: &str, period: u64, target: Target) -> Option<Self> {
        let pmu = Pmu::find(devices, name, switch)?;
        Some(Self { samplers: opened(&pmu, name, period, target), tally: Tally::default() })
    }

    fn drain(&mut self, translation: impl Fn(&[u8]) -> Translation) {
        for sampler in self.samplers.iter_mut().flatten() {
            for _ in 0..AT_ONCE {
                let Some(record) = sampler.next_record() else { break };
                if let Ok(Record::Sample(sample)) = record.parse_record() {
                    self.tally.add(translation(sample.raw().unwrap_or_default()));
                }
            }
        }
    }

    fn tally(&self) -> Result<Tally, String> {
        self.samplers.as_ref().map(|_| self.tally.clone()).map_err(String::clone)
    }
}

/// Samples that are being taken.
pub struct Sampling {
    operations: Option<Rings>,
    fetches: Option<Rings>,
    cpu: CpuIdentity,
}

impl Sampling {
    /// Starts taking samples; `None` if this machine has no IBS. [`Target::Children`]: in the thread that starts them.
    pub fn start(target: Target) -> Option<Self> {
        Self::start_at(Path::new(crate::walk_counters::counting::DEVICES), target)
    }

    fn start_at(devices: &Path, target: Target) -> Option<Self> {
        let operations = Rings::open(devices, "ibs_op", "cnt_ctl", OPERATIONS, target);
        let fetches = Rings::open(devices, "ibs_fetch", "rand_en", FETCHES, target);
        if operations.is_none() && fetches.is_none() {
            return None;
        }
        Some(Self { operations, fetches, cpu: CpuIdentity::read() })
    }

    /// Takes the new samples from the rings, which fill within some 50 ms.
    pub fn drain(&mut self) {
        if let Some(operations) = &mut self.operations {
            operations.drain(decoding::data);
        }
        if let Some(fetches) = &mut self.fetches {
            fetches.drain(|record| decoding::code(record, &self.cpu));
        }
    }

    /// Those that were drained until now.
    pub fn samples(&self) -> Samples {
        let of = |rings: &Option<Rings>, name: &str| match rings {
            Some(rings) => rings.tally(),
            None => Err(format!("the kernel has no PMU {name}")),
        };
        Samples { code: of(&self.fetches, "ibs_fetch"), data: of(&self.operations, "ibs_op") }
    }

    /// The samples' result for page walks that were counted at the same time.
    pub fn with(&self, counts: &Counts) -> SampledWalks {
        self.samples().of(counts)
    }
}

/// The target of the samples: a thread, the descendants of this thread on a CPU, or everything on a CPU.
#[derive(Clone, Copy)]
enum Place {
    Thread(i32),
    Children(usize),
    Cpu(usize),
}

fn places(target: Target) -> io::Result<Vec<Place>> {
    Ok(match target {
        Target::Process(pid) | Target::ProcessWithChildren(pid) => {
            busiest(pid)?.into_iter().map(Place::Thread).collect()
        }
        // The kernel has no ring for an inherited event that is on no CPU (perf_event_open(2), EINVAL of mmap).
        Target::Children => online_cpus()?.into_iter().map(Place::Children).collect(),
        Target::System => online_cpus()?.into_iter().map(Place::Cpu).collect(),
    })
}

/// The threads that have run longest (`schedstat`: ns on a CPU first).
fn busiest(pid: i32) -> io::Result<Vec<i32>> {
    let mut threads: Vec<(u64, i32)> = std::fs::read_dir(format!("/proc/{pid}/task"))?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(|thread: i32| {
            let text = linux::text::text_of(format!("/proc/{pid}/task/{thread}/schedstat")).unwrap_or_default();
            (text.split_whitespace().next().and_then(|time| time.parse().ok()).unwrap_or(0), thread)
        })
        .collect();
    threads.sort_unstable_by(|one, other| other.cmp(one));
    threads.truncate(THREADS);
    Ok(threads.into_iter().map(|(_, thread)| thread).collect())
}

/// Rings at all places, or at those that permit one.
fn opened(pmu: &Pmu, name: &str, period: u64, target: Target) -> Result<Vec<Sampler>, String> {
    let refused = |error: &io::Error| match explained(error, target) {
        NoCounters::NotPermitted { found, needed } => {
            let error = NoCounters::NotPermitted { found, needed: needed.min(1) };
            format!("{name}: {error}")
        }
        error => format!("{name}: {error}"),
    };
    let (mut samplers, mut failed, mut with_kernel) = (Vec::new(), None, true);
    for place in places(target).map_err(|error| refused(&error))? {
        let mut result = ring(pmu, period, place, with_kernel);
        if with_kernel
            && pmu.without_kernel.is_some()
            && matches!(&result, Err(NoRing::NotOpened(error)) if is_refusal(error))
        {
            with_kernel = false;
            result = ring(pmu, period, place, with_kernel);
        }
        match result {
            Ok(sampler) => samplers.push(sampler),
            Err(NoRing::NotOpened(error)) => failed = failed.or(Some(refused(&error))),
            Err(NoRing::NotMapped(error)) => failed = failed.or(Some(format!("{name}: {}", not_mapped(&error)))),
        }
    }
    match failed {
        Some(why) if samplers.is_empty() => Err(why),
        _ => Ok(samplers),
    }
}

/// Why there is no ring.
enum NoRing {
    /// perf_event_open(2) has refused.
    NotOpened(io::Error),
    /// Its memory could not be mapped.
    NotMapped(io::Error),
}

fn not_mapped(error: &io::Error) -> String {
    format!(
        "a ring of {} KiB could not be mapped: {error}; needed: more memory that may be locked (`ulimit -l`, \
         kernel.perf_event_mlock_kb); fix: as root",
        RING >> 10
    )
}

fn ring(pmu: &Pmu, period: u64, place: Place, with_kernel: bool) -> Result<Sampler, NoRing> {
    let no_switch = || NoRing::NotOpened(io::Error::from_raw_os_error(libc::EACCES));
    let mut builder = Builder::new(pmu.event(with_kernel).ok_or_else(no_switch)?);
    builder.attrs_mut().type_ = pmu.number;
    // IBS has no switch for a hypervisor, and refuses one.
    builder.exclude_kernel(!with_kernel).exclude_hv(false);
    builder.sample(SampleFlag::RAW).sample_period(period);
    match place {
        Place::Thread(thread) => builder.observe_pid(thread).any_cpu().enabled(true),
        Place::Children(cpu) => builder.observe_self().one_cpu(cpu).inherit(true).enable_on_exec(true),
        Place::Cpu(cpu) => builder.any_pid().one_cpu(cpu).enabled(true),
    };
    builder.build().map_err(NoRing::NotOpened)?.sampled(RING).map_err(NoRing::NotMapped)
}

#[cfg(test)]
mod tests;
