//! The moment since which a thread sleeps.
//!
//! The kernel keeps the time at which a thread last ran (`se.exec_start` in `/proc/PID/task/TID/sched`; before Linux
//! 6.15 with `CONFIG_SCHED_DEBUG` only). It is in the CPU's own clock, which excludes interrupts and stolen time if the
//! kernel accounts for them, so the clocks of two CPUs may differ by minutes. The clock is therefore read on the same
//! CPU: a thread of this process that has just been scheduled there finds the present time in its own file.

use crate::text::text_of;
use crate::urgency::Urgency;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum wait for the reader. Its CPU may belong to a thread of higher priority.
const READER_TIMEOUT: Duration = Duration::from_millis(5);

/// A thread's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// Not before the sleep began.
    pub since: Instant,
    /// How often the thread has gone to sleep, this sleep included (`nr_voluntary_switches`).
    pub count: u64,
}

/// The part of a thread's `sched` file that is needed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    last_ran: Duration,
    sleeps: u64,
}

impl Times {
    fn of(path: &str) -> Option<Self> {
        Self::parse(&text_of(path).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(found, _)| found.trim() == name)
                .map(|found| found.1)
        };
        let (milliseconds, rest) = field("se.exec_start")?.trim().split_once('.')?;
        let nanoseconds = if rest.len() == 6 { rest.parse().ok()? } else { return None };
        let last_ran = Duration::from_millis(milliseconds.parse().ok()?) + Duration::from_nanos(nanoseconds);
        Some(Self { last_ran, sleeps: field("nr_voluntary_switches")?.trim().parse().ok()? })
    }
}

/// Returns the CPU on which a thread last ran, if the thread sleeps and can be woken (proc_pid_stat(5)).
fn cpu_of_sleeper(stat: &str) -> Option<usize> {
    // The name may contain spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    (fields.next()? == "S").then(|| fields.nth(35)?.parse().ok()).flatten()
}

/// Reads the times of a sleeping thread and its CPU. A thread that runs in between has its times from another sleep or from
/// another CPU's clock, and none right after it has changed its CPU (`migrate_task_rq_fair` of kernel/sched/fair.c): its sleep
/// would look too long.
fn while_asleep(
    mut times: impl FnMut() -> Option<Times>,
    cpu: impl FnOnce() -> Option<usize>,
) -> Option<(Times, usize)> {
    let (before, cpu) = (times()?, cpu()?);
    (before.last_ran > Duration::ZERO && times()? == before).then_some((before, cpu))
}

/// The time of one CPU's clock.
#[derive(Clone, Copy)]
struct Reading {
    cpu: usize,
    clock: Duration,
    /// Not before the clock was read.
    at: Instant,
}

/// Finds out since when threads sleep.
#[derive(Default)]
pub struct SleepClock {
    /// Behind a lock only so that references can be shared between threads.
    reader: Mutex<Option<Reader>>,
    /// The last reading of each CPU.
    readings: BTreeMap<usize, Reading>,
}

impl SleepClock {
    /// Returns the present sleep of a thread; `None` where it is awake or the kernel does not show it. The thread may have
    /// been woken since: then its count is another one.
    pub fn sleep_of(&mut self, process: i32, thread: i32) -> Option<Sleep> {
        let times = || Times::of(&format!("/proc/{process}/task/{thread}/sched"));
        let stat = || text_of(format!("/proc/{process}/task/{thread}/stat")).ok();
        let (times, cpu) = while_asleep(times, || cpu_of_sleeper(&stat()?))?;
        // Any reading since then will do: what the clock left out in between only makes the sleep look shorter.
        let is_later = |reading: &&Reading| reading.clock >= times.last_ran;
        let reading = match self.readings.get(&cpu).filter(is_later) {
            Some(&reading) => reading,
            None => self.read(cpu).filter(|reading| is_later(&reading))?,
        };
        let since = reading.at.checked_sub(reading.clock - times.last_ran)?;
        Some(Sleep { since, count: times.sleeps })
    }

    fn read(&mut self, cpu: usize) -> Option<Reading> {
        let reading = self.reader.get_mut().ok()?.get_or_insert_with(Reader::start).read(cpu)?;
        self.readings.insert(cpu, reading);
        Some(reading)
    }
}

