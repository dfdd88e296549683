//! The list of staging copies in the call page, by which the next lift finds copies of one that was killed.
//!
//! A copy is recorded before it is mapped, at an address chosen here, and until it is in place. Nothing else in the program is
//! unmapped: the program may have mapped its own memory at a recorded address that was never used, or is free again, and a child
//! inherits the list without the copies. So a recorded range is a copy only if it shows one of the following marks, which no
//! memory of the program has there:
//!
//! - MADV_SEQUENTIAL with MADV_DONTFORK, or on pool pages alone: each copy has it until all threads are stopped for the swap.
//! - Anonymous memory that can only be written, or an untouched mapping of the file whose path is in the call page: just mapped.
//!   For `/proc/self/exe` it is the file that the process executes.
//! - The contents of the range that it was to replace: the swap was begun.

use super::LiveExecutor;
use crate::attach::calls_of_thread::{FLAG_OF_COPY, FRESH};
use crate::attach::own_mapping::{free_place, space_of};
use crate::remote::originals::shows_executable;
use address_space::{Address, AddressRange, Mapping, MappingName, MappingUsage, PageSize, RangeSet, parse_smaps};
use lift_execution::CallError;
use linux::text::text_of;
use nix::errno::Errno;

/// The path by which a process opens the file that it executes.
const OWN_EXECUTABLE: &[u8] = b"/proc/self/exe";
/// Number of tries if the program maps something at the chosen address at the same moment.
const TRIES: usize = 8;
/// Number of bytes that are compared at a time.
const COMPARED_AT_ONCE: u64 = 256 << 10;
/// Maximum length of a copy that is compared.
const MOST_COMPARED: u64 = 4 << 30;

/// Where a copy is to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// There, if it is free.
    At(Address),
    /// Where the kernel likes: no free place was found.
    Anywhere,
}

impl Place {
    /// The address for mmap(2).
    pub fn address(self) -> u64 {
        match self {
            Self::At(address) => address.0,
            Self::Anywhere => 0,
        }
    }

    /// The flags for mmap(2).
    pub fn flags(self) -> u64 {
        match self {
            Self::At(_) => libc::MAP_FIXED_NOREPLACE as u64,
            Self::Anywhere => 0,
        }
    }
}

/// True for memory that can be a copy: private memory within a recorded range, without a file or of an ordinary one. The kernel
/// itself sets the flag of MADV_DONTFORK for mappings of devices (VM_DONTCOPY).
fn may_be_copy(mapping: &Mapping, recorded: &RangeSet) -> bool {
    let is_of_device =
        |path: &str| !path.starts_with('/') || path.starts_with("/dev/") && !path.starts_with("/dev/shm/");
    !mapping.shared && !mapping.path().is_some_and(is_of_device) && recorded.covers(mapping.range)
}

impl LiveExecutor {
    /// Unmaps staging copies of a lift that was killed: those recorded in its call page, if they are still staging
    /// copies.
    pub(super) fn drop_orphans(&mut self) {
        let orphans = self.page.staging(&self.memory);
        if orphans.is_empty() {
            return;
        }
        // Each that is unmapped leaves the list in the call page, and the others stay in it if this process is killed.
        self.staging = orphans.clone();
        let mut kept = RangeSet::new();
        let text = text_of(format!("/proc/{}/smaps", self.process.pid())).unwrap_or_default();
        for usage in parse_smaps(&text).unwrap_or_default() {
            if !may_be_copy(&usage.mapping, &orphans) {
                continue;
            }
            let is_marked = usage.has_flag(FLAG_OF_COPY) && (usage.has_flag("dc") || usage.has_flag("ht"));
            for range in orphans.within(usage.mapping.range).collect::<Vec<_>>() {
                let is_whole = range == usage.mapping.range;
                if is_marked || is_whole && (self.is_fresh(&usage) || self.is_half_swapped(&usage)) {
                    match lift_execution::Executor::unmap(self, range) {
                        Ok(()) => self.has_cleaned_up = true,
                        // It only costs memory until it is unmapped: at the end of this lift, or by the next one.
                        Err(_) => kept.insert(range),
                    }
                }
            }
        }
        self.note_staging(|staging| *staging = kept);
    }

