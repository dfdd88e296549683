//! System calls on AArch64 (syscall(2), "Architecture calling conventions").

use core::arch::asm;

/// Makes a system call.
///
/// # Safety
/// As for the call that is made.
pub unsafe fn system_call(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY:
    // - the kernel keeps every register but x0.
    // - the caller answers for what the call does to memory, which is why `nomem` is not claimed.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack)
        );
    }
    result
}

/// Where the stack is now.
pub fn stack_pointer() -> usize {
    let value: usize;
    // SAFETY:
    // - copies a register and touches nothing else.
    unsafe { asm!("mov {}, sp", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// The address of this thread's control block.
pub fn thread_pointer() -> usize {
    let value: usize;
    // SAFETY:
    // - copies a register and touches nothing else.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}
