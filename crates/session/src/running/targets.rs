//! Selects the processes to work on.

use crate::SessionError;
use crate::names::program_name;
use linux::process_handle::ProcessHandle;
use process_view::ProcessFiles;
use ptrace::attach::Target;

/// Returns the PIDs of the processes that run a program of this name, in ascending order, without this process.
///
/// # Errors
/// There is none, or /proc cannot be listed.
pub fn processes_named(name: &str) -> Result<Vec<i32>, SessionError> {
    let own = std::process::id() as i32;
    let entries = std::fs::read_dir("/proc").map_err(|error| SessionError::io("listing processes", error))?;
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut pids: Vec<_> = numbers.filter(|&pid| pid != own && program_name(pid) == name).collect();
    if pids.is_empty() {
        let none = format!("no process runs a program named {name}; `ps -e` lists those that run");
        return Err(SessionError::Refused(none));
    }
    pids.sort_unstable();
    Ok(pids)
}

/// A process to work on, and what identifies it: the kernel reuses PIDs.
#[derive(Clone, Copy)]
pub struct Selected<'a> {
    /// The PID.
    pub pid: i32,
    /// The name of the program that it must run; `None` accepts any.
    pub program: Option<&'a str>,
    /// A handle on the process; `None` accepts any process with this PID.
    pub handle: Option<&'a ProcessHandle>,
}

impl Selected<'_> {
    /// Selects a process by its PID alone.
    pub fn by_number(pid: i32) -> Self {
        Self { pid, program: None, handle: None }
    }

    /// Opens the process. `None` where it is no longer the selected one: it has executed another program since it was
    /// listed, or it has ended and another process has its PID.
    pub(super) fn open(&self) -> Result<Option<Target>, SessionError> {
        let target = match Target::open(self.pid) {
            Ok(target) => target,
            Err(why) => {
                // The error of this first access says most.
                ProcessFiles::of(self.pid).maps()?;
                return Err(SessionError::Refused(why));
            }
        };
        let is_same = self.handle.is_none_or(ProcessHandle::is_alive);
        let has_name = self.program.is_none_or(|name| program_name(self.pid) == name);
        Ok((is_same && has_name && target.is_alive()).then_some(target))
    }

    /// True where the process was selected by its program and has ended or runs another program. Among many processes
    /// of a name this can happen at any time, and is not a failure.
    pub fn has_gone(&self) -> bool {
        self.program.is_some_and(|name| {
            let no_memory = || ProcessFiles::of(self.pid).maps().is_ok_and(|space| space.mappings().is_empty());
            program_name(self.pid) != name || no_memory()
        })
    }
}
