//! Which marks are cleared: as much as may hold the memory map for no longer than is permitted.

use address_space::{Address, AddressSpace, MappingName, PageSize};
use process_view::{ObservationError, ProcessFiles};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

/// Kernel time for a page, before it has been measured for a process: 10 to 100 ns were seen on two machines, 200 ns if
/// the process ran at the same time.
const NANOSECONDS_PER_PAGE: f64 = 100.0;

/// Marks that are cleared together, by the value written to `/proc/PID/clear_refs` (proc_pid_clear_refs(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cleared {
    /// The marks of all memory.
    All,
    /// The marks of mappings of files, shared memory included: programs and libraries.
    Files,
}

impl Cleared {
    fn word(self) -> &'static [u8] {
        match self {
            Self::All => b"1",
            Self::Files => b"3",
        }
    }

    /// Clears them, by a descriptor of `/proc/PID/clear_refs`.
    pub(crate) fn clear(self, mut file: &File) -> io::Result<()> {
        file.write_all(self.word())
    }
}

/// Memory that was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Anonymous memory, in resident bytes; 0 if it was read.
    pub anonymous: u64,
    /// Everything from this address on, if reading would have met a mapping that takes too long.
    pub from: Option<u64>,
    /// Time in milliseconds for which its threads might have to wait otherwise, estimated.
    pub needed_milliseconds: u64,
    /// Time in milliseconds that was permitted.
    pub permitted_milliseconds: u64,
}

/// The memory to be cleared and read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    pub cleared: Cleared,
    /// The end of the memory to read.
    pub end: Address,
    pub left_out: Option<LeftOut>,
}

/// Resident bytes of a process (proc_pid_status(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub anonymous: u64,
    pub files: u64,
}

impl Resident {
    pub fn read(process: &ProcessFiles) -> Result<Self, ObservationError> {
        Ok(Self::parse(&process.text("status")?))
    }

    fn parse(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib: Option<u64> = line.and_then(|value| value.trim().strip_suffix(" kB")?.parse().ok());
            kib.unwrap_or(0).saturating_mul(1024)
        };
        Self { anonymous: field("RssAnon"), files: field("RssFile").saturating_add(field("RssShmem")) }
    }

    fn all(self) -> u64 {
        self.anonymous.saturating_add(self.files)
    }
}

/// Chooses the scope of a process of this size. `permitted` is the longest time that its map may be held.
pub(crate) fn scope(resident: Resident, space: &AddressSpace, base: PageSize, permitted: Duration) -> Scope {
    let time = |bytes: u64| Duration::from_nanos((base.pages_for(bytes) as f64 * NANOSECONDS_PER_PAGE) as u64);
    let everything = Address(u64::MAX);
    if time(resident.all()) <= permitted {
        return Scope { cleared: Cleared::All, end: everything, left_out: None };
    }
    // Reading walks every mapping, in their order: it ends before the first that may take too long.
    let too_long = |mapping: &&address_space::Mapping| {
        !matches!(mapping.name, MappingName::File { .. })
            && time(mapping.range.len().min(resident.anonymous)) > permitted
    };
    let end = space.mappings().iter().find(too_long).map_or(everything, |mapping| mapping.range.start());
    let left_out = LeftOut {
        anonymous: resident.anonymous,
        from: (end != everything).then_some(end.0),
        needed_milliseconds: time(resident.all()).as_millis() as u64 + 1,
        permitted_milliseconds: permitted.as_millis() as u64,
    };
    Scope { cleared: Cleared::Files, end, left_out: Some(left_out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r-xp 0 0:1 5 /bin/program
100000000-1100000000 rw-p 0 0:0 0 
2000000000-2000001000 r-xp 0 0:1 6 /lib/library
";

    fn chosen(anonymous: u64, files: u64) -> Scope {
        let space = AddressSpace::parse(MAPS).unwrap();
        scope(Resident { anonymous, files }, &space, PageSize::new(4096).unwrap(), Duration::from_millis(50))
    }

    #[test]
    fn what_is_small_is_looked_at_as_a_whole() {
        let scope = chosen(1 << 30, 1 << 20);
        assert_eq!((scope.cleared, scope.end, scope.left_out), (Cleared::All, Address(u64::MAX), None));
    }

    #[test]
    fn of_a_large_process_anonymous_memory_is_left_out_and_said_so() {
        let scope = chosen(64 << 30, 1 << 20);
        let left_out = scope.left_out.unwrap();
        assert_eq!((scope.cleared, scope.end), (Cleared::Files, Address(0x1_0000_0000)));
        assert_eq!((left_out.anonymous, left_out.from), (64 << 30, Some(0x1_0000_0000)));
        // 16.8 million pages, 100 ns each.
        assert_eq!((left_out.needed_milliseconds, left_out.permitted_milliseconds), (1678, 50));
    }

    #[test]
    fn sizes_are_read_from_status() {
        let status = "Name:\tx\nRssAnon:\t      12 kB\nRssFile:\t      34 kB\nRssShmem:\t       1 kB\n";
        assert_eq!(Resident::parse(status), Resident { anonymous: 12 << 10, files: 35 << 10 });
        assert_eq!(Resident::parse("RssAnon: 99999999999999999999 kB\n"), Resident::default());
    }
}
