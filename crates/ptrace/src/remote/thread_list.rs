//! Lists the threads of a process that execute its code.

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
    let is_complete = count(process) == Some(threads.len() as u64);
    threads.retain(|&thread| wanted(thread) && !is_worker(process, thread));
    Ok(Listing { threads, is_complete })
}

/// Returns the number of threads, field 20 of `/proc/PID/stat`.
fn count(process: Pid) -> Option<u64> {
    field(&text_of(format!("/proc/{process}/stat")).ok()?, 20)
}

/// True for a worker of the kernel. False where `stat` cannot be read: a thread that has just ended is noticed when it
/// is to be stopped.
fn is_worker(process: Pid, thread: i32) -> bool {
    // This runs for each thread while others are already stopped: it reads by one call, not three.
    let mut text = [0; 256];
    let read = fs::File::open(format!("/proc/{process}/task/{thread}/stat")).and_then(|mut file| file.read(&mut text));
    let text = String::from_utf8_lossy(&text[..read.unwrap_or(0)]);
    flags(&text).is_some_and(|flags| flags & WORKER_FLAGS != 0)
}

/// Returns the flags in the text of a `stat` file.
fn flags(text: &str) -> Option<u64> {
    field(text, 9)
}

/// Returns a field in the text of a `stat` file (proc_pid_stat(5)), counted from 1. The name, field 2, may contain
/// anything, parentheses and spaces too.
fn field(text: &str, number: usize) -> Option<u64> {
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_behind_any_name() {
        let tail = "S 31063 31063 31063 0 -1 20 0 0";
        for name in ["iou-wrk-31064", "a) 1 2 3 4 5 6 7 8", "("] {
            assert_eq!(flags(&format!("31428 ({name}) {tail}")), Some(20));
        }
        assert_eq!(flags("31428 (cut"), None);
        assert_eq!(flags(""), None);
    }

    #[test]
    fn this_thread_is_none_of_the_kernels() {
        let own = nix::unistd::gettid().as_raw();
        // Threads of other tests end at the same time.
        let listing = (0..1000).map(|_| user_threads(Pid::this(), |thread| thread == own).unwrap());
        let listing = listing.into_iter().find(|listing| listing.is_complete).expect("a complete list among many");
        assert_eq!(listing.threads, [own]);
    }
}
