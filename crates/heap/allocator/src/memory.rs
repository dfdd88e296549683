//! Memory that is available outside of the hugetlb pool: the machine's, within the limits of memory cgroups.

use crate::sys::{map_anywhere, read_file, unmap};
use core::ffi::CStr;
use core::fmt::{self, Write};
use machine_facts::{CgroupDirectory, Controller, MemoryFiles, for_each_directory};

/// Bytes that can be allocated without running out of memory; `None` if they are not known.
pub fn available() -> Option<u64> {
    let limited = under_limits();
    match (of_the_machine(), limited) {
        (Some(machine), Some(limited)) => Some(machine.min(limited)),
        (machine, limited) => machine.or(limited),
    }
}

/// `MemAvailable` and `SwapFree` of `/proc/meminfo`, in bytes.
fn of_the_machine() -> Option<u64> {
    let mut buffer = [0u8; 2048];
    let text = read_text(c"/proc/meminfo", &mut buffer)?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(field("MemAvailable")? + field("SwapFree").unwrap_or(0))
}

fn read_text<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a str> {
    let length = read_file(path, buffer)?;
    core::str::from_utf8(&buffer[..length]).ok()
}

/// The smallest remainder that a memory cgroup of this process leaves, in bytes; `None` if none limits it.
fn under_limits() -> Option<u64> {
    let mut least: Option<u64> = None;
    for_each_of_memory(|directory, path| least = least.into_iter().chain(left_below(directory, path)).min())?;
    least
}

/// Calls `look` with each memory cgroup of this process, and with room for the paths of its files; `None` if they are not
/// known.
fn for_each_of_memory(mut look: impl FnMut(&CgroupDirectory<'_>, &mut [u8])) -> Option<()> {
    let mut texts = Scratch::new()?;
    let (membership, rest) = texts.bytes().split_at_mut(LONGEST_MEMBERSHIP);
    let (path, mounts) = rest.split_at_mut(libc::PATH_MAX as usize);
    let membership = read_text(c"/proc/self/cgroup", membership)?;
    let mounts = whole_lines(read_text(c"/proc/self/mountinfo", mounts)?);
    for_each_directory(membership, mounts, |directory| {
        if directory.controller == Controller::Memory {
            look(&directory, path);
        }
    });
    Some(())
}

/// Bytes left below the limit of a cgroup; `None` without one. `path` has room for the paths of its files.
fn left_below(directory: &CgroupDirectory<'_>, path: &mut [u8]) -> Option<u64> {
    let files = MemoryFiles::of(directory.version_2);
    let mut number = |file| read_text(path_in(directory, file, path)?, &mut [0; 64])?.trim().parse().ok();
    // A limit of `max` is none.
    let limit = files.limit(&mut number)?;
    let usage = number(files.usage)?;
    let mut buffer = [0u8; 4096];
    let statistics = read_text(path_in(directory, "memory.stat", path)?, &mut buffer).unwrap_or_default();
    Some(files.left(limit, usage, statistics))
}

/// Bytes that this process can have within the limits of its memory cgroups, beside the present memory of others that the
/// kernel cannot reclaim; `None` if none limits it.
pub fn room_of_cgroups() -> Option<u64> {
    let mut least: Option<u64> = None;
    for_each_of_memory(|directory, path| least = least.into_iter().chain(room_in(directory, path)).min())?;
    least
}

/// As for [`room_of_cgroups`], in one cgroup.
fn room_in(directory: &CgroupDirectory<'_>, path: &mut [u8]) -> Option<u64> {
    let files = MemoryFiles::of(directory.version_2);
    let number = |file| read_text(path_in(directory, file, path)?, &mut [0; 64])?.trim().parse::<u64>().ok();
    let limit = files.limit(number)?;
    let mut buffer = [0u8; 4096];
    let statistics = read_text(path_in(directory, "memory.stat", path)?, &mut buffer).unwrap_or_default();
    Some(limit.saturating_sub(unreclaimable(statistics, directory.version_2)))
}

/// Bytes of anonymous and shared memory, and of pool pages that are charged (`memory_hugetlb_accounting`, shown since Linux 6.13),
/// from the text of `memory.stat`.
fn unreclaimable(statistics: &str, version_2: bool) -> u64 {
    let names: &[&str] = if version_2 { &["anon ", "shmem ", "hugetlb "] } else { &["total_rss ", "total_shmem "] };
    let number = |name: &&str| statistics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    names.iter().filter_map(number).fold(0, u64::saturating_add)
}

/// Writes the path of a cgroup's file; `None` if it is too long for the kernel.
fn path_in<'a>(directory: &CgroupDirectory<'_>, file: &str, room: &'a mut [u8]) -> Option<&'a CStr> {
    let mut path = PathBytes { room, length: 0 };
    write!(path, "{directory}/{file}\0").ok()?;
    CStr::from_bytes_until_nul(path.room).ok()
}

/// A path in the making.
struct PathBytes<'a> {
    room: &'a mut [u8],
    length: usize,
}

impl fmt::Write for PathBytes<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let end = self.length + part.len();
        self.room.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(part.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// The text without a last line that was cut off.
fn whole_lines(text: &str) -> &str {
    text.rfind('\n').map_or("", |end| &text[..end])
}

/// Bytes of `/proc/self/cgroup`: a line of up to a path's length for each hierarchy.
const LONGEST_MEMBERSHIP: usize = 64 << 10;
/// Bytes of both texts. `/proc/self/mountinfo` has a line for each mount; cgroups are mounted early.
const LONGEST_TEXTS: usize = 1 << 20;

/// Memory for texts that have no room on the stack of a thread that forks. Pages that are not written to cost nothing.
struct Scratch(usize);

impl Scratch {
    fn new() -> Option<Self> {
        map_anywhere(LONGEST_TEXTS, false, 0).map(Self)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY:
        // - a mapping of this length, readable and writable, which only this value knows of.
        unsafe { core::slice::from_raw_parts_mut(self.0 as *mut u8, LONGEST_TEXTS) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY:
        // - the mapping that `new` has made, to which no reference is left.
        unsafe { unmap(self.0, LONGEST_TEXTS) };
    }
}
