//! Selects the processes to work on.

use super::descendants::Descendants;
use crate::SessionError;
use crate::names::runs_program;
use linux::process_handle::ProcessHandle;
use process_view::{ProcessFiles, Unanswered, each_of};
use ptrace::attach::Target;
use std::time::{Duration, Instant};

/// A common property of processes. A process can lose it, and a later process of the same PID need not have it.
#[derive(Clone, Copy, Debug, Default)]
pub enum Chosen<'a> {
    /// None: processes are chosen by PID.
    #[default]
    ByNumber,
    /// They run a program of this name.
    ByProgram(&'a str),
    /// They are in this control group or one below it; a path as in `/proc/PID/cgroup` (cgroups(7)).
    ByCgroup(&'a str),
    /// It is this process, as long as it runs: its PID, and a handle that was opened before.
    ByHandle(i32, &'a ProcessHandle),
    /// They are a program and its descendants.
    ByDescent(&'a Descendants),
}

impl<'a> Chosen<'a> {
    /// The name of the program, if that is the property. The comparison waits for the locks of the process.
    pub(crate) const fn program(self) -> Option<&'a str> {
        match self {
            Self::ByProgram(name) => Some(name),
            Self::ByNumber | Self::ByHandle(..) | Self::ByCgroup(_) | Self::ByDescent(_) => None,
        }
    }

    /// True if the process has the property now.
    pub fn includes(self, pid: i32) -> bool {
        match self {
            Self::ByNumber => true,
            Self::ByProgram(name) => runs_program(pid, name),
            Self::ByHandle(own, handle) => pid == own && handle.is_alive(),
            Self::ByDescent(family) => family.includes(pid),
            Self::ByCgroup(group) => {
                ProcessFiles::of(pid).text("cgroup").is_ok_and(|membership| is_in_group(&membership, group))
            }
        }
    }

    /// Returns the PIDs of the processes with the property, in ascending order, without this process.
    ///
    /// # Errors
    /// There is none, or /proc cannot be listed.
    pub fn processes(self) -> Result<Vec<i32>, SessionError> {
        let own = std::process::id() as i32;
        let entries = std::fs::read_dir("/proc").map_err(|error| SessionError::io("listing processes", error))?;
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let others = numbers.filter(|&pid| pid != own);
        let mut pids = match self {
            Self::ByProgram(name) => running(others, name),
            _ => others.filter(|&pid| self.includes(pid)).collect(),
        };
        pids.sort_unstable();
        let none = match self {
            Self::ByNumber => "needed: the number of a process".to_owned(),
            Self::ByProgram(name) => format!("no process runs a program named {name}; `ps -e` lists those that run"),
            Self::ByCgroup(group) => format!("no process is in the control group {group}"),
            Self::ByHandle(..) => "the process has ended".to_owned(),
            Self::ByDescent(_) => "the program and its descendants have ended".to_owned(),
        };
        if pids.is_empty() { Err(SessionError::Refused(none)) } else { Ok(pids) }
    }
}

/// The processes that run a program of this name. If a process does not answer, only the name of its file is known.
fn running(pids: impl Iterator<Item = i32>, name: &str) -> Vec<i32> {
    let (mut found, name) = (Vec::new(), name.to_owned());
    let runs = move |process: &ProcessFiles| runs_program(process.pid(), &name);
    each_of(pids, runs, |pid, runs| found.extend(runs.unwrap_or(false).then_some(pid)));
    found
}

/// True if a process with this `/proc/PID/cgroup` is in `group` or one below it. systemd keeps its units in the hierarchy of
/// version 2, or in one of version 1 that is named `systemd`.
fn is_in_group(membership: &str, group: &str) -> bool {
    let below = |path: &str| path.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let mut fields = membership.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
    fields.any(|fields| matches!(fields[..], [_, "" | "name=systemd", path] if below(path)))
}

/// Time after which a family without a process has ended: a service that restarts has none for a moment.
const MOST_ABSENCE: Duration = Duration::from_secs(60);

/// The processes that have a property, listed anew at each look.
pub struct Members<'a> {
    chosen: Chosen<'a>,
    /// The processes that were chosen by PID.
    by_number: Vec<(i32, ProcessHandle)>,
    last_seen: Instant,
}

impl<'a> Members<'a> {
    /// Begins with these processes. Those chosen by PID that have ended already are left out.
    pub fn new(pids: &[i32], chosen: Chosen<'a>) -> Self {
        let open = |pid: &i32| Some((*pid, ProcessHandle::open(*pid).ok()?));
        let by_number =
            if matches!(chosen, Chosen::ByNumber) { pids.iter().filter_map(open).collect() } else { Vec::new() };
        Self { chosen, by_number, last_seen: Instant::now() }
    }

    /// The processes that have the property now.
    pub fn now(&mut self) -> Vec<i32> {
        self.by_number.retain(|(_, handle)| handle.is_alive());
        let pids = match self.chosen {
            Chosen::ByNumber => self.by_number.iter().map(|(pid, _)| *pid).collect(),
            chosen => chosen.processes().unwrap_or_default(),
        };
        if !pids.is_empty() {
            self.last_seen = Instant::now();
        }
        pids
    }

    /// True if the processes chosen by PID have ended, or if no process has had the property for a minute.
    pub fn have_ended(&self) -> bool {
        match self.chosen {
            Chosen::ByNumber => !self.by_number.iter().any(|(_, handle)| handle.is_alive()),
            Chosen::ByHandle(_, handle) => !handle.is_alive(),
            Chosen::ByDescent(family) => !family.pids().into_iter().any(|pid| family.includes(pid)),
            Chosen::ByProgram(_) | Chosen::ByCgroup(_) => self.last_seen.elapsed() >= MOST_ABSENCE,
        }
    }
}

/// Reads the mappings of processes. Returns those that answer, in the same order, and those that do not.
pub fn answering(pids: &[i32]) -> (Vec<i32>, Vec<Unanswered>) {
    let mut silent = Vec::new();
    each_of(pids.iter().copied(), |process| drop(process.maps()), |_, looked| silent.extend(looked.err()));
    let is_silent = |pid: i32| silent.iter().any(|process| process.pid == pid);
    (pids.iter().copied().filter(|pid| !is_silent(*pid)).collect(), silent)
}

/// A process to work on, and what identifies it: the kernel reuses PIDs.
#[derive(Clone, Copy)]
pub struct Selected<'a> {
    /// The PID.
    pub pid: i32,
    /// The property that it must have.
    pub chosen: Chosen<'a>,
    /// A handle on the process; `None` accepts any process with this PID.
    pub handle: Option<&'a ProcessHandle>,
}

