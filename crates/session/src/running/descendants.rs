//! A program and the processes that it starts.

use linux::process_handle::ProcessHandle;
use process_view::ProcessFiles;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// A process and its descendants, as far as they were found before their parent ended: the kernel gives an orphan to another parent.
/// A process that was found stays a member until it ends, whatever program it executes. This process is no member.
#[derive(Debug)]
pub struct Descendants {
    members: BTreeMap<i32, ProcessHandle>,
}

impl Descendants {
    /// Begins with the process that has this PID now.
    ///
    /// # Errors
    /// The kernel's: there is no such process.
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { members: BTreeMap::from([(pid, ProcessHandle::open(pid)?)]) })
    }

    /// Adds the processes that members have started since the last call, and forgets members that have ended.
    pub fn find(&mut self) {
        let own = std::process::id() as i32;
        let mut parents: Vec<i32> = self.members.keys().copied().collect();
        while let Some(parent) = parents.pop() {
            for child in children(parent).filter(|child| *child != own) {
                if !self.members.contains_key(&child)
                    && let Some(handle) = self.open_child(child, parent)
                {
                    self.members.insert(child, handle);
                    parents.push(child);
                }
            }
        }
        self.forget_ended();
    }

    /// Opens a process that is a child of this member. PIDs are reused: each was read while its process was alive.
    fn open_child(&self, child: i32, parent: i32) -> Option<ProcessHandle> {
        let handle = ProcessHandle::open(child).ok()?;
        let is_child = parent_of(child) == Some(parent);
        let parent_lives = self.members.get(&parent).is_some_and(ProcessHandle::is_alive);
        (is_child && parent_lives && handle.is_alive()).then_some(handle)
    }

    fn forget_ended(&mut self) {
        self.members.retain(|_, handle| handle.is_alive());
    }

    /// The members that were alive at the last call, in ascending order.
    pub fn pids(&self) -> Vec<i32> {
        self.members.keys().copied().collect()
    }

    /// True if the process with this PID is a member and alive.
    pub fn includes(&self, pid: i32) -> bool {
        self.members.get(&pid).is_some_and(ProcessHandle::is_alive)
    }

    /// Waits for `time`, or until all members have ended: then returns true.
    pub fn end_within(&mut self, time: Duration) -> bool {
        let begin = Instant::now();
        loop {
            self.forget_ended();
            let Some(first) = self.members.values().next() else { return true };
            if !first.ends_within(time.saturating_sub(begin.elapsed())) {
                return false;
            }
        }
    }
}

/// The children of all threads of a process.
pub(super) fn children(pid: i32) -> impl Iterator<Item = i32> {
    let files = ProcessFiles::of(pid);
    let threads = std::fs::read_dir(files.path("task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(move |thread| {
        let thread = thread.file_name();
        files.text(&format!("task/{}/children", thread.to_str()?)).ok()
    });
    texts.flat_map(|text| text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<i32>>())
}

fn parent_of(pid: i32) -> Option<i32> {
    let status = ProcessFiles::of(pid).text("status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// For the end of a process on a busy machine.
    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn descendants_stay_members_after_the_end_of_their_parent() {
        // The shell ends when its standard input does, and leaves a child.
        let mut shell = Command::new("sh")
            .args(["-c", "(sleep 1000 & echo $!; read end) ; read end"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let sleeper: i32 = line.trim().parse().unwrap();
        let mut family = Descendants::of(shell.id() as i32).unwrap();
        assert!(!family.includes(sleeper), "nobody has looked yet");
        family.find();
        assert!(family.includes(sleeper) && family.includes(shell.id() as i32) && family.pids().len() == 3);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(!family.end_within(Duration::from_millis(1)), "the child lives");
        family.find();
        assert!(family.includes(sleeper) && !family.includes(shell.id() as i32));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(sleeper), nix::sys::signal::Signal::SIGKILL).unwrap();
        assert!(family.end_within(LIMIT) && family.pids().is_empty() && !family.includes(sleeper));
    }

    #[test]
    fn strangers_are_no_members() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let family = Descendants::of(child.id() as i32).unwrap();
        let own = std::process::id() as i32;
        assert!(family.open_child(own, child.id() as i32).is_none(), "it is the parent");
        assert!(!family.includes(own));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Descendants::of(child.id() as i32).is_err());
    }
}
