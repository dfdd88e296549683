//! Processors by vendor, family and model, for machines whose CPUID describes no TLB.

use crate::tlb_model::geometry::Geometry;
use crate::tlb_model::known::known_cpu;
use std::fmt;

/// Identification of a processor model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processor {
    /// x86-64: CPUID leaves 0 and 1.
    X86 {
        /// The twelve letters of leaf 0.
        vendor: String,
        /// Family, with the extended family added (Intel 325383, CPUID; AMD 24594, Fn0000_0001_EAX).
        family: u32,
        /// Model, with the extended model.
        model: u32,
    },
    /// AArch64: the register MIDR_EL1 (Arm DDI 0487).
    Arm {
        /// Bits 24 to 31: 0x41 for Arm.
        implementer: u32,
        /// Bits 4 to 15.
        part: u32,
    },
}

impl Processor {
    /// Reads the signature in EAX of leaf 1.
    pub fn of_signature(vendor: &[u8], signature: u32) -> Self {
        let (base, extended) = (signature >> 8 & 0xf, signature >> 20 & 0xff);
        let model = signature >> 4 & 0xf;
        Self::X86 {
            vendor: String::from_utf8_lossy(vendor).into_owned(),
            family: if base == 0xf { base + extended } else { base },
            model: if matches!(base, 6 | 0xf) { model | (signature >> 16 & 0xf) << 4 } else { model },
        }
    }

    /// Reads MIDR_EL1.
    pub fn of_midr(midr: u64) -> Self {
        Self::Arm { implementer: (midr >> 24 & 0xff) as u32, part: (midr >> 4 & 0xfff) as u32 }
    }

    /// The TLBs of this model; `None` for an unknown one.
    pub fn geometry(&self) -> Option<Geometry> {
        let known = known_cpu(self.name()?)?;
        Some(Geometry { source: format!("known for {self}: {}", known.source), ..known })
    }

    /// The name in [`crate::tlb_model::known_cpus`]. Models as in Linux's arch/x86/include/asm/intel-family.h, and for AMD in
    /// arch/x86/kernel/cpu/amd.c; parts as in arch/arm64/include/asm/cputype.h.
    fn name(&self) -> Option<&'static str> {
        Some(match self {
            Self::X86 { vendor, family: 6, model } if vendor == "GenuineIntel" => match model {
                0x3c | 0x3f | 0x45 | 0x46 => "haswell",
                0x3d | 0x47 | 0x4f | 0x56 => "broadwell",
                0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6 | 0x55 => "skylake-sp",
                0x6a | 0x6c => "ice-lake-sp",
                0x8f | 0xcf => "sapphire-rapids",
                0xad | 0xae => "granite-rapids",
                _ => return None,
            },
            Self::X86 { vendor, family, model } if vendor == "AuthenticAMD" => match (family, model) {
                (0x17, 0x00..=0x2f) => "zen1",
                (0x17, 0x30..=0xff) => "zen2",
                (0x19, 0x00..=0x0f | 0x20..=0x2f | 0x40..=0x5f) => "zen3",
                (0x19, 0x10..=0x1f | 0x60..=0xaf) => "zen4",
                (0x1a, 0x00..=0x4f | 0x60..=0x7f) => "zen5",
                _ => return None,
            },
            // Made from Zen 1.
            Self::X86 { vendor, family: 0x18, model: 0x00..=0x03 } if vendor == "HygonGenuine" => "zen1",
            Self::Arm { implementer: 0x41, part: 0xd0c } => "neoverse-n1",
            Self::Arm { implementer: 0x41, part: 0xd4f } => "neoverse-v2",
            _ => return None,
        })
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X86 { vendor, family, model } => write!(f, "{vendor} family {family}, model {model}"),
            Self::Arm { implementer, part } => write!(f, "implementer {implementer:#x}, part {part:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_and_registers_are_read_as_the_manuals_say() {
        let x86 = |vendor: &str, family, model| Processor::X86 { vendor: vendor.to_owned(), family, model };
        assert_eq!(Processor::of_signature(b"GenuineIntel", 0x000c_06f2), x86("GenuineIntel", 6, 207));
        assert_eq!(Processor::of_signature(b"AuthenticAMD", 0x00a1_0f11), x86("AuthenticAMD", 25, 17));
        assert_eq!(Processor::of_signature(b"GenuineIntel", 0x0000_0543), x86("GenuineIntel", 5, 4));
        assert_eq!(Processor::of_midr(0x413f_d0c1), Processor::Arm { implementer: 0x41, part: 0xd0c });
        assert_eq!(Processor::of_midr(0x413f_d0c1).geometry().unwrap().name, "neoverse-n1");
        assert_eq!(Processor::of_midr(0x480f_d010).geometry(), None);
        assert_eq!(x86("GenuineIntel", 6, 6).geometry(), None, "QEMU's virtual CPU");
        let source = x86("GenuineIntel", 6, 207).geometry().unwrap().source;
        assert!(source.starts_with("known for GenuineIntel family 6, model 207: "), "{source}");
    }
}
