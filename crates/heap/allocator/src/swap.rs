//! Checks whether pages of this heap can be swapped out. These functions do not allocate.

use crate::sandbox;
use crate::sys::system_call;
use core::mem::MaybeUninit;

/// True if the machine has no swap space (sysinfo(2)); false also if a sandbox refuses the call. While swapoff(8)
/// empties a device, the kernel counts the part still in use as space (`si_swapinfo` in mm/swapfile.c).
pub fn is_absent() -> bool {
    if sandbox::is_entered() {
        return false;
    }
    let mut info = MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY:
    // - the place is valid for writing, and has the kernel's structure.
    let asked = unsafe { system_call(libc::SYS_sysinfo, [info.as_mut_ptr() as usize]) };
    // SAFETY:
    // - numbers, which are valid with any bits; all are set.
    asked.is_ok() && unsafe { info.assume_init() }.totalswap == 0
}
