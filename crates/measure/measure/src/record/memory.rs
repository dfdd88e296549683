//! A process's memory as the kernel counts it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most ranges of a map.
const MOST_RANGES: usize = 1000;

/// The memory of a process, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Resident, pages of the hugetlb pool counted.
    pub resident: u64,
    /// Resident, each page shared out among the processes that map it (Pss of `smaps_rollup`), private pages of the hugetlb
    /// pool counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proportional: Option<u64>,
    /// On huge pages, by kind and size.
    pub huge: Vec<HugeBytes>,
    /// Page tables (`VmPTE` of `/proc/PID/status`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_tables: Option<u64>,
}

impl MemoryUse {
    /// Bytes on huge pages of any kind.
    pub fn huge_bytes(&self) -> u64 {
        self.huge.iter().fold(0, |sum, huge| sum.saturating_add(huge.bytes))
    }
}

/// Bytes on huge pages of one kind and size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugeBytes {
    /// `hugetlb`, `thp`, `tmpfs` or `file`.
    pub kind: String,
    /// Size of a page, if the kernel reports it.
    pub page_size: Option<u64>,
    /// Bytes on such pages.
    pub bytes: u64,
}

/// An address, written in hexadecimal: numbers of JSON lose precision above 2^53.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HexAddress(pub u64);

impl Serialize for HexAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:x}", self.0))
    }
}

impl<'de> Deserialize<'de> for HexAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        let number = u64::from_str_radix(digits, 16);
        number.map(Self).map_err(|_| serde::de::Error::custom("an address is hexadecimal text"))
    }
}

/// The mappings of a process and their pages, in the order of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressMap {
    /// Size of a base page in bytes.
    pub base_page: u64,
    /// The mappings.
    pub ranges: Vec<MapRange>,
    /// Mappings that were omitted, those with the least resident memory.
    #[serde(default)]
    pub left_out: LeftOut,
}

/// The omitted part of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Mappings.
    pub ranges: usize,
    /// Bytes of addresses.
    pub mapped: u64,
    /// Bytes resident.
    pub resident: u64,
}

/// One mapping. smaps counts pages of a mapping, without their positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRange {
    /// First address.
    pub start: HexAddress,
    /// The address behind the last.
    pub end: HexAddress,
    /// As in maps: `r-xp`.
    pub protection: String,
    /// `text`, `rodata`, `heap`, `stack`, `anonymous`, `file` and so on; several, with `+` between, if the kernel
    /// counts them together.
    pub kind: String,
    /// Name of the object or file; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// Bytes resident on pages of any size.
    pub resident: u64,
    /// Bytes that are on huge pages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub huge: Vec<HugeBytes>,
}

impl MapRange {
    /// Bytes of addresses.
    pub fn mapped(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }
}

impl AddressMap {
    /// A map with these mappings, which must be in the order of addresses, bounded to those with the most resident
    /// memory.
    pub fn new(base_page: u64, mut ranges: Vec<MapRange>) -> Self {
        let mut left_out = LeftOut::default();
        let mut by_size: Vec<usize> = (0..ranges.len()).collect();
        by_size.sort_by_key(|&at| std::cmp::Reverse((ranges[at].resident, ranges[at].mapped())));
        let mut is_kept = vec![false; ranges.len()];
        by_size.iter().take(MOST_RANGES).for_each(|&at| is_kept[at] = true);
        let mut kept = is_kept.into_iter();
        ranges.retain(|range| {
            let keeps = kept.next().unwrap_or(false);
            if !keeps {
                left_out.ranges += 1;
                left_out.mapped = left_out.mapped.saturating_add(range.mapped());
                left_out.resident = left_out.resident.saturating_add(range.resident);
            }
            keeps
        });
        Self { base_page, ranges, left_out }
    }

    pub(crate) fn is_bounded(&self) -> bool {
        self.ranges.len() <= MOST_RANGES
    }
}
