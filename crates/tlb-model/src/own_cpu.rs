//! The TLBs of the CPU that this runs on.

use crate::cpuid::CpuidError;
use crate::geometry::Geometry;

/// The geometry that CPUID gives. A virtual machine sees what its host lets it see.
///
/// # Errors
/// [`CpuidError`].
#[cfg(target_arch = "x86_64")]
pub fn own_cpu() -> Result<Geometry, CpuidError> {
    crate::geometry_of(|number, subleaf| {
        let registers = raw_cpuid::native_cpuid::cpuid_count(number, subleaf);
        crate::Leaf { eax: registers.eax, ebx: registers.ebx, ecx: registers.ecx, edx: registers.edx }
    })
}

/// No register that a program can read describes the TLBs of a 64-bit ARM CPU.
///
/// # Errors
/// [`CpuidError::Architecture`].
#[cfg(not(target_arch = "x86_64"))]
pub fn own_cpu() -> Result<Geometry, CpuidError> {
    Err(CpuidError::Architecture)
}
