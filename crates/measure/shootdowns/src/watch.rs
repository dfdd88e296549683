//! Watches a machine's shootdowns by the best means that it allows.

use crate::begins::BeginRings;
use crate::calls::{CallRings, CallTimes};
use crate::cause::Cause;
use crate::diagnosis::{Diagnosis, Subject};
use crate::evidence::Evidence;
use crate::kernel_symbols::KernelSymbols;
use crate::lives::Life;
use crate::machine;
use crate::overhead::Overhead;
use crate::pace::Pace;
use crate::rings::{Counters, Sample, now};
use crate::schedule::Part;
use crate::sources::{Events, NO_REQUEST, Reader, Timing, online_cpus, open_calls, open_flushes, open_timing_or_less};
use crate::stacks::ProcessStacks;
use crate::summary::{LeftOut, ProcessSummary, Scale, Summary, Watching, paths_of, process_summary};
use crate::tally::{Seen, Tally};
use crate::times::{Moment, TimesByProcess};
use crate::tracepoints::NoTracepoint;
use crate::usage::of_all;
use linux::interrupts::InterruptCounts;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time for the stacks that are left at the end: the first one of a large program waits for its symbols.
const AT_THE_END: Duration = Duration::from_secs(2);
/// Rings are emptied this often.
const CYCLE: Duration = Duration::from_millis(50);
/// The part of a cycle in which times are measured if there are many shootdowns.
const SHORT_WINDOW: Duration = Duration::from_millis(5);
/// Shootdowns in a cycle from which on times are measured in the short window only.
const MANY: u64 = 200;
/// Processes whose code is kept at a time.
const MOST_STACKS: usize = 32;
/// Bytes of code above which all code is dropped before another process is read.
const MOST_CODE: u64 = 256 << 20;
/// Processes whose allocator is looked up while they run; a process that still runs at the end is read then.
const MOST_SUBJECTS: usize = 256;
/// Bytes of the facts about processes from which on no more are kept: a hostile process can have a long environment.
const MOST_FACTS: usize = 64 << 20;

/// Maximum number of processes whose use of page faults is read, the most active senders.
const MOST_USES: usize = 64;
/// Interval between these reads.
const USES_READ: Duration = Duration::from_secs(1);

/// The loss without the records of clone(2) and execve(2).
const TOGETHER: &str = "processes that reuse a number and programs that a process executes are counted together";

/// A watch that is running.
pub struct Watch {
    evidence: Evidence,
    /// Why better evidence is not used.
    refused: Vec<String>,
    events: Option<Events>,
    timing: Option<Timing>,
    calls: Option<CallRings>,
    call_times: CallTimes,
    uses_read: Instant,
    begins: Option<BeginRings>,
    paths: Paths,
    pace: Pace,
    overhead: Option<Overhead>,
    tally: Tally,
    times: TimesByProcess,
    interrupts: InterruptCounts,
    started: Instant,
    /// Start in nanoseconds of CLOCK_MONOTONIC.
    started_at: u64,
    /// When it ended, and the interrupts then.
    ended: Option<(Instant, InterruptCounts)>,
    /// CPU time of this program before the watch.
    cpu_before: Duration,
}

/// Facts about processes.
#[derive(Default)]
struct Subjects {
    of: HashMap<Life, Subject>,
    /// Bytes that they take.
    memory: usize,
}

impl Subjects {
    /// Reads the facts about a process that is met first, if there is room.
    fn add(&mut self, life: Life, read: impl FnOnce() -> Subject) {
        if self.of.contains_key(&life) || self.of.len() >= MOST_SUBJECTS || self.memory >= MOST_FACTS {
            return;
        }
        let subject = read();
        self.memory += subject.memory;
        self.of.insert(life, subject);
    }
}

/// Turns samples of stacks into call paths.
struct Paths {
    kernel: KernelSymbols,
    code: HashMap<Life, Option<ProcessStacks>>,
    /// The facts about processes at their first stack: they may end.
    subjects: Subjects,
    only: Option<i32>,
    taken: u64,
    /// Stacks that there was no time for at the end.
    unread: u64,
}