    /// True for a copy that has just been mapped.
    fn is_fresh(&self, usage: &MappingUsage) -> bool {
        let mapping = &usage.mapping;
        let is_untouched = usage.resident == 0 && usage.hugetlb == 0;
        match &mapping.name {
            MappingName::File { path, .. } if is_untouched => match self.page.placed(&self.memory) {
                noted if noted == OWN_EXECUTABLE => shows_executable(self.process.pid().as_raw(), mapping),
                noted => noted == path.as_bytes(),
            },
            _ => is_untouched && mapping.protection == FRESH,
        }
    }

    /// True for a copy with the contents of the range that it was to replace.
    fn is_half_swapped(&self, usage: &MappingUsage) -> bool {
        let mapping = &usage.mapping;
        let Some(to) = self.page.swap_of(&self.memory, mapping.range) else { return false };
        let Ok(space) = space_of(self.process.pid()) else { return false };
        let range = AddressRange::sized(to, mapping.range.len());
        let is_alike = |there: &Mapping| !there.shared && there.protection == mapping.protection;
        mapping.range.len() <= MOST_COMPARED
            && !range.overlaps(mapping.range)
            && space.overlapping(range).iter().all(is_alike)
            && self.have_same_contents(mapping.range, range)
    }

    fn have_same_contents(&self, one: AddressRange, other: AddressRange) -> bool {
        let mut buffers = [(); 2].map(|()| vec![0; COMPARED_AT_ONCE as usize]);
        let mut done = 0;
        let mut is_empty = true;
        while done < one.len() {
            let length = (one.len() - done).min(COMPARED_AT_ONCE) as usize;
            let [here, there] = &mut buffers;
            let read = self.memory.read(one.start() + done, &mut here[..length]);
            if read.and_then(|()| self.memory.read(other.start() + done, &mut there[..length])).is_err()
                || here[..length] != there[..length]
            {
                return false;
            }
            is_empty &= here[..length].iter().all(|&byte| byte == 0);
            done += length as u64;
        }
        // Zeros are nobody's mark.
        !is_empty
    }

    /// Changes the list of staging copies, here and in the call page, where the next lift finds it if this process is
    /// killed.
    pub(super) fn note_staging(&mut self, change: impl FnOnce(&mut RangeSet)) {
        change(&mut self.staging);
        // A call page that cannot be written belongs to a process that has ended.
        let _ = self.page.set_staging(&self.memory, &self.staging);
    }

    /// Chooses and records the place of a copy.
    fn note_place(&mut self, length: u64, page: PageSize, offset: u64) -> Place {
        let space = space_of(self.process.pid()).ok();
        let place = space.and_then(|space| free_place(&space, length, page, offset, self.base_page));
        let Some(at) = place else { return Place::Anywhere };
        self.note_staging(|staging| staging.insert(AddressRange::sized(at, length)));
        Place::At(at)
    }

