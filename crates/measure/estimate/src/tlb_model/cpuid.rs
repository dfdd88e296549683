//! The geometry that CPUID describes.

use crate::tlb_model::geometry::{ArrayShape, Geometry, Second, Sizes};
use crate::tlb_model::processors::Processor;

/// Registers of one leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// Why CPUID gives no geometry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuidError {
    /// The maker's leaves are not known.
    Maker(String),
    /// The CPU, or the virtual machine, describes no TLB of one kind, and the model is unknown.
    Missing(&'static str, Processor),
    /// There is no CPUID, and the model is unknown; `None`: not reported.
    Unknown(Option<Processor>),
}

impl std::fmt::Display for CpuidError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Maker(maker) => write!(f, "the form of CPUID of {maker:?} is not known"),
            Self::Missing(what, processor) => {
                write!(f, "CPUID describes no {what}, and the TLBs of {processor} are not known")
            }
            Self::Unknown(Some(processor)) => write!(f, "the TLBs of {processor} are not known"),
            Self::Unknown(None) => f.write_str("the kernel does not report which processor this is"),
        }
    }
}

impl std::error::Error for CpuidError {}

/// Reads the geometry from CPUID; `leaf` returns the registers of a leaf and subleaf.
///
/// Intel: leaf 0x18, and leaf 2 for older CPUs (Intel 325383, CPUID). AMD: 0x80000005, 0x80000006 and 0x80000019 (AMD
/// 24594, appendix E). Hypervisors may hide these leaves: then the geometry is taken from the model in leaf 1
/// ([`Processor::geometry`]), and [`Geometry::source`] reports that.
///
/// # Errors
/// [`CpuidError`].
pub fn geometry_of(leaf: impl Fn(u32, u32) -> Leaf) -> Result<Geometry, CpuidError> {
    let first = leaf(0, 0);
    let maker: Vec<u8> = [first.ebx, first.edx, first.ecx].iter().flat_map(|word| word.to_le_bytes()).collect();
    let described = match maker.as_slice() {
        b"GenuineIntel" => intel(&leaf, first.eax),
        b"AuthenticAMD" | b"HygonGenuine" => amd(&leaf),
        other => return Err(CpuidError::Maker(String::from_utf8_lossy(other).into_owned())),
    };
    described.or_else(|Missing(what)| {
        let processor = Processor::of_signature(&maker, leaf(1, 0).eax);
        processor.geometry().ok_or(CpuidError::Missing(what, processor))
    })
}

