//! The TLBs of the CPU that this runs on.

use crate::tlb_model::cpuid::CpuidError;
use crate::tlb_model::geometry::Geometry;

/// The geometry that CPUID describes, or that is known for the model. A virtual machine sees the CPUID that its host
/// provides. `midr` is for AArch64.
///
/// # Errors
/// [`CpuidError`].
#[cfg(target_arch = "x86_64")]
pub fn own_cpu(_midr: Option<u64>) -> Result<Geometry, CpuidError> {
    crate::tlb_model::geometry_of(|number, subleaf| {
        let registers = raw_cpuid::native_cpuid::cpuid_count(number, subleaf);
        crate::tlb_model::Leaf { eax: registers.eax, ebx: registers.ebx, ecx: registers.ecx, edx: registers.edx }
    })
}

/// The geometry that is known for the model in MIDR_EL1. No register that a program can read describes the TLBs of a 64-bit ARM
/// CPU.
///
/// # Errors
/// [`CpuidError::Unknown`].
#[cfg(not(target_arch = "x86_64"))]
pub fn own_cpu(midr: Option<u64>) -> Result<Geometry, CpuidError> {
    let processor = midr.map(crate::tlb_model::Processor::of_midr);
    processor.as_ref().and_then(crate::tlb_model::Processor::geometry).ok_or(CpuidError::Unknown(processor))
}
