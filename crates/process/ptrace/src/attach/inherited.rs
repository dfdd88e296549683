//! A call page that a process has inherited from its parent.
//!
//! A fork copies the call page as it is at that moment. While another thread of the parent makes calls, the copy says that
//! a thread is in the code. The child does not have that thread, so that nothing would ever clear the record. The page
//! therefore holds the number of the process for which it was written.

use super::call_page::CallPage;
use super::stop::LiveProcess;
use crate::remote::RemoteMemory;
use crate::remote::arch;
use crate::remote::requests;
use crate::remote::status::ThreadStatus;
use address_space::{Address, AddressRange, AddressSpace};
use linux::same_memory::have_same_memory;
use linux::text::text_of;
use linux::watch::watched;
use nix::unistd::Pid;
use std::fs;

/// Number of bytes of a stack that are read at a time.
const READ_AT_ONCE: usize = 64 << 10;
/// Number of bytes of a stack that are searched: the usual limit of a stack. Some programs have stacks within large
/// heaps.
const LOOKED_AT: u64 = 8 << 20;

/// Returns the number by which a call page names its process: the number in its innermost PID namespace, which is the
/// same for readers in any namespace; 0 if the kernel does not report it.
pub fn number_of(pid: Pid) -> u64 {
    ThreadStatus::read(pid).own_number.map_or(0, |number| number as u64)
}

/// True if the page was written for another process and this one has a copy. False if that is unknown: the page of an
/// older Pagelift names no process.
pub fn is_inherited(page: &CallPage, memory: &RemoteMemory, pid: Pid) -> bool {
    let (owner, own) = (page.owner(memory), number_of(pid));
    owner != 0 && own != 0 && owner != own && !may_share_memory(pid.as_raw())
}

/// True if another process has the same memory, or if the kernel does not report that: its threads may use the page
/// then.
pub fn may_share_memory(pid: i32) -> bool {
    !have_same_memory(pid, pid).unwrap_or(false) || fs::read_dir("/proc").is_err() || sharers_of(pid).next().is_some()
}

/// Finds the other processes that have the same memory, by CLONE_VM, and none if the kernel does not compare memories. Each
/// process of the machine is compared until the caller has enough.
pub fn sharers_of(pid: i32) -> impl Iterator<Item = i32> {
    let processes = fs::read_dir("/proc").into_iter().flatten();
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // The comparison waits for a process that is just executing a program.
    let compare = move |other| {
        watched(|| format!("comparing the memory of processes {pid} and {other}"), || have_same_memory(pid, other))
    };
    // Processes that have ended, or that may not be read, do not count as others with this memory.
    numbers.filter(move |&other: &i32| other != pid && compare(other).unwrap_or(false))
}

/// True if a held thread is in the code, or in a signal handler that returns to it: a handler that has interrupted the
/// code can fork, too. The kernel keeps the return address on the stack, above the handler.
pub fn may_return_to(code: AddressRange, process: &LiveProcess, memory: &RemoteMemory) -> bool {
    let maps = text_of(format!("/proc/{}/maps", process.pid()));
    let Some(space) = maps.ok().and_then(|text| AddressSpace::parse(&text).ok()) else { return true };
    let mut threads = process.threads_held();
    process.stands_in(code) || threads.any(|thread| holds_address_in(code, thread, &space, memory).unwrap_or(true))
}

/// `None` where the stack cannot be read.
fn holds_address_in(code: AddressRange, thread: Pid, space: &AddressSpace, memory: &RemoteMemory) -> Option<bool> {
    let top = Address(arch::stack_pointer(&requests::registers(thread).ok()?).0 & !7);
    let end = space.find(top)?.range.end().min(top + LOOKED_AT);
    let mut buffer = vec![0; READ_AT_ONCE];
    let mut at = top;
    while at < end {
        let chunk = &mut buffer[..(end - at).min(READ_AT_ONCE as u64) as usize];
        memory.read(at, chunk).ok()?;
        let words = chunk.as_chunks().0.iter().map(|word| Address(u64::from_ne_bytes(*word)));
        // The first address is the end of a segment, too, to which programs have pointers. A thread that has recorded itself
        // as inside is past it.
        if words.into_iter().any(|word| code.contains(word) && word != code.start()) {
            return Some(true);
        }
        at = at + chunk.len() as u64;
    }
    Some(false)
}
