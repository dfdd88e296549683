//! Decodes the raw records of AMD's instruction-based sampling (IBS). Pure.
//!
//! A record of `PERF_SAMPLE_RAW` has 32 bits of capabilities (EAX of CPUID 0x8000001b) and then registers of 64 bits each
//! (Linux, arch/x86/events/amd/ibs.c). The fields are from arch/x86/include/asm/amd/ibs.h and AMD's Processor Programming
//! Reference of family 19h model 01h (55898); tools/perf/util/amd-sample-raw.c prints the same registers. Zen 5 has its TLB
//! fields in another form (Linux 6.15, commit 0b347a4218da).

use crate::walk_counters::{CpuIdentity, What};

/// CPUID 0x8000001b, EAX: the record of a fetch ends with the register IC_IBS_EXTD_CTL.
pub(super) const FETCH_CTL_EXTENDED: u32 = 1 << 9;
/// CPUID 0x8000001b, EAX: IBS_OP_DATA3 has the page's size in bits 4 and 5; these and the TLB misses are only valid with a
/// valid physical address (Zen 5).
pub(super) const OP_PAGE_SIZE: u32 = 1 << 19;

const CAPABILITIES: usize = size_of::<u32>();

/// Positions of registers in the record of an operation.
const OP_CTL: usize = 0;
const OP_DATA3: usize = 4;
/// Positions of registers in the record of a fetch.
const FETCH_CTL: usize = 0;
const FETCH_EXTENDED: usize = 3;

/// A translation that the first TLB did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refill {
    /// Core cycles from the request to the first TLB's new entry.
    pub cycles: u16,
    /// Size of the page, as in the event for its walks; `None` if the CPU does not report it.
    pub page: Option<What>,
}

/// The facts about an address in one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// There was none: no memory was accessed, the fetch was given up, or this is no whole record.
    None,
    /// The record does not show the address's translation, or its duration.
    Hidden,
    /// The first TLB had it.
    L1Hit,
    /// The second TLB had it.
    L2Hit(Refill),
    /// It took a page walk.
    Walk(Refill),
}

/// One raw record.
struct Registers<'a> {
    capabilities: u32,
    bytes: &'a [u8],
}

impl<'a> Registers<'a> {
    fn of(record: &'a [u8]) -> Option<Self> {
        let (capabilities, bytes) = record.split_at_checked(CAPABILITIES)?;
        Some(Self { capabilities: u32::from_le_bytes(capabilities.try_into().ok()?), bytes })
    }

    fn at(&self, index: usize) -> Option<u64> {
        let first = index * size_of::<u64>();
        self.bytes.get(first..first + size_of::<u64>())?.try_into().ok().map(u64::from_le_bytes)
    }
}

fn bit(register: u64, number: u32) -> bool {
    register >> number & 1 == 1
}

fn bits(register: u64, first: u32, count: u32) -> u16 {
    u16::try_from(register >> first & ((1 << count) - 1)).unwrap_or(u16::MAX)
}

/// The translation of the load or store of a retired operation, from a record of the PMU `ibs_op`.
pub fn data(record: &[u8]) -> Translation {
    let Some(registers) = Registers::of(record) else { return Translation::None };
    let (Some(control), Some(data)) = (registers.at(OP_CTL), registers.at(OP_DATA3)) else { return Translation::None };
    let (enabled, valid, load, store, linear_valid) =
        (bit(control, 17), bit(control, 18), bit(data, 0), bit(data, 1), bit(data, 17));
    if !(enabled && valid && (load || store) && linear_valid) {
        return Translation::None;
    }
    let with_size = registers.capabilities & OP_PAGE_SIZE != 0;
    if with_size && !bit(data, 18) {
        return Translation::Hidden;
    }
    let (missed_l1, missed_l2, cycles) = (bit(data, 2), bit(data, 3), bits(data, 48, 16));
    let page = match (with_size, missed_l2) {
        (true, _) => page(bits(data, 4, 2)),
        (false, true) => None,
        (false, false) if bit(data, 19) => Some(What::Walks1G),
        (false, false) if bit(data, 6) => Some(What::Walks2M),
        (false, false) => Some(What::Walks4K),
    };
    refilled(missed_l1, missed_l2, Some(cycles), page)
}

/// The translation of the address of an instruction fetch, from a record of the PMU `ibs_fetch`.
pub fn code(record: &[u8], cpu: &CpuIdentity) -> Translation {
    let Some(registers) = Registers::of(record) else { return Translation::None };
    let Some(control) = registers.at(FETCH_CTL) else { return Translation::None };
    let (enabled, valid, complete) = (bit(control, 48), bit(control, 49), bit(control, 50));
    if !(enabled && valid && complete) {
        return Translation::None;
    }
    let extended = registers.at(FETCH_EXTENDED).filter(|_| registers.capabilities & FETCH_CTL_EXTENDED != 0);
    let cycles = extended.map(|extended| bits(extended, 0, 16));
    let size = bits(control, 53, 2);
    let page = match (bit(control, 52), has_erratum_1347(cpu)) {
        (false, _) => None,
        (true, false) => page(size),
        (true, true) => {
            [What::Walks4K, What::WalksCoalesced, What::Walks2M, What::Walks1G].get(usize::from(size)).copied()
        }
    };
    refilled(bit(control, 55), bit(control, 56), cycles, page)
}

/// Sizes of pages by the number that both kinds of records have for them.
fn page(number: u16) -> Option<What> {
    [What::Walks4K, What::Walks2M, What::Walks1G].get(usize::from(number)).copied()
}

/// Zen 3, models 00h to 0fh: a fetch has 1 for coalesced pages of 16 KiB and one more for each larger size (AMD's revision
/// guide 56683, erratum 1347).
fn has_erratum_1347(cpu: &CpuIdentity) -> bool {
    cpu.family == 0x19 && cpu.model < 0x10
}

/// A refill takes time: one of no cycles was somebody else's, or was not measured.
fn refilled(missed_l1: bool, missed_l2: bool, cycles: Option<u16>, page: Option<What>) -> Translation {
    match (missed_l1, missed_l2, cycles) {
        (false, _, _) => Translation::L1Hit,
        (true, _, None | Some(0)) => Translation::Hidden,
        (true, false, Some(cycles)) => Translation::L2Hit(Refill { cycles, page }),
        (true, true, Some(cycles)) => Translation::Walk(Refill { cycles, page }),
    }
}

#[cfg(test)]
mod tests;
