//! The smaps entries of a range, made by the kernel when they are read.
//!
//! `/proc/PID/smaps` can only be read from its beginning, and for each entry the kernel walks the page tables of a mapping: some
//! 10 ms for a gigabyte in base pages. A caller that keeps threads stopped cannot wait for the entries below its range. They are
//! read before: the kernel makes the next entry only when a read needs it (`seq_read_iter`, fs/seq_file.c), and finds the next
//! mapping by its address.

use crate::text::open_of_process;
use crate::watch::watched;
use address_space::{Address, AddressRange, MappingUsage, parse_smaps};
use nix::errno::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::time::Instant;

/// Number of bytes for one read: fewer than any entry has, so that a read makes the kernel add at most one entry.
const READ_AT_ONCE: usize = 256;
/// Number of bytes for one read far below the range.
const READ_FAR_BELOW: usize = 4 << 10;
/// Number of mappings below a range that are read in small pieces: more than a large piece has.
const NEAR: usize = 64;
/// Number of tries if the mappings below the range change.
const TRIES: usize = 4;

/// The mappings below a range, as they were some time ago.
#[derive(Clone, Copy, Debug, Default)]
pub struct Below {
    /// Number of mappings.
    pub count: usize,
    /// End of the last one; `None` if there is none. Mappings that are joined later still end there.
    pub end: Option<Address>,
}

/// An open smaps of which the entries below a range have been read.
#[derive(Debug)]
pub struct EntriesAhead {
    file: File,
    pid: i32,
    range: AddressRange,
    lines: Lines,
}

impl EntriesAhead {
    /// Reads up to the entry of the last mapping below `range`.
    ///
    /// # Errors
    /// The kernel's; `EAGAIN` if the mappings change at each try; [`io::ErrorKind::TimedOut`] if reads follow each other beyond
    /// `until`.
    pub fn of(pid: i32, range: AddressRange, mut below: Below, until: Instant) -> io::Result<Self> {
        for _ in 0..TRIES {
            let file = open_of_process(format!("/proc/{pid}/smaps"))?;
            let mut entries = Self { file, pid, range, lines: Lines::default() };
            let Some(end) = below.end else { return Ok(entries) };
            match entries.skip_to(end, below.count, until)? {
                Skipped::There => return Ok(entries),
                Skipped::Passed(end) => below = Below { count: 0, end },
            }
        }
        Err(Errno::EAGAIN.into())
    }

    /// Reads to the header of the first entry that ends at `end` or later, in large pieces as long as most of `count` entries
    /// are to come.
    fn skip_to(&mut self, end: Address, count: usize, until: Instant) -> io::Result<Skipped> {
        let (mut seen, mut below, mut skipped) = (0, None, None);
        let mut piece = [0; READ_FAR_BELOW];
        let pid = self.pid;
        while skipped.is_none() {
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let is_far = seen + NEAR < count;
            let most = if is_far { READ_FAR_BELOW } else { READ_AT_ONCE };
            // Each read has its own limit: all together may take long if there are many mappings.
            let read = watched(|| format!("reading /proc/{pid}/smaps"), || self.file.read(&mut piece[..most]))?;
            if read == 0 {
                break;
            }
            self.lines.each_of(&piece[..read], |line| {
                let Some(entry) = addresses(line) else { return };
                seen += 1;
                if entry.end() > self.range.start() {
                    skipped = Some(Skipped::Passed(below));
                } else {
                    below = Some(entry.end());
                    skipped = (entry.end() >= end).then_some(Skipped::There);
                }
            });
            // The kernel may have made the range's own entry for a large piece.
            if is_far && skipped.is_some() {
                return Ok(Skipped::Passed(below));
            }
        }
        Ok(skipped.unwrap_or(Skipped::Passed(below)))
    }

