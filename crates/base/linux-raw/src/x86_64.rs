//! System calls on x86-64 (syscall(2), "Architecture calling conventions").

use core::arch::asm;

/// Makes a system call.
///
/// # Safety
/// As for the call that is made.
pub unsafe fn system_call(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY:
    // - the kernel keeps every register but rax, rcx and r11, which are declared as changed.
    // - the caller answers for what the call does to memory, which is why `nomem` is not claimed.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
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
    unsafe { asm!("mov {}, rsp", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// The address of this thread's control block: its first word contains its own address (System V ABI, TLS variant II).
pub fn thread_pointer() -> usize {
    let value: usize;
    // SAFETY:
    // - reads the word at fs:0, which the ABI reserves for this purpose in every thread.
    unsafe { asm!("mov {}, qword ptr fs:[0]", out(reg) value, options(readonly, nostack, preserves_flags)) };
    value
}
