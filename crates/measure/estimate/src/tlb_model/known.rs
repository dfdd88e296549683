//! CPUs by name. Replacement is not published for any CPU; LRU is assumed, and a linear index unless a source is given.

use crate::tlb_model::geometry::{ArrayShape, Geometry, Index, Second, Sizes};

/// 4 KiB.
const K4: u8 = 12;
/// 2 MiB.
const M2: u8 = 21;
/// 1 GiB.
const G1: u8 = 30;

const SMALL: Sizes = Sizes::of(&[K4]);
const MIDDLE: Sizes = Sizes::of(&[M2]);
const LARGE: Sizes = Sizes::of(&[G1]);
const SMALL_MIDDLE: Sizes = Sizes::of(&[K4, M2]);
const SMALL_LARGE: Sizes = Sizes::of(&[K4, G1]);

/// The CPU of this name.
pub fn known_cpu(name: &str) -> Option<Geometry> {
    known_cpus().into_iter().find(|cpu| cpu.name == name)
}

/// All CPUs that have a name here, oldest of each maker first.
pub fn known_cpus() -> Vec<Geometry> {
    let mut cpus = vec![haswell(), broadwell(), skylake_sp(), ice_lake_sp(), sapphire_rapids(), granite_rapids()];
    cpus.extend(zen());
    cpus.extend([neoverse("neoverse-n1", 1280, 5, N1), neoverse("neoverse-v2", 2048, 8, V2)]);
    cpus
}

fn geometry(name: &str, source: &str, instruction: Vec<ArrayShape>, data: Vec<ArrayShape>, second: Second) -> Geometry {
    Geometry { name: name.to_owned(), source: source.to_owned(), instruction, data, second, joined: None }
}

/// Its second level has no entries for 1 GiB pages.
fn haswell() -> Geometry {
    let second = Second::Shared(vec![ArrayShape::new(SMALL_MIDDLE, 1024, 8)]);
    let source = "Intel 248966 (optimization manual), Haswell; CPUID leaf 2";
    geometry("haswell", source, haswell_instruction(), intel_data(), second)
}

fn broadwell() -> Geometry {
    let second = Second::Shared(vec![ArrayShape::new(SMALL_MIDDLE, 1536, 6), ArrayShape::new(LARGE, 16, 4)]);
    let source = "Intel 248966 (optimization manual), Broadwell; CPUID leaf 2";
    geometry("broadwell", source, haswell_instruction(), intel_data(), second)
}

fn haswell_instruction() -> Vec<ArrayShape> {
    vec![ArrayShape::new(SMALL, 128, 4), ArrayShape::full(MIDDLE, 8)]
}

/// First level for data since Haswell.
fn intel_data() -> Vec<ArrayShape> {
    vec![ArrayShape::new(SMALL, 64, 4), ArrayShape::new(MIDDLE, 32, 4), ArrayShape::full(LARGE, 4)]
}

/// Also Cascade Lake. The second level's index is from B. Gras et al., "Translation Leak-aside Buffer", USENIX Security
/// 2018, where it is called XOR-7.
fn skylake_sp() -> Geometry {
    let second = ArrayShape { index: Index::FoldedXor, ..ArrayShape::new(SMALL_MIDDLE, 1536, 12) };
    let instruction = vec![ArrayShape::new(SMALL, 128, 8), ArrayShape::full(MIDDLE, 8)];
    let source =
        "Intel 248966 (optimization manual), Skylake; CPUID leaf 2; index of the second level: Gras et al. 2018";
    let second = Second::Shared(vec![second, ArrayShape::new(LARGE, 16, 4)]);
    geometry("skylake-sp", source, instruction, intel_data(), second)
}

fn ice_lake_data() -> Vec<ArrayShape> {
    vec![ArrayShape::new(SMALL, 64, 4), ArrayShape::new(MIDDLE, 32, 4), ArrayShape::full(LARGE, 8)]
}

/// 2 MiB pages reach half of the second level.
fn ice_lake_second() -> Second {
    Second::Shared(vec![ArrayShape::new(SMALL_MIDDLE, 1024, 8), ArrayShape::new(SMALL_LARGE, 1024, 8)])
}

fn ice_lake_sp() -> Geometry {
    let instruction = vec![ArrayShape::new(SMALL, 128, 8), ArrayShape::full(MIDDLE, 16)];
    let source = "Intel 248966 (optimization manual), Ice Lake; second level: CPUID leaf 0x18";
    geometry("ice-lake-sp", source, instruction, ice_lake_data(), ice_lake_second())
}

/// Also Emerald Rapids.
fn sapphire_rapids() -> Geometry {
    let instruction = vec![ArrayShape::new(SMALL, 256, 8), ArrayShape::new(MIDDLE, 32, 8)];
    let source = "CPUID leaf 0x18";
    geometry("sapphire-rapids", source, instruction, ice_lake_data(), ice_lake_second())
}

/// More entries for data in the first level.
fn granite_rapids() -> Geometry {
    let data = vec![ArrayShape::new(SMALL, 96, 6), ArrayShape::new(MIDDLE, 32, 4), ArrayShape::full(LARGE, 8)];
    Geometry { name: "granite-rapids".to_owned(), data, ..sapphire_rapids() }
}

/// The first levels hold all sizes in any entry. 1 GiB pages are held as 2 MiB pages in the second level for data.
fn zen() -> [Geometry; 5] {
    const ZEN: &str = "CPUID 0x80000005, 0x80000006; ways: AMD's software optimization guides 55723 (Zen 1), 56305 (Zen 2), 56665 (Zen 3), \
                       57647 (Zen 4), 58455 (Zen 5)";
    // Name, first level for data, second level for instructions and its ways, second level for data and its ways.
    let numbers = [
        ("zen1", 64, 1024, 8, 1536, 12),
        ("zen2", 64, 1024, 8, 2048, 16),
        ("zen3", 64, 512, 8, 2048, 16),
        ("zen4", 72, 512, 8, 3072, 24),
        ("zen5", 96, 2048, 8, 4096, 16),
    ];
    numbers.map(|(name, data, instruction2, instruction_ways, data2, data_ways)| {
        let second = Second::Split {
            instruction: vec![ArrayShape::new(SMALL_MIDDLE, instruction2, instruction_ways)],
            data: vec![ArrayShape::new(SMALL_MIDDLE, data2, data_ways)],
        };
        let first = |entries| vec![ArrayShape::full(Sizes::ALL, entries)];
        geometry(name, ZEN, first(64), first(data), second)
    })
}

const N1: &str = "Arm 100616, Neoverse N1 technical reference manual, Memory Management Unit";
const V2: &str = "Arm 102375, Neoverse V2 technical reference manual, Memory management";

/// 48 entries for each side, which hold every size.
fn neoverse(name: &str, second: usize, ways: usize, source: &str) -> Geometry {
    let first = || vec![ArrayShape::full(Sizes::ALL, 48)];
    let second = Second::Shared(vec![ArrayShape::new(Sizes::ALL, second, ways)]);
    geometry(name, source, first(), first(), second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_is_sound_and_found_by_its_name() {
        for cpu in known_cpus() {
            assert!(cpu.arrays().all(ArrayShape::is_sound), "{cpu:?}");
            assert!(!cpu.source.is_empty());
            assert_eq!(known_cpu(&cpu.name), Some(cpu));
        }
        assert_eq!(known_cpu("z80"), None);
    }
}
