//! Maps the call page in a program, and unmaps it.
//!
//! The address is chosen here, and written to the slot before the call is made: if this process is killed, the next lift
//! finds by the slot whether the page was mapped. The kernel refuses an address that is in use by then
//! (MAP_FIXED_NOREPLACE). A free page is left on each side, so that the page joins no mapping of the program's.

use super::call_page::{CallPage, MAPPING_FLAGS, mapping_length};
use super::code_slot::CodeSlot;
use super::remote_call::{Means, RemoteCaller};
use super::stop::{LiveProcess, NotPrepared};
use crate::remote::RemoteMemory;
use crate::remote::arch::numbers;
use crate::remote::injection::InjectError;
use crate::remote::seccomp;
use crate::remote::wait::LONGEST_CALL;
use address_space::{Address, AddressSpace, MappingName, PageSize, Protection};
use linux::text::text_of;
use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;
use std::io;
use std::time::Instant;

/// Number of tries if the program maps something at the chosen address at the same moment.
const TRIES: usize = 8;

/// Reads the mappings of a process.
pub fn space_of(pid: Pid) -> io::Result<AddressSpace> {
    AddressSpace::parse(&text_of(format!("/proc/{pid}/maps"))?).map_err(io::Error::other)
}

/// Maps a call page by a stopped thread and returns its address. No thread is in the slot.
///
/// # Errors
/// [`NotPrepared`]: why it cannot be mapped. The slot is as empty as before.
pub fn map(
    process: &mut LiveProcess,
    thread: Pid,
    slot: &CodeSlot,
    memory: &RemoteMemory,
    base_page: PageSize,
) -> Result<Address, NotPrepared> {
    if makes_all_executable(process.pid()) {
        return Err(EXECUTABLE.to_owned().into());
    }
    let length = mapping_length(base_page);
    let unreadable = |error: io::Error| format!("its mappings cannot be read: {error}");
    for _ in 0..TRIES {
        let space = space_of(process.pid()).map_err(unreadable)?;
        let at = free_place(&space, length, base_page, 0, base_page)
            .ok_or("it has no free addresses for a page of calls".to_owned())?;
        let arguments = [at.0, length, Protection::READ_WRITE.bits() as u64, MAPPING_FLAGS as u64, u64::MAX, 0];
        let made = once(process, thread, slot, at, memory, numbers::SYS_mmap, arguments);
        let why = match made {
            Ok(Ok(mapped)) => {
                let why = match space_of(process.pid()).map(|space| CallPage::is_at(at, memory, &space)) {
                    Ok(true) => return Ok(at),
                    Ok(false) => "the page for injected calls was not mapped as requested".to_owned(),
                    Err(error) => unreadable(error),
                };
                let arguments = [mapped, length, 0, 0, 0, 0];
                let unmapped = once(process, thread, slot, at, memory, numbers::SYS_munmap, arguments);
                if matches!(unmapped, Ok(Ok(_))) {
                    let _ = slot.erase(memory, thread);
                }
                why
            }
            Ok(Err(Errno::EEXIST)) => continue,
            Ok(Err(errno)) => refused(process.pid(), errno, space.mappings().len()),
            Err(InjectError::Filtered) => seccomp::refusal("mmap"),
            // The thread may still be in the code.
            Err(InjectError::Ptrace(Errno::ETIMEDOUT)) => return Err(process.note_lost(thread).into()),
            Err(InjectError::Executed) => return Err(process.note_exec().into()),
            Err(error) => error.to_string(),
        };
        return Err(why.into());
    }
    Err("its free addresses change too fast for a page of calls; fix: try again".to_owned().into())
}

/// Unmaps the call page by a stopped thread, and erases the code. No thread is in it.
///
/// # Errors
/// Why page and code stay.
pub fn unmap(
    process: &mut LiveProcess,
    thread: Pid,
    page: &CallPage,
    memory: &RemoteMemory,
    base_page: PageSize,
) -> io::Result<()> {
    let slot = page.slot();
    if !slot.is_memory_of(thread, memory)? {
        return Err(Errno::ESRCH.into());
    }
    if !slot.is_in_reach(thread) {
        return Err(Errno::EAGAIN.into());
    }
    if page.is_there(memory) {
        let arguments = [page.data().0, mapping_length(base_page), 0, 0, 0, 0];
        let made = once(process, thread, slot, page.data(), memory, numbers::SYS_munmap, arguments);
        if matches!(made, Err(InjectError::Ptrace(Errno::ETIMEDOUT))) {
            process.note_lost(thread);
        }
        made.map_err(io::Error::other)??;
    }
    slot.erase(memory, thread)
}

/// Makes one call by a stopped thread, and empties the slot again if the call has failed and the thread is not in it.
fn once(
    process: &LiveProcess,
    thread: Pid,
    slot: &CodeSlot,
    page: Address,
    memory: &RemoteMemory,
    number: i64,
    arguments: [u64; 6],
) -> Result<Result<u64, Errno>, InjectError> {
    let stopped = process.held(thread).ok_or(InjectError::Gone)?;
    let deadline = Instant::now() + LONGEST_CALL;
    let means = Means::Once(slot, page);
    let waiter = process.waiter();
    let caller = RemoteCaller::new(stopped, means, memory, &waiter, process.filters(), deadline)?;
    let (made, has_left) = caller.once(number, arguments);
    if has_left && number == numbers::SYS_mmap && !matches!(made, Ok(Ok(_))) {
        // A program that has ended needs it no more.
        let _ = slot.erase(memory, thread);
    }
    made.map_err(|error| match error {
        // Too late, but the thread is stopped at its place: it is not lost.
        InjectError::Ptrace(Errno::ETIMEDOUT) if has_left => InjectError::Ptrace(Errno::EAGAIN),
        error => error,
    })
}

