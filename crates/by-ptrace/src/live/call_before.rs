//! The system call that a thread sleeps in, looked at before it is stopped.
//!
//! AArch64 keeps a call's first argument where its result will stand, and a stop shows neither it nor that there was a
//! call. What a thread was seen to wait in is therefore remembered, to be compared with what its stop shows.

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
}

impl CallBefore {
    /// The call that a thread sleeps in, if it is in one.
    ///
    /// # Errors
    /// It is awake.
    pub fn of(process: Pid, thread: i32) -> Result<Option<Self>, Awake> {
        let text = text_of(format!("/proc/{process}/task/{thread}/syscall")).unwrap_or_default();
        if text.trim() == "running" { Err(Awake) } else { Ok(Self::parse(&text)) }
    }

    /// Number, six arguments, stack pointer and program counter (proc_pid_syscall(5)); outside of calls there is less.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut words = words.map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = words.next()?;
        }
        Some(Self { number, arguments, stack: words.next()?, behind: words.next()? })
    }

    /// True where a stopped thread may stand behind this call: all that its registers show is the same but the first
    /// argument, in the place of which the result stands.
    pub fn is_ended_by(&self, stopped: &Self) -> bool {
        (self.number, self.stack, self.behind) == (stopped.number, stopped.stack, stopped.behind)
            && self.arguments[1..] == stopped.arguments[1..]
    }

    /// True where a stopped thread is about to make this very call.
    pub fn is_next(&self, stopped: &Self) -> bool {
        (self.number, self.arguments, self.stack) == (stopped.number, stopped.arguments, stopped.stack)
            && stopped.behind + arch::SYSCALL_INSTRUCTION.len() as u64 == self.behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: &str = "22 0x4 0xffffd5d8 0x8 0xffffffff 0x0 0x8 0xffffd5a0 0xffffa1f2b6c4\n";

    #[test]
    fn a_call_is_read_with_its_place() {
        let call = CallBefore::parse(WAITS).unwrap();
        assert_eq!((call.number, call.arguments), (22, [4, 0xffff_d5d8, 8, 0xffff_ffff, 0, 8]));
        assert_eq!((call.stack, call.behind), (0xffff_d5a0, 0xffff_a1f2_b6c4));
        for text in ["running\n", "-1 0xffffd5a0 0xffffa1f2b6c4\n", "", "22 0x4"] {
            assert_eq!(CallBefore::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_the_same_call_has_ended() {
        let before = CallBefore::parse(WAITS).unwrap();
        let mut stopped = before.clone();
        stopped.arguments[0] = -4i64 as u64;
        assert!(before.is_ended_by(&stopped));
        let others = [
            CallBefore { behind: 0xffff_a1f2_b6c0, ..stopped.clone() },
            CallBefore { stack: 0, ..stopped.clone() },
            CallBefore { number: 63, ..stopped.clone() },
            CallBefore { arguments: [4, 0xffff_d5d8, 9, 0xffff_ffff, 0, 8], ..stopped.clone() },
        ];
        assert!(others.iter().all(|other| !before.is_ended_by(other)));
        let at_call = before.behind - arch::SYSCALL_INSTRUCTION.len() as u64;
        let mut next = CallBefore { behind: at_call, ..before.clone() };
        assert!(before.is_next(&next) && !before.is_next(&before));
        next.arguments[0] = 5;
        assert!(!before.is_next(&next));
    }
}
