//! The plan: the memory to lift, the source, the method, and the memory not lifted, with the reason.

use crate::Kind;
use crate::{Placement, Reason};
use address_space::{AddressRange, PageSize, Protection, RangeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::Serialize;

/// The source of huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The pool.
    Hugetlb,
    /// Anonymous transparent huge pages.
    Thp,
    /// A copy of the file that all processes share.
    Image,
    /// The file itself, from the page cache.
    File,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hugetlb => "hugetlb",
            Self::Thp => "thp",
            Self::Image => "image",
            Self::File => "file",
        })
    }
}

/// The way in which a part gets onto huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// A huge copy is made elsewhere and moved into place by one `mremap`.
    Swap {
        /// The ranges to copy; the rest of the part has never been touched and is zero.
        copy: RangeSet,
    },
    /// For hugetlb before Linux 5.16, whose `mremap` refuses pool memory: moves the memory aside, maps huge pages in its
    /// place and copies back.
    MoveAside {
        /// The ranges to copy.
        copy: RangeSet,
        /// The mappings that make up the part: `mremap` moves one at a time.
        mappings: Vec<AddressRange>,
    },
    /// A shared image is mapped elsewhere and moved into place by one `mremap`.
    MapImage {
        /// The image's path.
        path: String,
        /// Offset in it.
        offset: u64,
    },
    /// The page table entries of an unchanged file mapping are removed and created again. They are huge if the file is
    /// in huge folios. The mapping stays.
    Refault,
    /// The file is mapped a second time elsewhere; one `mremap` moves the new mapping into place before its first
    /// access. For kernels that keep page tables which `MADV_DONTNEED` has emptied.
    MapAgain {
        /// Path by which the process itself opens the file.
        path: String,
        /// Offset in it.
        offset: u64,
    },
    /// Anonymous memory is advised in place, and its touched parts are collapsed.
    InPlace {
        /// Whole huge pages that hold touched memory.
        collapse: RangeSet,
    },
}

/// A run of whole huge pages that is lifted by one method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Addresses.
    pub range: AddressRange,
    /// The method; `way` in JSON.
    #[serde(rename = "way")]
    pub method: Method,
}

impl Part {
    /// The bytes that will be huge at once; an advised part becomes huge when it is touched.
    pub fn filled(&self) -> u64 {
        match &self.method {
            Method::Swap { .. }
            | Method::MoveAside { .. }
            | Method::MapImage { .. }
            | Method::Refault
            | Method::MapAgain { .. } => self.range.len(),
            Method::InPlace { collapse } => collapse.bytes(),
        }
    }
}

/// One way to lift a range; the next is tried if the kernel refuses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// Source.
    pub source: Source,
    /// Size of the huge pages.
    pub page_size: PageSize,
    /// Parts, which together are the range.
    pub parts: Vec<Part>,
    /// Bytes that become resident that were not.
    pub memory: u64,
    /// Memory policy of the new pages; `None`: the policy of the thread that allocates them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// A range of one protection that is to be lifted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RangeLift {
    /// Name of the object, `[heap]` for the brk area.
    pub object: String,
    /// The kinds of memory in it, in the order of addresses.
    pub kinds: Vec<Kind>,
    /// Whole huge pages.
    pub range: AddressRange,
    /// Protection, before and after (for read-only data wider than before if merging was requested).
    pub protection: Protection,
    /// Best first; never empty.
    pub attempts: Vec<Attempt>,
}

/// The change that would cover an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EdgeCure {
    /// Relinking with segments aligned to huge pages.
    Relink,
    /// `--edges merge-read-only`.
    MergeReadOnly,
}

/// The part of a range that does not fill a huge page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// Name of the object.
    pub object: String,
    /// Kinds in it.
    pub kinds: Vec<Kind>,
    /// Addresses.
    pub range: AddressRange,
    /// Its protection.
    pub protection: Protection,
    /// The change that would cover it.
    pub cure: EdgeCure,
}

/// A range that stays as it is, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Name of the object, `[heap]` for the brk area.
    pub object: String,
    /// Kinds in it.
    pub kinds: Vec<Kind>,
    /// Addresses.
    pub range: AddressRange,
    /// Why.
    pub reason: Reason,
}

/// The whole plan for one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The ranges to lift, most valuable first.
    pub lifts: Vec<RangeLift>,
    /// The refused ranges.
    pub refusals: Vec<Refusal>,
    /// Edges of ranges that are lifted.
    pub edges: Vec<Edge>,
    /// Bytes of all chosen memory: lifted, refused and edges.
    pub considered: u64,
}

impl Plan {
    /// Adds another plan of the same process.
    pub fn join(&mut self, other: Self) {
        self.lifts.extend(other.lifts);
        self.refusals.extend(other.refusals);
        self.edges.extend(other.edges);
        self.considered += other.considered;
    }

