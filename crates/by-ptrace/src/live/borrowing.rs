//! Which stopped thread can make calls for us.

use crate::RemoteMemory;
use crate::arch::{self, Interrupted, Registers};
use crate::requests;
use address_space::Address;
use nix::unistd::Pid;

/// Offset of `rseq_cs` in `struct rseq`, and of `start_ip` and `post_commit_offset` in `struct rseq_cs` (`linux/rseq.h`).
const RSEQ_CS: u64 = 8;
const START_IP: u64 = 8;
const POST_COMMIT_OFFSET: u64 = 16;

/// True where a stopped thread can be sent elsewhere and back without its noticing.
pub fn is_borrowable(thread: Pid) -> bool {
    let in_call = is_in_call(thread);
    (in_call || is_outside_sequences(thread) == Some(true)) && arch::can_be_put_back(thread, in_call)
}

/// True where the thread stands in a system call, or at one that it is about to make again.
pub fn is_in_call(thread: Pid) -> bool {
    let Ok(registers) = requests::registers(thread) else { return false };
    if arch::interrupted(&registers) != Interrupted::No {
        return true;
    }
    // The kernel, or `restart::mend`, has rewound it to its instruction.
    RemoteMemory::open(thread.as_raw()).is_ok_and(|memory| is_at_call(&memory, &registers))
}

/// True where the next instruction is a system call.
pub fn is_at_call(memory: &RemoteMemory, registers: &Registers) -> bool {
    let mut code = [0; arch::SYSCALL_INSTRUCTION.len()];
    memory.read(arch::instruction_pointer(registers), &mut code).is_ok() && code == arch::SYSCALL_INSTRUCTION
}

/// Whether the thread computes outside of restartable sequences; `None` where that cannot be told.
///
/// In such a sequence a thread relies on the kernel to send it to its abort handler whenever it is interrupted. Sent
/// elsewhere by us and back into the middle, it would go on as if nothing had happened in between.
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
