//! Presence of pages and transparent huge pages in the model.

use super::contents::Content;
use super::errno::*;
use super::kernel::{Errno, SimulatedKernel};
use address_space::{Address, AddressRange, PageSize, RangeSet};

impl SimulatedKernel {
    /// The ranges that the kernel maps by huge pages of at least `size`.
    pub(super) fn huge_in(&self, range: AddressRange, size: PageSize) -> RangeSet {
        let mut huge = RangeSet::new();
        if self.machine.thp.is_some_and(|thp| thp.size >= size) {
            self.huge.within(range).for_each(|part| huge.insert(part));
        }
        for area in self.overlapping(range).iter().filter(|area| area.pool.is_some_and(|pool| pool >= size)) {
            self.present.within(area.range().intersect(range)).for_each(|part| huge.insert(part));
        }
        for area in self.overlapping(range).iter().filter(|area| area.image.is_some_and(|image| image >= size)) {
            let whole = area.huge_of_image(area.image.unwrap_or(size)).intersect(range);
            self.present.within(whole).for_each(|part| huge.insert(part));
        }
        huge
    }

    /// The whole transparent huge pages of `range`.
    fn stretches(&self, range: AddressRange) -> Vec<AddressRange> {
        let Some(thp) = self.machine.thp else { return Vec::new() };
        range.whole_pages(thp.size).pages(thp.size).collect()
    }

    /// A huge page that must be split at `border` is mapped by ordinary pages from then on.
    pub(super) fn split_huge(&mut self, border: Address) {
        let Some(thp) = self.machine.thp else { return };
        if !border.is_aligned(thp.size) {
            self.huge.remove(AddressRange::sized(border.align_down(thp.size), thp.size.bytes()));
        }
    }

    /// The kernel, short of memory, frees huge pages that hold only zeros and have not been written to.
    pub(super) fn split_a_page_of_zeros(&mut self) {
        let Some(thp) = self.machine.thp else { return };
        let pages: Vec<_> = self.huge.iter().flat_map(|range| range.pages(thp.size)).collect();
        let zeros = |page: &AddressRange| self.contents.of(*page).iter().all(|s| s.content == Content::Zero);
        if let Some(page) = pages.into_iter().filter(|page| !self.first.overlaps(*page)).find(zeros) {
            self.huge.remove(page);
        }
    }

    /// The huge pages of `from` that stay huge when it is moved by `delta`.
    pub(super) fn carried_huge(&self, from: AddressRange, delta: u64) -> Vec<AddressRange> {
        match self.machine.thp {
            Some(thp) if Address(delta).is_aligned(thp.size) => {
                self.huge.within(from).map(|range| range.shifted(delta)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The program, or a copy, writes to every page of `range`.
    pub(super) fn write_to(&mut self, range: AddressRange) -> Errno {
        let areas = self.overlapping(range).to_vec();
        let mapped: u64 = areas.iter().map(|area| area.range().intersect(range).len()).sum();
        if mapped != range.len() || areas.iter().any(|area| !area.mapping.protection.write) {
            return Err(EFAULT);
        }
        for area in areas {
            let here = area.range().intersect(range);
            match area.pool {
                Some(size) => {
                    if self.take_pool_pages(here.widened(size), size, area.bound).is_err() {
                        self.violations.push(format!("touching {here} without a pool page would be a SIGBUS"));
                        return Err(EFAULT);
                    }
                }
                None => self.present.insert(here.widened(self.machine.base_page)),
            }
        }
        Ok(())
    }

    /// `MADV_POPULATE_READ` of a file's pages.
    pub(super) fn make_readable(&mut self, range: AddressRange) -> Errno {
        self.check_pages(range)?;
        let areas = self.overlapping(range);
        if areas.iter().map(|area| area.range().intersect(range).len()).sum::<u64>() != range.len() {
            return Err(ENOMEM);
        }
        if areas.iter().any(|area| area.is_plain() || area.pool.is_some() || !area.mapping.protection.read) {
            return Err(EINVAL);
        }
        self.present.insert(range);
        Ok(())
    }

    /// `MADV_POPULATE_WRITE`.
    pub(super) fn make_present(&mut self, range: AddressRange) -> Errno {
        self.check_pages(range)?;
        let areas = self.overlapping(range).to_vec();
        let mut mapped = 0;
        for area in areas {
            let here = area.range().intersect(range);
            mapped += here.len();
            if !area.mapping.protection.write {
                return Err(EINVAL);
            }
            match area.pool {
                Some(size) => self.take_pool_pages(here.widened(size), size, area.bound)?,
                None => {
                    if area.advised && self.machine.thp.is_some_and(|thp| thp.at_fault) {
                        self.fault_huge(area.range().intersect(range));
                    }
                    self.present.insert(here);
                }
            }
        }
        if mapped == range.len() { Ok(()) } else { Err(ENOMEM) }
    }

    /// Pages come one by one, so that some are present if others are refused.
    fn take_pool_pages(&mut self, range: AddressRange, size: PageSize, bound: bool) -> Errno {
        for page in range.pages(size) {
            if self.present.covers(page) {
                continue;
            }
            if bound {
                let left = &mut self.machine.pool_on_bound_nodes;
                *left = left.checked_sub(1).ok_or(EFAULT)?;
            }
            self.machine.pool_charge = self.machine.pool_charge.checked_sub(1).ok_or(ENOMEM)?;
            self.present.insert(page);
        }
        Ok(())
    }

    fn fault_huge(&mut self, range: AddressRange) {
        for stretch in self.stretches(range) {
            let untouched = !self.present.overlaps(stretch);
            if untouched && self.take_huge_page() {
                self.present.insert(stretch);
                self.huge.insert(stretch);
            }
        }
    }

    fn take_huge_page(&mut self) -> bool {
        let Some(thp) = self.machine.thp.as_mut().filter(|thp| thp.left > 0) else { return false };
        thp.left -= 1;
        true
    }

    /// `MADV_COLLAPSE`: every huge page is tried, and one that cannot be made is an error at the end.
    pub(super) fn collapse_in(&mut self, range: AddressRange) -> Errno {
        self.check_pages(range)?;
        if !self.machine.collapse {
            return Err(EINVAL);
        }
        let areas = self.overlapping(range).to_vec();
        if areas.iter().map(|area| area.range().intersect(range).len()).sum::<u64>() != range.len() {
            return Err(ENOMEM);
        }
        if areas.iter().any(|area| !area.is_plain()) {
            return Err(EINVAL);
        }
        let mut result = Ok(());
        for stretch in self.stretches(range) {
            if self.huge.covers(stretch) {
                continue;
            }
            // A huge page is in one mapping, and untouched memory cannot be collapsed.
            let in_one = areas.iter().any(|area| area.range().covers(stretch));
            if !in_one || !self.present.overlaps(stretch) {
                result = Err(EINVAL);
            } else if self.take_huge_page() {
                self.present.insert(stretch);
                self.huge.insert(stretch);
            } else {
                result = Err(EAGAIN);
            }
        }
        result
    }
}
