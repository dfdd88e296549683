//! Files of the model in the page cache: mapped again, withdrawn from the page tables, and touched.

use super::area::Area;
use super::contents::{Content, SimulatedFile, Stretch};
use super::errno::*;
use super::kernel::{Errno, SimulatedKernel};
use address_space::{Address, AddressRange, Mapping, PageSize};
use lift_execution::FileMapping;

impl SimulatedKernel {
    /// `mmap` of a file of the process in a free place. No page is touched.
    pub(super) fn place_file(&mut self, range: AddressRange, file: FileMapping<'_>) -> Errno {
        let FileMapping { path, offset, protection } = file;
        self.check_pages(range)?;
        let named = |file: &&SimulatedFile| file.own_path.as_deref() == Some(path);
        let file = self.machine.files.iter().find(named).ok_or(ENOENT)?;
        let shown = self.shown_files.iter().find(|mapping| mapping.path() == Some(&file.path)).ok_or(ENOENT)?.clone();
        if self.areas.len() > self.machine.max_mappings {
            return Err(ENOMEM);
        }
        let mapping = Mapping { range, protection, offset, ..shown };
        for Stretch { range, content } in self.file_contents(&mapping) {
            self.contents.set(range, content);
        }
        self.insert(Area::of(mapping));
        self.merge();
        Ok(())
    }

    /// The contents that a mapping shows of its file: the first contents of memory if the process showed that part of
    /// the file at first.
    pub(super) fn file_contents(&self, mapping: &Mapping) -> Vec<Stretch> {
        let mut contents = super::contents::Contents::default();
        contents.set(mapping.range, Content::Foreign(mapping.offset));
        let same = |m: &&Mapping| m.file_numbers() == mapping.file_numbers();
        for shown in self.shown_files.iter().filter(same) {
            let first = mapping.offset.max(shown.offset);
            let end = (mapping.offset + mapping.range.len()).min(shown.offset + shown.range.len());
            if first < end {
                let place = AddressRange::sized(mapping.range.start() + (first - mapping.offset), end - first);
                contents.set(place, Content::Original(shown.range.start() + (first - shown.offset)));
            }
        }
        contents.of(mapping.range)
    }

    /// The pagemap's report about private mappings of files.
    pub(super) fn expect_files_unchanged(&self, range: AddressRange) -> Errno {
        let areas: Vec<_> = self.overlapping(range).iter().map(|area| area.cut(range)).collect();
        if areas.iter().map(|area| area.range().len()).sum::<u64>() != range.len() {
            return Err(ENOMEM);
        }
        if areas.iter().any(|area| !area.shows_file()) {
            return Err(EINVAL);
        }
        let differs = |area: &Area| self.contents.of(area.range()) != self.file_contents(&area.mapping);
        if areas.iter().any(differs) { Err(EBUSY) } else { Ok(()) }
    }

    /// A debugger writes to a page of a private mapping, whatever its protection.
    pub fn poke(&mut self, at: Address, bytes: &[u8]) {
        let page = AddressRange::sized(at, bytes.len() as u64).widened(self.machine.base_page);
        self.split_huge(page.start());
        self.split_huge(page.end());
        self.present.insert(page);
        self.contents.write(at, bytes);
    }

    /// `MADV_DONTNEED` and `MADV_POPULATE_READ` of unchanged file mappings.
    pub(super) fn refault_in(&mut self, range: AddressRange) -> Errno {
        self.check_pages(range)?;
        self.expect_files_unchanged(range)?;
        self.withdraw(range);
        let _ = self.touch_in(range);
        Ok(())
    }

    /// Takes pages of files out of the page tables. Kernels that keep the tables themselves map by ordinary pages again.
    pub(super) fn withdraw(&mut self, range: AddressRange) {
        self.huge.remove(range);
        self.present.remove(range);
        if self.machine.refaults_huge {
            self.small_tables.remove(range);
        }
    }

    /// `MADV_POPULATE_READ`: a huge page of a huge folio is mapped by one entry if no table of ordinary pages is in its
    /// place.
    pub(super) fn touch_in(&mut self, range: AddressRange) -> Errno {
        self.check_pages(range)?;
        let areas: Vec<_> = self.overlapping(range).iter().map(|area| area.cut(range)).collect();
        if areas.iter().map(|area| area.range().len()).sum::<u64>() != range.len() {
            return Err(ENOMEM);
        }
        if areas.iter().any(|area| !area.shows_file() || !area.mapping.protection.read) {
            return Err(EINVAL);
        }
        for area in areas {
            self.touch_area(&area);
        }
        Ok(())
    }

    fn touch_area(&mut self, area: &Area) {
        if let Some(size) = self.machine.thp.map(|thp| thp.size) {
            for page in area.range().whole_pages(size).pages(size) {
                if !self.present.overlaps(page) && !self.small_tables.overlaps(page) && self.is_in_folio(area, page) {
                    self.huge.insert(page);
                    self.present.insert(page);
                }
            }
        }
        for page in area.range().pages(self.machine.base_page) {
            if !self.present.covers(page) {
                self.present.insert(page);
                self.small_tables.insert(page);
            }
        }
    }

    fn is_in_folio(&self, area: &Area, page: AddressRange) -> bool {
        let offset = area.mapping.offset + (page.start() - area.range().start());
        let holds = |file: &SimulatedFile| {
            area.mapping.path() == Some(&file.path)
                && file.huge.iter().any(|huge| huge.start <= offset && offset + page.len() <= huge.end)
        };
        let size = PageSize::new(page.len()).ok();
        size.is_some_and(|size| Address(offset).is_aligned(size)) && self.machine.files.iter().any(holds)
    }
}
