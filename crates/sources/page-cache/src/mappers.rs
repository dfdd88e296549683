//! Which processes map a file, and how.

use crate::Error;
use crate::blocks::offsets_of;
use address_space::{AddressRange, AddressSpace, FileNumbers, Mapping, PageSize, RangeSet};
use linux::bounded::MAPPED_FILES;
use linux::file_mapping::FileMapping;
use linux::pagemap::Pagemap;
use linux::pages::base_page;
use process_view::{
    FileIdentity, ObservationError, ProcessFiles, Unanswered, Unreadable, ask_one, each_of, each_process, open_mapped,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// A part of a file that a process maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedPart {
    /// The process.
    pub pid: i32,
    /// Address, offset and protection of the mapping.
    pub mapping: Mapping,
}

impl MappedPart {
    /// True if addresses agree with offsets modulo `huge`, so that huge pages can map it.
    pub fn is_congruent(&self, huge: PageSize) -> bool {
        self.out_of_step(huge) == 0
    }

    /// The bytes by which addresses are ahead of offsets, modulo `huge`.
    pub fn out_of_step(&self, huge: PageSize) -> u64 {
        self.mapping.range.start().0.wrapping_sub(self.mapping.offset) & (huge.bytes() - 1)
    }

    /// The mapped offsets, in bytes.
    pub fn offsets(&self) -> Range<u64> {
        self.mapping.offset..self.mapping.offset.saturating_add(self.mapping.range.len())
    }

    /// Opens the file, as it is mapped; `None` if it is not a regular file.
    ///
    /// # Errors
    /// [`Unreadable`]: the path leads to another file now, the file cannot be opened, or the process does not answer.
    pub fn open(&self) -> Result<Option<(File, FileIdentity)>, Unreadable> {
        let mapping = self.mapping.clone();
        ask_one(self.pid, move |process| open_mapped(process, &mapping))
            .unwrap_or_else(|unanswered| Err(Unreadable::Refused(unanswered.to_string())))
    }

    /// The addresses at which these offsets are mapped here.
    fn addresses_of(&self, offsets: &Range<u64>) -> Option<AddressRange> {
        let own = self.offsets();
        let (start, end) = (offsets.start.max(own.start), offsets.end.min(own.end));
        (start < end).then(|| AddressRange::sized(self.mapping.range.start() + (start - own.start), end - start))
    }
}

/// The files that the running processes map.
#[derive(Clone, Debug, Default)]
pub struct MappedFiles {
    parts: BTreeMap<FileNumbers, Vec<MappedPart>>,
    /// Number of processes that this user cannot inspect.
    pub not_permitted: u64,
    /// Processes that do not answer. Such a process may map any file.
    pub unanswered: Vec<Unanswered>,
    /// Number of processes whose mappings together exceed [`MAPPED_FILES`], so that they are left out.
    pub too_many: u64,
}

fn of_files(space: &AddressSpace) -> impl Iterator<Item = &Mapping> {
    space.mappings().iter().filter(|mapping| mapping.inode != 0)
}

/// Bytes that the mappings of files take.
fn memory_of(space: &AddressSpace) -> u64 {
    of_files(space).map(|mapping| (size_of::<MappedPart>() + mapping.path().map_or(0, str::len)) as u64).sum()
}

/// The users of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileUsers {
    /// Every part that a process maps.
    pub parts: Vec<MappedPart>,
}

impl MappedFiles {
    /// Reads the mappings of every process but this one. A process that ends while it is read is skipped.
    ///
    /// # Errors
    /// [`Error`] if `/proc` cannot be listed.
    pub fn read() -> Result<Self, Error> {
        let own = std::process::id() as i32;
        let (mut found, mut budget) = (Self::default(), MAPPED_FILES.budget());
        let look = move |process: &ProcessFiles| (process.pid() != own).then(|| process.maps());
        each_process(look, |pid, looked| match looked {
            Ok(Some(Ok(space))) => match budget.spend(memory_of(&space)) {
                true => found.add(pid, &space),
                false => found.too_many += 1,
            },
            Ok(Some(Err(ObservationError::NotPermitted { .. }))) => found.not_permitted += 1,
            Ok(_) => {}
            Err(unanswered) => found.unanswered.push(unanswered),
        })
        .map_err(|error| Error::new("listing /proc", std::io::Error::other(error)))?;
        Ok(found)
    }

