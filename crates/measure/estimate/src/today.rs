//! The present page sizes of a running process.

use crate::plan::{PlannedObject, PlannedPages};
use address_space::{AddressRange, LoadedObject, MappingName, MappingUsage, PageSize};
use linux::pagemap::Pagemap;
use linux::pages::transparent_huge_page;
use process_view::{ObservationError, ProcessFiles, load_objects};

/// The parts of a process that are on huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Today {
    /// Its objects, and their parts on huge pages.
    pub objects: PlannedPages,
    /// Most of its heap and other anonymous memory is on huge pages. The exact parts cannot be transferred to another
    /// process of the program, whose allocations have other addresses.
    pub anonymous_is_huge: bool,
}

impl Today {
    /// Reads the page sizes of a process.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(pid: i32) -> Result<Self, ObservationError> {
        let files = ProcessFiles::of(pid);
        let base = files.page_size()?;
        let loaded = load_objects(pid, &files.maps()?)?.objects;
        let pagemap = Pagemap::open(pid, base).ok();
        let huge = |usage: &MappingUsage, size: PageSize| {
            let scanned = pagemap.as_ref().and_then(|pagemap| pagemap.huge(usage.mapping.range).ok());
            let touched = |range| pagemap.as_ref()?.touched(range).ok();
            let parts = scanned.unwrap_or_else(|| usage.huge_parts(size, touched));
            parts.iter().collect::<Vec<_>>()
        };
        Ok(of(&files.smaps()?, &loaded, base, transparent_huge_page(), huge))
    }
}

/// Pure: `huge` returns the parts of a mapping that are on huge pages of a size.
fn of(
    usages: &[MappingUsage],
    objects: &[LoadedObject],
    base: PageSize,
    transparent: Option<PageSize>,
    huge: impl Fn(&MappingUsage, PageSize) -> Vec<AddressRange>,
) -> Today {
    let mut pages = PlannedPages {
        objects: objects.iter().map(|o| PlannedObject { path: o.path.clone(), bias: o.bias }).collect(),
        huge: Vec::new(),
    };
    let is_of_object = |range: AddressRange| objects.iter().any(|o| o.extent().widened(base).contains(range.start()));
    let (mut anonymous, mut on_huge) = (0_u64, 0_u64);
    for usage in usages {
        if is_of_object(usage.mapping.range) {
            let size = if usage.hugetlb > 0 { usage.kernel_page_size } else { transparent };
            if let Some(size) = size.filter(|_| usage.huge() > 0) {
                pages.huge.extend(huge(usage, size).iter().map(|part| (part.whole_pages(size), size)));
            }
        } else if is_anonymous(usage) {
            anonymous = anonymous.saturating_add(usage.resident_with_hugetlb());
            on_huge = on_huge.saturating_add(usage.huge());
        }
    }
    pages.huge.retain(|(range, _)| !range.is_empty());
    pages.huge.sort_unstable_by_key(|(range, _)| range.start());
    Today { objects: pages, anonymous_is_huge: on_huge > anonymous / 2 }
}

fn is_anonymous(usage: &MappingUsage) -> bool {
    let name = &usage.mapping.name;
    !usage.mapping.shared && matches!(name, MappingName::Anonymous | MappingName::Named(_) | MappingName::Heap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{Address, parse_smaps};

    /// This process has objects of base pages, which every kernel shows.
    #[test]
    fn a_process_s_objects_are_found() {
        let today = Today::of(std::process::id() as i32).unwrap();
        let own = std::env::current_exe().unwrap().display().to_string();
        assert!(today.objects.bias_of(&own).is_some(), "{today:?}");
    }

    fn smaps(range: &str, name: &str, resident: u64, huge: u64) -> String {
        format!("{range} rw-p 00000000 00:00 0 {name}\nRss: {resident} kB\nAnonHugePages: {huge} kB\nVmFlags: rd wr\n")
    }

    #[test]
    fn anonymous_memory_is_huge_where_most_of_it_is() {
        let size = |bytes| PageSize::new(bytes).unwrap();
        let judged = |huge: u64| {
            let text = smaps("7f0000000000-7f0000800000", "", 8192, huge) + &smaps("1000-2000", "[heap]", 4, 0);
            let whole = |usage: &MappingUsage, _| vec![usage.mapping.range];
            of(&parse_smaps(&text).unwrap(), &[], size(4096), Some(size(2 << 20)), whole)
        };
        assert!(judged(6144).anonymous_is_huge && !judged(2048).anonymous_is_huge);
        assert_eq!(judged(6144).objects.huge_at(Address(0x7f00_0000_0000)), None, "it is no object");
    }
}