    /// Bytes on huge pages if every step succeeds, without advised memory.
    pub fn planned(&self) -> u64 {
        self.lifts.iter().map(|lift| lift.attempts[0].parts.iter().map(Part::filled).sum::<u64>()).sum()
    }

    /// Removes the blocks that are on huge pages already from the collapses in place: collapsing them again would
    /// change nothing, and costs nothing.
    pub fn without_collapses_of(mut self, huge: &RangeSet) -> Self {
        let attempts = self.lifts.iter_mut().flat_map(|lift| &mut lift.attempts);
        for part in attempts.flat_map(|attempt| &mut attempt.parts) {
            if let Method::InPlace { collapse } = &mut part.method {
                huge.within(part.range).for_each(|range| collapse.remove(range));
            }
        }
        self
    }

    /// Pool pages of one size that the first attempts take.
    pub fn pool_pages(&self, size: PageSize) -> u64 {
        let takes = |attempt: &&Attempt| attempt.source == Source::Hugetlb && attempt.page_size == size;
        let bytes: u64 = self
            .lifts
            .iter()
            .filter_map(|l| l.attempts.first())
            .filter(takes)
            .flat_map(|a| &a.parts)
            .map(|p| p.range.len())
            .sum();
        size.pages_for(bytes)
    }

    /// Pool pages that the first attempts take, by size, smallest first.
    pub fn pool_pages_by_size(&self) -> Vec<PoolPages> {
        let attempts = self.lifts.iter().filter_map(|lift| lift.attempts.first());
        let mut sizes: Vec<_> = attempts.filter(|a| a.source == Source::Hugetlb).map(|a| a.page_size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().map(|page_size| PoolPages { page_size, pages: self.pool_pages(page_size) }).collect()
    }
}

/// Pages of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolPages {
    /// Page size.
    pub page_size: PageSize,
    /// Number of pages.
    pub pages: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::Address;

    const PAGE: u64 = 1 << 21;

    fn range(first: u64, pages: u64) -> AddressRange {
        AddressRange::sized(Address(first * PAGE), pages * PAGE)
    }

    fn lift(source: Source, size: PageSize, parts: Vec<Part>) -> RangeLift {
        let (first, last) = (parts[0].range.start(), parts[parts.len() - 1].range.end());
        let attempt = Attempt { source, page_size: size, parts, memory: 0, placement: None };
        let range = AddressRange::new(first, last);
        let second = Attempt { source: Source::Hugetlb, ..attempt.clone() };
        let (object, kinds) = ("prog".into(), alloc::vec![Kind::Bss]);
        RangeLift { object, kinds, range, protection: Protection::READ_WRITE, attempts: alloc::vec![attempt, second] }
    }

    #[test]
    fn kinds_and_sources_have_the_names_that_users_write() {
        let kinds = [Kind::Text, Kind::Rodata, Kind::Data, Kind::Bss, Kind::Heap].map(|kind| kind.to_string());
        assert_eq!(kinds, ["text", "rodata", "data", "bss", "heap"]);
        let sources = [Source::Hugetlb, Source::Thp, Source::Image, Source::File].map(|source| source.to_string());
        assert_eq!(sources, ["hugetlb", "thp", "image", "file"]);
    }

    #[test]
    fn a_plan_counts_what_its_first_attempts_fill() {
        let (size, other) = (PageSize::new(PAGE).unwrap(), PageSize::new(2 * PAGE).unwrap());
        let swap = |range| Part { range, method: Method::Swap { copy: RangeSet::new() } };
        let image = |range| Part { range, method: Method::MapImage { path: String::new(), offset: 0 } };
        let in_place =
            |range, collapse| Part { range, method: Method::InPlace { collapse: RangeSet::from_iter([collapse]) } };
        let aside = |range| Part { range, method: Method::MoveAside { copy: RangeSet::new(), mappings: Vec::new() } };
        let lifts = alloc::vec![
            lift(Source::Hugetlb, size, alloc::vec![swap(range(0, 3)), aside(range(3, 2))]),
            lift(Source::Hugetlb, other, alloc::vec![swap(range(8, 4))]),
            lift(Source::Thp, size, alloc::vec![swap(range(16, 1)), in_place(range(17, 9), range(18, 2))]),
            lift(Source::Image, size, alloc::vec![image(range(32, 6))]),
            lift(Source::File, size, alloc::vec![Part { range: range(48, 7), method: Method::Refault }]),
        ];
        let plan = Plan { lifts, ..Plan::default() };
        assert_eq!(plan.planned(), (3 + 2 + 4 + 1 + 2 + 6 + 7) * PAGE);
        assert_eq!((plan.pool_pages(size), plan.pool_pages(other)), (5, 2));
        let both = [(size, 5), (other, 2)].map(|(page_size, pages)| PoolPages { page_size, pages });
        assert_eq!(plan.pool_pages_by_size(), both);
        assert_eq!(Plan::default().planned(), 0);
    }
}
