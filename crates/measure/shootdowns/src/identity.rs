//! The name and kind of a process, from its files.

use address_space::ProcessStat;
use process_view::{ProcessFiles, ask_one, printable, program_name};

/// The name of a process or thread that ended before it could be read.
pub(crate) const ENDED: &str = "(ended)";

/// The facts about a process at its first sample.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub name: Option<String>,
    /// Time of its start after the boot, in clock ticks.
    pub start: Option<u64>,
    pub is_kernel_thread: bool,
}

impl Identity {
    /// Reads the facts; nothing is known of a process that has ended.
    pub fn read(pid: i32) -> Self {
        let stat = ProcessFiles::of(pid).text("stat").unwrap_or_default();
        let start = ProcessStat::parse(stat.as_bytes()).and_then(|stat| stat.start_time());
        Self { name: name_of(pid), start, is_kernel_thread: is_kernel_thread(&stat) }
    }
}

/// The name of the program, fit to be printed; the name in `comm` if the process does not answer.
pub(crate) fn name_of(pid: i32) -> Option<String> {
    let name = ask_one(pid, program_name).unwrap_or_else(|silent| Some(silent.name));
    name.filter(|name| !name.is_empty()).map(|name| printable(&name))
}

/// The name of a thread.
pub(crate) fn thread_name(pid: i32, tid: i32) -> Option<String> {
    let name = ProcessFiles::of(pid).text(&format!("task/{tid}/comm")).ok()?;
    Some(printable(name.trim_end()))
}

/// True for the threads of the kernel, by the flags in `/proc/PID/stat` (proc_pid_stat(5); linux/sched.h: PF_KTHREAD).
fn is_kernel_thread(stat: &str) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    // The name may hold anything but ends with the last parenthesis; the flags are the seventh field behind it.
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_kernel_are_known_by_their_flags() {
        // Linux 6.18.
        assert!(is_kernel_thread("31 (ksmd) S 2 0 0 0 -1 2097216 0 0 0 0 0 0"));
        assert!(!is_kernel_thread("31 (a) S 2 0 0 0 -1 2097216 0) S 1 31 31 0 -1 4194560 100 0"));
        let own = ProcessFiles::of(std::process::id() as i32).text("stat").unwrap();
        assert!(!is_kernel_thread(&own) && !is_kernel_thread(""));
    }
}
