//! The line that `pagelift run` prints, and how it is written to the program's own standard error or the journal.

use crate::width;
use address_space::format_bytes;
use foreign_text::printable_lines;
use lift_plan::Source;
use linux::file_rights::FileRights;
use linux::unasked::{self, Unasked};
use process_view::ProcessFiles;
use session::LiftReport;
use session::inspect::PlanCost;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens the standard error of process `pid` if it cannot be duplicated (some containers' filters refuse pidfd_getfd).
/// It is opened only if the process itself has it open for writing, and with the process's own rights and without
/// capabilities: root may open everything, and the user of a set-user-ID program chooses its standard error.
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
    risky.then_some(
        "writable memory is on pool pages: children of a fork need free pool pages for memory that they write",
    )
}

/// Returns the cost of a lift at the start, for the end of its line.
pub fn price(report: &LiftReport) -> String {
    let time = report.lift.lift_microseconds as f64 / 1000.0;
    format!("; cost: {time:.1} ms, {} of private memory", format_bytes(report.lift.made_resident_bytes))
}

/// Returns the predicted cost of a plan in words.
pub fn plan_cost(cost: &PlanCost) -> String {
    let (time, memory) = (cost.price.nanoseconds as f64 / 1e6, format_bytes(cost.price.private_bytes));
    let of = match cost.costs.measured {
        true => "by the costs that `pagelift probe` has measured here",
        false => "by usual costs; `pagelift probe` measures this machine's",
    };
    format!("Cost of the lift: about {time:.1} ms, {memory} of private memory ({of})\n")
}

/// Returns the line about a lift that the program has paid for, without its end.
pub fn later_line(report: &LiftReport, used_microseconds: u64) -> String {
    let head = format!("pagelift: {}[{}]: ", report.program, report.pid);
    let line = report.line();
    let outcome = line.strip_prefix(&head).unwrap_or(&line);
    format!("{head}after {:.1} s of CPU time: {outcome}", used_microseconds as f64 / 1e6)
}

/// True if the standard error of a process is a terminal.
pub fn writes_to_terminal(pid: i32) -> bool {
    linux::descriptors::duplicate_of(pid, libc::STDERR_FILENO).is_ok_and(|stderr| stderr.is_terminal())
}

/// The journal's stream that was this process's standard error when a service started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalStream {
    /// The process that had it.
    process: i32,
    /// The stream.
    socket: StandardError,
}

impl JournalStream {
    /// Returns the stream if `$JOURNAL_STREAM` names the standard error (systemd.exec(5), systemd 231).
    pub fn of_this_process() -> Option<Self> {
        let named = parse_stream(std::env::var_os("JOURNAL_STREAM")?.to_str()?)?;
        let process = i32::try_from(std::process::id()).ok()?;
        (StandardError::of(process)? == named).then_some(Self { process, socket: named })
    }

    /// The process by whose standard error the journal identifies `pid`. It is another process if a script, which still
    /// runs, has started `pid` with both its outputs in a log file. It is `pid` itself if another program reads its
    /// standard output, as `pg_ctl` does for `postgres -V`, or if it is silenced.
    fn spokesman(self, pid: i32) -> i32 {
        let output = found_of(pid, libc::STDOUT_FILENO).filter(|found| found.mode & libc::S_IFMT == libc::S_IFREG);
        let logs = output.is_some_and(|output| StandardError::of(pid) == Some(StandardError::found(&output)));
        if logs && StandardError::of(self.process) == Some(self.socket) { self.process } else { pid }
    }
}

/// Returns the kernel's metadata of the file behind a process's descriptor, which may be on a file system that does not
/// answer.
fn found_of(pid: i32, descriptor: i32) -> Option<Unasked> {
    unasked::place(Path::new(&format!("/proc/{pid}/fd/{descriptor}"))).and_then(unasked::of).ok()
}

/// The file that is the standard error of a process at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandardError {
    device: u64,
    inode: u64,
}

impl StandardError {
    /// Returns the file that is the standard error of process `pid` now.
    pub fn of(pid: i32) -> Option<Self> {
        found_of(pid, libc::STDERR_FILENO).as_ref().map(Self::found)
    }

    fn found(found: &Unasked) -> Self {
        Self { device: libc::makedev(found.device.0, found.device.1), inode: found.inode }
    }
}

/// Reads `DEVICE:INODE`, both decimal.
fn parse_stream(text: &str) -> Option<StandardError> {
    let (device, inode) = text.split_once(':')?;
    Some(StandardError { device: device.parse().ok()?, inode: inode.parse().ok()? })
}

/// Writes to the standard error of process `pid`, as if the program itself had; for a service, to its journal, if it
/// can be reached. Does not write if that would block, or if the program has no standard error.
///
/// The program has not begun: later its descriptor 2 may be anything, and [`say_later`] has to be called.
pub fn say_to(pid: i32, text: &str, journal: Option<JournalStream>) {
    let pid = journal.map_or(pid, |journal| journal.spokesman(pid));
    if let Some(stderr) = open(pid) {
        write_to(stderr, text);
    }
}