/// The TLB that CPUID does not describe.
struct Missing(&'static str);

const SMALL: u8 = 12;
const MIDDLE: u8 = 21;
/// 4 MiB pages exist only without 64-bit page tables; the entries hold 2 MiB pages with them.
const LARGE: u8 = 30;

fn intel(leaf: &impl Fn(u32, u32) -> Leaf, highest: u32) -> Result<Geometry, Missing> {
    let mut found = Found::default();
    if highest >= 0x18 {
        for subleaf in 0..=leaf(0x18, 0).eax.min(63) {
            found.take_parameters(leaf(0x18, subleaf));
        }
    }
    let source = if found.is_complete() {
        "CPUID leaf 0x18"
    } else {
        found = Found::default();
        if highest >= 2 {
            found.take_descriptors(leaf(2, 0));
        }
        "CPUID leaf 2"
    };
    found.into_geometry(source)
}

/// Arrays by side and level.
#[derive(Default)]
struct Found {
    instruction: Vec<ArrayShape>,
    data: Vec<ArrayShape>,
    second: Vec<ArrayShape>,
}

impl Found {
    fn is_complete(&self) -> bool {
        !self.instruction.is_empty() && !self.data.is_empty() && !self.second.is_empty()
    }

    fn into_geometry(self, source: &str) -> Result<Geometry, Missing> {
        let Self { instruction, data, second } = self;
        let lists = [(&instruction, "instruction TLB"), (&data, "data TLB"), (&second, "second level TLB")];
        if let Some((_, what)) = lists.into_iter().find(|(list, _)| list.is_empty()) {
            return Err(Missing(what));
        }
        let (name, source) = ("this CPU".to_owned(), source.to_owned());
        Ok(Geometry { name, source, instruction, data, second: Second::Shared(second), joined: None })
    }

    /// A subleaf of leaf 0x18, "Deterministic Address Translation Parameters".
    fn take_parameters(&mut self, Leaf { ebx, ecx, edx, .. }: Leaf) {
        let sizes: Vec<u8> = [(0, SMALL), (1, MIDDLE), (2, MIDDLE), (3, LARGE)]
            .iter()
            .filter(|(bit, _)| ebx >> bit & 1 == 1)
            .map(|(_, shift)| *shift)
            .collect();
        let (ways, sets) = ((ebx >> 16) as usize, ecx as usize);
        let entries = ways.saturating_mul(sets);
        let is_full = edx >> 8 & 1 == 1;
        let shape = ArrayShape::new(Sizes::of(&sizes), entries, if is_full { entries } else { ways });
        if sizes.is_empty() || !shape.is_sound() || entries > MOST_ENTRIES {
            return;
        }
        // Kinds 4 and 5 hold translations of loads only and of stores only.
        let list = match (edx & 0x1f, edx >> 5 & 7) {
            (1 | 4, 1) => &mut self.data,
            (2, 1) => &mut self.instruction,
            (1 | 3, 2) => &mut self.second,
            _ => return,
        };
        list.push(shape);
    }

    /// Leaf 2: a byte for each array (Intel 325383, table 3-12). Only the bytes of CPUs since Nehalem.
    fn take_descriptors(&mut self, leaf: Leaf) {
        let registers = [leaf.eax & !0xff, leaf.ebx, leaf.ecx, leaf.edx];
        let valid = registers.into_iter().filter(|register| register >> 31 == 0);
        for byte in valid.flat_map(u32::to_le_bytes) {
            let (list, shapes) = match byte {
                0x55 => (&mut self.instruction, vec![(&[MIDDLE][..], 7, 7)]),
                0x76 => (&mut self.instruction, vec![(&[MIDDLE][..], 8, 8)]),
                0xb5 => (&mut self.instruction, vec![(&[SMALL][..], 64, 8)]),
                0xb6 => (&mut self.instruction, vec![(&[SMALL][..], 128, 8)]),
                0xb2 => (&mut self.instruction, vec![(&[SMALL][..], 64, 4)]),
                0x5a => (&mut self.data, vec![(&[MIDDLE][..], 32, 4)]),
                0x63 => (&mut self.data, vec![(&[MIDDLE][..], 32, 4), (&[LARGE][..], 4, 4)]),
                0x64 => (&mut self.data, vec![(&[SMALL][..], 512, 4)]),
                0x03 => (&mut self.data, vec![(&[SMALL][..], 64, 4)]),
                0xc3 => (&mut self.second, vec![(&[SMALL, MIDDLE][..], 1536, 6), (&[LARGE][..], 16, 4)]),
                0xc1 => (&mut self.second, vec![(&[SMALL, MIDDLE][..], 1024, 8)]),
                0xca => (&mut self.second, vec![(&[SMALL][..], 512, 4)]),
                _ => continue,
            };
            list.extend(
                shapes.into_iter().map(|(sizes, entries, ways)| ArrayShape::new(Sizes::of(sizes), entries, ways)),
            );
        }
    }
}

/// More entries than any TLB has; a virtual machine may say anything.
const MOST_ENTRIES: usize = 1 << 16;

fn amd(leaf: &impl Fn(u32, u32) -> Leaf) -> Result<Geometry, Missing> {
    let highest = leaf(0x8000_0000, 0).eax;
    let at = |number: u32| if number <= highest { leaf(number, 0) } else { Leaf::default() };
    let (first, second, large) = (at(0x8000_0005), at(0x8000_0006), at(0x8000_0019));
    let (unit, source) = unit_of_second_level(at(0x8000_0021), leaf(1, 0), first, second);
    let first_level = |small: u32, middle: u32, large: u32, what| {
        // Eight bits of entries, eight of ways; each size is described as if it were alone.
        let described = |word: u32| described((word & 0xff) as usize, ways_in_full(word >> 8 & 0xff));
        merged(described(small), described(middle), described_second(large, 1)).ok_or(Missing(what))
    };
    let second_level = |small: u32, middle: u32, large: u32, what| {
        let described = |word| described_second(word, unit);
        merged(described(small), described(middle), described(large)).ok_or(Missing(what))
    };
    let (low, high) = (|word: u32| word & 0xffff, |word: u32| word >> 16);
    Ok(Geometry {
        name: "this CPU".to_owned(),
        source: source.to_owned(),
        instruction: first_level(low(first.ebx), low(first.eax), low(large.eax), "instruction TLB")?,
        data: first_level(high(first.ebx), high(first.eax), high(large.eax), "data TLB")?,
        second: Second::Split {
            instruction: second_level(
                low(second.ebx),
                low(second.eax),
                low(large.ebx),
                "second level instruction TLB",
            )?,
            data: second_level(high(second.ebx), high(second.eax), high(large.ebx), "second level data TLB")?,
        },
        joined: None,
    })
}

/// Entries per unit of the second level's numbers, and the source.
///
/// Zen 5 counts in units of 32 and sets a flag (AMD 24594, Fn8000_0021_EAX[14], L2TlbSizeX32). Hypervisors that do not
/// know the flag clear it and pass the numbers on (seen in a virtual machine on an EPYC 9005): a CPU of family 1Ah with
/// no more entries for code in the second level than in the first is such a case.
fn unit_of_second_level(features: Leaf, signature: Leaf, first: Leaf, second: Leaf) -> (usize, &'static str) {
    const ZEN_5: u32 = 0x1a;
    const LEAVES: &str = "CPUID 0x80000005, 0x80000006, 0x80000019";
    if features.eax >> 14 & 1 == 1 {
        return (32, LEAVES);
    }
    // Below 15 there is no extended family (AMD 24594, Fn0000_0001_EAX).
    let family = (signature.eax >> 8 & 0xf) + (signature.eax >> 20 & 0xff);
    let (in_first, in_second) = (first.ebx & 0xff, second.ebx & 0xfff);
    if family == ZEN_5 && in_second > 0 && in_second <= in_first {
        return (
            32,
            "CPUID 0x80000005, 0x80000006 in units of 32 entries, whose flag in 0x80000021 a hypervisor hides",
        );
    }
    (1, LEAVES)
}

/// Entries and ways of a table for one page size; no ways: fully associative.
type Described = Option<(usize, Option<usize>)>;

fn described(entries: usize, ways: Option<Option<usize>>) -> Described {
    (entries > 0).then_some(())?;
    Some((entries, ways?))
}

/// Eight bits that are the number of ways.
fn ways_in_full(bits: u32) -> Option<Option<usize>> {
    match bits {
        0 => None,
        0xff => Some(None),
        ways => Some(Some(ways as usize)),
    }
}

/// Twelve bits of entries, four of ways in code.
fn described_second(word: u32, unit: usize) -> Described {
    const CODES: [usize; 15] = [0, 1, 2, 3, 4, 6, 8, 0, 16, 0, 32, 48, 64, 96, 128];
    let ways = match word >> 12 & 0xf {
        0xf => Some(None),
        code => Some(CODES[code as usize]).filter(|ways| *ways > 0).map(Some),
    };
    described((word & 0xfff) as usize * unit, ways)
}

/// The arrays of one level and side. Where two sizes have as many entries, they share one array, with the ways of the
/// smaller: AMD's optimization guides describe one table, and CPUID describes it once for each size.
fn merged(small: Described, middle: Described, large: Described) -> Option<Vec<ArrayShape>> {
    let mut arrays: Vec<(usize, Option<usize>, Vec<u8>)> = Vec::new();
    for (described, shift) in [(small, SMALL), (middle, MIDDLE), (large, LARGE)] {
        let Some((entries, ways)) = described else { continue };
        match arrays.iter_mut().find(|(others, ..)| *others == entries) {
            Some((.., shifts)) => shifts.push(shift),
            None => arrays.push((entries, ways, vec![shift])),
        }
    }
    let shape = |(entries, ways, shifts): (usize, Option<usize>, Vec<u8>)| {
        ArrayShape::new(Sizes::of(&shifts), entries, ways.unwrap_or(entries))
    };
    let arrays: Vec<ArrayShape> = arrays.into_iter().map(shape).filter(ArrayShape::is_sound).collect();
    (!arrays.is_empty()).then_some(arrays)
}

#[cfg(test)]
mod tests;
