//! System calls of a process, counted by the kernel: the tracepoint `raw_syscalls:sys_enter`, which needs no PMU.

use super::{Counter, WorkError};
use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter as Event};
use std::fs;
use std::io;

/// One counter for each thread that existed at the beginning; the threads that these start are counted with them
/// (`inherit_thread`, Linux 5.13) and, for several processes, also the processes that these start. Counts of ended
/// threads are kept.
pub(super) struct SystemCalls {
    events: Vec<Event>,
}

impl SystemCalls {
    pub(super) fn of(processes: &[i32]) -> io::Result<Self> {
        let id = linux::tracefs::text_below("events/raw_syscalls/sys_enter/id").map_err(not_shown)?;
        let id = id.trim().parse().map_err(io::Error::other)?;
        linux::descriptors::allow_most();
        let threads_only = processes.len() == 1;
        let mut events = Vec::new();
        for (number, pid) in processes.iter().enumerate() {
            let threads = match fs::read_dir(format!("/proc/{pid}/task")) {
                // A descendant has ended since it was listed.
                Err(_) if number > 0 => continue,
                threads => threads?,
            };
            for entry in threads {
                let Some(thread) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                match count(id, thread, threads_only) {
                    Ok(event) => events.push(event),
                    // It has ended since it was listed.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if events.is_empty() { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(Self { events }) }
    }
}

fn not_shown(error: io::Error) -> io::Error {
    io::Error::other(format!(
        "the tracepoint raw_syscalls:sys_enter is not shown ({error}); fix: as root, or mount -t tracefs -o mode=755 tracefs \
         /sys/kernel/tracing"
    ))
}

fn count(id: u64, thread: i32, threads_only: bool) -> io::Result<Event> {
    let mut builder = Builder::new(Tracepoint::with_id(id));
    builder.observe_pid(thread).any_cpu().inherit(true).inherit_thread(threads_only).include_kernel();
    let mut event = builder.build().map_err(|error| match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => io::Error::other(
            "system calls may not be counted here (perf_event_paranoid); fix: CAP_PERFMON, which root has outside of containers, \
             or sysctl kernel.perf_event_paranoid=-1",
        ),
        _ => error,
    })?;
    event.enable()?;
    Ok(event)
}

impl Counter for SystemCalls {
    fn read(&mut self) -> Result<f64, WorkError> {
        let mut sum = 0;
        for event in &mut self.events {
            sum += event.read().map_err(|error| WorkError::no_number("raw_syscalls:sys_enter", error))?;
        }
        Ok(sum as f64)
    }

    fn unit(&self) -> String {
        "system calls".to_owned()
    }

    fn counts_switches(&self) -> bool {
        true
    }
}
