//! Attributes that the program gives to a range while it is copied, for example by mlock(2). The copy lacks them.
//!
//! They are read from smaps while all threads are stopped; maps does not show them. The kernel walks the page tables of the range
//! for that: some 0.03 ms for each MiB in base pages. The entries below are read before the stop, for a limited time.

use super::LiveExecutor;
use super::with_threads::Length;
use crate::remote::calls::failed;
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingFlags, MappingUsage, RangeSet};
use lift_execution::CallError;
use lift_plan::special_properties;
use linux::entries::{Below, EntriesAhead};
use nix::errno::Errno;
use std::io;
use std::time::{Duration, Instant};

/// The program has set an attribute since the plan.
const ATTRIBUTED: CallError = CallError {
    call: "the swap: the program has set an attribute of the range (mlock, madvise, pkey_mprotect or a name)",
    errno: Errno::EBUSY as i32,
};

/// Maximum time for reading entries below ranges, in all. Reading the entry of a large mapping delays page faults of the program,
/// so that ranges after this time are swapped unread.
const LONGEST: Duration = Duration::from_millis(200);

/// The attributes that copies of this lift have, the ranges that it has swapped, and the time taken so far.
#[derive(Default)]
pub(super) struct Known {
    attributes: Vec<MappingFlags>,
    pub moved: RangeSet,
    used: Duration,
}

/// The attributes of a range, which are read in the stop.
pub(super) struct Attributes {
    range: AddressRange,
    /// `None` if the time is used up.
    entries: Option<io::Result<EntriesAhead>>,
    planned: Vec<Mapping>,
    known: Vec<MappingFlags>,
}

impl Attributes {
    /// Refuses a range with an attribute that it did not have when it was planned.
    ///
    /// # Errors
    /// [`ATTRIBUTED`]; smaps cannot be read.
    pub fn expect_known(self) -> Result<(), CallError> {
        let Some(entries) = self.entries else { return Ok(()) };
        let now = entries.and_then(EntriesAhead::read).map_err(|error| failed("reading smaps", &error))?;
        let is_known = |usage: &MappingUsage| {
            let part = usage.mapping.range.intersect(self.range);
            has_known_properties(usage, part, &self.known) && has_planned_name(usage, part, &self.planned)
        };
        if now.iter().all(is_known) { Ok(()) } else { Err(ATTRIBUTED) }
    }
}

fn has_known_properties(usage: &MappingUsage, part: AddressRange, known: &[MappingFlags]) -> bool {
    let now = MappingFlags { range: part, protection_key: usage.protection_key, flags: usage.flags.clone() };
    special_properties(&now).iter().all(|property| {
        let mut before = known.iter().filter(|mapping| mapping.range.overlaps(part)).peekable();
        before.peek().is_some() && before.all(|mapping| special_properties(mapping).contains(property))
    })
}

/// True if anonymous memory has the name that it had (`PR_SET_VMA_ANON_NAME`).
fn has_planned_name(usage: &MappingUsage, part: AddressRange, planned: &[Mapping]) -> bool {
    let mut before = planned.iter().filter(|mapping| mapping.range.overlaps(part));
    usage.mapping.inode != 0 || before.all(|before| before.name == usage.mapping.name)
}

/// `None` for entries that could not be read in the time.
fn in_time<T>(read: io::Result<T>) -> Option<io::Result<T>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => None,
        read => Some(read),
    }
}

/// The planned mappings below a range, and the swapped parts below it.
fn below(range: AddressRange, planned: &AddressSpace, moved: &RangeSet) -> Below {
    let first = planned.overlapping(range).first().map_or(range.start(), |mapping| mapping.range.start());
    let mappings = planned.mappings();
    let count = mappings.partition_point(|mapping| mapping.range.start() < first);
    let planned = mappings[..count].last().map(|mapping| mapping.range.end());
    let moved = moved.within(AddressRange::new(Address(0), range.start())).last().map(|moved| moved.end());
    Below { count, end: planned.max(moved) }
}

impl LiveExecutor {
    /// Accepts these attributes in a swap: the copies of their ranges have them, too.
    pub fn accept_attributes(&mut self, attributes: Vec<MappingFlags>) {
        self.known.attributes = attributes;
    }

    /// Locks memory (mlock(2)), and reads its file for that.
    ///
    /// # Errors
    /// The errors of `mlock`.
    pub fn lock_in_memory(&mut self, range: AddressRange) -> Result<(), CallError> {
        let arguments = [range.start().0, range.len(), 0, 0, 0, 0];
        self.with_thread_of(Length::Alone, |calls| calls.call("mlock", libc::SYS_mlock, arguments)).map(drop)
    }

