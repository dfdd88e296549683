//! Stressors of stress-ng that verify what they compute or what the kernel gives them.

use anyhow::{Result, ensure};
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Ending, Need, Skipped, Test, test_case};

const STRESSORS: [&str; 60] = [
    "aio",
    "atomic",
    "bigheap",
    "bsearch",
    "cpu",
    "daemon",
    "dentry",
    "dup",
    "epoll",
    "eventfd",
    "exec",
    "fault",
    "fifo",
    "fork",
    "fp",
    "funccall",
    "futex",
    "hash",
    "heapsort",
    "inotify",
    "io-uring",
    "itimer",
    "kill",
    "list",
    "longjmp",
    "lsearch",
    "madvise",
    "malloc",
    "matrix",
    "mcontend",
    "memcpy",
    "mmap",
    "mmapaddr",
    "mmapfork",
    "mprotect",
    "mremap",
    "munmap",
    "nanosleep",
    "pipe",
    "pthread",
    "ptrace",
    "qsort",
    "seccomp",
    "shm",
    "sigchld",
    "sigfd",
    "sigio",
    "sigpending",
    "sigq",
    "sigrt",
    "sigsegv",
    "sigsuspend",
    "stack",
    "stackmmap",
    "timer",
    "tlb-shootdown",
    "tree",
    "vfork",
    "vm",
    "zlib",
];
const SECONDS: &str = "3";
const LIMIT: Duration = Duration::from_secs(120);
/// Exit statuses of stress-ng(1): not enough resources; not supported here; ended by SIGSYS.
const NOT_HERE: [i32; 3] = [3, 4, 6];

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Thp, Need::Command("stress-ng".into())];
    let of_stressor =
        |name: &'static str| test_case(format!("stress_ng/{name}"), needs(), move |t| run_both_ways(t, name));
    STRESSORS.map(of_stressor).into()
}

fn run_both_ways(t: &Context, name: &str) -> Result<()> {
    let mut plain = Command::new("stress-ng");
    plain.args([&format!("--{name}"), "1", "--verify", "--timeout", SECONDS, "--oomable", "--temp-path"]);
    plain.arg(t.folder()).current_dir(t.folder());
    let lifted = t.lifted(&["--quiet"], &plain)?;
    let plain = t.run_within(plain, LIMIT)?;
    match plain.ending {
        Ending::Exit(0) => {}
        Ending::Exit(status) if NOT_HERE.contains(&status) => {
            return Err(Skipped(format!("plain says that it does not apply here (status {status})")).into());
        }
        other => return Err(Skipped(format!("fails plain: {other:?}")).into()),
    }
    let lifted = t.run_within(lifted, LIMIT)?;
    ensure!(lifted.ending == plain.ending, "{:?}:\n{}{}", lifted.ending, lifted.stdout, lifted.stderr);
    Ok(())
}