    /// Maps a copy at a place that was recorded before, and records it. The address of the place is `offset` modulo
    /// `page`.
    pub(super) fn map_noted(
        &mut self,
        length: u64,
        page: PageSize,
        offset: u64,
        mut map: impl FnMut(&mut Self, Place) -> Result<Address, CallError>,
    ) -> Result<Address, CallError> {
        let mut is_placed = true;
        for _ in 0..TRIES {
            let place = if is_placed { self.note_place(length, page, offset) } else { Place::Anywhere };
            let mapped = map(self, place);
            let is_left = std::mem::take(&mut self.has_left_copy);
            match (place, &mapped) {
                (Place::At(at), Ok(start)) if at == *start => return mapped,
                // It is unmapped at the end of this lift, or by the next one.
                (Place::At(_), Err(_)) if is_left => return mapped,
                (Place::At(at), _) => self.note_staging(|staging| staging.remove(AddressRange::sized(at, length))),
                (Place::Anywhere, _) => {}
            }
            match mapped {
                Err(error) if error.errno == Errno::EEXIST as i32 => {}
                // The file's page size is another one.
                Err(CallError { call, errno })
                    if errno == Errno::EINVAL as i32 && call.starts_with("mmap") && place != Place::Anywhere =>
                {
                    is_placed = false;
                }
                mapped => {
                    let start = mapped?;
                    self.note_staging(|staging| staging.insert(AddressRange::sized(start, length)));
                    return Ok(start);
                }
            }
        }
        Err(CallError { call: "mmap at a free place", errno: Errno::EEXIST as i32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::target::Target;
    use crate::remote::arch::numbers;
    use crate::remote::calls::PRIVATE_FILE;
    use crate::remote::injection::arguments_to_open;
    use address_space::AddressSpace;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    fn executor(pid: i32) -> LiveExecutor {
        let (target, base_page) = (Target::open(pid).unwrap(), linux::pages::base_page());
        let space = space_of(nix::unistd::Pid::from_raw(pid)).unwrap();
        LiveExecutor::new(target, &space, &[], base_page).unwrap_or_else(|error| panic!("{}", error.why))
    }

    #[test]
    fn an_untouched_copy_of_the_executable_is_unmapped_by_the_next_lift() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        // A program that has answered has run its dynamic linker.
        child.stdin.as_mut().unwrap().write_all(b"a").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let has_file = |at| {
            let space = space_of(nix::unistd::Pid::from_raw(pid)).unwrap();
            space.find(at).is_some_and(|mapping| mapping.path().is_some())
        };
        let mut killed = executor(pid);
        let page = killed.base_page;
        let path = [OWN_EXECUTABLE, &[0]].concat();
        // As a lifter that is killed before it has marked the copy.
        let copy = killed.map_noted(page.bytes(), page, 0, |executor, place| {
            executor.with_thread(|calls| {
                let path = calls.place(&path)?;
                let file = calls.call("openat", numbers::SYS_openat, arguments_to_open(path))?;
                let flags = PRIVATE_FILE as u64 | place.flags();
                let arguments = [place.address(), page.bytes(), libc::PROT_READ as u64, flags, file, 0];
                let mapped = calls.call("mmap", numbers::SYS_mmap, arguments).map(Address);
                calls.call("close", numbers::SYS_close, [file, 0, 0, 0, 0, 0])?;
                mapped
            })
        });
        let copy = copy.unwrap();
        drop(killed);
        assert!(has_file(copy));
        let next = executor(pid);
        let (has_cleaned_up, is_left) = (next.has_cleaned_up(), has_file(copy));
        drop(next.finish());
        drop((child.kill(), child.wait()));
        assert!(has_cleaned_up && !is_left);
    }

    #[test]
    fn a_copy_is_private_memory_within_what_was_recorded() {
        let recorded: RangeSet = [AddressRange::sized(Address(0x7f00_0020_0000), 4 << 20)].into_iter().collect();
        let may_be = |line: &str| {
            let space = AddressSpace::parse(&format!("{line}\n")).unwrap();
            may_be_copy(&space.mappings()[0], &recorded)
        };
        assert!(may_be("7f0000200000-7f0000600000 rw-p 00000000 00:00 0"));
        assert!(may_be("7f0000400000-7f0000600000 r-xp 00000000 00:00 0"));
        assert!(may_be("7f0000200000-7f0000600000 rw-p 00000000 00:0f 77 /anon_hugepage (deleted)"));
        assert!(may_be("7f0000200000-7f0000600000 r-xp 00000000 00:1c 9 /dev/shm/images/text"));
        for of_the_program in [
            "7f0000200000-7f0000800000 rw-p 00000000 00:00 0",
            "7f0000100000-7f0000600000 rw-p 00000000 00:00 0",
            "7f0000200000-7f0000600000 rw-s 00000000 00:00 0",
            "7f0000200000-7f0000600000 rw-s 00000000 00:0d 12 anon_inode:[perf_event]",
            "7f0000200000-7f0000600000 r--p 00000000 00:06 12 /dev/binder",
        ] {
            assert!(!may_be(of_the_program), "{of_the_program}");
        }
    }
}
