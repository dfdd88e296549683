//! Launches with helpers that answer, refuse, die and write.

use super::*;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::panic::resume_unwind;

type Answer<'a> = &'a mut dyn FnMut(Result<(), String>);

const TRACED: i32 = 1;
const KILLED: i32 = 2;
const REFUSED: i32 = 3;
const HAS_CHILDREN: i32 = 4;
const OTHER_ANSWER: i32 = 5;

/// Returns how two processes end that launch this helper, one sharing its memory and one with a copy. A process
/// that is refused for this reason ends with `REFUSED`.
fn ends_with(helper: impl Fn(Pid, Answer), reason: &str) -> [WaitStatus; 2] {
    [true, false].map(|shares_memory| {
        // SAFETY:
        // - the C library makes the child's heap usable, and the child uses nothing else of other threads.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => waitpid(child, None).unwrap(),
            ForkResult::Child => bare::exit(status_of_launch(shares_memory, &helper, reason)),
        }
    })
}

fn status_of_launch(shares_memory: bool, helper: impl FnOnce(Pid, Answer), reason: &str) -> i32 {
    let execute = |helper| bare::exit(if helper == Helper::Traces { TRACED } else { KILLED });
    // SAFETY:
    // - the child of a fork has one thread; these helpers own no descriptors, and `execute` only ends the process.
    let error = unsafe { launch_in(shares_memory, false, helper, execute) };
    if waitpid(None, Some(WaitPidFlag::__WALL)) != Err(Errno::ECHILD) {
        return HAS_CHILDREN;
    }
    if error.to_string() == reason { REFUSED } else { OTHER_ANSWER }
}

fn assert_status(ends: [WaitStatus; 2], status: i32) {
    let is_it = |end: &WaitStatus| matches!(end, WaitStatus::Exited(_, is) if *is == status);
    assert!(ends.iter().all(is_it), "{ends:?} instead of {status}");
}

#[test]
fn a_long_reason_is_cut() {
    let (long, cut) = ("x".repeat(3 * LONGEST_REASON), "x".repeat(LONGEST_REASON));
    assert_status(ends_with(|_, answer| answer(Err(long.clone())), &cut), REFUSED);
}

#[test]
fn the_program_is_executed_when_the_helper_traces() {
    assert_status(ends_with(|_, answer| answer(Ok(())), ""), TRACED);
}

#[test]
fn what_a_helper_writes_to_standard_error_gets_into_no_file() {
    let folder = std::env::temp_dir().join(format!("pagelift-launch-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let files: Vec<_> = (0..4).map(|index| folder.join(index.to_string())).collect();
    let helper = |_, answer: Answer| {
        answer(Ok(()));
        let opened: Vec<_> = files.iter().map(|path| std::fs::File::create(path).unwrap()).collect();
        for descriptor in 0..3 {
            // SAFETY:
            // - the bytes are of this function.
            unsafe { libc::write(descriptor, b"lost".as_ptr().cast(), 4) };
        }
        drop(opened);
        std::fs::write(folder.join("done"), "").unwrap();
    };
    for shares_memory in [true, false] {
        // SAFETY:
        // - the C library makes the child's heap usable, and the child uses nothing else of other threads.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => bare::exit(status_of_launch(shares_memory, helper, "")),
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, TRACED)));
            }
        }
        let done = folder.join("done");
        while !done.exists() {
            std::thread::yield_now();
        }
        for path in &files {
            assert_eq!(std::fs::read(path).unwrap(), b"");
        }
        std::fs::remove_file(done).unwrap();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_helper_that_refuses_says_why() {
    assert_status(ends_with(|_, answer| answer(Err("so it is".to_owned())), "so it is"), REFUSED);
}

#[test]
fn the_helper_gets_the_pid_of_the_launcher() {
    let parent = getpid();
    let helper = |us: Pid, answer: Answer| {
        let status = std::fs::read_to_string(format!("/proc/{us}/status")).unwrap();
        let is_child = status.lines().any(|line| line == format!("PPid:\t{parent}"));
        answer(Err(format!("{}, {}", is_child, us != getpid())));
    };
    assert_status(ends_with(helper, "true, true"), REFUSED);
}

#[test]
fn a_helper_that_exits_without_an_answer_is_reported() {
    assert_status(ends_with(|_, _| {}, "the helper process ended at once"), REFUSED);
}

#[test]
fn the_program_is_executed_after_the_helper_was_killed() {
    // Not by `raise`: the C library uses the launcher's thread ID instead of this thread's ID.
    let kill_itself = |_, _: Answer| kill(getpid(), Signal::SIGKILL).unwrap();
    assert_status(ends_with(kill_itself, ""), KILLED);
}

#[test]
fn the_program_is_executed_after_the_helper_has_aborted() {
    assert_status(ends_with(|_, _: Answer| std::process::abort(), ""), KILLED);
}

#[test]
fn the_program_is_executed_after_the_helper_was_killed_after_its_refusal() {
    let killed = |_, answer: Answer| {
        answer(Err("in vain".to_owned()));
        kill(getpid(), Signal::SIGKILL).unwrap();
    };
    assert_status(ends_with(killed, "in vain"), KILLED);
}

#[test]
fn the_program_is_executed_after_the_helper_has_panicked() {
    // Without the panic hook: it takes a lock that another failing test may have held when this one forked.
    assert_status(ends_with(|_, _: Answer| resume_unwind(Box::new("on purpose")), ""), KILLED);
}