    /// Prepares reading the attributes of a range, while the program runs.
    pub(super) fn attributes_of(&mut self, range: AddressRange) -> Attributes {
        let planned = self.planned.overlapping(range).to_vec();
        let known = self.known.attributes.iter().filter(|mapping| mapping.range.overlaps(range)).cloned().collect();
        let below = below(range, &self.planned, &self.known.moved);
        let (pid, begun) = (self.process.pid().as_raw(), Instant::now());
        let left = LONGEST.checked_sub(self.known.used);
        let entries = left.and_then(|left| in_time(EntriesAhead::of(pid, range, below, begun + left)));
        self.known.used += begun.elapsed();
        Attributes { range, entries, planned, known }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::target::Target;
    use crate::remote::arch::numbers;
    use address_space::{Protection, parse_smaps};
    use lift_execution::{Backing, Executor};
    use nix::unistd::Pid;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    const PAGES: u64 = 4;

    /// A program that has run its dynamic linker, and waits.
    fn program() -> Child {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"a").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    fn executor(target: Target) -> LiveExecutor {
        let space = crate::attach::own_mapping::space_of(Pid::from_raw(target.pid())).unwrap();
        let executor = LiveExecutor::new(target, &space, &[], linux::pages::base_page());
        executor.unwrap_or_else(|error| panic!("{}", error.why))
    }

    /// Maps read-only memory between pages that cannot be read, so that it joins no other mapping.
    fn map(executor: &mut LiveExecutor) -> AddressRange {
        let page = executor.base_page().bytes();
        let (flags, bits) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, Protection::READ.bits() as u64);
        executor
            .with_thread(|calls| {
                let arguments = [0, (PAGES + 2) * page, 0, flags as u64, u64::MAX, 0];
                let all = calls.call("mmap", numbers::SYS_mmap, arguments)?;
                let range = AddressRange::sized(Address(all + page), PAGES * page);
                calls.call("mprotect", numbers::SYS_mprotect, [range.start().0, range.len(), bits, 0, 0, 0])?;
                Ok(range)
            })
            .unwrap()
    }

    #[test]
    fn a_range_that_gets_an_attribute_while_it_is_copied_stays() {
        let mut child = program();
        let mut before = executor(Target::open(child.id() as i32).unwrap());
        let range = map(&mut before);
        let mut executor = executor(before.finish().target);
        let mut swap = |advice: Option<i32>| {
            let copy = AddressRange::sized(executor.map(range.len(), Backing::Ordinary).unwrap(), range.len());
            executor.copy(range, copy.start()).unwrap();
            executor.protect(copy, Protection::READ).unwrap();
            if let Some(advice) = advice {
                executor.with_thread(|calls| calls.advise("madvise", range, advice)).unwrap();
            }
            let moved = executor.move_to(copy, range.start());
            if moved.is_err() {
                executor.unmap(copy).unwrap();
            }
            moved
        };
        let results = [Some(libc::MADV_DONTFORK), Some(libc::MADV_DOFORK), None].map(&mut swap);
        drop((executor.finish(), child.kill(), child.wait()));
        assert_eq!(results, [Err(ATTRIBUTED), Ok(()), Ok(())]);
    }

    #[test]
    fn parts_of_a_mapping_that_were_swapped_are_below_the_next() {
        let planned = AddressSpace::parse("1000-2000 r--p 0 0:0 0\n4000-9000 r-xp 0 0:0 0\n").unwrap();
        let range = |start, end| AddressRange::new(Address(start), Address(end));
        let end = |of: AddressRange, moved: &[AddressRange]| {
            below(of, &planned, &moved.iter().copied().collect()).end.map(|end| end.0)
        };
        assert_eq!(end(range(0x1000, 0x2000), &[]), None);
        assert_eq!(end(range(0x5000, 0x6000), &[]), Some(0x2000));
        assert_eq!(end(range(0x5000, 0x6000), &[range(0x4000, 0x5000)]), Some(0x5000));
        assert_eq!(end(range(0x6000, 0x7000), &[range(0x4000, 0x5000), range(0x8000, 0x9000)]), Some(0x5000));
        assert_eq!(end(range(0x6000, 0x7000), &[range(0x4000, 0x9000)]), Some(0x6000), "swapped once more");
        assert_eq!(below(range(0x5000, 0x6000), &planned, &RangeSet::new()).count, 1);
    }

    #[test]
    fn a_range_whose_entries_cannot_be_read_in_time_is_not_checked() {
        assert!(in_time::<()>(Err(io::ErrorKind::TimedOut.into())).is_none());
        assert!(in_time::<()>(Err(Errno::EAGAIN.into())).is_some_and(|read| read.is_err()));
    }

    #[test]
    fn an_attribute_is_known_where_it_was_before() {
        let usage =
            |flags: &str| parse_smaps(&format!("1000-5000 r-xp 0 0:0 0\nVmFlags: rd {flags}\n")).unwrap().remove(0);
        let flags = |start, end, flags: &str| MappingFlags {
            range: AddressRange::new(Address(start), Address(end)),
            protection_key: 0,
            flags: flags.to_owned(),
        };
        let known = [flags(0x1000, 0x3000, "rd lo dc"), flags(0x3000, 0x5000, "rd lo"), flags(0x5000, 0x6000, "rd")];
        let is_known = |usage: &MappingUsage, start, end| {
            has_known_properties(usage, AddressRange::new(Address(start), Address(end)), &known)
        };
        assert!(is_known(&usage("lo"), 0x1000, 0x5000) && is_known(&usage("lo dc"), 0x1000, 0x3000));
        assert!(!is_known(&usage("lo dc"), 0x1000, 0x5000) && !is_known(&usage("lo"), 0x8000, 0x9000));
        assert!(!is_known(&MappingUsage { protection_key: 1, ..usage("") }, 0x1000, 0x2000));
        assert!(is_known(&usage("hg sr"), 0x8000, 0x9000));
    }

    #[test]
    fn anonymous_memory_keeps_its_name() {
        let usage = |line: &str| parse_smaps(&format!("{line}\n")).unwrap().remove(0);
        let part = AddressRange::new(Address(0x1000), Address(0x2000));
        let planned = [usage("1000-3000 r--p 0 0:0 0 [anon:first]").mapping];
        assert!(has_planned_name(&usage("1000-3000 r--p 0 0:0 0 [anon:first]"), part, &planned));
        assert!(!has_planned_name(&usage("1000-3000 r--p 0 0:0 0 [anon:second]"), part, &planned));
        assert!(
            has_planned_name(&usage("1000-3000 r--p 0 8:1 7 /opt/new"), part, &planned),
            "a file's path may change"
        );
    }
}
