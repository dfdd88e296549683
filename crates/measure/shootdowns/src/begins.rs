//! Records of clone(2) and execve(2) on all CPUs.

use crate::lives::{Begin, Origin};
use crate::rings::{AT_ONCE, now};
use crate::tracepoints::NoTracepoint;
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};
use process_view::printable;

/// Bytes of one ring: some 2,000 records.
const RING: usize = 128 << 10;
/// `PERF_RECORD_LOST`, `PERF_RECORD_COMM` and `PERF_RECORD_FORK` of linux/perf_event.h.
const LOST: u32 = 2;
const COMM: u32 = 3;
const FORK: u32 = 7;
/// `PERF_RECORD_MISC_COMM_EXEC`: the name changed by an execve(2).
const BY_EXEC: u16 = 1 << 13;

/// Bytes of the shortest record: an execve(2) with a short name.
const SHORTEST: usize = 24;

/// The rings of all CPUs.
pub(crate) struct BeginRings {
    rings: Vec<Sampler>,
    /// All begins up to this time were handed out, in nanoseconds of CLOCK_MONOTONIC.
    until: u64,
    /// Records that were lost.
    pub lost: u64,
}

impl BeginRings {
    /// Opens rings that are running.
    pub fn open(cpus: &[usize]) -> Result<Self, NoTracepoint> {
        let open = |&cpu: &usize| {
            let mut builder = Builder::new(Software::DUMMY);
            builder.any_pid().one_cpu(cpu).include_kernel().clockid(Clock::MONOTONIC);
            builder.sample(SampleFlag::TIME).sample_id_all(true).comm(true).comm_exec(true).task(true);
            let mut sampler = builder.build()?.sampled(RING)?;
            sampler.enable()?;
            Ok(sampler)
        };
        let rings = cpus.iter().map(open).collect::<Result<_, _>>();
        let rings = rings.map_err(|error| NoTracepoint::Refused("clone and exec".to_owned(), error))?;
        Ok(Self { rings, until: 0, lost: 0 })
    }

    /// Hands out all begins up to `time`, in any order, with the time of reading.
    pub fn catch_up(&mut self, time: u64, mut take: impl FnMut(Begin, u64)) {
        if time < self.until {
            return;
        }
        self.until = now();
        for ring in &mut self.rings {
            for _ in 0..AT_ONCE {
                let Some(record) = ring.next_record() else { break };
                let (kind, misc, bytes) = (record.ty(), record.misc(), record.to_contiguous());
                match kind {
                    LOST => self.lost += lost(&bytes).unwrap_or(0),
                    _ => {
                        if let Some(begin) = parsed(kind, misc, &bytes) {
                            take(begin, self.until);
                        }
                    }
                }
            }
        }
    }
}

/// The number in a record of lost ones, after an identifier.
fn lost(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(8..)?.first_chunk()?))
}

/// Parses what follows a record's header (linux/perf_event.h). `None` for records of another kind.
fn parsed(kind: u32, misc: u16, bytes: &[u8]) -> Option<Begin> {
    let word = |at: usize| Some(i32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    if bytes.len() < SHORTEST {
        return None;
    }
    // The last field of each record.
    let time = u64::from_ne_bytes(*bytes.last_chunk()?);
    let pid = word(0)?;
    match kind {
        COMM if misc & BY_EXEC != 0 => {
            let text = bytes.get(8..bytes.len() - 8)?.split(|&byte| byte == 0).next()?;
            let name = printable(&String::from_utf8_lossy(text));
            Some(Begin { time, pid, tid: pid, origin: Origin::Exec { name } })
        }
        FORK => Some(Begin { time, pid, tid: word(8)?, origin: Origin::Clone { parent: word(4)? } }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_and_an_exec_are_read_and_a_change_of_the_name_is_not() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        let fork = [words(&[7, 3, 8, 3]), 50_u64.to_ne_bytes().to_vec(), 51_u64.to_ne_bytes().to_vec()].concat();
        let wanted = Begin { time: 51, pid: 7, tid: 8, origin: Origin::Clone { parent: 3 } };
        assert_eq!(parsed(FORK, 0, &fork), Some(wanted));
        let comm = [words(&[7, 8]), b"a\x1bb\0\0\0\0\0".to_vec(), 52_u64.to_ne_bytes().to_vec()].concat();
        let exec = parsed(COMM, BY_EXEC, &comm).unwrap();
        assert_eq!((exec.time, exec.pid, exec.tid), (52, 7, 7));
        assert!(matches!(exec.origin, Origin::Exec { name } if name.len() > 2 && !name.contains('\x1b')));
        assert_eq!(parsed(COMM, 0, &comm), None);
        for length in 0..SHORTEST {
            assert_eq!(parsed(FORK, 0, &fork[..length]).or(parsed(COMM, BY_EXEC, &comm[..length])), None, "{length}");
        }
    }

    /// Needs the rights to watch all CPUs.
    #[test]
    fn the_kernel_reports_a_program_that_starts() {
        let Ok(mut rings) = BeginRings::open(&crate::sources::online_cpus()) else { return };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let (pid, mut found) = (child.id() as i32, Vec::new());
        rings.catch_up(now(), |begin, _| found.extend((begin.pid == pid).then_some(begin)));
        found.sort_by_key(|begin| begin.time);
        let parent = std::process::id() as i32;
        let origins: Vec<Origin> = found.into_iter().map(|begin| begin.origin).collect();
        assert_eq!(origins, [Origin::Clone { parent }, Origin::Exec { name: "true".to_owned() }]);
    }
}