    /// Returns the entries that overlap the range, as the mappings are now.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::InvalidData`] for entries that cannot be parsed.
    pub fn read(mut self) -> io::Result<Vec<MappingUsage>> {
        let pid = self.pid;
        let text = watched(|| format!("reading /proc/{pid}/smaps"), || self.text())?;
        parse_smaps(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    }

    fn text(&mut self) -> io::Result<String> {
        let (mut text, mut current, mut is_over) = (Vec::new(), None, false);
        let mut piece = [0; READ_AT_ONCE];
        while !is_over {
            let read = self.file.read(&mut piece)?;
            if read == 0 {
                break;
            }
            self.lines.each_of(&piece[..read], |line| {
                current = addresses(line).or(current);
                let entry = current.filter(|entry| entry.end() > self.range.start());
                let Some(entry) = entry.filter(|_| !is_over) else { return };
                is_over = entry.start() >= self.range.end();
                if !is_over {
                    text.extend_from_slice(line);
                    text.push(b'\n');
                    // It is the last line of an entry.
                    is_over = line.starts_with(b"VmFlags:") && entry.end() >= self.range.end();
                }
            });
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The result of reading the entries below a range.
enum Skipped {
    /// The last header read belongs to the last mapping below.
    There,
    /// The range's own entry was reached. The last mapping below ends there.
    Passed(Option<Address>),
}

/// A text that is read in pieces.
#[derive(Debug, Default)]
struct Lines {
    /// The beginning of the next line.
    begun: Vec<u8>,
}

impl Lines {
    /// Passes on each line that the piece completes, without its end.
    fn each_of(&mut self, piece: &[u8], mut act: impl FnMut(&[u8])) {
        for part in piece.split_inclusive(|&byte| byte == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(line) if self.begun.is_empty() => act(line),
                Some(end) => {
                    let mut line = mem::take(&mut self.begun);
                    line.extend_from_slice(end);
                    act(&line);
                }
                None => self.begun.extend_from_slice(part),
            }
        }
    }
}

/// The addresses in the header of an entry; `None` for a field.
fn addresses(line: &[u8]) -> Option<AddressRange> {
    if line.first()?.is_ascii_uppercase() {
        return None;
    }
    let word = line.split(|&byte| byte == b' ').next()?;
    let (start, end) = str::from_utf8(word).ok()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok().map(Address);
    let (start, end) = (address(start)?, address(end)?);
    (start <= end).then(|| AddressRange::new(start, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
    use std::num::NonZeroUsize;
    use std::ptr::NonNull;
    use std::time::Duration;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Three adjacent mappings: the middle one alone is writable.
    struct Three {
        memory: NonNull<std::ffi::c_void>,
        page: usize,
    }

    impl Three {
        fn map() -> Self {
            let page = crate::pages::base_page().bytes() as usize;
            let length = NonZeroUsize::new(3 * page).unwrap();
            // SAFETY:
            // - a new mapping, which nothing else knows of.
            let memory = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE) }.unwrap();
            let three = Self { memory, page };
            // SAFETY:
            // - the page belongs to this mapping, to which no reference exists.
            unsafe { mprotect(three.at(1), page, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE) }.unwrap();
            three
        }

        fn at(&self, number: usize) -> NonNull<std::ffi::c_void> {
            // SAFETY:
            // - the page is one of the three.
            unsafe { self.memory.byte_add(number * self.page) }
        }

        fn range(&self, number: usize) -> AddressRange {
            AddressRange::sized(Address(self.at(number).as_ptr() as u64), self.page as u64)
        }

        fn keep_from_children(&self, number: usize) {
            // SAFETY:
            // - the page belongs to this mapping, and its contents stay.
            unsafe { madvise(self.at(number), self.page, MmapAdvise::MADV_DONTFORK) }.unwrap();
        }
    }

    impl Drop for Three {
        fn drop(&mut self) {
            // SAFETY:
            // - no reference to the mapping exists.
            unsafe { munmap(self.memory, 3 * self.page) }.unwrap();
        }
    }

    #[test]
    fn an_entry_shows_what_was_set_after_those_below_had_been_read() {
        let three = Three::map();
        let (range, below) = (three.range(1), three.range(0).end());
        let pid = std::process::id() as i32;
        // If no mapping ends there, or if there are fewer, the range's own entry is reached at the first try.
        for (count, end) in [(0, below), (0, Address(below.0 + 1)), (1 << 20, below)] {
            let ahead = EntriesAhead::of(pid, range, Below { count, end: Some(end) }, later()).unwrap();
            three.keep_from_children(1);
            let found = ahead.read().unwrap();
            assert_eq!(found.iter().map(|usage| usage.mapping.range).collect::<Vec<_>>(), [range]);
            assert!(found[0].has_flag("dc"), "{found:?}");
            // SAFETY:
            // - the page belongs to this mapping, and its contents stay.
            unsafe { madvise(three.at(1), three.page, MmapAdvise::MADV_DOFORK) }.unwrap();
        }
    }

    /// The kernel joins parts of a mapping that `detach` has restored.
    #[test]
    fn mappings_below_that_were_joined_are_read_before() {
        let three = Three::map();
        let (range, pid) = (three.range(2), std::process::id() as i32);
        // SAFETY:
        // - the page belongs to this mapping, to which no reference exists.
        unsafe { mprotect(three.at(0), three.page, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE) }.unwrap();
        let mut entries = EntriesAhead::of(pid, range, Below::default(), later()).unwrap();
        assert!(matches!(entries.skip_to(three.range(1).end(), 0, later()), Ok(Skipped::There)));
        let found = entries.read().unwrap();
        assert_eq!(found[0].mapping.range.start(), range.start());
    }

    #[test]
    fn all_entries_of_a_range_are_read() {
        let three = Three::map();
        let range = AddressRange::new(three.range(0).start(), three.range(2).end());
        let ahead = EntriesAhead::of(std::process::id() as i32, range, Below::default(), later()).unwrap();
        three.keep_from_children(2);
        let found = ahead.read().unwrap();
        let last = found.last().unwrap();
        assert!(last.mapping.range.covers(three.range(2)) && last.has_flag("dc"), "{found:?}");
        assert!(found.iter().any(|usage| usage.mapping.range == three.range(1) && !usage.has_flag("dc")));
        assert!(found.iter().all(|usage| usage.mapping.range.overlaps(range)));
    }

    #[test]
    fn entries_below_are_read_within_the_time() {
        let three = Three::map();
        let below = Below { count: 0, end: Some(three.range(0).end()) };
        let ahead = EntriesAhead::of(std::process::id() as i32, three.range(1), below, Instant::now());
        assert_eq!(ahead.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        let mut lines = Lines::default();
        let mut completed_by = |piece: &[u8]| {
            let mut completed = Vec::new();
            lines.each_of(piece, |line| completed.push(String::from_utf8_lossy(line).into_owned()));
            completed
        };
        assert!(completed_by(b"10-20 r--p").is_empty());
        assert_eq!(completed_by(b" x\nRss: 1 kB\nVm"), ["10-20 r--p x", "Rss: 1 kB"]);
        assert_eq!(completed_by(b"Flags: rd\n"), ["VmFlags: rd"]);
        assert_eq!(addresses(b"10-20 r--p x"), Some(AddressRange::new(Address(0x10), Address(0x20))));
        assert!(["Rss: 1 kB", "20-10 r--p", "", "x"].iter().all(|line| addresses(line.as_bytes()).is_none()));
    }
}