/// A thread that runs on the requested CPU. It ends once this is dropped.
struct Reader {
    cpus: Sender<usize>,
    readings: Receiver<Option<Reading>>,
    /// Number of readings that are still to come.
    awaited: usize,
}

impl Reader {
    fn start() -> Self {
        let (cpus, wanted) = channel();
        let (answers, readings) = channel();
        let started = thread::Builder::new().stack_size(64 << 10).spawn(move || {
            let _urgency = Urgency::raise();
            while let Ok(cpu) = wanted.recv() {
                if answers.send(read_on(cpu)).is_err() {
                    break;
                }
            }
        });
        // Without the thread the channel is closed, and nothing is read.
        drop(started);
        Self { cpus, readings, awaited: 0 }
    }

    fn read(&mut self, cpu: usize) -> Option<Reading> {
        while self.awaited > 0 {
            // Late readings are of no use, and as long as one is missing there is no other.
            self.readings.try_recv().ok()?;
            self.awaited -= 1;
        }
        self.cpus.send(cpu).ok()?;
        self.awaited = 1;
        let reading = self.readings.recv_timeout(READER_TIMEOUT).ok()?;
        self.awaited = 0;
        reading.filter(|reading| reading.cpu == cpu)
    }
}

/// Reads the clock of a CPU by the time at which this thread was last scheduled: it has just been woken, or moved to that
/// CPU.
fn read_on(cpu: usize) -> Option<Reading> {
    let mut only = CpuSet::new();
    only.set(cpu).ok()?;
    sched_setaffinity(Pid::from_raw(0), &only).ok()?;
    let times = Times::of("/proc/thread-self/sched")?;
    Some(Reading { cpu, clock: times.last_ran, at: Instant::now() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const SCHED: &str = "cat (16203, #threads: 1)\n----\n\
        se.exec_start                                :        419005.009846\n\
        nr_switches                                  :                    9\n\
        nr_voluntary_switches                        :                    7\n";

    #[test]
    fn a_thread_that_runs_meanwhile_has_no_known_sleep() {
        let times = |last_ran, sleeps| Times { last_ran: Duration::from_millis(last_ran), sleeps };
        let found = |first, second| {
            let mut answers = [first, second].into_iter();
            while_asleep(|| answers.next(), || Some(1)).map(|(times, _)| times)
        };
        assert_eq!(found(times(5, 2), times(5, 2)), Some(times(5, 2)));
        assert_eq!((found(times(5, 2), times(6, 3)), found(times(0, 2), times(0, 2))), (None, None));
    }

    #[test]
    fn the_time_and_the_count_are_read() {
        let times = Times::parse(SCHED).unwrap();
        assert_eq!(times, Times { last_ran: Duration::from_nanos(419_005_009_846), sleeps: 7 });
        assert_eq!(Times::parse("se.exec_start : 419005\n"), None);
        assert_eq!(Times::parse(""), None);
    }

    #[test]
    fn only_a_sleeper_has_a_cpu() {
        let stat = |state: &str| format!("7 (a ) S 3) {state} {} 5 0 0\n", ["0"; 35].join(" "));
        assert_eq!(cpu_of_sleeper(&stat("S")), Some(5));
        assert_eq!([cpu_of_sleeper(&stat("R")), cpu_of_sleeper(&stat("D")), cpu_of_sleeper("7 (a")], [None; 3]);
    }

    #[test]
    fn a_sleep_begins_after_the_thread_has_last_run() {
        let before = Instant::now();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id() as i32;
        let call = || text_of(format!("/proc/{pid}/syscall")).unwrap_or_default();
        while !call().starts_with(&format!("{} 0x0 ", libc::SYS_read)) {
            thread::sleep(Duration::from_millis(1));
        }
        let asleep = Instant::now();
        thread::sleep(Duration::from_millis(200));
        let mut clock = SleepClock::default();
        let sleeps: Vec<_> = (0..3).filter_map(|_| clock.sleep_of(pid, pid)).collect();
        drop(child.stdin.take());
        child.wait().unwrap();
        // A kernel without the file, or one whose CPU is busy, shows nothing.
        for sleep in &sleeps {
            assert!(before <= sleep.since && sleep.since < asleep + Duration::from_millis(200), "{sleep:?}");
            assert_eq!(sleep.count, sleeps[0].count);
        }
        assert!(clock.sleep_of(pid, pid).is_none());
    }
}