impl Watch {
    /// Starts to watch, with `only` for the stacks of one process. Never fails: refusals are reported, and the next
    /// best evidence is used.
    pub fn start(only: Option<i32>) -> Self {
        linux::descriptors::allow_most();
        let kernel = KernelSymbols::read();
        let cpus = online_cpus();
        let mut refused = Vec::new();
        let mut keep = |result: Result<Events, NoTracepoint>| result.map_err(|why| refused.push(why.to_string())).ok();
        let by_flushes = keep(open_flushes(&cpus));
        let mut evidence = Evidence::TlbTracepoint;
        let mut events = by_flushes.or_else(|| {
            evidence = Evidence::SystemCalls;
            keep(open_calls(&cpus))
        });
        let timing = match evidence {
            Evidence::TlbTracepoint => open_timing_or_less(&cpus, &kernel, &mut refused),
            _ => None,
        };
        let opened = events.as_ref().map(|_| CallRings::open(&cpus));
        let calls = opened.and_then(|opened| {
            opened.map_err(|why| refused.push(format!("the time in calls is not measured: {why}"))).ok()
        });
        let interrupts = InterruptCounts::read().unwrap_or_default();
        if events.is_none() {
            evidence = if interrupts.shootdowns.is_some() { Evidence::Interrupts } else { Evidence::Nothing };
        }
        let begins = events.as_ref().map(|_| BeginRings::open(&cpus));
        let begins = begins.and_then(|opened| opened.map_err(|why| refused.push(format!("{TOGETHER}: {why}"))).ok());
        let overhead = events.as_ref().and_then(|_| Overhead::measure(&cpus));
        if let Some(events) = &mut events {
            events.run(true);
        }
        Self {
            evidence,
            refused,
            events,
            timing,
            calls,
            call_times: CallTimes::default(),
            uses_read: Instant::now(),
            begins,
            paths: Paths { kernel, code: HashMap::new(), subjects: Subjects::default(), only, taken: 0, unread: 0 },
            pace: Pace::default(),
            overhead,
            tally: Tally::of(only, of_all()),
            times: TimesByProcess::default(),
            interrupts,
            started: Instant::now(),
            started_at: now(),
            ended: None,
            cpu_before: cpu_time(),
        }
    }

    /// The source of the numbers.
    pub fn evidence(&self) -> Evidence {
        self.evidence
    }

