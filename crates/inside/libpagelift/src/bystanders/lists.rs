//! The exec functions whose words are arguments in variable number (execl(3)). The words in registers are put on the stack in front
//! of the others: all words together are a list for the functions that take lists. No memory is allocated, however long the list.
//! In the C library, too, these functions call those with lists.

use super::{Strings, execv, execve, execvp};
use core::ffi::{c_char, c_int};

/// execv(3), as private function: an exported one could be another object's.
unsafe extern "C" fn at_path(path: *const c_char, words: Strings) -> c_int {
    // SAFETY:
    // - the caller's promise.
    unsafe { execv(path, words) }
}

unsafe extern "C" fn in_folders(file: *const c_char, words: Strings) -> c_int {
    // SAFETY:
    // - the caller's promise.
    unsafe { execvp(file, words) }
}

/// The environment follows the null pointer that ends the words.
unsafe extern "C" fn with_environment(path: *const c_char, words: Strings) -> c_int {
    // SAFETY:
    // - the caller's promise; an argument in variable number takes a word on the stack, whatever it points to.
    unsafe {
        let mut end = words;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, words, end.add(1).read().cast())
    }
}

/// Defines a function that passes its first argument, and the list of the others, on to another function.
macro_rules! with_list {
    ($(#[$doc:meta])* $name:ident, $function:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            // The last register's word replaces the return address, directly below the words on the stack.
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "endbr64",
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {function}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                function = sym $function,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "stp x1, x2, [sp, #24]",
                "stp x3, x4, [sp, #40]",
                "stp x5, x6, [sp, #56]",
                "str x7, [sp, #72]",
                "add x1, sp, #24",
                "bl {function}",
                "ldp x29, x30, [sp], #80",
                "ret",
                function = sym $function,
            );
        }
    };
}

with_list!(
    /// execl(3).
    execl, at_path
);
with_list!(
    /// execlp(3).
    execlp, in_folders
);
with_list!(
    /// execle(3).
    execle, with_environment
);
