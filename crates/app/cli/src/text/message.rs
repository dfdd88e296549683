//! The line that `pagelift run` prints, and how it is written to the program's own standard error or the journal.

use foreign_text::printable_lines;
use lift_plan::Source;
use linux::file_rights::FileRights;
use linux::unasked::{self, Unasked};
use process_view::ProcessFiles;
use session::LiftReport;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens the standard error of process `pid` where it cannot be duplicated (some containers' filters refuse
/// pidfd_getfd). It is opened only where the process itself has it open for writing, and with the process's own rights
/// and without capabilities: root may open everything, and the user of a set-user-ID program chooses its standard
/// error.
fn open_as_process(pid: i32) -> Option<File> {
    let process = ProcessFiles::of(pid);
    let status = process.text("status").ok()?;
    let descriptor = process.text(&format!("fdinfo/{}", libc::STDERR_FILENO)).ok()?;
    if !is_open_for_writing(&descriptor) {
        return None;
    }
    let open = || {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        OpenOptions::new().append(true).custom_flags(flags).open(format!("/proc/{pid}/fd/{}", libc::STDERR_FILENO))
    };
    FileRights::of_status(&status)?.act(open).ok()?.ok()
}

/// Reads the text of `/proc/PID/fdinfo/FD`, whose flags are octal (proc_pid_fdinfo(5)).
fn is_open_for_writing(text: &str) -> bool {
    let flags = text.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| [libc::O_WRONLY, libc::O_RDWR].contains(&(flags & libc::O_ACCMODE)))
}

/// Returns a warning for every lift of writable memory from the pool.
pub fn fork_warning(report: &LiftReport) -> Option<&'static str> {
    let risky = report.lift.ranges.iter().any(|r| r.protection.write && r.source == Some(Source::Hugetlb));
    risky.then_some("writable memory is on pool pages: children of a fork need free pool pages for what they write")
}

/// The journal's stream that was this process's standard error when a service started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalStream {
    /// The process that had it.
    process: i32,
    /// Device and inode.
    socket: (u64, u64),
}

impl JournalStream {
    /// Returns the stream where `$JOURNAL_STREAM` names the standard error (systemd.exec(5), systemd 231).
    pub fn of_this_process() -> Option<Self> {
        let named = parse_stream(std::env::var_os("JOURNAL_STREAM")?.to_str()?)?;
        let process = i32::try_from(std::process::id()).ok()?;
        (stderr_of(process)? == named).then_some(Self { process, socket: named })
    }

    /// The process by whose standard error the journal hears of `pid`. It is another one where a script, which still runs, has
    /// started `pid` with both its outputs in a log file. Where something reads the standard output, as `pg_ctl` that of
    /// `postgres -V`, or where it is silenced, `pid` speaks for itself.
    fn spokesman(self, pid: i32) -> i32 {
        let output = found_of(pid, libc::STDOUT_FILENO).filter(|found| found.mode & libc::S_IFMT == libc::S_IFREG);
        let logs = output.is_some_and(|output| stderr_of(pid) == Some(identity(&output)));
        if logs && stderr_of(self.process) == Some(self.socket) { self.process } else { pid }
    }
}

/// Returns what the kernel knows of the file behind a process's descriptor, which may be on a file system that does not answer.
fn found_of(pid: i32, descriptor: i32) -> Option<Unasked> {
    unasked::place(Path::new(&format!("/proc/{pid}/fd/{descriptor}"))).and_then(unasked::of).ok()
}

/// Device and inode.
fn identity(found: &Unasked) -> (u64, u64) {
    (libc::makedev(found.device.0, found.device.1), found.inode)
}

/// Device and inode of a process's standard error.
fn stderr_of(pid: i32) -> Option<(u64, u64)> {
    found_of(pid, libc::STDERR_FILENO).as_ref().map(identity)
}

/// Reads `DEVICE:INODE`, both decimal.
fn parse_stream(text: &str) -> Option<(u64, u64)> {
    let (device, inode) = text.split_once(':')?;
    Some((device.parse().ok()?, inode.parse().ok()?))
}

/// Writes to the standard error of process `pid`, as if the program itself had; of a service, to its journal, if it can be
/// reached. Nothing is written where that would block, or where the program has no standard error.
pub fn say_to(pid: i32, text: &str, journal: Option<JournalStream>) {
    let pid = journal.map_or(pid, |journal| journal.spokesman(pid));
    let opened = linux::descriptors::duplicate_of(pid, libc::STDERR_FILENO);
    let Some(mut stderr) = opened.ok().or_else(|| open_as_process(pid)) else { return };
    let mut poll = [nix::poll::PollFd::new(stderr.as_fd(), nix::poll::PollFlags::POLLOUT)];
    if matches!(nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO), Ok(ready) if ready > 0) {
        let _ = stderr.write_all(printable_lines(text).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_stream_is_named_by_two_numbers() {
        assert_eq!(parse_stream("9:123456"), Some((9, 123_456)));
        assert!(["", "9", "9:", ":1", "9:x", "-1:2"].into_iter().all(|text| parse_stream(text).is_none()));
    }

    #[test]
    fn the_first_process_speaks_for_one_that_writes_into_a_file() -> std::io::Result<()> {
        let own = std::process::id() as i32;
        let socket = stderr_of(own).expect("a standard error");
        let journal = JournalStream { process: own, socket };
        let gone = JournalStream { process: own, socket: (socket.0, !socket.1) };
        let null = || File::options().write(true).open("/dev/null");
        let log = tempfile::tempfile()?;
        for (stdout, stderr, speaker) in [
            (log.try_clone()?.into(), log.try_clone()?, Some(own)),
            (Stdio::piped(), log.try_clone()?, None),
            (null()?.into(), null()?, None),
        ] {
            let mut cat = std::process::Command::new("cat");
            let mut child = cat.stdin(Stdio::piped()).stdout(stdout).stderr(stderr).spawn()?;
            let pid = child.id() as i32;
            assert_eq!(journal.spokesman(pid), speaker.unwrap_or(pid));
            assert_eq!(gone.spokesman(pid), pid, "nobody has the stream any more");
            drop(child.stdin.take());
            child.wait()?;
        }
        Ok(())
    }
}
