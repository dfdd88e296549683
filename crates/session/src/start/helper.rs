//! The helper process that lifts the program which this process becomes.
//!
//! A boundary module: it passes the requirements of [`launch`] on to its caller.
#![allow(unsafe_code)]

use super::handler::Lifter;
use super::preparation::{prepare, work_with};
use super::{StartEvent, StartOptions};
use lift_plan::StartWork;
use machine_facts::base_page;
use nix::unistd::Pid;
use process_view::ObjectReader;
use ptrace::{Follower, Helper, Tracer, launch, refusal};
use std::convert::Infallible;
use std::path::Path;

/// Starts a helper that lifts what this process becomes, and calls `depart`, which executes the program. There is none where
/// nothing is to be done.
///
/// `program` is the file that will be executed, if it is known; reading it ahead shortens the time for which the program
/// stands still. `tell` is called in the helper process.
///
/// Returns only where there is no helper: the reason, with what is needed. This process is unchanged then.
///
/// # Safety
/// - This process has no other thread.
/// - `depart` runs in this process while the helper shares its memory: it touches neither the heap nor `errno`, does not
///   panic, and ends by an exec or an exit, as [`ptrace::Program::execute`] and [`linux::bare::exit`] do.
/// - `tell` owns no descriptor.
pub unsafe fn become_program(
    options: StartOptions,
    program: Option<&Path>,
    tell: impl FnMut(&StartEvent<'_>),
    depart: impl FnOnce(Helper) -> Infallible,
) -> String {
    let descendants = !options.only.is_empty();
    // Programs that are followed are prepared when they are executed.
    let mut reader = ObjectReader::new();
    let before_exec = program.filter(|_| !descendants);
    let file = before_exec.and_then(|program| prepare((program, program), &mut reader, &options));
    let work = before_exec.map(|program| work_with(program, &mut reader, file.as_ref(), &options));
    if work == Some(StartWork::Nothing) {
        depart(Helper::NotNeeded);
    }
    let moves_only = work == Some(StartWork::Base);
    let collapses = options.collapse_heap.is_some();
    let helper = |us: Pid, answer: &mut dyn FnMut(Result<(), String>)| match Follower::seize(us, descendants) {
        Ok(follower) => {
            answer(Ok(()));
            let lifter = Lifter::new(options, reader, (file, moves_only), tell);
            lift_all(follower.that_stays(collapses), us.as_raw(), program, lifter);
        }
        Err(error) => answer(Err(refusal(us, &error, Tracer::Helper))),
    };
    // SAFETY:
    // - the caller's promises; the options own no descriptor, nor does a follower that has just begun.
    unsafe { launch(descendants || collapses, helper, depart) }.to_string()
}

/// Does the helper's work until nothing is left to lift.
fn lift_all(follower: Follower, pid: i32, program: Option<&Path>, mut lifter: Lifter<impl FnMut(&StartEvent<'_>)>) {
    let collapse = lifter.options().collapse_heap;
    // Where this process is a copy, it has no page table entries of the file yet.
    lifter.hold_again();
    if let Some(program) = program {
        lifter.prepare(program);
    }
    if let Err(error) = follower.run(&mut lifter) {
        lifter.tell(&StartEvent::CannotFollow { pid, error: &error });
    }
    let Some(huge) = collapse else { return };
    // The helper lives as long as the program from here on, and must not keep a file system busy.
    let _ = std::env::set_current_dir("/");
    if let Err(heap_choice::CollapseError::Refused(error)) = heap_choice::collapse_while_it_runs(pid, huge, base_page())
    {
        lifter.tell(&StartEvent::HeapNotCollapsed { pid, error: &error });
    }
}
