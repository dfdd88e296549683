//! Finds out which stopped thread can make calls.

use crate::remote::RemoteMemory;
use crate::remote::arch::{self, Interrupted};
use crate::remote::inflight_syscall::is_at_call;
use crate::remote::requests;
use address_space::Address;
use nix::unistd::Pid;

/// Offset of `rseq_cs` in `struct rseq`, and of `start_ip` and `post_commit_offset` in `struct rseq_cs` (`linux/rseq.h`).
const RSEQ_CS: u64 = 8;
const START_IP: u64 = 8;
const POST_COMMIT_OFFSET: u64 = 16;

/// True if a stopped thread can make calls and return without noticing them.
pub fn can_make_calls(thread: Pid) -> bool {
    // Those of a thread in 32-bit code are none that the code of a call page could restore.
    let has_registers = requests::registers(thread).is_ok() && !requests::dispatches_calls(thread);
    let in_call = has_registers && is_in_call(thread);
    has_registers && (in_call || is_outside_sequences(thread) == Some(true)) && arch::can_be_put_back(thread, in_call)
}

/// True if the thread is in a system call, or about to restart one.
pub fn is_in_call(thread: Pid) -> bool {
    let Ok(registers) = requests::registers(thread) else { return false };
    if arch::interrupted(&registers) != Interrupted::No {
        return true;
    }
    // The kernel, or `restart::restart_interrupted`, has rewound the thread to the call's instruction.
    RemoteMemory::open(thread.as_raw()).is_ok_and(|memory| is_at_call(&memory, &registers))
}

/// Returns whether the thread computes outside of restartable sequences; `None` where that is unknown.
///
/// In such a sequence a thread relies on the kernel to send it to its abort handler whenever it is interrupted. If it
/// were sent elsewhere and back into the sequence, it would continue as if it had not been interrupted.
fn is_outside_sequences(thread: Pid) -> Option<bool> {
    let area = requests::rseq_area(thread).ok()?;
    if area == 0 {
        return Some(true);
    }
    let memory = RemoteMemory::open(thread.as_raw()).ok()?;
    let sequence = memory.read_word(Address(area + RSEQ_CS)).ok()?;
    if sequence == 0 {
        return Some(true);
    }
    let start = memory.read_word(Address(sequence + START_IP)).ok()?;
    let length = memory.read_word(Address(sequence + POST_COMMIT_OFFSET)).ok()?;
    let at = arch::instruction_pointer(&requests::registers(thread).ok()?).0;
    Some(at.wrapping_sub(start) >= length)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::remote::requests::tests::InOtherCode;

    #[test]
    fn a_thread_in_32_bit_code_makes_no_calls() {
        if let Some(child) = InOtherCode::start() {
            assert!(!can_make_calls(child.pid) && !is_in_call(child.pid));
        }
    }
}
