//! The system call in which a thread sleeps, read before the thread is stopped.
//!
//! AArch64 keeps a call's first argument in the register of its result, and a stop shows neither the argument nor that
//! there was a call. The call in which a thread was seen to wait is therefore kept and compared with what its stop
//! shows.

use crate::remote::RemoteMemory;
use crate::remote::arch::{self, Registers};
use linux::text::text_of;
use nix::unistd::Pid;

/// The thread is awake, so that the kernel does not report its call.
pub struct Awake;

/// A system call and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InflightSyscall {
    pub number: i64,
    pub arguments: [u64; 6],
    pub stack: u64,
    /// Address of the instruction after the call.
    pub behind: u64,
    /// How often the thread had gone to sleep by then; `None` where that was not read.
    pub sleeps: Option<u64>,
}

impl InflightSyscall {
    /// Returns the call in which a thread sleeps, if any.
    ///
    /// # Errors
    /// Where the thread is awake.
    pub fn of(process: Pid, thread: i32) -> Result<Option<Self>, Awake> {
        // Before the call, so that a sleep between the two readings counts as one more.
        let sleeps = if arch::SHOWS_CALLS { None } else { sleeps_of(process, thread) };
        let text = text_of(format!("/proc/{process}/task/{thread}/syscall")).unwrap_or_default();
        if text.trim() == "running" { Err(Awake) } else { Ok(Self::parse(&text).map(|call| Self { sleeps, ..call })) }
    }

    /// Parses number, six arguments, stack pointer and program counter (proc_pid_syscall(5)); outside of calls the text
    /// is shorter.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut words = words.map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = words.next()?;
        }
        Some(Self { number, arguments, stack: words.next()?, behind: words.next()?, sleeps: None })
    }

    /// True if a stopped thread may have just left this call: its registers show the same call except for the first
    /// argument, which the result has replaced.
    pub fn is_ended_by(&self, stopped: &Self) -> bool {
        (self.number, self.stack, self.behind) == (stopped.number, stopped.stack, stopped.behind)
            && self.arguments[1..] == stopped.arguments[1..]
    }

    /// True if the thread, which has stopped now, has slept in no other call since: a stop counts as one more sleep.
    pub fn was_the_last_sleep(&self, process: Pid, thread: Pid) -> bool {
        self.sleeps.is_some_and(|sleeps| slept_only_in(process, thread, sleeps))
    }

    /// True if a stopped thread was in this same call, with the same arguments.
    pub fn is(&self, stopped: &Self) -> bool {
        (self.number, self.arguments, self.stack, self.behind)
            == (stopped.number, stopped.arguments, stopped.stack, stopped.behind)
    }

    /// True if a stopped thread is about to make this call.
    pub fn is_next(&self, stopped: &Self) -> bool {
        (self.number, self.arguments, self.stack) == (stopped.number, stopped.arguments, stopped.stack)
            && stopped.behind + arch::SYSCALL_INSTRUCTION.len() as u64 == self.behind
    }
}

/// True if a stopped thread has not slept since it had slept this many times. A stop counts as one more sleep.
pub fn slept_only_in(process: Pid, thread: Pid, sleeps: u64) -> bool {
    sleeps_of(process, thread.as_raw()) == Some(sleeps + 1)
}

/// How often a thread has gone to sleep (`voluntary_ctxt_switches`, proc_pid_status(5)).
pub fn sleeps_of(process: Pid, thread: i32) -> Option<u64> {
    let text = text_of(format!("/proc/{process}/task/{thread}/status")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
}

/// True if the next instruction is a system call.
pub fn is_at_call(memory: &RemoteMemory, registers: &Registers) -> bool {
    let mut code = [0; arch::SYSCALL_INSTRUCTION.len()];
    memory.read(arch::instruction_pointer(registers), &mut code).is_ok() && code == arch::SYSCALL_INSTRUCTION
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: &str = "22 0x4 0xffffd5d8 0x8 0xffffffff 0x0 0x8 0xffffd5a0 0xffffa1f2b6c4\n";

    #[test]
    fn a_call_is_read_with_its_place() {
        let call = InflightSyscall::parse(WAITS).unwrap();
        assert_eq!((call.number, call.arguments), (22, [4, 0xffff_d5d8, 8, 0xffff_ffff, 0, 8]));
        assert_eq!((call.stack, call.behind), (0xffff_d5a0, 0xffff_a1f2_b6c4));
        for text in ["running\n", "-1 0xffffd5a0 0xffffa1f2b6c4\n", "", "22 0x4"] {
            assert_eq!(InflightSyscall::parse(text), None, "{text}");
        }
    }

    #[test]
    fn sleeps_are_counted() {
        let (own, thread) = (Pid::this(), nix::unistd::gettid());
        let before = sleeps_of(own, thread.as_raw()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(sleeps_of(own, thread.as_raw()).unwrap() > before);
        let call = InflightSyscall::parse(WAITS).unwrap();
        assert!(!call.was_the_last_sleep(own, thread));
        assert!(!InflightSyscall { sleeps: Some(before), ..call }.was_the_last_sleep(own, Pid::from_raw(0)));
    }

    #[test]
    fn only_the_same_call_has_ended() {
        let before = InflightSyscall::parse(WAITS).unwrap();
        let mut stopped = before.clone();
        stopped.arguments[0] = -4i64 as u64;
        assert!(before.is_ended_by(&stopped));
        let others = [
            InflightSyscall { behind: 0xffff_a1f2_b6c0, ..stopped.clone() },
            InflightSyscall { stack: 0, ..stopped.clone() },
            InflightSyscall { number: 63, ..stopped.clone() },
            InflightSyscall { arguments: [4, 0xffff_d5d8, 9, 0xffff_ffff, 0, 8], ..stopped.clone() },
        ];
        assert!(others.iter().all(|other| !before.is_ended_by(other)));
        let at_call = before.behind - arch::SYSCALL_INSTRUCTION.len() as u64;
        let mut next = InflightSyscall { behind: at_call, ..before.clone() };
        assert!(before.is_next(&next) && !before.is_next(&before));
        next.arguments[0] = 5;
        assert!(!before.is_next(&next));
    }
}
