//! Lists the threads of a process that execute its code.

use address_space::ProcessStat;
use linux::text::text_of;
use nix::unistd::Pid;
use std::fs;
use std::io::{self, Read};

/// `PF_IO_WORKER` (Linux 5.12) and `PF_USER_WORKER` (Linux 6.4) of `linux/sched.h`, field 9 of `/proc/PID/stat`.
const WORKER_FLAGS: u64 = 0x10 | 0x4000;

/// The result of listing threads once.
pub struct Listing {
    /// Thread IDs.
    pub threads: Vec<i32>,
    /// False where threads may be missing: a thread that ends while the kernel lists can hide others.
    pub is_complete: bool,
}

/// Lists the threads that run in user space and for which `wanted` returns true.
///
/// Workers of io_uring and vhost are threads of the process too. They never leave the kernel, so that they cannot be
/// made to execute a call, and they access the process's memory only as any system call does.
///
/// # Errors
/// Where `/proc/PID/task` cannot be read, most often because the process has ended.
pub fn user_threads(process: Pid, mut wanted: impl FnMut(i32) -> bool) -> io::Result<Listing> {
    let entries = fs::read_dir(format!("/proc/{process}/task"))?;
    let mut threads: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // Counted after listing: the count contains hidden threads, and none that has ended.
    let is_complete = count(process) == Some(threads.len());
    threads.retain(|&thread| wanted(thread) && !is_worker(process, thread));
    Ok(Listing { threads, is_complete })
}

/// Returns the number of threads.
fn count(process: Pid) -> Option<usize> {
    ProcessStat::parse(&text_of(format!("/proc/{process}/stat")).ok()?)?.threads()
}

/// True for a worker of the kernel. False where `stat` cannot be read: a thread that has just ended is noticed when it
/// is to be stopped.
fn is_worker(process: Pid, thread: i32) -> bool {
    // This runs for each thread while others are already stopped: it reads by one call, not three.
    let mut text = [0; 256];
    let read = fs::File::open(format!("/proc/{process}/task/{thread}/stat")).and_then(|mut file| file.read(&mut text));
    let stat = ProcessStat::parse(&text[..read.unwrap_or(0)]);
    stat.and_then(ProcessStat::flags).is_some_and(|flags| flags & WORKER_FLAGS != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_is_none_of_the_kernels() {
        let own = nix::unistd::gettid().as_raw();
        // Threads of other tests end at the same time.
        let listing = (0..1000).map(|_| user_threads(Pid::this(), |thread| thread == own).unwrap());
        let listing = listing.into_iter().find(|listing| listing.is_complete).expect("a complete list among many");
        assert_eq!(listing.threads, [own]);
    }
}
