//! Reads and tries the facts for the checks.

mod attempts;
mod leaving_pool;
mod listening;
mod machine;
mod own_settings;
mod process;
mod program;

pub use attempts::{Tried, try_features};

use crate::facts::{Facts, ProgramFacts, SwitchedOff, ThpFacts};
use linux::pages::{base_page, transparent_huge_page};
use linux::release::kernel_release;
use machine_facts::{Cgroups, Files, POOLS, System, pools_at, usual_huge_page};
use session::SessionError;
use session::inspect::KnownFile;
use std::fs::File;
use std::path::PathBuf;
use translation::working_set::PartVerdict;

/// The examined subject.
pub enum Subject {
    /// The machine alone.
    Machine,
    /// A process.
    Process(i32),
    /// A command, which would be started with this process's own settings and limits.
    Command {
        /// Its words.
        words: Vec<String>,
        /// The file that the kernel executes.
        path: PathBuf,
        /// That file, opened before rights were given up.
        file: File,
        /// The file in the page cache as a start would prepare it, read before rights were given up.
        known: Option<Box<KnownFile>>,
        /// It is the interpreter of a script.
        is_script: bool,
    },
}

/// Gathers the facts. Facts that this user may not read are omitted. `used` are the parts of a process that are in use,
/// if that was measured.
///
/// # Errors
/// There is no such process, or the command's file is no program.
pub fn gather(tried: Tried, subject: &Subject, used: Vec<PartVerdict>) -> Result<Facts, SessionError> {
    let own = std::process::id() as i32;
    let pid = if let Subject::Process(pid) = subject { *pid } else { own };
    let status = System.text(&format!("/proc/{pid}/status"));
    let status = status.ok_or(process_view::ObservationError::NoSuchProcess { pid })?;
    let (thp_size, huge_page, base_page) = (transparent_huge_page(), usual_huge_page(), base_page());
    let sizes: Vec<_> = pools_at(&System, POOLS).iter().map(|pool| pool.size).collect();
    let program = match subject {
        Subject::Machine => None,
        Subject::Process(pid) => Some(program::of_process(*pid, huge_page)?),
        Subject::Command { words, path, file, known, is_script } => {
            Some(program::of_command(words, path, (file, known.as_deref()), *is_script, huge_page)?)
        }
    };
    let except_advised = pid == own && tried.thp_setting == Some(linux::features::ThpSetting::ExceptAdvised);
    Ok(Facts {
        place: machine::place(),
        is_root: nix::unistd::geteuid().is_root(),
        release: kernel_release(),
        base_page,
        huge_page,
        attempts: tried.attempts,
        thp: ThpFacts {
            switched_off: switched_off(&System, pid, own, except_advised),
            ..machine::thp(&System, thp_size)
        },
        pools: machine::pools(&System, &pools::records(&System)),
        cgroups: Cgroups::of(&System, &format!("/proc/{pid}")).hugetlb(&System, &sizes),
        memory: machine::memory(&System, base_page, huge_page),
        permission: process::permission(&System, pid, &status, mappings(program.as_ref())),
        host: machine::host(&System, tried.measured),
        measuring: machine::measuring(&System, tried.tracepoints),
        program: program.map(|(mut program, _)| {
            program.running.iter_mut().for_each(|running| running.used.clone_from(&used));
            program
        }),
    })
}

fn mappings(program: Option<&(ProgramFacts, Option<u64>)>) -> Option<u64> {
    program.and_then(|(_, mappings)| *mappings)
}

/// If a process has disabled transparent huge pages for itself: whether an ancestor has, too. A shell that runs
/// `doctor` counts as the ancestor of the command, so `own` is skipped.
fn switched_off(files: &impl Files, pid: i32, own: i32, except_advised: bool) -> Option<SwitchedOff> {
    let is_off = |pid: i32| machine_facts::is_thp_off(&files.text(&format!("/proc/{pid}/status")).unwrap_or_default());
    if except_advised || !is_off(pid) {
        return except_advised.then_some(SwitchedOff { except_advised, inherited_from: None });
    }
    let (mut oldest, mut next) = (None, process::parent(files, pid));
    while let Some(ancestor) = next.filter(|ancestor| is_off(*ancestor)) {
        oldest = Some(ancestor);
        next = process::parent(files, ancestor);
    }
    let named = |pid: i32| (pid, process::name(files, pid));
    // If this process itself has the setting, `doctor` did not make it: its starter did, by executing it.
    let oldest = oldest.or((pid == own).then_some(pid));
    Some(SwitchedOff { except_advised, inherited_from: oldest.map(named) })
}

#[cfg(test)]
pub(crate) mod tests;
