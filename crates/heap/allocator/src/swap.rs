//! Whether pages of this heap can be swapped out. None of this allocates.

use crate::sys::system_call;
use core::mem::MaybeUninit;

/// True where the machine has no swap space (sysinfo(2)); false, too, where a sandbox does not let us ask. While swapoff(8)
/// empties a device, the kernel counts what is still in it as space (`si_swapinfo` in mm/swapfile.c).
pub fn is_absent() -> bool {
    let mut info = MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY:
    // - the place is valid for writing, and has the kernel's structure.
    let asked = unsafe { system_call(libc::SYS_sysinfo, [info.as_mut_ptr() as usize]) };
    // SAFETY:
    // - numbers, which are valid with any bits; all of them are set.
    asked.is_ok() && unsafe { info.assume_init() }.totalswap == 0
}
