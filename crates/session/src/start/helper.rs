//! The helper process that lifts the program which this process becomes.
//!
//! A boundary module: it passes the requirements of [`launch`] on to its caller.
#![allow(unsafe_code)]

use super::handler::Lifter;
use super::{StartEvent, StartOptions};
use crate::files::{KnownFile, prepare_program};
use machine_facts::{base_page, machine_facts_for, usual_huge_page};
use nix::unistd::Pid;
use ptrace::{Follower, Helper, launch};
use std::convert::Infallible;
use std::path::Path;
use std::{fs, io};

/// Starts a helper that lifts what this process becomes, and calls `depart`, which executes the program.
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
    let file = program.and_then(|program| prepare(program, &options));
    let descendants = !options.only.is_empty();
    let collapses = options.collapse_heap.is_some();
    let helper = |us: Pid, answer: &mut dyn FnMut(Result<(), String>)| match Follower::seize(us, descendants) {
        Ok(follower) => {
            answer(Ok(()));
            lift_all(follower.that_stays(collapses), us.as_raw(), options, (program, file), tell);
        }
        Err(error) => answer(Err(refusal(us.as_raw(), &error))),
    };
    // SAFETY:
    // - the caller's promises; the options own no descriptor, nor does a follower that has just begun.
    unsafe { launch(descendants || collapses, helper, depart) }.to_string()
}

/// Brings the program's file into huge folios of the page cache, and looks at it: once it is executed, the pages that it
/// touches cannot be evicted any more.
fn prepare(program: &Path, options: &StartOptions) -> Option<KnownFile> {
    if !options.policy.may_use_files() || options.dry_run {
        return None;
    }
    let size = usual_huge_page().filter(|size| options.policy.page_size.is_none_or(|wanted| wanted == *size))?;
    // Most programs are too small.
    if fs::metadata(program).is_ok_and(|metadata| metadata.len() < size.bytes()) {
        return None;
    }
    let available = machine_facts_for(std::process::id() as i32, &options.policy).memory_available;
    prepare_program(program, &options.policy, size, options.prepare, available)
}

/// Brings the file of a program that will lift itself into huge folios of the page cache, as far as the options want it.
pub fn prepare_file(program: &Path, options: &StartOptions) {
    // What it met, the program's own library reports.
    let _ = prepare(program, options);
}

/// Does the helper's work until nothing is left to lift.
fn lift_all(
    follower: Follower,
    pid: i32,
    options: StartOptions,
    (program, file): (Option<&Path>, Option<KnownFile>),
    tell: impl FnMut(&StartEvent<'_>),
) {
    let collapse = options.collapse_heap;
    let mut lifter = Lifter::new(options, file, tell);
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

/// Why ptrace was refused, and the fix.
fn refusal(us: i32, error: &io::Error) -> String {
    let status = fs::read_to_string(format!("/proc/{us}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    if tracer != "0" {
        let name = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        return format!("process {tracer} ({}) traces it already, and a process has one tracer at most", name.trim());
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "2" | "3" => format!(
            "ptrace is refused ({error}); found kernel.yama.ptrace_scope = {}, needed 0 or 1: sysctl kernel.yama.ptrace_scope=1",
            scope.trim()
        ),
        _ => format!(
            "ptrace is refused ({error}); needed: permission to trace, in a container --cap-add=SYS_PTRACE or a seccomp profile that allows ptrace"
        ),
    }
}