/// The highest free place below the stack with a free page on each side, in the area in which the kernel itself maps. This
/// area is above the largest gap, so that neither the brk area nor the stack has less room to grow. The address is `offset` modulo
/// `page`.
pub fn free_place(
    space: &AddressSpace,
    length: u64,
    page: PageSize,
    offset: u64,
    base_page: PageSize,
) -> Option<Address> {
    let mappings = space.mappings();
    let stack = mappings.iter().position(|mapping| mapping.name == MappingName::Stack).unwrap_or(mappings.len());
    let below = &mappings[..stack];
    let gaps = below.windows(2).map(|pair| (pair[1].range.start() - pair[0].range.end(), pair[0].range.end()));
    let (room, lowest) = gaps.max().unwrap_or_default();
    // The upper half of the largest gap.
    let lowest = lowest + room / 2;
    let top = below.last()?.range.start();
    space.free_place_below(top, length, page, offset, base_page.bytes(), lowest)
}

/// True if the process has a personality by which all memory that it maps readable is executable, too: what a lift maps would be
/// writable and executable, and copies would differ from what they replace.
fn makes_all_executable(pid: Pid) -> bool {
    let personality = text_of(format!("/proc/{pid}/personality")).unwrap_or_default();
    u32::from_str_radix(personality.trim(), 16).is_ok_and(|bits| bits & libc::READ_IMPLIES_EXEC as u32 != 0)
}

/// The sentence about such a process.
const EXECUTABLE: &str = "it has called personality(READ_IMPLIES_EXEC), by which all readable memory becomes executable, and a \
                          lift maps no memory that is writable and executable; fix: `pagelift run` lifts it before that call";

/// The sentence about a program whose kernel refuses the mapping.
fn refused(pid: Pid, errno: Errno, mappings: usize) -> String {
    let needed = "needed: one page of address space and one mapping";
    let most = text_of("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse::<usize>().ok());
    match (errno, most) {
        (Errno::ENOMEM, Some(most)) if mappings >= most => format!(
            "a page for calls cannot be mapped: it has {mappings} mappings, and vm.max_map_count is {most}; {needed}; fix: \
             `sysctl vm.max_map_count={}`",
            most + most / 2
        ),
        (Errno::ENOMEM, _) => format!(
            "a page for calls cannot be mapped: its limit of address space (RLIMIT_AS, RLIMIT_DATA) or the machine's memory \
             is used up; {needed}; fix: `prlimit --pid {pid} --as=unlimited --data=unlimited`"
        ),
        (Errno::EAGAIN, _) => format!(
            "a page for calls cannot be mapped: it locks all its memory, and RLIMIT_MEMLOCK is used up; {needed}; fix: \
             `prlimit --pid {pid} --memlock=unlimited`"
        ),
        _ => format!("a page for calls cannot be mapped: {}; {needed}", errno.desc()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_free_page_on_each_side_and_leaves_brk_and_stack_room_to_grow() {
        let page = PageSize::new(0x1000).unwrap();
        let place = |maps: &str| free_place(&AddressSpace::parse(maps).unwrap(), 0x1000, page, 0, page).map(|at| at.0);
        let heap = "400000-500000 r-xp 0 0:1 1 /program\n600000-700000 rw-p 0 0:0 0 [heap]\n";
        let high = "7f0000010000-7f0000020000 r-xp 0 0:1 2 /libc\n7f0000022000-7f0000030000 rw-p 0 0:0 0\n";
        let stack = "7ffff0000000-7ffff0100000 rw-p 0 0:0 0 [stack]\n7ffff0110000-7ffff0111000 r-xp 0 0:0 0 [vdso]\n";
        // The gap of two pages is too small.
        assert_eq!(place(&format!("{heap}{high}{stack}")), Some(0x7f00_0000_e000));
        let with_gap = high.replace("7f0000022000", "7f0000023000");
        assert_eq!(place(&format!("{heap}{with_gap}{stack}")), Some(0x7f00_0002_1000));
        // Nothing is left above the middle of the largest gap.
        let full = "10000-7f0000010000 r--p 0 0:0 0\n";
        assert_eq!(place(&format!("{full}{}{stack}", &high[high.find('\n').unwrap() + 1..])), Some(0x7f00_0002_0000));
        assert_eq!(place("1000-2000 rw-p 0 0:0 0\n2000-3000 rw-p 0 0:0 0 [stack]\n"), None);
    }

    #[test]
    fn a_refused_page_is_explained_with_a_fix() {
        let pid = Pid::from_raw(7);
        let most = text_of("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
        assert!(refused(pid, Errno::ENOMEM, most).contains("fix: `sysctl vm.max_map_count="));
        assert!(refused(pid, Errno::ENOMEM, 3).contains("fix: `prlimit --pid 7 --as=unlimited"));
        assert!(refused(pid, Errno::EAGAIN, 3).contains("--memlock=unlimited"));
        assert!(refused(pid, Errno::EPERM, 3).contains("needed: one page"));
    }
}
