//! The facts that a scan reads for each process: `/proc/PID/stat`, 4 µs.

use crate::decision::{Identity, Usage};
use address_space::ProcessStat;
use linux::text::bytes_of;
use machine_facts::base_page;
use nix::libc::{ENOENT, ESRCH};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::io;
use std::time::Duration;

/// Field of proc_pid_stat(5): number of threads.
const THREADS: usize = 20;
/// Field of proc_pid_stat(5): resident pages.
const RESIDENT: usize = 24;
/// Field of proc_pid_stat(5): scheduling policy.
pub(super) const POLICY: usize = 41;
/// Flag of a thread of the kernel (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Clock ticks per second if sysconf(3) does not know it.
const USUAL_TICKS: i64 = 100;

/// One process at one scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Which.
    pub identity: Identity,
    /// PID of its parent.
    pub parent: i32,
    /// Age, CPU time, resident size.
    pub usage: Usage,
    /// Scheduling policy of its first thread.
    pub scheduling: u32,
    /// A thread of the kernel.
    pub is_kernel_thread: bool,
}

/// Reads samples; times are relative to the moment of its making.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    uptime: f64,
    ticks: f64,
    page: u64,
}

impl Sampler {
    /// A sampler for the present moment.
    ///
    /// # Errors
    /// The clock cannot be read.
    pub fn now() -> io::Result<Self> {
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(USUAL_TICKS);
        // Containers with lxcfs show another start in /proc/uptime than that to which start times are relative.
        let since_boot = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?);
        Ok(Self { uptime: since_boot.as_secs_f64(), ticks: ticks as f64, page: base_page().bytes() })
    }

    /// Reads a process; `None` if it has ended.
    pub fn sample(&self, pid: i32) -> Option<Sample> {
        self.parse(pid, &bytes_of(format!("/proc/{pid}/stat")).ok()?)
    }

    /// False if a process has ended.
    pub fn lives(&self, identity: Identity) -> bool {
        self.shows_life(identity, bytes_of(format!("/proc/{}/stat", identity.pid)))
    }

    /// A reading that failed for want of descriptors or memory shows no end.
    fn shows_life(&self, identity: Identity, read: io::Result<Vec<u8>>) -> bool {
        match read {
            Ok(stat) => self.parse(identity.pid, &stat).is_some_and(|now| now.identity == identity),
            Err(error) => !matches!(error.raw_os_error(), Some(ENOENT | ESRCH)),
        }
    }

    fn parse(&self, pid: i32, stat: &[u8]) -> Option<Sample> {
        let stat = ProcessStat::parse(stat)?;
        let (start, counters) = (stat.start_time()?, stat.counters()?);
        // The main thread may end before the others, which then keep the memory of the process.
        if stat.has_ended() && stat.number::<u64>(THREADS).is_none_or(|threads| threads <= 1) {
            return None;
        }
        let seconds = |ticks: u64| ticks as f64 / self.ticks;
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
        let usage = Usage {
            age: time(self.uptime - seconds(start)),
            cpu: time(seconds(counters.user_ticks.saturating_add(counters.system_ticks))),
            resident: stat.number::<u64>(RESIDENT)?.saturating_mul(self.page),
        };
        Some(Sample {
            identity: Identity { pid, start },
            parent: stat.parent()?,
            usage,
            scheduling: stat.number(POLICY).unwrap_or_default(),
            is_kernel_thread: stat.flags().is_some_and(|flags| flags & KERNEL_THREAD != 0),
        })
    }
}

/// The identity of this process.
///
/// # Errors
/// /proc cannot be read, or numbers the processes of another PID namespace.
pub fn own_identity() -> io::Result<Identity> {
    let own = Sampler::now()?.sample(std::process::id() as i32);
    let other = || {
        io::Error::other("/proc shows the processes of another PID namespace; needed: a /proc of this PID namespace")
    };
    own.map(|sample| sample.identity).ok_or_else(other)
}

/// The PIDs of all processes.
///
/// # Errors
/// /proc cannot be listed.
pub fn processes() -> io::Result<Vec<i32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_file_is_read() {
        let sampler = Sampler { uptime: 100.0, ticks: 100.0, page: 4096 };
        let mut fields = vec!["0"; 50];
        for (number, value) in
            [(3, "S"), (4, "1"), (9, "2097152"), (14, "150"), (15, "50"), (22, "4000"), (24, "10"), (41, "1")]
        {
            fields[number - 3] = value;
        }
        let sample = sampler.parse(7, format!("7 (a) b) {}", fields.join(" ")).as_bytes()).unwrap();
        assert_eq!(sample.identity, Identity { pid: 7, start: 4000 });
        assert_eq!((sample.usage.age, sample.usage.cpu), (Duration::from_secs(60), Duration::from_secs(2)));
        assert_eq!((sample.usage.resident, sample.scheduling, sample.parent), (40960, 1, 1));
        assert!(sample.is_kernel_thread);
        fields[0] = "Z";
        assert_eq!(sampler.parse(7, format!("7 (a) {}", fields.join(" ")).as_bytes()), None, "a zombie");
        fields[20 - 3] = "2";
        assert!(sampler.parse(7, format!("7 (a) {}", fields.join(" ")).as_bytes()).is_some(), "a thread lives");
        assert_eq!(sampler.parse(7, b"7 (a) S 1"), None);
    }

    #[test]
    fn only_a_missing_process_has_ended() {
        let (sampler, own) = (Sampler::now().unwrap(), own_identity().unwrap());
        assert!(sampler.lives(own) && !sampler.lives(Identity { start: own.start + 1, ..own }));
        assert!(!sampler.lives(Identity { pid: i32::MAX, ..own }));
        let failed = |error| sampler.shows_life(own, Err(io::Error::from_raw_os_error(error)));
        assert!(failed(nix::libc::ENFILE) && failed(nix::libc::ENOMEM));
        assert!(!failed(ENOENT) && !failed(ESRCH));
    }

    #[test]
    fn this_process_is_found_by_each_scan() {
        let own = std::process::id() as i32;
        assert!(processes().unwrap().contains(&own));
        let sample = Sampler::now().unwrap().sample(own).unwrap();
        assert!(sample.usage.resident > 0 && !sample.is_kernel_thread);
        assert_eq!(Sampler::now().unwrap().sample(own).unwrap().identity, sample.identity);
    }
}
