//! The helper process that lifts the program which this process becomes.
//!
//! A boundary module: it passes the requirements of [`launch`] on to its caller.
#![allow(unsafe_code)]

use super::companion::Companion;
use super::filling::lock;
use super::handler::{LiftedProgram, Lifter, Listeners};
use super::preparation::{prepare, work_with};
use super::{StartEvent, StartOptions};
use crate::files::ProgramPath;
use crate::heap::{anonymous, collapse_while_it_runs};
use lift_plan::StartWork;
use linux::bare;
use linux::process_handle::ProcessHandle;
use nix::errno::Errno;
use nix::unistd::{ForkResult, Pid, fork, getppid};
use process_view::ObjectReader;
use ptrace::{Follower, Helper, Tracer, launch, leave_session_of, refusal};
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

/// The longest wait of one call.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Starts a helper that lifts the program that this process becomes, and calls `depart`, which executes the program.
/// There is no helper if there is no work.
///
/// `program` is the file that will be executed, if it is known; reading it ahead shortens the time for which the
/// program is stopped. `tell` is called in the helper process, by one thread at a time.
///
/// Returns only if there is no helper: the reason, with needed. This process is unchanged then.
///
/// # Safety
/// - This process has no other thread.
/// - `depart` runs in this process while the helper shares its memory: it touches neither the heap nor `errno`, does not
///   panic, and ends by an exec or an exit, as [`ptrace::Program::execute`] and [`linux::bare::exit`] do.
/// - `tell` owns no descriptor.
pub unsafe fn become_program(
    options: StartOptions,
    program: Option<&Path>,
    tell: impl FnMut(&StartEvent<'_>) + Send,
    depart: impl FnOnce(Helper) -> Infallible,
) -> String {
    let descendants = !options.only.is_empty();
    // Programs that are followed are prepared when they are executed.
    let mut reader = ObjectReader::new();
    let before_exec = program.filter(|_| !descendants);
    let file = before_exec.and_then(|program| prepare(ProgramPath::new(program), &mut reader, &options));
    let work = before_exec.map(|program| work_with(program, &mut reader, file.as_ref(), &options));
    if work == Some(StartWork::Nothing) {
        depart(Helper::NotNeeded);
    }
    let moves_only = work == Some(StartWork::Base);
    let lives_on = options.collapse_heap.is_some() || options.in_place.is_some();
    let helper = |us: Pid, answer: &mut dyn FnMut(Result<(), String>)| match Follower::seize(us, descendants) {
        Ok(follower) => {
            answer(Ok(()));
            let lifted = LiftedProgram { file, moves_only };
            let lifter = Lifter::new(options, reader, lifted, Listeners { tell, accompany: accompany_in_child });
            lift_all(follower, us, program, lifter);
        }
        Err(error) => answer(Err(refusal(us, &error, Tracer::Helper))),
    };
    // SAFETY:
    // - the caller's promises; the options own no descriptor, nor does a follower that has just begun.
    unsafe { launch(descendants || lives_on, helper, depart) }.to_string()
}

/// Does the helper's work until nothing is left to lift.
fn lift_all(
    follower: Follower,
    program: Pid,
    path: Option<&Path>,
    mut lifter: Lifter<impl FnMut(&StartEvent<'_>) + Send>,
) {
    let (collapse, pid) = (lifter.options().collapse_heap, program.as_raw());
    // The program cannot have ended unseen yet.
    let handle = ProcessHandle::open(pid);
    // If this process is a copy, it has no page table entries of the file yet.
    lifter.hold_again();
    if let Some(path) = path {
        lifter.prepare(path);
    }
    if let Err(error) = follower.run(&mut lifter) {
        lifter.tell(&StartEvent::CannotFollow { pid, error: &error });
    }
    let companion = lifter.take_companion(pid);
    if collapse.is_none() && companion.is_idle() {
        return;
    }
    live_on(program);
    let tell = Mutex::new(lifter.into_tell());
    thread::scope(|scope| {
        let tell_of_heap = |why: &str| (lock(&tell))(&StartEvent::HeapNotCollapsed { pid, why });
        let settled = || {
            if let Ok(now) = anonymous(pid) {
                (lock(&tell))(&StartEvent::HeapCollapsed { pid, now });
            }
        };
        if let Some(huge) = collapse {
            let collapse = move || match handle {
                Ok(process) => collapse_while_it_runs(&process, pid, huge, &mut &tell_of_heap, &settled),
                Err(error) => tell_of_heap(&format!("the program cannot be watched: {error}")),
            };
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, collapse) {
                tell_of_heap(&format!("no thread could be started that collapses it: {error}"));
            }
        }
        companion.work(&mut |event: &StartEvent<'_>| (lock(&tell))(event));
    });
    if getppid() == program {
        // A child of the program that ends is a zombie.
        stay_until_its_end(pid);
    }
}

/// Waits until a process ends.
fn stay_until_its_end(pid: i32) {
    let Ok(process) = ProcessHandle::open(pid) else { return };
    while !process.ends_within(LONGEST_WAIT) {}
}

/// Prepares a helper that lives as long as a program: it must not keep a file system or a terminal busy.
fn live_on(program: Pid) {
    let _ = std::env::set_current_dir("/");
    leave_session_of(program);
}

/// Does the work that is left for a program in a child of this process.
fn accompany_in_child(companion: Companion, tell: &mut (dyn FnMut(&StartEvent<'_>) + Send)) {
    let Some(program) = companion.pid().map(Pid::from_raw) else { return };
    // SAFETY:
    // - this process has one thread, so that no lock is held by another one.
    // - the child never returns from here: it ends without the destructors of this process.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            let working = AssertUnwindSafe(|| {
                live_on(program);
                companion.work(tell);
            });
            let _ = catch_unwind(working);
            bare::exit(0);
        }
        Ok(ForkResult::Parent { .. }) => {}
        Err(error) => without_child(companion, error, tell),
    }
}

