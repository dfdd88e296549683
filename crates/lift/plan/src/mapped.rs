//! Data files that a process maps: which parts huge pages of the page cache can map, without a copy.
//!
//! The page tables of such a part are dropped, so that the next access finds the huge folio. A mapping that may be written is
//! left alone: the kernel splits its huge pages at the first write, and written pages of a private mapping would be lost.

use crate::{
    Attempt, CacheShortfall, CachedFile, Kind, MachineFacts, Method, Part, Plan, Policy, RangeLift, Reason, Refusal,
    Source, ThpMode,
};
use address_space::{Address, AddressRange, PageSize, Protection, RangeSet};
use alloc::borrow::ToOwned;
use alloc::vec;
use alloc::vec::Vec;

/// Most bytes whose page tables are dropped by one call, during which all threads are stopped.
const AT_ONCE: u64 = 64 << 20;

/// A data file that a process maps.
#[derive(Clone, Debug, Default)]
pub struct MappedFile {
    /// Its parts in huge folios of the page cache.
    pub file: CachedFile,
    /// Its length, rounded up to whole pages, if it is known. A mapping may be longer (LMDB's is).
    pub length: Option<u64>,
    /// Its mappings.
    pub views: Vec<FileView>,
}

/// One mapping of a data file.
#[derive(Clone, Debug)]
pub struct FileView {
    /// Addresses.
    pub range: AddressRange,
    /// Offset in the file.
    pub offset: u64,
    /// Protection.
    pub protection: Protection,
    /// The parts that huge pages map already.
    pub huge: RangeSet,
    /// The pages that the process has written to, and that are its own therefore.
    pub changed: RangeSet,
    /// Why the mapping is left alone whatever the page cache holds.
    pub refused: Option<CacheShortfall>,
}

impl FileView {
    /// Bytes by which addresses are ahead of offsets, modulo `huge`.
    pub fn out_of_step(&self, huge: PageSize) -> u64 {
        self.range.start().0.wrapping_sub(self.offset) % huge.bytes()
    }

    /// The offset in the file that an address of the mapping shows.
    fn offset_of(&self, address: Address) -> u64 {
        address.0.wrapping_sub(self.range.start().0).wrapping_add(self.offset)
    }
}

/// Plans the lift of data files in a running process.
pub fn plan_files(files: &[MappedFile], machine: &MachineFacts, policy: &Policy) -> Plan {
    let mut plan = Plan::default();
    let Some(thp) = machine.thp else { return plan };
    let size = thp.size;
    for (mapped, view) in files.iter().flat_map(|mapped| mapped.views.iter().map(move |view| (mapped, view))) {
        let (file, end) = (&mapped.file, mapped.length.unwrap_or(u64::MAX));
        let whole = view.range.whole_pages(size);
        let mut pages: Vec<(AddressRange, Option<Reason>)> = Vec::new();
        // No huge folio reaches beyond the end of the file.
        let is_in_file = |page: &AddressRange| view.offset_of(page.start()).saturating_add(page.len()) <= end;
        for page in whole.pages(size).take_while(is_in_file).filter(|page| !view.huge.covers(*page)) {
            let reason = match policy.page_size {
                Some(wanted) if wanted != size => Some(Reason::ThpSize { wanted, size }),
                _ if thp.mode == ThpMode::OffInProcess => Some(Reason::ThpOffInProcess),
                _ => refusal(file, view, page, size, machine).err(),
            };
            plan.considered += page.len();
            match pages.last_mut() {
                Some((range, same)) if range.end() == page.start() && *same == reason => {
                    *range = AddressRange::new(range.start(), page.end());
                }
                _ => pages.push((page, reason)),
            }
        }
        for (range, reason) in pages {
            let (object, kinds) = (file.path.clone(), vec![Kind::Files]);
            match reason {
                Some(reason) => plan.refusals.push(Refusal { object, kinds, range, reason }),
                None => {
                    let attempts = vec![attempt(range, size)];
                    plan.lifts.push(RangeLift { object, kinds, range, protection: view.protection, attempts });
                }
            }
        }
    }
    plan
}

fn attempt(range: AddressRange, page_size: PageSize) -> Attempt {
    let mut parts = Vec::new();
    let mut start = range.start();
    while start < range.end() {
        let part = AddressRange::sized(start, AT_ONCE.max(page_size.bytes()).min(range.end() - start));
        parts.push(Part { range: part, method: Method::Refault });
        start = part.end();
    }
    Attempt { source: Source::File, page_size, parts, memory: 0, placement: None }
}

/// Checks whether the page cache can show a huge page of a mapping.
///
/// # Errors
/// Why it cannot.
fn refusal(
    file: &CachedFile,
    view: &FileView,
    page: AddressRange,
    size: PageSize,
    machine: &MachineFacts,
) -> Result<(), Reason> {
    if view.protection.write {
        return Err(Reason::FileWritable);
    }
    if let Some(refused) = &view.refused {
        return Err(Reason::FileStays(refused.clone()));
    }
    let bytes = view.out_of_step(size);
    if bytes != 0 {
        return Err(Reason::FileMisplaced { bytes, size });
    }
    let offset = view.offset_of(page.start());
    if !offset.checked_add(page.len()).is_some_and(|end| file.holds(&(offset..end))) {
        let fix = || Some("pagelift cache prepare FILE".to_owned());
        let shortfall = file.shortfall.clone().map(|found| CacheShortfall { fix: found.fix.or_else(fix), ..found });
        return Err(Reason::SmallFolios(shortfall));
    }
    if view.changed.overlaps(page) {
        return Err(Reason::WrittenTo);
    }
    if !machine.refaults_huge {
        let why = "the kernel keeps its page tables of ordinary pages until 6.18".to_owned();
        let fix = Some("restart the program, or Linux 6.18".to_owned());
        return Err(Reason::FileStays(CacheShortfall { why, fix }));
    }
    Ok(())
}