impl Selected<'_> {
    /// Selects a process by its PID alone.
    pub fn by_number(pid: i32) -> Self {
        Self { pid, chosen: Chosen::ByNumber, handle: None }
    }

    /// Opens the process. `None` where it is no longer the selected one: it has executed another program since it was
    /// listed, or it has ended and another process has its PID.
    pub(crate) fn open(&self) -> Result<Option<Target>, SessionError> {
        let target = match Target::open(self.pid) {
            Ok(target) => target,
            Err(why) => {
                // The error of this first access says most.
                ProcessFiles::of(self.pid).maps()?;
                return Err(SessionError::Refused(why));
            }
        };
        let is_same = self.handle.is_none_or(ProcessHandle::is_alive);
        Ok((is_same && self.chosen.includes(self.pid) && target.is_alive()).then_some(target))
    }

    /// True if the process was selected by a property and has ended or lost the property. Among many processes this can
    /// happen at any time, and is not a failure.
    pub fn has_gone(&self) -> bool {
        let no_memory = || ProcessFiles::of(self.pid).maps().is_ok_and(|space| space.mappings().is_empty());
        !matches!(self.chosen, Chosen::ByNumber) && (!self.chosen.includes(self.pid) || no_memory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_in_its_control_group_and_in_those_above() {
        let is_in = |membership| is_in_group(membership, "/system.slice/a.service");
        assert!(is_in("0::/system.slice/a.service\n"));
        assert!(is_in("4:memory:/x\n1:name=systemd:/system.slice/a.service/worker:1\n0::/\n"));
        assert!(!is_in("0::/system.slice/a.service2\n") && !is_in("0::/system.slice\n") && !is_in(""));
        assert!(!is_in("4:memory:/system.slice/a.service\n"), "a hierarchy that systemd does not keep");
        assert!(!is_in("0::/user.slice/system.slice/a.service\n"));
    }

    #[test]
    fn a_process_that_was_chosen_by_number_ends() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        let mut members = Members::new(&[pid], Chosen::ByNumber);
        assert!(members.now() == [pid] && !members.have_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(members.now().is_empty() && members.have_ended());
    }

    #[test]
    fn a_family_without_a_process_has_not_ended_at_once() {
        let mut members = Members::new(&[], Chosen::ByCgroup("/no/such/group"));
        assert!(members.now().is_empty() && !members.have_ended());
    }

    #[test]
    fn this_process_has_the_properties_that_it_has() {
        let own = std::process::id() as i32;
        let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let group = membership.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/none").to_owned();
        assert_eq!(Chosen::ByCgroup(&group).includes(own), membership.contains("0::"));
        assert!(Chosen::ByNumber.includes(own) && !Chosen::ByCgroup("/no/such/group").includes(own));
        let refused = Chosen::ByCgroup("/no/such/group").processes().map_err(|error| error.to_string());
        assert_eq!(refused, Err("no process is in the control group /no/such/group".to_owned()));
    }
}