/// Writes like [`say_to`] while the program runs, if its standard error is still the file that it was at the start. A program
/// that has closed its descriptors gets number 2 for the next file that it opens, which may be a database.
pub fn say_later(pid: i32, text: &str, journal: Option<JournalStream>, at_start: StandardError) {
    let speaker = journal.map_or(pid, |journal| journal.spokesman(pid));
    let expected = journal.filter(|_| speaker != pid).map_or(at_start, |journal| journal.socket);
    let is_same = |stderr: &File| unasked::of(stderr).is_ok_and(|found| StandardError::found(&found) == expected);
    if let Some(stderr) = open(speaker).filter(is_same) {
        write_to(stderr, text);
    }
}

fn open(pid: i32) -> Option<File> {
    linux::descriptors::duplicate_of(pid, libc::STDERR_FILENO).ok().or_else(|| open_as_process(pid))
}

/// Writes as many pieces as there is room for. A pipe that can be written to takes a whole piece of PIPE_BUF bytes (poll(2),
/// pipe(7)), but no more.
fn write_to(mut stderr: File, text: &str) {
    let text = width::folded(&printable_lines(text), width::of(&stderr));
    for piece in pieces(&text, libc::PIPE_BUF) {
        let mut poll = [nix::poll::PollFd::new(stderr.as_fd(), nix::poll::PollFlags::POLLOUT)];
        let has_room = matches!(nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO), Ok(ready) if ready > 0);
        if !has_room || stderr.write_all(piece).is_err() {
            break;
        }
    }
}

/// Parts of at most `most` bytes, of whole lines where these are not longer.
fn pieces(text: &str, most: usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = text.as_bytes();
    std::iter::from_fn(move || {
        let fitting = &rest[..rest.len().min(most)];
        let lines = fitting.iter().rposition(|&byte| byte == b'\n').map_or(fitting.len(), |end| end + 1);
        let piece;
        (piece, rest) = rest.split_at(if fitting.len() == rest.len() { rest.len() } else { lines });
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_stream_is_named_by_two_numbers() {
        assert_eq!(parse_stream("9:123456"), Some(StandardError { device: 9, inode: 123_456 }));
        assert!(["", "9", "9:", ":1", "9:x", "-1:2"].into_iter().all(|text| parse_stream(text).is_none()));
    }

    #[test]
    fn the_first_process_speaks_for_one_that_writes_into_a_file() -> std::io::Result<()> {
        let own = std::process::id() as i32;
        let socket = StandardError::of(own).expect("a standard error");
        let journal = JournalStream { process: own, socket };
        let gone = JournalStream { process: own, socket: StandardError { inode: !socket.inode, ..socket } };
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

    /// The reader may wait for the end of the program, which is stopped while its outcome is written.
    #[test]
    fn a_text_that_does_not_fit_is_cut_and_not_waited_for() -> std::io::Result<()> {
        let (mut reader, writer) = std::io::pipe()?;
        let text: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
        write_to(File::from(std::os::fd::OwnedFd::from(writer)), &text);
        let mut read = String::new();
        std::io::Read::read_to_string(&mut reader, &mut read)?;
        assert!(read.len() > libc::PIPE_BUF && read.len() < text.len(), "{} bytes", read.len());
        assert!(text.starts_with(&read) && read.ends_with('\n'));
        Ok(())
    }

    #[test]
    fn pieces_are_whole_lines_where_these_fit() {
        let cut =
            |text: &str| pieces(text, 6).map(|piece| String::from_utf8_lossy(piece).into_owned()).collect::<Vec<_>>();
        assert_eq!(cut(""), [""; 0]);
        assert_eq!(cut("ab\ncd\nef\n"), ["ab\ncd\n", "ef\n"]);
        assert_eq!(cut("ab\nlonger than six"), ["ab\n", "longer", " than ", "six"]);
    }

    #[test]
    fn later_words_go_to_no_file_that_the_program_has_opened_since() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let [log, database] = ["log", "database"].map(|name| folder.path().join(name));
        let script = "echo begun >&2; read line; exec 2>database; echo ready; read line; echo data >&2";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script]).current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.stderr(File::create(&log)?).spawn()?;
        let (pid, mut input) = (child.id() as i32, child.stdin.take().expect("a pipe"));
        let at_start = StandardError::of(pid).expect("a standard error");
        say_later(pid, "first\n", None, at_start);
        input.write_all(b"\n")?;
        let mut output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        std::io::BufRead::read_line(&mut output, &mut String::new())?;
        say_later(pid, "second\n", None, at_start);
        input.write_all(b"\n")?;
        child.wait()?;
        assert!(std::fs::read_to_string(&log)?.contains("first\n"));
        assert_eq!(std::fs::read_to_string(&database)?, "data\n");
        Ok(())
    }
}