    /// Watches until `end` or until `stop` is set.
    pub fn until(&mut self, end: Instant, stop: &AtomicBool) {
        let mut before = self.totals().0.unwrap_or(0);
        while !stop.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let cycle = CYCLE.min(left);
            let now = self.totals().0.unwrap_or(0);
            let are_many = now.saturating_sub(before) > MANY || self.calls.as_ref().is_some_and(CallRings::are_many);
            let window = if are_many { SHORT_WINDOW.min(cycle) } else { cycle };
            before = now;
            self.measure_times(window, cycle);
            // Stacks that are left are read after the watch.
            self.read_rings(CYCLE.min(end.saturating_duration_since(Instant::now())));
            self.set_pace();
            if self.uses_read.elapsed() >= USES_READ {
                self.read_usage();
            }
        }
    }

    /// Reads the usage of the processes that send most; after the end only if it was never read.
    fn read_usage(&mut self) {
        let mut senders: Vec<_> = self.tally.processes.iter().map(|(&life, process)| (process.sent, life)).collect();
        senders.sort_unstable_by(|a, b| b.cmp(a));
        for (_, life) in senders.into_iter().take(MOST_USES) {
            let was_read = self.tally.processes.get(&life).is_some_and(|process| process.used.last.is_some());
            if self.ended.is_none() || !was_read {
                self.tally.read_usage(life);
            }
        }
        self.uses_read = Instant::now();
    }

    fn set_pace(&mut self) {
        let Some(events) = &mut self.events else { return };
        let of = |pid| self.tally.sent_by(pid);
        let periods = self.pace.periods(events.all_sent.each(), self.tally.sent, self.paths.only.map(of));
        events.stacks.set_periods(&periods);
    }

    /// Ends the watch: counting stops, and the recorded samples are processed.
    pub fn finish(&mut self) {
        self.read_usage();
        self.ended = Some((Instant::now(), InterruptCounts::read().unwrap_or_default()));
        self.end_calls();
        if let Some(events) = &mut self.events {
            events.run(false);
        }
        self.read_rings(AT_THE_END);
        if let Some(events) = &mut self.events {
            let (only, unread) = (self.paths.only, &mut self.paths.unread);
            events.stacks.drain(|sample| *unread += u64::from(only.is_none_or(|pid| pid == sample.pid)));
        }
    }

    /// The results up to now.
    pub fn summary(&mut self) -> Summary {
        let mut summary = self.counts();
        for process in &mut summary.processes {
            process.paths = self.tally.processes.get(&process.life).map(paths_of).unwrap_or_default();
        }
        summary
    }

    /// Like [`Watch::summary`], without call paths.
    pub fn counts(&mut self) -> Summary {
        let (sent, received) = self.totals();
        let scale = Scale::new((sent, self.tally.sent), (received, self.tally.received));
        let (now, interrupts) =
            self.ended.clone().unwrap_or_else(|| (Instant::now(), InterruptCounts::read().unwrap_or_default()));
        self.read_usage();
        let seconds = self.seconds();
        let mut processes: Vec<ProcessSummary> = self
            .tally
            .processes
            .iter()
            .map(|(&life, process)| process_summary(life, process, scale, &self.times))
            .collect();
        processes.sort_by(|a, b| b.sent.total_cmp(&a.sent).then(b.received.total_cmp(&a.received)));
        for process in &mut processes {
            let since_start = process.life.since.saturating_sub(self.started_at);
            process.began = (process.life.since > 0).then(|| Duration::from_nanos(since_start).as_secs_f64());
            process.call_seconds = self.calls.as_ref().map(|_| self.call_times.of(process.life, seconds));
        }
        let [lost_sent, lost_received, lost_stacks, lost_times] = self.lost();
        let lost_begins = self.begins.as_ref().map_or(0, |begins| begins.lost);
        Summary {
            evidence: self.evidence,
            refused: self.refused.clone(),
            unseen: machine::unseen(),
            watched: self.paths.only,
            seconds: now.duration_since(self.started).as_secs_f64(),
            sent,
            received,
            interrupts: interrupts.shootdowns_since(&self.interrupts),
            processes,
            others: scale.others(self.tally.others),
            watching: Watching {
                stacks: self.stacks_taken(),
                lost_sent,
                lost_received,
                lost_stacks,
                lost_times,
                lost_begins,
                left_out: self.left_out(),
                cpu_seconds: self.cpu_taken().as_secs_f64(),
                nanoseconds_per_record: self.overhead.map(|overhead| overhead.record),
                nanoseconds_per_stack: self.overhead.map(|overhead| overhead.stack),
            },
        }
    }

    /// The cause of the shootdowns of a process in the results.
    pub fn diagnose(&self, process: &ProcessSummary) -> Diagnosis {
        let life = process.life;
        let (now, then) = (subject_of(&self.tally, life), self.paths.subjects.of.get(&life));
        let start = self.tally.processes.get(&life).and_then(|process| process.start);
        let unknown = Subject::default();
        Subject::choose(&now, then, start).unwrap_or(&unknown).diagnose(process, self.seconds())
    }

    /// The results for which there was no room.
    fn left_out(&self) -> LeftOut {
        let [threads, paths] = self.tally.left_out();
        let times = self.call_times.left_out + self.times.left_out;
        LeftOut { processes: self.tally.evicted, threads, paths, times }
    }

    /// Seconds since the start, up to the end if it has ended.
    fn seconds(&self) -> f64 {
        self.ended.as_ref().map_or_else(Instant::now, |(at, _)| *at).duration_since(self.started).as_secs_f64()
    }

    /// Lasts for a cycle. Measures times of interrupts in the window at its begin, and times of calls.
    fn measure_times(&mut self, window: Duration, cycle: Duration) {
        let begin = Instant::now();
        let wait = |until: Duration| sleep(until.saturating_sub(begin.elapsed()));
        let part = self.calls.as_mut().map_or(Part::None, CallRings::begin_cycle);
        self.run_timing(true);
        wait(window);
        self.run_timing(false);
        if let Part::Begin(length) = part {
            wait(length.min(cycle));
            self.end_calls();
        }
        self.read_timing();
        wait(cycle);
        if part == Part::All {
            self.end_calls();
        }
    }

    /// Adds the time in calls since the begin of their window.
    fn end_calls(&mut self) {
        let Some(calls) = &mut self.calls else { return };
        catch_up(&mut self.begins, &mut self.tally, now());
        calls.end_part(&mut self.call_times, |pid, time| self.tally.life(pid, time));
        self.call_times.make_room(|life| self.tally.processes.contains_key(&life));
    }

    /// Reads the records of the last window.
    fn read_timing(&mut self) {
        catch_up(&mut self.begins, &mut self.tally, now());
        let Some(timing) = &mut self.timing else { return };
        let mut moments = Vec::new();
        for (step, request, rings) in &mut timing.rings {
            rings.drain(|sample| {
                let Sample { time, cpu, pid, tid, .. } = sample;
                let request = match request {
                    Some(field) => field.number(&sample.raw).map(|address| address as u64),
                    None => Some(NO_REQUEST),
                };
                moments.extend(request.map(|request| Moment { time, cpu, pid, tid, step: *step, request }));
            });
        }
        self.times.add(&mut moments, |pid, time| self.tally.life(pid, time));
        self.times.make_room(|life| self.tally.processes.contains_key(&life));
    }

    fn run_timing(&mut self, on: bool) {
        for (_, _, rings) in self.timing.iter_mut().flat_map(|timing| &mut timing.rings) {
            rings.run(on);
        }
    }

    fn read_rings(&mut self, time_for_stacks: Duration) {
        let Some(events) = &mut self.events else { return };
        let (tally, begins, reader) = (&mut self.tally, &mut self.begins, &events.reader);
        events.sent.drain(|sample| {
            let flushed = match reader {
                Reader::Flush(format) => format.flushed(&sample.raw),
                Reader::Call(_) => None,
            };
            catch_up(begins, tally, sample.time);
            tally.add_sent(seen(&sample), flushed, sample.weight);
        });
        if let Some(received) = &mut events.received {
            received.drain(|sample| {
                catch_up(begins, tally, sample.time);
                tally.add_received(seen(&sample), sample.weight);
            });
        }
        // Reading symbols of a large program takes a while: the rest waits for the next cycle, so that the other rings
        // are read in time.
        let paths = &mut self.paths;
        events.stacks.drain_within(time_for_stacks, |sample| {
            catch_up(begins, tally, sample.time);
            paths.add(sample, reader, tally);
        });
        // Begins without samples must not fill their rings.
        catch_up(begins, tally, now());
    }

    /// Shootdowns (or calls) sent, and received, since the start on the whole machine, each one counted.
    fn totals(&mut self) -> (Option<u64>, Option<u64>) {
        let Some(events) = &mut self.events else { return (None, None) };
        (Some(events.all_sent.sum()), events.all_received.as_mut().map(Counters::sum))
    }

    /// CPU time that this program has taken since the start.
    fn cpu_taken(&self) -> Duration {
        cpu_time().saturating_sub(self.cpu_before)
    }

    /// Stacks that were sampled.
    fn stacks_taken(&self) -> u64 {
        self.paths.taken
    }

    /// Samples that were lost: of senders, of receivers, of stacks, of times.
    fn lost(&self) -> [u64; 4] {
        let timing = self.timing.iter().flat_map(|timing| &timing.rings).map(|(_, _, rings)| rings.lost).sum::<u64>();
        let timing = timing + self.calls.as_ref().map_or(0, CallRings::lost);
        self.events.as_ref().map_or([0; 4], |events| {
            let received = events.received.as_ref().map_or(0, |rings| rings.lost);
            [events.sent.lost, received, events.stacks.lost + self.paths.unread, timing]
        })
    }
}

