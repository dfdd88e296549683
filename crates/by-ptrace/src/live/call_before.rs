//! The system call that a thread sleeps in, looked at before it is stopped.
//!
//! AArch64 keeps a call's first argument where its result will stand, and what the kernel saved of it shows only in
//! `/proc/PID/task/TID/syscall`, and only while the thread sleeps in the call. A thread that has not slept again since is
//! still in it when it is stopped.

use crate::arch;
use kernel_calls::text::text_of;
use nix::unistd::Pid;

/// The thread is awake, so that its call does not show.
pub struct Awake;

/// A system call, and where it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallBefore {
    pub number: i64,
    pub arguments: [u64; 6],
    pub stack: u64,
    /// The instruction behind it.
    pub behind: u64,
    /// How often the thread had gone to sleep before.
    pub switches: Option<u64>,
}

impl CallBefore {
    /// The call that a thread sleeps in, if it is in one.
    ///
    /// # Errors
    /// It is awake.
    pub fn of(process: Pid, thread: i32) -> Result<Option<Self>, Awake> {
        // In this order: whoever sleeps in another call afterwards has slept once more by then.
        let switches = switches(process, thread);
        let text = text_of(format!("/proc/{process}/task/{thread}/syscall")).unwrap_or_default();
        if text.trim() == "running" { Err(Awake) } else { Ok(Self::parse(&text, switches)) }
    }

    /// Number, six arguments, stack pointer and program counter (proc_pid_syscall(5)); outside of calls there is less.
    fn parse(text: &str, switches: Option<u64>) -> Option<Self> {
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut words = words.map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = words.next()?;
        }
        Some(Self { number, arguments, stack: words.next()?, behind: words.next()?, switches })
    }

    /// The first argument of the call that a stopped thread was in, if it is this one: all else that the registers
    /// show is the same, and the thread has gone to sleep only once since, at its stop.
    pub fn first_argument(&self, stopped: &Self) -> Option<u64> {
        let is_same = (self.number, self.stack, self.behind) == (stopped.number, stopped.stack, stopped.behind)
            && self.arguments[1..] == stopped.arguments[1..]
            && self.switches? + 1 == stopped.switches?;
        is_same.then_some(self.arguments[0])
    }

    /// True where a stopped thread is about to make this very call.
    pub fn is_next(&self, stopped: &Self) -> bool {
        (self.number, self.arguments, self.stack) == (stopped.number, stopped.arguments, stopped.stack)
            && stopped.behind + arch::SYSCALL_INSTRUCTION.len() as u64 == self.behind
    }
}

/// How often a thread has gone to sleep (proc_pid_status(5), `voluntary_ctxt_switches`).
pub fn switches(process: Pid, thread: i32) -> Option<u64> {
    let text = text_of(format!("/proc/{process}/task/{thread}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: &str = "22 0x4 0xffffd5d8 0x8 0xffffffff 0x0 0x8 0xffffd5a0 0xffffa1f2b6c4\n";

    #[test]
    fn a_call_is_read_with_its_place() {
        let call = CallBefore::parse(WAITS, Some(7)).unwrap();
        assert_eq!((call.number, call.arguments), (22, [4, 0xffff_d5d8, 8, 0xffff_ffff, 0, 8]));
        assert_eq!((call.stack, call.behind, call.switches), (0xffff_d5a0, 0xffff_a1f2_b6c4, Some(7)));
        for text in ["running\n", "-1 0xffffd5a0 0xffffa1f2b6c4\n", "", "22 0x4"] {
            assert_eq!(CallBefore::parse(text, Some(7)), None, "{text}");
        }
    }

    #[test]
    fn only_the_same_call_gives_its_argument() {
        let before = CallBefore::parse(WAITS, Some(7)).unwrap();
        let mut stopped = CallBefore { switches: Some(8), ..before.clone() };
        stopped.arguments[0] = -4i64 as u64;
        assert_eq!(before.first_argument(&stopped), Some(4));
        let others = [
            CallBefore { switches: Some(9), ..stopped.clone() },
            CallBefore { switches: None, ..stopped.clone() },
            CallBefore { behind: 0xffff_a1f2_b6c0, ..stopped.clone() },
            CallBefore { stack: 0, ..stopped.clone() },
            CallBefore { number: 63, ..stopped.clone() },
            CallBefore { arguments: [4, 0xffff_d5d8, 9, 0xffff_ffff, 0, 8], ..stopped.clone() },
        ];
        assert!(others.iter().all(|other| before.first_argument(other).is_none()));
        let at_call = before.behind - arch::SYSCALL_INSTRUCTION.len() as u64;
        let mut next = CallBefore { behind: at_call, switches: None, ..before.clone() };
        assert!(before.is_next(&next) && !before.is_next(&before));
        next.arguments[0] = 5;
        assert!(!before.is_next(&next));
    }

    #[test]
    fn this_thread_has_slept() {
        let own = nix::unistd::gettid().as_raw();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(switches(Pid::this(), own).is_some_and(|switches| switches > 0));
    }
}
