//! The page that holds an address, now, lifted, and lifted with the heap; pure.

use crate::places::{Kind, MappedPlace};
use crate::plan::PlannedPages;
use crate::tlb_model::Translation;
use address_space::{Address, AddressRange, PageSize};

/// Variants that are simulated side by side.
pub const VARIANTS: usize = 3;

/// Transparent huge pages of anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transparent {
    /// Their size; `None` if the kernel has none.
    pub size: Option<PageSize>,
    /// The kernel gives them to every process without being asked (`enabled` is `always`).
    pub always: bool,
}

/// The rules by which pages get their sizes.
#[derive(Clone, Debug)]
pub struct PageSizes {
    pub base: PageSize,
    pub planned: PlannedPages,
    /// Pages of a process of the program that runs, if there is one.
    pub today: Option<PlannedPages>,
    pub transparent: Transparent,
}

/// Bit in page numbers of the planned process, whose addresses differ from the traced process.
const OF_PLAN: u64 = 1 << 51;
/// Bit in page numbers of the process that runs.
const OF_TODAY: u64 = 1 << 50;

impl PageSizes {
    /// The pages that contain `address`: plain, lifted, lifted with the heap.
    ///
    /// Today's pages are the pages of a running process, by object and address in its file; without a process they are
    /// base pages. Anonymous memory is on huge pages if the kernel uses them for all memory, and then only in whole
    /// huge pages of its mapping.
    pub fn pages(&self, address: Address, place: &MappedPlace<'_>) -> [Translation; VARIANTS] {
        let plain = numbered(address, self.base, 0);
        let transparent = self.transparent_page(address, place);
        let heap = transparent.unwrap_or(plain);
        let of_object = self.today.as_ref().and_then(|today| page_of(today, place, OF_TODAY));
        let today = of_object.unwrap_or(if self.transparent.always { heap } else { plain });
        let lifted = page_of(&self.planned, place, OF_PLAN).unwrap_or(today);
        let with_heap = if place.kind == Kind::Heap || place.kind == Kind::Anonymous { heap } else { lifted };
        [today, lifted, with_heap]
    }

    fn transparent_page(&self, address: Address, place: &MappedPlace<'_>) -> Option<Translation> {
        let size = self.transparent.size?;
        let page = AddressRange::sized(address.align_down(size), size.bytes());
        place.anonymous?.covers(page).then(|| numbered(address, size, 0))
    }
}

/// The huge page that holds a place of an object in another process, if there is one.
fn page_of(pages: &PlannedPages, place: &MappedPlace<'_>, mark: u64) -> Option<Translation> {
    let (path, in_file) = place.object?;
    let address = Address(in_file.wrapping_add(pages.bias_of(path)?));
    Some(numbered(address, pages.huge_at(address)?, mark))
}

fn numbered(address: Address, size: PageSize, mark: u64) -> Translation {
    let shift = size.bytes().trailing_zeros();
    Translation { page: address.0 >> shift | mark, shift: shift as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlannedObject;

    fn rules(always: bool) -> PageSizes {
        let size = |bytes| PageSize::new(bytes).unwrap();
        let huge = vec![(AddressRange::new(Address(0x60_0000), Address(0xa0_0000)), size(2 << 20))];
        let planned = PlannedPages { objects: vec![PlannedObject { path: "/x".to_owned(), bias: 0x60_0000 }], huge };
        PageSizes {
            base: size(4096),
            planned,
            today: None,
            transparent: Transparent { size: Some(size(2 << 20)), always },
        }
    }

    fn shifts(always: bool, address: u64, place: &MappedPlace<'_>) -> [u8; VARIANTS] {
        rules(always).pages(Address(address), place).map(|page| page.shift)
    }

    #[test]
    fn objects_are_huge_where_the_plan_says_so() {
        let object = |in_file| MappedPlace { kind: Kind::Text, object: Some(("/x", in_file)), anonymous: None };
        // The traced process has the object elsewhere: its address does not count.
        assert_eq!(shifts(false, 0x1000, &object(0)), [12, 21, 21]);
        assert_eq!(shifts(true, 0x1000, &object(0x3f_ffff)), [12, 21, 21]);
        assert_eq!(shifts(false, 0x1000, &object(0x40_0000)), [12, 12, 12]);
        let other = MappedPlace { object: Some(("/y", 0)), ..object(0) };
        assert_eq!(shifts(false, 0x1000, &other), [12, 12, 12]);
        let page = |in_file| rules(false).pages(Address(0), &object(in_file))[1].page;
        assert_eq!((page(0), page(0x1f_ffff)), (3 | OF_PLAN, 3 | OF_PLAN));
        assert_eq!(page(0x20_0000), 4 | OF_PLAN);
    }

    /// The process that runs has its first 2 MiB on huge pages, at another base than the plan's.
    #[test]
    fn what_is_huge_today_is_so_in_every_variant() {
        let size = PageSize::new(2 << 20).unwrap();
        let huge = vec![(AddressRange::new(Address(0x20_0000), Address(0x40_0000)), size)];
        let today = PlannedPages { objects: vec![PlannedObject { path: "/x".to_owned(), bias: 0x20_0000 }], huge };
        let rules = PageSizes { planned: PlannedPages::default(), today: Some(today), ..rules(false) };
        let pages = |in_file| {
            let place = MappedPlace { kind: Kind::Text, object: Some(("/x", in_file)), anonymous: None };
            rules.pages(Address(0x7000 + in_file), &place)
        };
        assert_eq!(pages(0x1000).map(|page| (page.page, page.shift)), [(1 | OF_TODAY, 21); VARIANTS]);
        assert_eq!(pages(0x20_0000).map(|page| page.shift), [12; VARIANTS]);
        let planned = PageSizes { today: rules.today.clone(), ..self::rules(false) };
        let place = MappedPlace { kind: Kind::Text, object: Some(("/x", 0x20_0000)), anonymous: None };
        assert_eq!(planned.pages(Address(0x1000), &place).map(|page| page.shift), [12, 21, 21]);
    }

    #[test]
    fn anonymous_memory_is_huge_where_its_mapping_holds_the_whole_page() {
        let range = AddressRange::new(Address(0x3f_f000), Address(0x80_1000));
        let place = MappedPlace { kind: Kind::Anonymous, object: None, anonymous: Some(range) };
        assert_eq!(shifts(false, 0x3f_f000, &place), [12, 12, 12]);
        assert_eq!(shifts(false, 0x40_0000, &place), [12, 12, 21]);
        assert_eq!(shifts(true, 0x40_0000, &place), [21, 21, 21]);
        assert_eq!(shifts(true, 0x80_0fff, &place), [12, 12, 12]);
    }
}
