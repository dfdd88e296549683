//! The huge pages that a lift must give an object: computed from its ELF headers alone, then compared with the kernel's
//! data.

use crate::need::is_root;
use crate::view::{Flag, LoadedElf, View};
use address_space::{Address, AddressRange, PageSize};
use anyhow::{Result, bail, ensure};

/// The kinds of range that `--lift` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Executable.
    Text,
    /// Read-only from the start.
    Rodata,
    /// Writable, from the file.
    Data,
    /// Writable, zero at the start.
    Bss,
    /// The brk area.
    Heap,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Text, Self::Rodata, Self::Data, Self::Bss, Self::Heap];

    /// Reads a kind's name as `--lift` has it.
    ///
    /// # Errors
    /// No kind has this name.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "text" => Self::Text,
            "rodata" => Self::Rodata,
            "data" => Self::Data,
            "bss" => Self::Bss,
            "heap" => Self::Heap,
            _ => bail!("no kind of range: {text}"),
        })
    }
}

/// The source of the pages of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The hugetlb pool.
    Hugetlb,
    /// Transparent huge pages.
    Thp,
}

/// Returns the whole huge pages of an object in ranges of these kinds. Neighbours of equal protection are taken
/// together because they can share a huge page; RELRO belongs to no kind. The page of the ELF header stays with the
/// file if it holds only read-only data.
pub fn due_ranges(object: &LoadedElf, kinds: &[Kind], base: PageSize, huge: PageSize) -> Vec<(AddressRange, bool)> {
    let mut ranges: Vec<(AddressRange, bool, bool)> = Vec::new();
    let mut add = |range: AddressRange, writable: bool, executable: bool| {
        if range.is_empty() {
            return;
        }
        match ranges.last_mut() {
            Some((last, w, x)) if last.end() == range.start() && (*w, *x) == (writable, executable) => {
                *last = AddressRange::new(last.start(), range.end());
            }
            _ => ranges.push((range, writable, executable)),
        }
    };
    for segment in &object.image.segments {
        let pages = segment.memory.widened(base);
        let (write, execute) = (segment.protection.write, segment.protection.execute);
        if !write {
            let kind = if execute { Kind::Text } else { Kind::Rodata };
            if kinds.contains(&kind) {
                add(pages, false, execute);
            }
            continue;
        }
        let sealed = object.image.relro.map_or(pages.start(), |r| r.end().align_down(base).max(pages.start()));
        let file_end = segment.file_memory().end().align_up(base).unwrap_or(Address(u64::MAX));
        if kinds.contains(&Kind::Data) {
            add(AddressRange::new(sealed, file_end), true, execute);
        }
        if kinds.contains(&Kind::Bss) {
            add(AddressRange::new(file_end.max(sealed), pages.end()), true, execute);
        }
    }
    let header = object.image.file_header().map(|header| (header + object.bias).align_down(huge));
    let whole = |(range, writable, executable): (AddressRange, bool, bool)| {
        let pages = range.shifted(object.bias).whole_pages(huge);
        let stays = !writable && !executable && header == Some(pages.start());
        let start = if stays { (pages.start() + huge.bytes()).min(pages.end()) } else { pages.start() };
        (AddressRange::new(start, pages.end()), writable)
    };
    ranges.into_iter().map(whole).filter(|(range, _)| !range.is_empty()).collect()
}

/// Checks that every due whole huge page is one according to the kernel; returns the checked bytes.
///
/// # Errors
/// A page is missing: its address, and the kernel's data about it. Or nothing at all was due.
pub fn check_lifted(
    view: &View,
    object: &LoadedElf,
    kinds: &[Kind],
    huge: PageSize,
    source: impl Fn(bool) -> Source,
) -> Result<u64> {
    let mut due = due_ranges(object, kinds, view.base_page, huge);
    if kinds.contains(&Kind::Heap) {
        let heap = view.space.heap().map(|heap| heap.whole_pages(huge)).filter(|heap| !heap.is_empty());
        due.push((heap.ok_or_else(|| anyhow::anyhow!("the heap holds no whole huge page"))?, true));
    }
    for kind in kinds.iter().filter(|k| **k != Kind::Heap) {
        let alone = due_ranges(object, &[*kind], view.base_page, huge);
        ensure!(!alone.is_empty(), "{kind:?} of {} holds no whole huge page: this would check nothing", object.path);
    }
    let mut bytes = 0;
    for (range, writable) in due {
        let source = source(writable);
        check_range(view, range, source)?;
        bytes += range.len();
    }
    Ok(bytes)
}

/// Checks one range of whole huge pages by smaps and, as root, page by page by the kernel's page flags.
///
/// # Errors
/// A page of the range is no huge page of this source.
pub fn check_range(view: &View, range: AddressRange, source: Source) -> Result<()> {
    let mut seen = 0;
    for usage in view.usages.iter().filter(|u| u.mapping.range.overlaps(range)) {
        let wanted = usage.mapping.range.intersect(range).len();
        let found = match source {
            Source::Hugetlb => usage.hugetlb,
            Source::Thp => usage.anonymous_huge,
        };
        ensure!(
            found >= wanted,
            "{range} is due on {source:?} pages; of its {wanted} bytes in {} the kernel backs {found}: {usage:?}",
            usage.mapping.range
        );
        seen += wanted;
    }
    ensure!(seen == range.len(), "{range} is not wholly mapped");
    if is_root() {
        let flag = if source == Source::Hugetlb { Flag::Hugetlb } else { Flag::TransparentHuge };
        view.check_page_flags(range, flag)?;
    }
    Ok(())
}

/// Checks that the object has no huge page.
///
/// # Errors
/// A mapping in its extent has huge pages.
pub fn check_unlifted(view: &View, object: &LoadedElf) -> Result<()> {
    let extent = object.image.extent().widened(view.base_page).shifted(object.bias);
    for usage in view.usages.iter().filter(|u| extent.covers(u.mapping.range)) {
        ensure!(usage.huge() == 0, "{} is on huge pages: {usage:?}", usage.mapping.range);
    }
    Ok(())
}

/// The sources that each way of lifting must use for writable and for other ranges.
pub fn source_of(pages: &str, writable: bool) -> Source {
    match (pages, writable) {
        ("hugetlb-writable", _) | ("hugetlb", false) => Source::Hugetlb,
        _ => Source::Thp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{ElfImage, ElfKind, LoadSegment, Protection};

    #[test]
    fn data_and_bss_are_taken_together_and_relro_is_not() {
        let size = |bytes| PageSize::new(bytes).unwrap();
        let image = ElfImage {
            machine: 62,
            kind: ElfKind::PositionIndependent,
            entry: Address(0),
            headers: None,
            segments: vec![LoadSegment {
                memory: AddressRange::new(Address(0x1000), Address(0x9800)),
                file_size: 0x4000,
                offset: 0x1000,
                protection: Protection::READ_WRITE,
                align: 0x1000,
            }],
            relro: Some(AddressRange::new(Address(0x1000), Address(0x2000))),
            interpreter: None,
            dynamic: true,
            text_relocations: false,
            soname: None,
            build_id: None,
        };
        let object = LoadedElf { path: "x".into(), bias: 0x10000, image };
        let ranges = |kinds: &[Kind]| -> Vec<String> {
            due_ranges(&object, kinds, size(0x1000), size(0x4000)).iter().map(|(r, _)| r.to_string()).collect()
        };
        assert_eq!(ranges(&[Kind::Data, Kind::Bss]), ["14000-18000"]);
        assert!(ranges(&[Kind::Data]).is_empty() && ranges(&[Kind::Text]).is_empty());
    }
}