/// Reports that no process can do the work that is left for a program.
fn without_child(companion: Companion, error: Errno, tell: &mut (dyn FnMut(&StartEvent<'_>) + Send)) {
    let why = format!(
        "no process could be started that waits for it ({error}); fix: a higher limit of processes (ulimit -u, pids.max), or \
         --start-cost any"
    );
    companion.refuse(&why, tell);
}

#[cfg(test)]
mod tests {
    use super::super::InPlaceStart;
    use super::super::filling::Filling;
    use super::super::postponed::Debtor;
    use super::*;
    use crate::shared::InPlace;
    use crate::{LiftReport, Postponed, PostponedState};
    use lift_plan::{Later, Price};
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn a_program_that_no_process_waits_for_is_reported() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut report = LiftReport::new(child.id() as i32, "sleep".to_owned());
        let state = PostponedState::Waiting;
        report.postponed = Some(Postponed { bytes: 1, price: Price::default(), due_microseconds: 1, state });
        let later = Later { due: Duration::from_secs(1), ..Later::default() };
        let debtor = Debtor::open(report, &later, &StartOptions::default()).unwrap();
        let memory = InPlaceStart { memory: vec![InPlace::Jit], ..InPlaceStart::default() };
        let filling = Filling::of(debtor.report().clone(), memory).unwrap();
        let companion = Companion { debtor: Some(debtor), filling: Some(filling) };
        let (mut is_told, mut errors) = (false, Vec::new());
        without_child(companion, Errno::EAGAIN, &mut |event| match event {
            StartEvent::Settled { report, pause: None, no_perf_map: None } => {
                let state = report.postponed.as_ref().map(|postponed| &postponed.state);
                is_told = matches!(state, Some(PostponedState::Refused { why }) if why.contains("EAGAIN"));
            }
            StartEvent::Looked { errors: told, .. } => errors.extend_from_slice(told),
            _ => panic!("another event"),
        });
        assert!(is_told && matches!(&errors[..], [(InPlace::Jit, why)] if why.contains("EAGAIN")), "{errors:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
