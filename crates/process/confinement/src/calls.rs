//! The system calls that reading needs, with their permitted arguments.

use linux::file_cache::SYS_CACHESTAT;
use linux::owner::{NS_GET_OWNER_UID, NS_GET_PARENT};
use linux::pagemap::PAGEMAP_SCAN;
use linux::perf_event::PERF_EVENT_IOC_PERIOD;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BackendError, SeccompCondition, SeccompRule};

type Rules = (i64, Vec<SeccompRule>);

/// Flags of open(2) without which no file is written, created or truncated. Not by O_ACCMODE, which in musl has O_PATH in it.
const CHANGING: i32 = libc::O_WRONLY
    | libc::O_RDWR
    | libc::O_CREAT
    | libc::O_TRUNC
    | libc::O_APPEND
    | (libc::O_TMPFILE & !libc::O_DIRECTORY);
const _: () = assert!(CHANGING & libc::O_PATH == 0, "a path that is opened alone changes nothing");
/// asm-generic/ioctls.h; C libraries give them different types.
const TCGETS: u64 = 0x5401;
const TIOCGWINSZ: u64 = 0x5413;
/// linux/perf_event.h: they start and stop an event that is open already; PERF_EVENT_IOC_PERIOD says how often it is sampled.
const PERF_EVENT_IOC_ENABLE: u64 = 0x2400;
const PERF_EVENT_IOC_DISABLE: u64 = 0x2401;

/// Commands of fcntl(2) that only read a descriptor's state, or make it close at an exec. All others are refused:
/// F_SETSIG and F_SETOWN, triggered by O_ASYNC, F_NOTIFY or F_SETLEASE, send any signal to any process of the same
/// user, for root to any process, even without CAP_KILL (`sigio_perm` in fs/fcntl.c).
const OF_DESCRIPTORS: [i32; 4] = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_DUPFD_CLOEXEC];
/// MADV_HWPOISON and MADV_SOFT_OFFLINE (asm-generic/mman-common.h), which take page frames from all who use them. They need
/// CAP_SYS_ADMIN, which before Linux 5.9 readers of other processes keep.
const POISONING: [u64; 2] = [100, 101];

/// Calls with their rules; a call without rules is allowed with any arguments.
pub fn allowed() -> Result<Vec<Rules>, BackendError> {
    let mut calls: Vec<Rules> = ANY_ARGUMENTS.iter().map(|&call| (call, Vec::new())).collect();
    calls.push((libc::SYS_openat, only(2, Dword, MaskedEq(CHANGING as u64), 0)?));
    #[cfg(target_arch = "x86_64")]
    calls.push((libc::SYS_open, only(1, Dword, MaskedEq(CHANGING as u64), 0)?));
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        calls.push((call, only(2, Dword, MaskedEq(libc::PROT_EXEC as u64), 0)?));
    }
    // A thread, but no process and no namespace.
    let thread = (libc::CLONE_VM | libc::CLONE_THREAD) as u64;
    let foreign = (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET) as u64
        | (libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP) as u64;
    calls.push((libc::SYS_clone, only(0, Dword, MaskedEq(thread | foreign), thread)?));
    // A terminal's attributes and size, whether pages are huge, the maker of a user namespace, and open perf events; nothing
    // that types into a terminal.
    let events = [PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_PERIOD];
    let namespaces = [NS_GET_PARENT, NS_GET_OWNER_UID].map(u64::from);
    let requests = [TCGETS, TIOCGWINSZ, PAGEMAP_SCAN.into()].into_iter().chain(namespaces).chain(events);
    calls.push((libc::SYS_ioctl, one_of(1, requests)?));
    calls.push((libc::SYS_fcntl, one_of(1, OF_DESCRIPTORS.into_iter().map(|command| command as u64))?));
    let not_poisoning = POISONING.map(|advice| SeccompCondition::new(2, Dword, Ne, advice));
    let not_poisoning = not_poisoning.into_iter().collect::<Result<_, _>>()?;
    calls.push((libc::SYS_madvise, vec![SeccompRule::new(not_poisoning)?]));
    // Limits and names are read, not set.
    calls.push((libc::SYS_prlimit64, only(2, Qword, Eq, 0)?));
    calls.push((libc::SYS_prctl, only(0, Dword, Eq, libc::PR_GET_THP_DISABLE as u64)?));
    Ok(calls)
}

/// The rule that an argument, compared like this, is `value`.
fn only(
    argument: u8,
    length: seccompiler::SeccompCmpArgLen,
    comparison: seccompiler::SeccompCmpOp,
    value: u64,
) -> Result<Vec<SeccompRule>, BackendError> {
    Ok(vec![SeccompRule::new(vec![SeccompCondition::new(argument, length, comparison, value)?])?])
}

/// The rules that an argument of 32 bits equals one of these values.
fn one_of(argument: u8, values: impl Iterator<Item = u64>) -> Result<Vec<SeccompRule>, BackendError> {
    let rules = values.map(|value| only(argument, Dword, Eq, value)).collect::<Result<Vec<_>, _>>()?;
    Ok(rules.into_iter().flatten().collect())
}

const ANY_ARGUMENTS: &[i64] = &[
    // Files that are open, and what is known of files.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    SYS_CACHESTAT,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_ppoll,
    // This process's memory, and the memory of processes that may be traced.
    libc::SYS_process_vm_readv,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    // Threads.
    libc::SYS_futex,
    libc::SYS_gettid,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // The identity of this process, and the time.
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    // The older forms, which musl uses on machines that have them.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];
