//! Events of one tracepoint on all CPUs: exact counters, and rings of samples.
//!
//! Every event is recorded if its ring has room; stacks are taken of one event in so many, as [`crate::pace`] chooses.
//! The counters beside them count every event and lose none.

use crate::stackless::Stackless;
use crate::stacks::UserStack;
use crate::tracepoints::NoTracepoint;
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use perf_event::data::Record;
use perf_event::events::Tracepoint;
use perf_event::{Builder, Clock, Counter, SampleFlag, Sampler};
use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

/// A tracepoint, and which of its records count.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// As messages show it.
    pub name: &'static str,
    pub id: u64,
    /// Over the fields of its format; the kernel's syntax.
    pub filter: Option<String>,
}

/// The data of samples.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sampling {
    /// Thread, time and the record itself, for every event: records without room in a ring are counted as lost.
    /// Frequencies do not help here: a short burst makes the kernel skip events for long afterwards, and a process with
    /// few events is then estimated from nearly none.
    Records,
    /// Those fields and the stacks of kernel and user, of one event in so many ([`Rings::set_periods`]).
    Stacks,
    /// Every event, without its weight.
    Everything,
}

/// Bytes of one ring; the kernel wants a power of two of pages. Some 1,700 records of 76 bytes in a cycle of 50 ms are 34,000
/// a second.
const RECORDS: usize = 128 << 10;
const STACKS: usize = 512 << 10;
/// Bytes of stack in a sample; perf's default.
const STACK_BYTES: u32 = 8 << 10;
/// Events in one drain of a ring, so that a storm cannot hold the reader for ever.
pub(crate) const AT_ONCE: usize = 20_000;

/// One sample.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub pid: i32,
    pub tid: i32,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    pub cpu: u32,
    /// Events that it represents.
    pub weight: u64,
    pub raw: Vec<u8>,
    /// Addresses in the kernel, innermost first.
    pub kernel: Vec<u64>,
    pub user: Option<UserStack>,
}

/// Rings of one selection, one for each CPU.
pub(crate) struct Rings {
    rings: Vec<Ring>,
    /// Samples for which a ring had no room.
    pub lost: u64,
    /// Bytes of a ring.
    room: usize,
    /// Time until which the last drain found all records, in nanoseconds of CLOCK_MONOTONIC; `None` if no ring was full.
    pub complete_until: Option<u64>,
}

/// The records of one ring in one drain.
struct Drained {
    bytes: usize,
    room: usize,
    /// Time of the last sample.
    time: u64,
    /// Time of the last sample before records were lost, perhaps.
    full_at: Option<u64>,
}

impl Drained {
    /// The next sample. The kernel writes no record for which there is no room, and reports its loss only when there is.
    fn sample(&mut self, bytes: usize, time: u64) {
        self.bytes += bytes;
        self.time = time;
        if self.bytes + 2 * bytes > self.room {
            self.full_at.get_or_insert(time);
        }
    }
}

/// The ring of one CPU.
struct Ring {
    sampler: Sampler,
    periods: Periods,
}

/// The sampling period of events, and its start. Records do not contain it: the kernel samples every software event
/// whose records are to include their period (kernel/events/core.c, perf_swevent_event).
#[derive(Debug)]
struct Periods {
    /// That of the oldest samples in the ring first.
    since: VecDeque<(u64, u64)>,
}

impl Periods {
    fn every() -> Self {
        Self { since: VecDeque::from([(0, 1)]) }
    }

    fn last(&self) -> u64 {
        self.since.back().map_or(1, |(_, period)| *period)
    }

    /// The period at the time of a sample, whose ring hands out samples in the order of time.
    fn at(&mut self, time: u64) -> u64 {
        while self.since.get(1).is_some_and(|(since, _)| *since <= time) {
            self.since.pop_front();
        }
        self.since.front().map_or(1, |(_, period)| *period)
    }
}

/// Nanoseconds of CLOCK_MONOTONIC, by which samples are stamped.
pub(crate) fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| time.num_nanoseconds().unsigned_abs())
}

fn builder(selection: &Selection, cpu: usize) -> Builder<'static> {
    let mut builder = Builder::new(Tracepoint::with_id(selection.id));
    builder.any_pid().one_cpu(cpu).include_kernel();
    builder
}

fn opened(builder: &Builder<'_>, selection: &Selection) -> Result<Counter, NoTracepoint> {
    let refused = |error: io::Error| NoTracepoint::Refused(selection.name.to_owned(), error);
    let counter = builder.build().map_err(refused)?;
    if let Some(filter) = &selection.filter {
        let filter = CString::new(filter.as_str()).map_err(|error| refused(error.into()))?;
        linux::perf_event::set_filter(&counter, &filter).map_err(refused)?;
    }
    Ok(counter)
}