    /// Number of processes whose mappings are not here: each may map any file.
    pub fn unseen(&self) -> u64 {
        self.not_permitted + self.unanswered.len() as u64 + self.too_many
    }

    fn add(&mut self, pid: i32, space: &AddressSpace) {
        for mapping in of_files(space) {
            let part = MappedPart { pid, mapping: mapping.clone() };
            self.parts.entry(mapping.file_numbers()).or_default().push(part);
        }
    }

    /// The users of an open file.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be mapped.
    pub fn users_of(&self, file: &File, huge: PageSize) -> Result<FileUsers, Error> {
        let parts = numbers_of(file, huge)?.and_then(|numbers| self.parts.get(&numbers)).cloned().unwrap_or_default();
        Ok(FileUsers { parts })
    }

    /// One part of each file of which a process executes a part.
    pub fn executed(&self) -> impl Iterator<Item = &MappedPart> {
        self.parts.values().filter_map(|parts| parts.iter().find(|part| part.mapping.protection.execute))
    }

    /// The parts of each file that these processes execute, by files.
    pub fn executed_by(&self, of: &[i32]) -> impl Iterator<Item = Vec<&MappedPart>> {
        let is_meant = |part: &&MappedPart| part.mapping.protection.execute && of.contains(&part.pid);
        self.parts
            .values()
            .map(move |parts| parts.iter().filter(is_meant).collect())
            .filter(|parts: &Vec<_>| !parts.is_empty())
    }
}

