//! The source of a watch's numbers.

use serde::Serialize;
use std::fmt;

/// The source of the numbers, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// `tlb:tlb_flush`: each shootdown, with its sender and receivers.
    TlbTracepoint,
    /// System calls that can send shootdowns.
    SystemCalls,
    /// The line `TLB` of `/proc/interrupts`: received shootdowns of the whole machine.
    Interrupts,
    /// Nothing on this machine shows shootdowns to this user.
    Nothing,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TlbTracepoint => "the tracepoint tlb:tlb_flush",
            Self::SystemCalls => {
                "calls of munmap, madvise, mprotect and mremap (raw_syscalls:sys_enter), not shootdowns themselves"
            }
            Self::Interrupts => "the line TLB of /proc/interrupts: received by all CPUs, from whomever",
            Self::Nothing => "nothing: this machine shows no shootdowns to this user",
        })
    }
}
