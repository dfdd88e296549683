//! The text of `/proc/PID/stat` and `/proc/PID/task/TID/stat` (proc_pid_stat(5)).

use core::str::FromStr;

/// Fields by their numbers in proc_pid_stat(5), counted from 1.
const STATE: usize = 3;
const PARENT: usize = 4;
const FLAGS: usize = 9;
const THREADS: usize = 20;
const START_TIME: usize = 22;
const START_OF_STACK: usize = 28;
const LAST_CPU: usize = 39;

/// The fields of a `stat` file from the third on. The second one, the name in parentheses, may hold anything.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStat<'a> {
    behind_name: &'a str,
}

/// Page faults and CPU time of a process, or of its children that have ended and were waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatCounters {
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// User time in clock ticks.
    pub user_ticks: u64,
    /// System time in clock ticks.
    pub system_ticks: u64,
}

impl<'a> ProcessStat<'a> {
    /// Finds the fields; `None` in a text that ends before the third one.
    pub fn parse(text: &'a (impl AsRef<[u8]> + ?Sized)) -> Option<Self> {
        let text = text.as_ref();
        let behind_name = text.get(text.iter().rposition(|&byte| byte == b')')? + 1..)?;
        let behind_name = core::str::from_utf8(behind_name).ok()?;
        (!behind_name.trim().is_empty()).then_some(Self { behind_name })
    }

    /// The fields from the third on.
    pub fn fields(self) -> impl Iterator<Item = &'a str> {
        self.behind_name.split_ascii_whitespace()
    }

    /// A field that is a number; `None` where it is missing or something else.
    pub fn number<T: FromStr>(self, field: usize) -> Option<T> {
        self.fields().nth(field.checked_sub(STATE)?)?.parse().ok()
    }

    /// True for a process or thread that has ended: a zombie, or one that is just going.
    pub fn has_ended(self) -> bool {
        self.fields().next().is_some_and(|state| matches!(state, "Z" | "X"))
    }

    /// PID of the parent.
    pub fn parent(self) -> Option<i32> {
        self.number(PARENT)
    }

    /// Flags of the kernel (`PF_*`, linux/sched.h).
    pub fn flags(self) -> Option<u64> {
        self.number(FLAGS)
    }

    /// Number of threads of the process.
    pub fn threads(self) -> Option<usize> {
        self.number(THREADS)
    }

    /// Time of the start in clock ticks since boot.
    pub fn start_time(self) -> Option<u64> {
        self.number(START_TIME)
    }

    /// The address at which the stack of its program began, which changes with each exec, and not with a fork; 0 for a reader
    /// that may not trace it.
    pub fn start_of_stack(self) -> Option<u64> {
        self.number(START_OF_STACK)
    }

    /// The CPU on which it ran last.
    pub fn last_cpu(self) -> Option<u32> {
        self.number(LAST_CPU)
    }

    /// Counters of the process itself.
    pub fn counters(self) -> Option<StatCounters> {
        self.counters_at([10, 12, 14, 15])
    }

    /// Counters of its children that have ended and were waited for.
    pub fn counters_of_children(self) -> Option<StatCounters> {
        self.counters_at([11, 13, 16, 17])
    }

    fn counters_at(self, [minor, major, user, system]: [usize; 4]) -> Option<StatCounters> {
        Some(StatCounters {
            minor_faults: self.number(minor)?,
            major_faults: self.number(major)?,
            user_ticks: self.number(user)?,
            system_ticks: self.number(system)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    /// A text in which each field from the fourth on is ten times its number.
    fn numbered(name: &str) -> String {
        let numbers: Vec<String> = (4..=52).map(|field| (field * 10).to_string()).collect();
        format!("7 ({name}) S {}\n", numbers.join(" "))
    }

    #[test]
    fn fields_are_found_behind_any_name() {
        for name in ["sleep", "a) b", "a) 1 2 3 4 5 6 7 8", "(", ")", "\u{e4}\n"] {
            let text = numbered(name);
            let stat = ProcessStat::parse(&text).unwrap();
            assert_eq!((stat.parent(), stat.flags(), stat.threads()), (Some(40), Some(90), Some(200)), "{name}");
            assert_eq!((stat.start_time(), stat.last_cpu(), stat.has_ended()), (Some(220), Some(390), false), "{name}");
            assert_eq!(stat.number::<u64>(51), Some(510));
            assert_eq!(stat.fields().count(), 50);
        }
    }

    #[test]
    fn a_name_need_not_be_utf_8() {
        let text = [b"7 (\xff) ", &b"Z 1 7"[..]].concat();
        let stat = ProcessStat::parse(&text).unwrap();
        assert_eq!((stat.has_ended(), stat.parent()), (true, Some(1)));
    }

    #[test]
    fn counters_are_those_of_the_process_or_of_its_children() {
        let text = numbered("name");
        let stat = ProcessStat::parse(&text).unwrap();
        let counters = |[minor_faults, major_faults, user_ticks, system_ticks]: [u64; 4]| {
            Some(StatCounters { minor_faults, major_faults, user_ticks, system_ticks })
        };
        assert_eq!(stat.counters(), counters([100, 120, 140, 150]));
        assert_eq!(stat.counters_of_children(), counters([110, 130, 160, 170]));
    }

    #[test]
    fn what_is_missing_is_not_invented() {
        for text in ["", "7", "7 (cut", "7 (name)", "7 (name) \n"] {
            assert!(ProcessStat::parse(text).is_none(), "{text:?}");
        }
        let stat = ProcessStat::parse("7 (name) R 1 -").unwrap();
        assert_eq!((stat.parent(), stat.number::<u64>(5), stat.flags()), (Some(1), None, None));
        assert_eq!((stat.number::<u64>(2), stat.counters()), (None, None));
    }
}