impl FileUsers {
    /// The processes, sorted.
    pub fn processes(&self) -> Vec<i32> {
        let mut all: Vec<i32> = self.parts.iter().map(|part| part.pid).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The processes all of whose mappings of the file are shared and cannot be written.
    pub(crate) fn sharers(&self) -> BTreeSet<i32> {
        let shares =
            |parts: &[&MappedPart]| parts.iter().all(|part| part.mapping.shared && !part.mapping.protection.write);
        self.by_process().into_iter().filter(|(_, parts)| shares(parts)).map(|(pid, _)| pid).collect()
    }

    /// The parts by processes.
    pub(crate) fn by_process(&self) -> BTreeMap<i32, Vec<&MappedPart>> {
        let mut found: BTreeMap<i32, Vec<&MappedPart>> = BTreeMap::new();
        self.parts.iter().for_each(|part| found.entry(part.pid).or_default().push(part));
        found
    }

    /// The processes whose page tables contain pages of these blocks, sorted, by block. A process that cannot be
    /// inspected or does not answer counts.
    pub(crate) fn holders_by_block(&self, blocks: &Range<u64>, huge: PageSize) -> BTreeMap<u64, Vec<i32>> {
        let wanted = offsets_of(blocks, huge);
        let mut shown: HashMap<i32, Vec<Shown>> = HashMap::new();
        for part in &self.parts {
            if let Some(addresses) = part.addresses_of(&wanted) {
                let offset = part.offsets().start + (addresses.start() - part.mapping.range.start());
                shown.entry(part.pid).or_default().push(Shown { addresses, offset });
            }
        }
        let mut pids: Vec<i32> = shown.keys().copied().collect();
        pids.sort_unstable();
        let shown = Arc::new(shown);
        let mut found: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
        let look = {
            let shown = shown.clone();
            move |process: &ProcessFiles| held(process.pid(), shown.get(&process.pid()).map_or(&[], Vec::as_slice))
        };
        each_of(pids, look, |pid, held| {
            let all = || shown.get(&pid).cloned().unwrap_or_default();
            let blocks: BTreeSet<u64> = held
                .unwrap_or_else(|_| all())
                .iter()
                .flat_map(|held| {
                    held.offset / huge.bytes()..held.offset.saturating_add(held.addresses.len()).div_ceil(huge.bytes())
                })
                .collect();
            blocks.into_iter().for_each(|block| found.entry(block).or_default().push(pid));
        });
        found.values_mut().for_each(|pids| pids.sort_unstable());
        found
    }
}

/// Addresses at which a process has a part of the file.
#[derive(Clone, Copy, Debug)]
struct Shown {
    addresses: AddressRange,
    /// Offset in the file of the first address.
    offset: u64,
}

/// Returns the pages of the file in a process's page tables. Pages that the process has written to do not count: they are its
/// own copies. Addresses that cannot be read count as a whole.
fn held(pid: i32, shown: &[Shown]) -> Vec<Shown> {
    let at = |part: &Shown, range: AddressRange| Shown {
        addresses: range,
        offset: part.offset + (range.start() - part.addresses.start()),
    };
    let Ok(pagemap) = Pagemap::open(pid, base_page()) else { return shown.to_vec() };
    let pages =
        |part: &Shown| held_pages(&pagemap, part.addresses).unwrap_or_else(|_| [part.addresses].into_iter().collect());
    shown.iter().flat_map(|part| pages(part).iter().map(|range| at(part, range)).collect::<Vec<_>>()).collect()
}

fn held_pages(pagemap: &Pagemap, addresses: AddressRange) -> std::io::Result<RangeSet> {
    let (mut touched, changed) = (pagemap.touched(addresses)?, pagemap.changed(addresses)?);
    changed.iter().for_each(|range| touched.remove(range));
    Ok(touched)
}

/// Device and inode of a file, as this process's own maps have them.
fn numbers_of(file: &File, huge: PageSize) -> Result<Option<FileNumbers>, Error> {
    let mapping =
        FileMapping::readable(file, 0, huge.bytes(), huge).map_err(|error| Error::new("mapping the file", error))?;
    let space = ProcessFiles::of(std::process::id() as i32)
        .maps()
        .map_err(|error| Error::new("/proc/self/maps", std::io::Error::other(error)))?;
    Ok(space.find(mapping.range().start()).map(Mapping::file_numbers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{Address, MappingName, Protection};

    fn part(start: u64, length: u64, offset: u64) -> MappedPart {
        let range = AddressRange::sized(Address(start), length);
        let name = MappingName::File { path: "/x".to_owned(), deleted: false };
        let (protection, device) = (Protection::READ, (1, 2));
        MappedPart { pid: 1, mapping: Mapping { range, protection, shared: false, offset, device, inode: 3, name } }
    }

    #[test]
    fn a_part_knows_which_addresses_show_an_offset() {
        let part = part(0x10_0000, 0x4000, 0x2000);
        let addresses = |offsets: Range<u64>| part.addresses_of(&offsets).map(|found| (found.start().0, found.len()));
        assert_eq!(addresses(0..0x3000), Some((0x10_0000, 0x1000)));
        assert_eq!(addresses(0x5000..0x9000), Some((0x10_3000, 0x1000)));
        assert_eq!((addresses(0..0x2000), addresses(0x6000..0x7000)), (None, None));
    }

    #[test]
    fn a_process_that_maps_privately_or_writes_is_no_sharer() {
        let of = |pid: i32, shared: bool| {
            let mut found = part(0, 0x1000, 0);
            (found.pid, found.mapping.shared) = (pid, shared);
            found
        };
        let mut written = of(4, true);
        written.mapping.protection = Protection { write: true, ..Protection::READ };
        let users = FileUsers { parts: vec![of(1, true), of(2, true), of(2, false), of(3, false), written] };
        assert_eq!(users.sharers(), BTreeSet::from([1]));
    }

    #[test]
    fn congruence_is_agreement_modulo_the_huge_page() {
        let huge = PageSize::new(0x1000).unwrap();
        assert!(part(0x7_5000, 1, 0x3000).is_congruent(huge) && part(0x7_5800, 1, 0x800).is_congruent(huge));
        assert!(!part(0x7_5000, 1, 0x800).is_congruent(huge));
    }

    #[test]
    fn a_mapping_of_another_process_is_found() {
        let huge = linux::pages::transparent_huge_page().unwrap_or(base_page());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let is_found = || {
            let file = File::open(format!("/proc/{pid}/exe")).unwrap();
            let users = MappedFiles::read().unwrap().users_of(&file, huge).unwrap();
            users.processes().contains(&pid) && users.holders_by_block(&(0..1), huge).contains_key(&0)
        };
        // The program makes its mappings some time after its start.
        let begin = std::time::Instant::now();
        while !is_found() {
            assert!(begin.elapsed().as_secs() < 60, "not found among {:?}", MappedFiles::read());
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
