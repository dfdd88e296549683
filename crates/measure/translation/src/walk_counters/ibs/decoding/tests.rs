//! Records as CPUs of each generation give them.

use super::*;
use proptest::prelude::*;

/// EAX of CPUID 0x8000001b.
const ZEN_2: u32 = 0x3ff;
const ZEN_4: u32 = 0xbff;
const ZEN_5: u32 = 0x8_1bff;
const OP_VALID: u64 = 1 << 17 | 1 << 18;
const LOAD: u64 = 1 | 1 << 17;
const STORE: u64 = 1 << 1 | 1 << 17;
const PHYSICAL: u64 = 1 << 18;
const MISSED_L1: u64 = 1 << 2;
const MISSED_BOTH: u64 = 1 << 2 | 1 << 3;
const FETCHED: u64 = 1 << 48 | 1 << 49 | 1 << 50;
const FETCH_PHYSICAL: u64 = 1 << 52;
const FETCH_MISSED_L1: u64 = 1 << 55;
const FETCH_MISSED_BOTH: u64 = 1 << 55 | 1 << 56;

fn record(capabilities: u32, registers: &[u64]) -> Vec<u8> {
    let mut bytes = capabilities.to_le_bytes().to_vec();
    registers.iter().for_each(|register| bytes.extend(register.to_le_bytes()));
    bytes
}

/// IBS_OP_CTL, RIP, DATA, DATA2, DATA3, both addresses, the branch's target.
fn operation(capabilities: u32, data3: u64, cycles: u16) -> Vec<u8> {
    let data3 = data3 | u64::from(cycles) << 48;
    record(capabilities, &[OP_VALID, 0x40_1000, 0, 0, data3, 0x7f00_0000, 0x1_0000, 0])
}

/// IBS_FETCH_CTL, both addresses, IC_IBS_EXTD_CTL.
fn fetch(capabilities: u32, control: u64, cycles: u16) -> Vec<u8> {
    let mut registers = vec![control, 0x40_1000, 0x1_0000];
    if capabilities & FETCH_CTL_EXTENDED != 0 {
        registers.push(u64::from(cycles));
    }
    record(capabilities, &registers)
}

fn cpu(family: u64, model: u64) -> CpuIdentity {
    CpuIdentity { vendor: "AuthenticAMD".to_owned(), family, model, ..CpuIdentity::default() }
}

const fn refill(cycles: u16, page: Option<What>) -> Refill {
    Refill { cycles, page }
}

#[test]
fn zen_1_to_4_tell_the_page_of_a_hit_only() {
    for capabilities in [ZEN_2, ZEN_4] {
        let of = |data3, cycles| data(&operation(capabilities, data3, cycles));
        assert_eq!(of(LOAD, 0), Translation::L1Hit);
        assert_eq!(of(LOAD | MISSED_L1, 7), Translation::L2Hit(refill(7, Some(What::Walks4K))));
        assert_eq!(of(STORE | MISSED_L1 | 1 << 6, 8), Translation::L2Hit(refill(8, Some(What::Walks2M))));
        assert_eq!(of(LOAD | MISSED_L1 | 1 << 19, 8), Translation::L2Hit(refill(8, Some(What::Walks1G))));
        // Without a physical address, too.
        assert_eq!(of(LOAD | MISSED_BOTH, 41), Translation::Walk(refill(41, None)));
        assert_eq!(of(STORE | MISSED_BOTH, u16::MAX), Translation::Walk(refill(u16::MAX, None)));
    }
}

#[test]
fn zen_5_has_sizes_and_valid_fields_with_a_physical_address_only() {
    let of = |data3| data(&operation(ZEN_5, data3, 50));
    assert_eq!(of(LOAD | MISSED_BOTH | PHYSICAL), Translation::Walk(refill(50, Some(What::Walks4K))));
    assert_eq!(of(LOAD | MISSED_BOTH | PHYSICAL | 1 << 4), Translation::Walk(refill(50, Some(What::Walks2M))));
    assert_eq!(of(LOAD | MISSED_L1 | PHYSICAL | 2 << 4), Translation::L2Hit(refill(50, Some(What::Walks1G))));
    assert_eq!(of(LOAD | MISSED_BOTH | PHYSICAL | 3 << 4), Translation::Walk(refill(50, None)));
    assert_eq!(of(LOAD | MISSED_BOTH), Translation::Hidden);
    assert_eq!(of(LOAD), Translation::Hidden);
}

