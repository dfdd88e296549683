//! This machine's way to invalidate translations on other CPUs, and its invisible parts.

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

impl Unseen {
    /// True if shootdowns that a process sends are not counted either. KVM's kernel reports a flush before it leaves out
    /// virtual CPUs that do not run.
    pub fn hides_senders(self) -> bool {
        self != Self::KvmParavirtual
    }
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AmdBroadcast => {
                "this CPU has INVLPGB: since Linux 6.15 a process active on 4 CPUs and more is flushed by broadcast, which \
                 sends no interrupt and is not counted here"
            }
            Self::KvmParavirtual => {
                "KVM's paravirtual flush is on: virtual CPUs that the host has descheduled are not interrupted, so \
                 that fewer flushes are received than were requested"
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

/// The invisible parts on this machine.
pub fn unseen() -> Vec<Unseen> {
    let mut found: Vec<Unseen> = hypervisor().into_iter().collect();
    let flags = linux::text::bytes_of("/proc/cpuinfo").unwrap_or_default();
    if has_flag(&String::from_utf8_lossy(&flags), "invlpgb") {
        found.push(Unseen::AmdBroadcast);
    }
    if cfg!(target_arch = "aarch64") {
        found.push(Unseen::ArmBroadcast);
    }
    found
}

/// True if the first CPU of `/proc/cpuinfo` has this flag.
fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.is_some_and(|(_, flags)| flags.split_whitespace().any(|found| found == flag))
}

/// The answer of one leaf of CPUID.
#[derive(Clone, Copy, Debug, Default)]
struct Leaf {
    eax: u32,
    ebx: u32,
    ecx: u32,
    edx: u32,
}

impl Leaf {
    /// The name of the hypervisor whose leaves begin here.
    fn signature(self) -> Vec<u8> {
        [self.ebx, self.ecx, self.edx].iter().flat_map(|part| part.to_le_bytes()).collect()
    }
}

/// Finds out from CPUID how the kernel flushes the TLBs of other virtual CPUs, as the kernel does it itself: KVM comes before
/// Hyper-V, since QEMU can show both (arch/x86/kernel/{cpu/hypervisor.c,kvm.c}, arch/x86/hyperv/mmu.c).
fn hypervisor_of(cpuid: impl Fn(u32) -> Leaf) -> Option<Unseen> {
    const HYPERVISOR: u32 = 1 << 31;
    const MWAIT: u32 = 1 << 3;
    const FIRST: u32 = 0x4000_0000;
    const LAST: u32 = 0x4000_ff00;
    // Documentation/virt/kvm/x86/cpuid.rst: features in EAX of the second leaf, hints in EDX.
    const STEAL_TIME: u32 = 1 << 5;
    const PARAVIRTUAL_FLUSH: u32 = 1 << 9;
    const NEVER_DESCHEDULED: u32 = 1;
    // asm/hyperv-tlfs.h: HV_X64_REMOTE_TLB_FLUSH_RECOMMENDED in EAX of 0x40000004.
    const HYPERCALL_FLUSH: u32 = 1 << 2;
    let features = cpuid(1).ecx;
    if features & HYPERVISOR == 0 {
        return None;
    }
    let base = (FIRST..=LAST).step_by(0x100).find(|&base| cpuid(base).signature() == b"KVMKVMKVM\0\0\0");
    if let Some(base) = base {
        let kvm = cpuid(base + 1);
        let needed = STEAL_TIME | PARAVIRTUAL_FLUSH;
        let is_on = kvm.eax & needed == needed && kvm.edx & NEVER_DESCHEDULED == 0 && features & MWAIT == 0;
        return is_on.then_some(Unseen::KvmParavirtual);
    }
    let is_hyper_v = cpuid(FIRST).signature() == b"Microsoft Hv";
    (is_hyper_v && cpuid(FIRST + 4).eax & HYPERCALL_FLUSH != 0).then_some(Unseen::HyperV)
}

#[cfg(target_arch = "x86_64")]
fn hypervisor() -> Option<Unseen> {
    hypervisor_of(|leaf| {
        let found = raw_cpuid::native_cpuid::cpuid_count(leaf, 0);
        Leaf { eax: found.eax, ebx: found.ebx, ecx: found.ecx, edx: found.edx }
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn hypervisor() -> Option<Unseen> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Leaf = Leaf { eax: 0, ebx: 0, ecx: 1 << 31, edx: 0 };

    fn named(name: &[u8; 12]) -> Leaf {
        let part = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]);
        Leaf { eax: 0, ebx: part(0), ecx: part(4), edx: part(8) }
    }

    /// The result for a machine with these leaves; all others are zero.
    fn said(leaves: &[(u32, Leaf)]) -> Option<Unseen> {
        hypervisor_of(|leaf| leaves.iter().find(|(number, _)| *number == leaf).map_or(Leaf::default(), |(_, of)| *of))
    }

    #[test]
    fn kvm_flushes_by_itself_where_its_features_and_hints_say_so() {
        let kvm = named(b"KVMKVMKVM\0\0\0");
        let with = |features: u32, hints: u32| Leaf { eax: features, edx: hints, ..Leaf::default() };
        let on = with(1 << 9 | 1 << 5, 0);
        let told = |guest: Leaf, second: Leaf| said(&[(1, guest), (0x4000_0000, kvm), (0x4000_0001, second)]);
        assert_eq!(told(GUEST, on), Some(Unseen::KvmParavirtual));
        assert_eq!(told(GUEST, with(1 << 9 | 1 << 5, 1)), None, "virtual CPUs that are never descheduled");
        assert_eq!(
            told(GUEST, with(1 << 9, 0)),
            None,
            "without steal time the kernel does not know who is descheduled"
        );
        assert_eq!(told(Leaf { ecx: 1 << 31 | 1 << 3, ..GUEST }, on), None, "with MWAIT");
        assert_eq!(told(Leaf::default(), on), None, "no guest");
    }

    #[test]
    fn hyper_v_is_told_from_kvm_that_shows_its_leaves() {
        let hyper_v = (0x4000_0000, named(b"Microsoft Hv"));
        let recommended = (0x4000_0004, Leaf { eax: 1 << 2, ..Leaf::default() });
        assert_eq!(said(&[(1, GUEST), hyper_v, recommended]), Some(Unseen::HyperV));
        assert_eq!(said(&[(1, GUEST), hyper_v]), None);
        let kvm = (0x4000_0100, named(b"KVMKVMKVM\0\0\0"));
        let features = (0x4000_0101, Leaf { eax: 1 << 9 | 1 << 5, ..Leaf::default() });
        assert_eq!(said(&[(1, GUEST), hyper_v, recommended, kvm, features]), Some(Unseen::KvmParavirtual));
        assert_eq!(said(&[(1, GUEST), (0x4000_0000, named(b"XenVMMXenVMM"))]), None);
    }

    #[test]
    fn flags_are_whole_words() {
        let cpuinfo = "processor\t: 0\nflags\t\t: fpu invlpgb_not pcid\nbugs\t\t: invlpgb\n";
        assert!(has_flag(cpuinfo, "pcid") && !has_flag(cpuinfo, "invlpgb"));
        assert!(has_flag("flags\t: invlpgb fpu\n", "invlpgb") && !has_flag("", "invlpgb"));
    }
}
