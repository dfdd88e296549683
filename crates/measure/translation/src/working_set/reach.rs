//! The number of pages that the TLBs of this machine hold: as CPUID describes them, as is known for the model
//! ([`estimate::tlb_model::own_cpu`]), or as measured.

use estimate::tlb_model::{ArrayShape, Geometry, Second, own_cpu};
use serde::Serialize;

/// Sizes of pages as shifts, only on x86-64, since CPUID reports no others.
const CLASSES: [(PageClass, u8); 2] = [(PageClass::Base, 12), (PageClass::Huge, 21)];

/// The accesses that a TLB translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holds {
    /// Instruction fetches.
    Code,
    /// Loads and stores.
    Data,
    /// Both, in competition.
    Both,
}

/// Sizes of pages by the level of the page table that maps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageClass {
    /// 4 KiB on x86-64.
    Base,
    /// 2 MiB on x86-64.
    Huge,
}

/// One TLB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Level {
    /// 1 or 2.
    pub level: u8,
    /// The accesses that it translates.
    pub holds: Holds,
    /// Sizes of pages that it holds.
    pub pages: Vec<PageClass>,
    /// Entries.
    pub entries: u64,
}

/// Base pages that the last level was measured to hold (`pagelift probe`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeldPages {
    /// Pages of code; `None` if not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u64>,
    /// Pages of data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<u64>,
}

/// The TLBs of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reach {
    /// All that are described; none if the CPU describes none and its model is unknown.
    pub levels: Vec<Level>,
    /// Source of `levels`: leaves of CPUID, or the model that they are known for; why there are none.
    pub source: String,
    /// The measured pages, which are preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<HeldPages>,
}

impl Reach {
    /// The reach of the CPU that this thread runs on.
    pub fn of_this_cpu() -> Self {
        own_cpu(linux::processor::midr())
            .map_or_else(|error| Self { source: error.to_string(), ..Self::default() }, |geometry| Self::of(&geometry))
    }

    /// The reach of a CPU with these TLBs.
    pub fn of(geometry: &Geometry) -> Self {
        let second = match &geometry.second {
            Second::Shared(arrays) => vec![(Holds::Both, arrays)],
            Second::Split { instruction, data } => vec![(Holds::Code, instruction), (Holds::Data, data)],
        };
        let first = [(1, Holds::Code, &geometry.instruction), (1, Holds::Data, &geometry.data)];
        let arrays = first.into_iter().chain(second.into_iter().map(|(holds, arrays)| (2, holds, arrays)));
        let levels =
            arrays.flat_map(|(number, holds, arrays)| arrays.iter().map(move |array| level(number, holds, array)));
        let levels = levels.filter(|level| !level.pages.is_empty()).collect();
        Self { levels, source: geometry.source.clone(), measured: None }
    }

    /// Adds measured values. The others stay as described.
    #[must_use]
    pub fn with_measured(self, held: HeldPages) -> Self {
        let measured = (held != HeldPages::default()).then_some(held);
        Self { measured: measured.or(self.measured), ..self }
    }

    /// Base pages that the last level was measured to hold.
    pub fn measured_pages(&self, holds: Holds) -> Option<u64> {
        let HeldPages { code, data } = self.measured?;
        match holds {
            Holds::Code => code,
            Holds::Data => data,
            Holds::Both => code.zip(data).map(|(code, data)| code.min(data)),
        }
    }

    /// Base pages of code or data that the last level holds: as measured, otherwise the entries in CPUID.
    pub fn base_pages(&self, holds: Holds) -> Option<u64> {
        self.measured_pages(holds).or_else(|| self.entries(holds, PageClass::Base))
    }

    /// Entries of the last level that code or data with pages of this size can use; `None` if unknown. Code and data
    /// share them if [`Reach::shared`] is true.
    pub fn entries(&self, holds: Holds, page: PageClass) -> Option<u64> {
        let usable =
            |level: &&Level| (level.holds == holds || level.holds == Holds::Both) && level.pages.contains(&page);
        let last = self.levels.iter().filter(usable).map(|level| level.level).max()?;
        Some(self.levels.iter().filter(usable).filter(|level| level.level == last).map(|level| level.entries).sum())
    }

    /// True if code and data compete for the entries of the last level. If only its reach is known, by measurement,
    /// they may: most CPUs of AArch64 have one level for both.
    pub fn shared(&self) -> bool {
        if self.levels.is_empty() {
            return self.measured.is_some();
        }
        let last = self.levels.iter().map(|level| level.level).max();
        self.levels.iter().any(|level| Some(level.level) == last && level.holds == Holds::Both)
    }
}