#[test]
fn operations_without_memory_and_invalid_records_say_nothing() {
    assert_eq!(data(&operation(ZEN_2, MISSED_BOTH, 41)), Translation::None);
    assert_eq!(data(&operation(ZEN_2, 1 | MISSED_BOTH, 41)), Translation::None, "no linear address");
    let mut invalid = operation(ZEN_2, LOAD | MISSED_BOTH, 41);
    invalid[CAPABILITIES + 2] = 0;
    assert_eq!(data(&invalid), Translation::None);
    let whole = operation(ZEN_2, LOAD | MISSED_BOTH, 41);
    assert_eq!(data(&whole[..CAPABILITIES + OP_DATA3 * 8 + 7]), Translation::None);
    assert_eq!(data(&operation(ZEN_2, LOAD | MISSED_BOTH, 0)), Translation::Hidden, "a walk takes time");
}

#[test]
fn a_fetch_has_its_time_in_the_extended_register() {
    let zen_2 = cpu(0x17, 0x31);
    let of = |control, cycles| code(&fetch(ZEN_2, control, cycles), &zen_2);
    assert_eq!(of(FETCHED, 0), Translation::L1Hit);
    assert_eq!(of(FETCHED | FETCH_MISSED_L1, 9), Translation::L2Hit(refill(9, None)));
    let walk = FETCHED | FETCH_MISSED_BOTH | FETCH_PHYSICAL;
    assert_eq!(of(walk | 1 << 53, 60), Translation::Walk(refill(60, Some(What::Walks2M))));
    assert_eq!(of(walk | 2 << 53, 60), Translation::Walk(refill(60, Some(What::Walks1G))));
    assert_eq!(of(walk | 3 << 53, 60), Translation::Walk(refill(60, None)));
    let unfinished = walk & !(1 << 50);
    assert_eq!(of(unfinished, 60), Translation::None);
    let without = ZEN_2 & !FETCH_CTL_EXTENDED;
    assert_eq!(code(&fetch(without, walk, 60), &zen_2), Translation::Hidden);
    // The register of another kind of record is none of this.
    assert_eq!(code(&record(without, &[walk, 0, 0, 60]), &zen_2), Translation::Hidden);
}

#[test]
fn zen_3_numbers_the_pages_of_fetches_otherwise() {
    let walk = FETCHED | FETCH_MISSED_BOTH | FETCH_PHYSICAL;
    let page = |cpu: &CpuIdentity, number: u64| match code(&fetch(ZEN_4, walk | number << 53, 60), cpu) {
        Translation::Walk(refill) => refill.page,
        other => panic!("{other:?}"),
    };
    let sizes = |cpu: CpuIdentity| [0, 1, 2, 3].map(|number| page(&cpu, number));
    let (small, huge, largest) = (Some(What::Walks4K), Some(What::Walks2M), Some(What::Walks1G));
    assert_eq!(sizes(cpu(0x19, 0x01)), [small, Some(What::WalksCoalesced), huge, largest]);
    assert_eq!(sizes(cpu(0x19, 0x11)), [small, huge, largest, None]);
    assert_eq!(sizes(cpu(0x1a, 0x02)), [small, huge, largest, None]);
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..96), family in 0_u64..0x20, model in 0_u64..0x80) {
        let _ = data(&bytes);
        let _ = code(&bytes, &cpu(family, model));
    }

    #[test]
    fn the_time_of_a_walk_is_the_register_s(
        capabilities: u32, data3: u64, control: u64, cycles in 1_u16..,
    ) {
        let fixed = LOAD | MISSED_BOTH | PHYSICAL;
        let walk = data(&operation(capabilities, data3 & !(0xffff << 48) | fixed, cycles));
        prop_assert!(matches!(walk, Translation::Walk(refill) if refill.cycles == cycles), "{walk:?}");
        let capabilities = capabilities | FETCH_CTL_EXTENDED;
        let walk = code(&fetch(capabilities, control | FETCHED | FETCH_MISSED_BOTH, cycles), &cpu(0x19, 0x11));
        prop_assert!(matches!(walk, Translation::Walk(refill) if refill.cycles == cycles), "{walk:?}");
    }
}
