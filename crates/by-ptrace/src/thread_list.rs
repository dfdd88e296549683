//! The threads of a process that execute its code.

use nix::unistd::Pid;
use std::fs;
use std::io::{self, Read};

/// `PF_IO_WORKER` (Linux 5.12) and `PF_USER_WORKER` (Linux 6.4) of `linux/sched.h`, field 9 of `/proc/PID/stat`.
const WORKER_FLAGS: u64 = 0x10 | 0x4000;

/// Ids of the threads that ever run in user space.
///
/// Workers of io_uring and vhost are threads of the process too. They never leave the kernel, so that one told to stop
/// there and make a call would never come back, and they touch its memory only as any system call does.
///
/// # Errors
/// Where `/proc/PID/task` cannot be read: most often the process has ended.
pub fn user_threads(process: Pid, mut wanted: impl FnMut(i32) -> bool) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{process}/task"))?;
    let threads = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(threads.filter(|&thread| wanted(thread) && !is_worker(process, thread)).collect())
}

/// False where it cannot be told: a thread that has just ended is found out when it is to be stopped.
fn is_worker(process: Pid, thread: i32) -> bool {
    // Between the stop of the first thread and the last, this is done for each: one call to read, not three.
    let mut text = [0; 256];
    let read = fs::File::open(format!("/proc/{process}/task/{thread}/stat")).and_then(|mut file| file.read(&mut text));
    let text = String::from_utf8_lossy(&text[..read.unwrap_or(0)]);
    flags(&text).is_some_and(|flags| flags & WORKER_FLAGS != 0)
}

/// The flags in the text of a `stat` file. The name, field 2, may hold anything, parentheses and spaces too.
fn flags(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(6)?.parse().ok()
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
        assert!(user_threads(Pid::this(), |thread| thread == own).unwrap() == [own]);
    }
}