impl Paths {
    fn add(&mut self, sample: Sample, reader: &Reader, tally: &mut Tally) {
        if self.only.is_some_and(|pid| pid != sample.pid) {
            return;
        }
        self.taken += 1;
        let cause = self.cause(&sample, reader);
        let life = tally.life(sample.pid, sample.time);
        let memory: u64 = self.code.values().flatten().map(ProcessStacks::memory).sum();
        let is_full = self.code.len() >= MOST_STACKS || memory > MOST_CODE;
        if is_full && !self.code.contains_key(&life) {
            self.code.clear();
        }
        self.subjects.add(life, || subject_of(tally, life));
        let is_current = tally.is_current(life);
        let read = || is_current.then(|| ProcessStacks::of(sample.pid).ok()).flatten();
        let code = self.code.entry(life).or_insert_with(read);
        let addresses = match (code.as_mut(), &sample.user) {
            (Some(code), Some(user)) => code.unwind(user),
            _ => Vec::new(),
        };
        tally.add_stack(seen(&sample), (cause, addresses), sample.weight, |addresses| {
            let name = |code: &mut ProcessStacks| addresses.iter().map(|&address| code.name(address)).collect();
            code.as_mut().map(name).unwrap_or_default()
        });
    }

    fn cause(&self, sample: &Sample, reader: &Reader) -> Cause {
        match reader {
            Reader::Call(number) => number.number(&sample.raw).map_or(Cause::Unknown, Cause::of_system_call),
            Reader::Flush(_) => {
                let names: Vec<&str> = sample.kernel.iter().filter_map(|&address| self.kernel.name(address)).collect();
                Cause::of(names.iter().copied())
            }
        }
    }
}

