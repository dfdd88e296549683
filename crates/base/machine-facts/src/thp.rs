//! Transparent huge pages (`Documentation/admin-guide/mm/transhuge.rst`).

use crate::Files;
use crate::facts::{ThpFacts, ThpMode};
use address_space::PageSize;
use alloc::format;
use alloc::vec::Vec;
use serde::Serialize;

/// Where the kernel shows its transparent huge pages.
pub const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// The word in brackets, as in `always [madvise] never`, or the only one of a setting without a choice.
pub fn chosen_word(text: &str) -> Option<&str> {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    inside.or_else(|| (text.split_whitespace().count() == 1).then_some(text.trim()))
}

/// Returns the size of a transparent huge page, read below a directory; `None` on a kernel without them.
pub fn pmd_size(files: &impl Files, directory: &str) -> Option<PageSize> {
    PageSize::new(files.number(&format!("{directory}/hpage_pmd_size"))?).ok()
}

/// Returns the facts about transparent huge pages of this size, read below a directory.
pub fn thp_at(files: &impl Files, directory: &str, size: PageSize) -> Option<ThpFacts> {
    let general = files.text(&format!("{directory}/enabled"))?;
    let own = files.text(&format!("{directory}/{}/enabled", size.directory())).unwrap_or_default();
    Some(ThpFacts { size, mode: ThpMode::read(&general, &own)? })
}

/// Transparent huge pages of one size, which have a mode of their own since Linux 6.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ThpSize {
    /// Page size.
    pub size: PageSize,
    /// Mode for anonymous memory.
    pub mode: ThpMode,
    /// Anonymous pages of this size that are in use now; `None` where the kernel does not count them (before Linux 6.12).
    pub in_use: Option<u64>,
}

/// All sizes of transparent huge pages below a directory, smallest first; empty on a kernel without them.
pub fn thp_sizes(files: &impl Files, directory: &str) -> Vec<ThpSize> {
    let of_name = |name: &str| {
        let ThpFacts { size, mode } = thp_at(files, directory, PageSize::of_directory(name)?)?;
        Some(ThpSize { size, mode, in_use: pages_in_use(files, directory, name) })
    };
    let mut sizes: Vec<_> = files.names_in(directory).iter().filter_map(|name| of_name(name)).collect();
    if sizes.is_empty() {
        let only = pmd_size(files, directory).and_then(|size| thp_at(files, directory, size));
        sizes.extend(only.map(|ThpFacts { size, mode }| ThpSize { size, mode, in_use: None }));
    }
    sizes.sort_by_key(|size| size.size);
    sizes
}

/// The kernel sums the counts of all CPUs while they change, and prints a sum below zero without a sign (`sum_mthp_stat` in
/// `mm/huge_memory.c`).
fn pages_in_use(files: &impl Files, directory: &str, name: &str) -> Option<u64> {
    let printed = files.number(&format!("{directory}/{name}/stats/nr_anon"))?;
    Some(printed.cast_signed().max(0).cast_unsigned())
}

/// Returns the largest page smaller than `huge` that a fault in anonymous memory may make, read below a directory: it is mapped
/// by entries for base pages, all of which the one fault marks. `None` where no such size is enabled (before Linux 6.8 there
/// are none).
pub fn largest_below(files: &impl Files, directory: &str, huge: PageSize) -> Option<PageSize> {
    let is_enabled = |size: &ThpSize| matches!(size.mode, ThpMode::Always | ThpMode::Madvise);
    let sizes = thp_sizes(files, directory).into_iter().filter(is_enabled).map(|size| size.size);
    sizes.filter(|size| *size < huge).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::WrittenFiles;

    #[test]
    fn a_size_has_its_own_mode_or_the_general_one() {
        let mut files = WrittenFiles::default();
        let size = PageSize::new(2 << 20).unwrap();
        assert_eq!((thp_at(&files, "/thp", size), pmd_size(&files, "/thp")), (None, None));
        files.write("/thp/enabled", "[always] madvise never");
        files.write("/thp/hpage_pmd_size", 2 << 20);
        assert_eq!(thp_at(&files, "/thp", size), Some(ThpFacts { size, mode: ThpMode::Always }));
        assert_eq!(pmd_size(&files, "/thp"), Some(size));
        files.write("/thp/hugepages-2048kB/enabled", "always inherit [madvise] never");
        assert_eq!(thp_at(&files, "/thp", size), Some(ThpFacts { size, mode: ThpMode::Madvise }));
    }

    #[test]
    fn a_count_below_zero_is_none() {
        let mut files = WrittenFiles::default();
        files.write("/thp/enabled", "always [madvise] never");
        for (size, count) in [(64, u64::MAX), (128, 7)] {
            files.write(&format!("/thp/hugepages-{size}kB/enabled"), "always madvise [never]");
            files.write(&format!("/thp/hugepages-{size}kB/stats/nr_anon"), count);
        }
        let in_use: Vec<_> = thp_sizes(&files, "/thp").into_iter().map(|size| size.in_use).collect();
        assert_eq!(in_use, [Some(0), Some(7)]);
    }

    #[test]
    fn the_chosen_word_is_the_one_in_brackets() {
        assert_eq!(chosen_word("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen_word("never\n"), Some("never"));
        assert_eq!([chosen_word("always madvise"), chosen_word("")], [None; 2]);
    }

    #[test]
    fn kernels_with_several_sizes_tell_each() {
        let mut files = WrittenFiles::default();
        files.write("/thp/enabled", "always [madvise] never");
        files.write("/thp/hpage_pmd_size", 2 << 20);
        let size = |bytes: u64| PageSize::new(bytes).unwrap();
        let only = ThpSize { size: size(2 << 20), mode: ThpMode::Madvise, in_use: None };
        assert_eq!(thp_sizes(&files, "/thp"), [only]);
        files.write("/thp/hugepages-2048kB/enabled", "always [inherit] madvise never");
        files.write("/thp/hugepages-2048kB/stats/nr_anon", 3);
        files.write("/thp/hugepages-64kB/enabled", "always inherit madvise [never]");
        let small = ThpSize { size: size(64 << 10), mode: ThpMode::Never, in_use: None };
        assert_eq!(thp_sizes(&files, "/thp"), [small, ThpSize { in_use: Some(3), ..only }]);
    }

    #[test]
    fn the_largest_size_of_a_fault_is_one_that_is_enabled_and_no_whole_page_table() {
        let huge = PageSize::new(2 << 20).unwrap();
        let mut files = WrittenFiles::default();
        let mut largest = |general: &str, sizes: &[(u32, &str)]| {
            files.write("/thp/enabled", general);
            for (kib, own) in sizes {
                files.write(&format!("/thp/hugepages-{kib}kB/enabled"), own);
            }
            largest_below(&files, "/thp", huge).map(|size| size.bytes() >> 10)
        };
        assert_eq!(largest("[always] madvise never", &[]), None, "before Linux 6.8");
        assert_eq!(largest("[always] madvise never", &[(2048, "always [inherit] madvise never")]), None);
        let own = [(64, "[always] inherit madvise never"), (1024, "always inherit madvise [never]")];
        assert_eq!(largest("always madvise [never]", &own), Some(64));
        let own = [(512, "always inherit [madvise] never"), (1024, "always [inherit] madvise never")];
        assert_eq!(largest("always madvise [never]", &own), Some(512));
        assert_eq!(largest("always [madvise] never", &[]), Some(1024));
    }
}