/// Counters of a selection on all these CPUs, which are not running when they are opened.
pub(crate) struct Counters(Vec<Counter>);

impl Counters {
    pub fn open(selection: &Selection, cpus: &[usize]) -> Result<Self, NoTracepoint> {
        let open = |&cpu: &usize| opened(&builder(selection, cpu), selection);
        cpus.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// Lets them count, or stops them.
    pub fn run(&mut self, on: bool) {
        for counter in &mut self.0 {
            // An event that is open can be enabled and disabled: the calls have no other failure.
            let _ = if on { counter.enable() } else { counter.disable() };
        }
    }

    /// Events that were counted.
    pub fn sum(&mut self) -> u64 {
        self.each().iter().sum()
    }

    /// Events that were counted on each CPU.
    pub fn each(&mut self) -> Vec<u64> {
        self.0.iter_mut().map(|counter| counter.read().unwrap_or(0)).collect()
    }
}

impl Rings {
    /// Opens rings that are not running yet.
    pub fn open(selection: &Selection, cpus: &[usize], sampling: Sampling) -> Result<Self, NoTracepoint> {
        let room = match sampling {
            Sampling::Records | Sampling::Everything => RECORDS,
            Sampling::Stacks => STACKS,
        };
        let open = |&cpu: &usize| {
            let mut builder = builder(selection, cpu);
            let common = SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU | SampleFlag::RAW;
            builder.clockid(Clock::MONOTONIC);
            match sampling {
                Sampling::Records => {
                    builder.sample(common | SampleFlag::PERIOD).sample_period(1);
                }
                Sampling::Stacks => {
                    let stacks = SampleFlag::CALLCHAIN | SampleFlag::REGS_USER | SampleFlag::STACK_USER;
                    builder.sample(common | stacks).sample_period(1);
                    builder.sample_regs_user(REGISTERS).sample_stack_user(STACK_BYTES);
                }
                Sampling::Everything => {
                    builder.sample(common).sample_period(1);
                }
            }
            let refused = |error| NoTracepoint::Refused(selection.name.to_owned(), error);
            let sampler = opened(&builder, selection)?.sampled(room).map_err(refused)?;
            Ok(Ring { sampler, periods: Periods::every() })
        };
        let rings = cpus.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { rings, lost: 0, room, complete_until: None })
    }

    /// Lets the rings fill, or stops them.
    pub fn run(&mut self, on: bool) {
        for Ring { sampler, .. } in &mut self.rings {
            // An event that is open can be enabled and disabled: the calls have no other failure.
            let _ = if on { sampler.enable() } else { sampler.disable() };
        }
    }

    /// Lets each ring sample one in so many events from now on.
    pub fn set_periods(&mut self, periods: &[u64]) {
        for (ring, &period) in self.rings.iter_mut().zip(periods) {
            if ring.periods.last() != period && linux::perf_event::set_period(&ring.sampler, period).is_ok() {
                ring.periods.since.push_back((now(), period));
            }
        }
    }

    /// Passes on the new samples, ring by ring.
    pub fn drain(&mut self, take: impl FnMut(Sample)) {
        self.drain_within(Duration::MAX, take);
    }

    /// Hands out the new records, ring by ring, each for its part of the time. Records beyond the time stay in the
    /// ring.
    pub fn drain_within(&mut self, time: Duration, mut take: impl FnMut(Sample)) {
        let part = time / u32::try_from(self.rings.len()).unwrap_or(u32::MAX).max(1);
        self.complete_until = None;
        for ring in &mut self.rings {
            let begin = Instant::now();
            let mut drained = Drained { bytes: 0, room: self.room, time: 0, full_at: None };
            for _ in 0..AT_ONCE {
                if begin.elapsed() >= part {
                    break;
                }
                let Some(record) = ring.sampler.next_record() else { break };
                let bytes = record.len() + HEADER;
                match record.parse_record() {
                    Ok(Record::Sample(sample)) => {
                        let time = sample.time().unwrap_or_default();
                        drained.sample(bytes, time);
                        let period = ring.periods.at(time);
                        take(read(&sample, period));
                    }
                    Ok(Record::Lost(lost)) => self.lost += lost.lost,
                    Ok(Record::LostSamples(lost)) => self.lost += lost.lost,
                    Err(_) if record.ty() == PERF_RECORD_SAMPLE => {
                        if let Some(sample) = Stackless::parse(&record.to_contiguous()) {
                            let period = ring.periods.at(sample.time);
                            take(of_kernel_thread(sample, period));
                        } else {
                            self.lost += 1;
                        }
                    }
                    _ => {}
                }
            }
            self.complete_until = [self.complete_until, drained.full_at].into_iter().flatten().min();
        }
    }
}