/// Reads the begins of processes, programs and threads up to a sample's time, which say whose sample it is.
fn catch_up(begins: &mut Option<BeginRings>, tally: &mut Tally, time: u64) {
    if let Some(begins) = begins {
        begins.catch_up(time, |begin, now| tally.begin(begin, now));
    }
}

/// The facts about a process at this moment; none if it does not run the program of this life any more.
fn subject_of(tally: &Tally, life: Life) -> Subject {
    if tally.is_current(life) { Subject::of(life.pid) } else { Subject::default() }
}

fn seen(sample: &Sample) -> Seen {
    Seen { pid: sample.pid, tid: sample.tid, time: sample.time }
}

/// CPU time of this program, its own and the kernel's for it (getrusage(2)).
fn cpu_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    let microseconds = |time: nix::sys::time::TimeVal| Duration::from_micros(time.num_microseconds().max(0) as u64);
    microseconds(usage.user_time()) + microseconds(usage.system_time())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reading the symbols of a large program takes a while.
    #[test]
    fn the_usage_after_the_end_does_not_count() {
        let mut watch = Watch::start(None);
        let own = std::process::id() as i32;
        watch.tally.add_sent(Seen { pid: own, tid: own, time: now() }, None, 1 << 40);
        watch.finish();
        let mut faults = || watch.counts().processes.iter().find(|process| process.pid == own).unwrap().page_faults;
        let before = faults();
        assert!(before.is_some() && std::hint::black_box(vec![1_u8; 64 << 20]).iter().all(|&byte| byte == 1));
        assert_eq!(faults(), before);
    }

    #[test]
    fn the_memory_of_facts_is_bounded() {
        let kept = |memory: usize| {
            let mut subjects = Subjects::default();
            for pid in (0..2 * MOST_SUBJECTS as i32).chain(0..10) {
                subjects.add(Life { pid, since: 0 }, || Subject::taking(memory));
            }
            (subjects.of.len(), subjects.memory)
        };
        assert_eq!(kept(1), (MOST_SUBJECTS, MOST_SUBJECTS));
        assert_eq!(kept(MOST_FACTS / 4), (4, MOST_FACTS));
    }
}
