//! How this machine tells other CPUs to forget translations, and what of it cannot be seen.

use serde::Serialize;
use std::fmt;

/// A way of flushing that tracepoints and `/proc/interrupts` show in part or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unseen {
    /// AMD's INVLPGB, used since Linux 6.15.
    AmdBroadcast,
    /// KVM's paravirtual flush.
    KvmParavirtual,
    /// Hyper-V's hypercall.
    HyperV,
    /// Arm's broadcast of TLB maintenance.
    ArmBroadcast,
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AmdBroadcast => {
                "this CPU has INVLPGB: since Linux 6.15 a process active on 4 CPUs and more is flushed by broadcast, which \
                 sends no interrupt and is not counted here"
            }
            Self::KvmParavirtual => {
                "KVM's paravirtual flush is on: virtual CPUs that the host has descheduled are not interrupted, so that fewer \
                 flushes are received than were asked for"
            }
            Self::HyperV => {
                "Hyper-V flushes by a hypercall, which tlb:tlb_flush does not show; needed: the tracepoint \
                 hyperv:hyperv_mmu_flush_tlb_multi"
            }
            Self::ArmBroadcast => {
                "Arm CPUs broadcast TLB maintenance in hardware: no interrupt is sent and no CPU is stopped, but each broadcast \
                 is waited for; counted are the calls that cause them"
            }
        })
    }
}

/// What is known of this machine.
pub fn unseen() -> Vec<Unseen> {
    let mut found = hypervisor();
    let flags = linux::text::bytes_of("/proc/cpuinfo").unwrap_or_default();
    if has_flag(&String::from_utf8_lossy(&flags), "invlpgb") {
        found.push(Unseen::AmdBroadcast);
    }
    if cfg!(target_arch = "aarch64") {
        found.push(Unseen::ArmBroadcast);
    }
    found
}

/// True where the first CPU of `/proc/cpuinfo` has this flag.
fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.is_some_and(|(_, flags)| flags.split_whitespace().any(|found| found == flag))
}

#[cfg(target_arch = "x86_64")]
fn hypervisor() -> Vec<Unseen> {
    use raw_cpuid::{CpuId, Hypervisor, native_cpuid::cpuid_count};
    // Linux, Documentation/virt/kvm/x86/cpuid.rst: features in EAX, hints in EDX.
    const KVM_FEATURES: u32 = 0x4000_0001;
    const PARAVIRTUAL_FLUSH: u32 = 1 << 9;
    const NEVER_DESCHEDULED: u32 = 1;
    let Some(info) = CpuId::new().get_hypervisor_info() else { return Vec::new() };
    match info.identify() {
        Hypervisor::KVM => {
            let leaf = cpuid_count(KVM_FEATURES, 0);
            let is_on = leaf.eax & PARAVIRTUAL_FLUSH != 0 && leaf.edx & NEVER_DESCHEDULED == 0;
            if is_on { vec![Unseen::KvmParavirtual] } else { Vec::new() }
        }
        Hypervisor::HyperV => vec![Unseen::HyperV],
        _ => Vec::new(),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn hypervisor() -> Vec<Unseen> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_whole_words() {
        let cpuinfo = "processor\t: 0\nflags\t\t: fpu invlpgb_not pcid\nbugs\t\t: invlpgb\n";
        assert!(has_flag(cpuinfo, "pcid") && !has_flag(cpuinfo, "invlpgb"));
        assert!(has_flag("flags\t: invlpgb fpu\n", "invlpgb") && !has_flag("", "invlpgb"));
    }
}