fn read(sample: &perf_event::data::Sample<'_>, period: u64) -> Sample {
    let (kernel, walked) = split_chain(sample.callchain().unwrap_or_default());
    let registers = sample.regs_user().map(|registers| &*registers.regs).unwrap_or_default();
    Sample {
        pid: sample.pid().unwrap_or_default() as i32,
        tid: sample.tid().unwrap_or_default() as i32,
        time: sample.time().unwrap_or_default(),
        cpu: sample.cpu().unwrap_or_default(),
        weight: sample.period().unwrap_or(period).max(1),
        raw: sample.raw().unwrap_or_default().to_vec(),
        kernel,
        user: user_stack(registers, sample.stack_user().unwrap_or_default(), walked),
    }
}

/// Bytes of a record's header (linux/perf_event.h).
const HEADER: usize = 8;
/// `PERF_RECORD_SAMPLE` of linux/perf_event.h.
const PERF_RECORD_SAMPLE: u32 = 9;

/// Threads of the kernel have no registers of a program, which the library takes for granted.
fn of_kernel_thread(sample: Stackless, period: u64) -> Sample {
    let (kernel, _) = split_chain(&sample.chain);
    let Stackless { pid, tid, time, cpu, raw, .. } = sample;
    Sample { pid, tid, time, cpu, weight: period.max(1), raw, kernel, user: None }
}

/// Markers in a chain are the negative numbers down to -4095 (linux/perf_event.h: PERF_CONTEXT_MAX).
const LOWEST_MARKER: u64 = (-4095_i64) as u64;
const KERNEL_MARKER: u64 = (-128_i64) as u64;
const USER_MARKER: u64 = (-512_i64) as u64;

/// The addresses in the kernel, and those in the program.
fn split_chain(chain: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let (mut kernel, mut user, mut context) = (Vec::new(), Vec::new(), 0);
    for &entry in chain {
        match (entry >= LOWEST_MARKER, context) {
            (true, _) => context = entry,
            (false, KERNEL_MARKER) => kernel.push(entry),
            (false, USER_MARKER) => user.push(entry),
            _ => {}
        }
    }
    (kernel, user)
}

/// Registers that a stack is unwound by: BP, SP and IP (arch/x86/include/uapi/asm/perf_regs.h).
#[cfg(target_arch = "x86_64")]
const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;
/// Registers that a stack is unwound by: x29, LR, SP and PC (arch/arm64/include/uapi/asm/perf_regs.h).
#[cfg(target_arch = "aarch64")]
const REGISTERS: u64 = 1 << 29 | 1 << 30 | 1 << 31 | 1 << 32;

#[cfg(target_arch = "x86_64")]
fn user_stack(registers: &[u64], bytes: &[u8], by_frame_pointers: Vec<u64>) -> Option<UserStack> {
    let &[frame_pointer, stack_pointer, instruction] = registers else { return None };
    let bytes = bytes.to_vec();
    Some(UserStack { instruction, stack_pointer, frame_pointer, link: 0, bytes, by_frame_pointers })
}

#[cfg(target_arch = "aarch64")]
fn user_stack(registers: &[u64], bytes: &[u8], by_frame_pointers: Vec<u64>) -> Option<UserStack> {
    let &[frame_pointer, link, stack_pointer, instruction] = registers else { return None };
    let bytes = bytes.to_vec();
    Some(UserStack { instruction, stack_pointer, frame_pointer, link, bytes, by_frame_pointers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_stands_for_the_period_of_its_time() {
        let mut periods = Periods::every();
        assert_eq!((periods.at(5), periods.last()), (1, 1));
        periods.since.extend([(10, 8), (20, 2)]);
        assert_eq!([9, 10, 15].map(|time| periods.at(time)), [1, 8, 8]);
        assert_eq!((periods.at(30), periods.last(), periods.since.len()), (2, 2, 1));
    }

    #[test]
    fn a_ring_without_room_is_complete_until_its_last_record() {
        let mut drained = Drained { bytes: 0, room: 100, time: 0, full_at: None };
        for time in 1..=8 {
            drained.sample(10, time);
        }
        assert_eq!(drained.full_at, None);
        // Two more have no room, or were written while the ring was read.
        (9..=11).for_each(|time| drained.sample(10, time));
        assert_eq!(drained.full_at, Some(9));
    }

    #[test]
    fn a_chain_is_split_at_its_markers() {
        let chain = [KERNEL_MARKER, 0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000, USER_MARKER, 0x7f00, 0x55];
        let (kernel, user) = split_chain(&chain);
        assert_eq!(kernel, [0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000]);
        assert_eq!(user, [0x7f00, 0x55]);
        assert_eq!(split_chain(&[1, 2]), (vec![], vec![]));
    }
}
