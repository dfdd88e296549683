//! Which processor this is, on 64-bit ARM.

/// The register MIDR_EL1 of the first CPU, which names implementer and part (Arm DDI 0487); `None` on x86-64, and if the
/// kernel does not show it (Documentation/arch/arm64/cpu-feature-registers.rst, Linux 4.11).
pub fn midr() -> Option<u64> {
    if !cfg!(target_arch = "aarch64") {
        return None;
    }
    let text = crate::text::text_of("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1").ok()?;
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}