fn level(number: u8, holds: Holds, array: &ArrayShape) -> Level {
    let pages = CLASSES.iter().filter(|(_, shift)| array.sizes.has(*shift)).map(|(class, _)| *class).collect();
    Level { level: number, holds, pages, entries: array.entries as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use estimate::tlb_model::{Leaf, geometry_of};

    type Dump = &'static [(u32, u32, [u32; 4])];

    fn reach(dump: Dump) -> Reach {
        let geometry = geometry_of(|leaf, subleaf| {
            let found = dump.iter().find(|(l, s, _)| (*l, *s) == (leaf, subleaf));
            let [eax, ebx, ecx, edx] = found.map_or([0; 4], |(_, _, registers)| *registers);
            Leaf { eax, ebx, ecx, edx }
        });
        geometry.map_or_else(|_| Reach::default(), |geometry| Reach::of(&geometry))
    }

    const INTEL: [u32; 4] = [0x20, 0x756e_6547, 0x6c65_746e, 0x4965_6e69];
    const AMD: [u32; 4] = [0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65];

    /// CPUID of a virtual machine on an EPYC of family 25, model 1 (Zen 3); read there.
    const ZEN_3: Dump = &[
        (0, 0, AMD),
        (0x8000_0000, 0, [0x8000_0023, 0, 0, 0]),
        (0x8000_0005, 0, [0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140]),
        (0x8000_0006, 0, [0x4800_2200, 0x6800_4200, 0x0200_6140, 0x0800_9140]),
        (0x8000_0021, 0, [0x204, 0, 0x86, 0]),
    ];

    #[test]
    fn amd_has_second_levels_of_its_own_for_code_and_data() {
        let reach = reach(ZEN_3);
        assert_eq!(reach.entries(Holds::Code, PageClass::Base), Some(512));
        assert_eq!(reach.entries(Holds::Data, PageClass::Base), Some(2048));
        assert_eq!(reach.entries(Holds::Code, PageClass::Huge), Some(512));
        assert!(!reach.shared() && reach.levels.iter().any(|l| l.level == 1 && l.entries == 64));
    }

    #[test]
    fn sizes_of_zen_5_are_in_units_of_32() {
        const ZEN_5: Dump = &[
            (0, 0, AMD),
            (0x8000_0000, 0, [0x8000_0023, 0, 0, 0]),
            (0x8000_0005, 0, [0xff40_ff40, 0xff40_ff40, 0, 0]),
            (0x8000_0006, 0, [0x6080_6040, 0x6080_6040, 0, 0]),
            (0x8000_0021, 0, [1 << 14, 0, 0, 0]),
        ];
        let reach = reach(ZEN_5);
        assert_eq!(reach.entries(Holds::Data, PageClass::Base), Some(4096));
        assert_eq!(reach.entries(Holds::Code, PageClass::Base), Some(2048));
    }

    #[test]
    fn intel_shares_its_second_level_and_huge_pages_reach_half_of_it() {
        // Leaf 0x18 as on Ice Lake-SP: L2 of 1,024 entries for 4 KiB and 2 MiB, and 1,024 for 4 KiB and 1 GiB.
        const ICE_LAKE: Dump = &[
            (0, 0, INTEL),
            (0x18, 0, [8, 0, 0, 0]),
            (0x18, 1, [0, 0x0008_0001, 16, 0x4022]),
            (0x18, 2, [0, 0x0008_0006, 2, 0x4022]),
            (0x18, 3, [0, 0x0010_000f, 1, 0x4125]),
            (0x18, 4, [0, 0x0004_0001, 16, 0x4024]),
            (0x18, 7, [0, 0x0008_0007, 0x80, 0x4043]),
            (0x18, 8, [0, 0x0008_0009, 0x80, 0x4043]),
        ];
        let reach = reach(ICE_LAKE);
        assert_eq!(reach.entries(Holds::Code, PageClass::Base), Some(2048));
        assert_eq!(reach.entries(Holds::Data, PageClass::Huge), Some(1024));
        assert!(reach.shared());
    }

    #[test]
    fn descriptors_are_read_where_there_is_no_leaf_0x18() {
        const SKYLAKE: Dump =
            &[(0, 0, [0x16, INTEL[1], INTEL[2], INTEL[3]]), (2, 0, [0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000])];
        let reach = reach(SKYLAKE);
        assert_eq!(reach.entries(Holds::Data, PageClass::Base), Some(1536));
        assert_eq!(reach.levels.iter().filter(|l| l.level == 1).count(), 4);
    }

    #[test]
    fn what_was_measured_counts_for_more_than_what_cpuid_tells() {
        let told = reach(ZEN_3);
        assert_eq!(told.base_pages(Holds::Data), Some(2048));
        let measured = told.clone().with_measured(HeldPages { code: None, data: Some(6144) });
        assert_eq!(measured.base_pages(Holds::Data), Some(6144));
        assert_eq!(measured.base_pages(Holds::Code), Some(512), "it was not measured");
        assert_eq!(measured.entries(Holds::Data, PageClass::Base), Some(2048), "CPUID's number stays known");
        assert_eq!(told.clone().with_measured(HeldPages::default()), told);
        let unknown = Reach::default().with_measured(HeldPages { code: Some(1024), data: Some(1280) });
        assert_eq!((unknown.base_pages(Holds::Code), unknown.shared()), (Some(1024), true));
    }

    #[test]
    fn a_cpu_that_is_neither_described_nor_known_has_no_levels() {
        let reach = reach(&[(0, 0, [0, INTEL[1], INTEL[2], INTEL[3]])]);
        assert_eq!(reach, Reach::default());
        assert_eq!((reach.entries(Holds::Code, PageClass::Base), reach.shared()), (None, false));
        let own = Reach::of_this_cpu();
        assert!(!own.source.is_empty(), "{own:?}");
    }
}
