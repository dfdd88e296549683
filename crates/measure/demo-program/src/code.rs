//! The scattered code, in assembly: no compiler places each function on a separate page.

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(include_str!("scattered-x86_64.s"), options(att_syntax));
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(include_str!("scattered-aarch64.s"));
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the demo program is written for x86_64 and aarch64; add src/scattered-ARCH.s for another");

use std::sync::atomic::AtomicU64;

/// Words in [`pagelift_routes`].
pub(crate) const ROUTES: usize = 65536 * 8;
/// Functions that one step of [`pagelift_walk`] runs through.
pub(crate) const FUNCTIONS_PER_STEP: u64 = 16;

// SAFETY: both are defined in the assembly above.
// - `pagelift_walk` takes two integers and gives one, by the C calling convention, keeps the registers that the
//   convention wants kept, and touches no memory but its own code, its own read-only table and its stack.
// - `pagelift_routes` is ROUTES 64-bit words, aligned to 64 bytes, writable, used by nobody else; as atomics they may
//   be read and written through a shared reference.
unsafe extern "C" {
    pub(crate) safe fn pagelift_walk(steps: u64, seed: u64) -> u64;
    pub(crate) safe static pagelift_routes: [AtomicU64; ROUTES];
}
