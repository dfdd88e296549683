use super::*;

const fn leaf(eax: u32, ebx: u32, ecx: u32, edx: u32) -> Leaf {
    Leaf { eax, ebx, ecx, edx }
}

fn dump(leaves: &[(u32, u32, Leaf)]) -> Result<Geometry, CpuidError> {
    geometry_of(|number, sub| {
        let found = leaves.iter().find(|(n, s, _)| (*n, *s) == (number, sub));
        found.map_or_else(Leaf::default, |(.., leaf)| *leaf)
    })
}

const INTEL: Leaf =
    leaf(0x20, u32::from_le_bytes(*b"Genu"), u32::from_le_bytes(*b"ntel"), u32::from_le_bytes(*b"ineI"));
const AMD: Leaf = leaf(0x10, u32::from_le_bytes(*b"Auth"), u32::from_le_bytes(*b"cAMD"), u32::from_le_bytes(*b"enti"));

/// Recorded on an EPYC 7003 (family 25, model 1).
#[test]
fn zen_3_as_recorded() {
    let geometry = dump(&[
        (0, 0, AMD),
        (0x8000_0000, 0, leaf(0x8000_0021, 0, 0, 0)),
        (0x8000_0005, 0, leaf(0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140)),
        (0x8000_0006, 0, leaf(0x4800_2200, 0x6800_4200, 0x0200_6140, 0x0800_9140)),
        (0x8000_0021, 0, leaf(0x204, 0, 0x86, 0)),
    ]);
    let geometry = geometry.unwrap();
    let both = Sizes::of(&[SMALL, MIDDLE]);
    assert_eq!(geometry.instruction, [ArrayShape::full(both, 64)]);
    assert_eq!(geometry.data, [ArrayShape::full(both, 64)]);
    let second =
        Second::Split { instruction: vec![ArrayShape::new(both, 512, 4)], data: vec![ArrayShape::new(both, 2048, 8)] };
    assert_eq!(geometry.second, second);
}

/// Zen 5 gives 64 × 32 and 128 × 32.
#[test]
fn fields_are_multiplied_where_cpuid_says_so() {
    let leaves = |multiplied: u32| {
        [
            (0, 0, AMD),
            (0x8000_0000, 0, leaf(0x8000_0021, 0, 0, 0)),
            (0x8000_0005, 0, leaf(0xff60_ff40, 0xff60_ff40, 0, 0)),
            (0x8000_0006, 0, leaf(0x8080_6040, 0x8080_6040, 0, 0)),
            (0x8000_0021, 0, leaf(multiplied << 14, 0, 0, 0)),
        ]
    };
    let entries = |multiplied| match dump(&leaves(multiplied)).unwrap().second {
        Second::Split { instruction, data } => (instruction[0].entries, data[0].entries, data[0].ways),
        Second::Shared(_) => unreachable!(),
    };
    assert_eq!(entries(1), (2048, 4096, 16));
    assert_eq!(entries(0), (64, 128, 16));
}

/// Recorded in a virtual machine on an EPYC 9005 (family 1Ah, model 2), whose hypervisor clears the flag.
#[test]
fn zen_5_is_recognised_where_the_flag_is_hidden() {
    let of = |signature: u32, numbers: u32| {
        let leaves = [
            (0, 0, AMD),
            (1, 0, leaf(signature, 0, 0, 0)),
            (0x8000_0000, 0, leaf(0x8000_0021, 0, 0, 0)),
            (0x8000_0005, 0, leaf(0xff60_ff40, 0xff60_ff40, 0x300c_0140, 0x2008_0140)),
            (0x8000_0006, 0, leaf(0x4080_2040, numbers, 0x0400_8140, 0x0c00_9140)),
            (0x8000_0021, 0, leaf(0x204, 0, 0x86, 0)),
        ];
        let geometry = dump(&leaves).unwrap();
        match geometry.second {
            Second::Split { instruction, data } => {
                (instruction[0].entries, data[0].entries, geometry.source.contains("units of 32"))
            }
            Second::Shared(_) => unreachable!(),
        }
    };
    const ZEN_5: u32 = 0x00b0_0f21;
    const ZEN_4: u32 = 0x00a1_0f11;
    const RECORDED: u32 = 0x6080_4040;
    assert_eq!(of(ZEN_5, RECORDED), (2048, 4096, true));
    assert_eq!(of(ZEN_4, RECORDED), (64, 128, false));
    // A hypervisor that has put whole numbers there.
    assert_eq!(of(ZEN_5, 0x6800_4800), (2048, 2048, false));
}

/// The arrays of Sapphire Rapids in the form of leaf 0x18: bits of sizes, ways and sets, kind and level.
#[test]
fn leaf_0x18_as_sapphire_rapids_describes_itself() {
    let parameters = |subleaf, sizes: u32, ways: u32, sets, kind: u32, level: u32| {
        (0x18, subleaf, leaf(if subleaf == 0 { 8 } else { 0 }, ways << 16 | sizes, sets, level << 5 | kind))
    };
    let geometry = dump(&[
        (0, 0, INTEL),
        parameters(0, 0, 0, 0, 0, 0),
        parameters(1, 0b0001, 8, 32, 2, 1),
        parameters(2, 0b0110, 8, 4, 2, 1),
        parameters(3, 0b0001, 4, 16, 4, 1),
        parameters(4, 0b0110, 4, 8, 4, 1),
        parameters(5, 0b1000, 8, 1, 4, 1),
        parameters(6, 0b1111, 16, 1, 5, 1),
        parameters(7, 0b0111, 8, 128, 3, 2),
        parameters(8, 0b1001, 8, 128, 3, 2),
    ]);
    let (geometry, known) = (geometry.unwrap(), crate::tlb_model::known_cpu("sapphire-rapids").unwrap());
    assert_eq!(geometry.instruction, known.instruction);
    assert_eq!(geometry.data, known.data);
    assert_eq!(geometry.second, known.second);
}

/// The bytes of Skylake; its leaf 0x18 is empty, as is the first word, which holds the number of calls.
#[test]
fn leaf_2_where_there_is_no_other() {
    let geometry = dump(&[(0, 0, INTEL), (2, 0, leaf(0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000))]).unwrap();
    assert_eq!(geometry.source, "CPUID leaf 2");
    assert_eq!(geometry.instruction.len() + geometry.data.len(), 5);
    let Second::Shared(second) = geometry.second else { panic!("split") };
    assert_eq!((second[0].entries, second[0].ways, second[1].entries), (1536, 6, 16));
}

#[test]
fn what_is_neither_described_nor_known_is_an_error() {
    let unknown = |vendor: &str| Processor::X86 { vendor: vendor.to_owned(), family: 0, model: 0 };
    let missing = |vendor| Err(CpuidError::Missing("instruction TLB", unknown(vendor)));
    assert_eq!(dump(&[(0, 0, INTEL)]), missing("GenuineIntel"));
    assert_eq!(dump(&[(0, 0, AMD)]), missing("AuthenticAMD"));
    let maker = leaf(1, u32::from_le_bytes(*b"Cyri"), u32::from_le_bytes(*b"tead"), u32::from_le_bytes(*b"xIns"));
    assert_eq!(dump(&[(0, 0, maker)]), Err(CpuidError::Maker("CyrixInstead".to_owned())));
}
