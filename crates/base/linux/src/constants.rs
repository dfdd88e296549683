//! Numbers from the kernel's uapi headers that the libc crate lacks or has on some targets only.

/// `MADV_POPULATE_READ` (Linux 5.14, `asm-generic/mman-common.h`).
pub const MADV_POPULATE_READ: i32 = 22;
/// `MADV_POPULATE_WRITE` (Linux 5.14, `asm-generic/mman-common.h`).
pub const MADV_POPULATE_WRITE: i32 = 23;
/// `PROT_BTI` of AArch64 (Linux 5.8, `asm/mman.h`).
pub const PROT_BTI: i32 = 0x10;
/// `MADV_COLLAPSE` (Linux 6.1).
pub const MADV_COLLAPSE: i32 = 25;
/// System call `mseal` (Linux 6.10): one number on every architecture. Only 64-bit kernels have it.
pub const SYS_MSEAL: i64 = 462;
/// `PR_SET_VMA` (Linux 5.17, `linux/prctl.h`).
pub const PR_SET_VMA: u64 = 0x5356_4d41;
/// `PR_SET_VMA_ANON_NAME`.
pub const PR_SET_VMA_ANON_NAME: u64 = 0;
/// `PR_SET_MM`.
pub const PR_SET_MM: u64 = 35;
/// `PR_SET_MM_MAP` (Linux 3.18, needs `CONFIG_CHECKPOINT_RESTORE`).
pub const PR_SET_MM_MAP: u64 = 14;
/// `PR_SET_MM_MAP_SIZE`.
pub const PR_SET_MM_MAP_SIZE: u64 = 15;
/// Shift of the page size in `mmap`'s flags (`linux/mman.h`).
pub const MAP_HUGE_SHIFT: u32 = 26;
/// Auxiliary vector: address of the program headers (`linux/auxvec.h`).
pub const AT_PHDR: u64 = 3;
/// Auxiliary vector: entry point of the program.
pub const AT_ENTRY: u64 = 9;
/// Auxiliary vector: 1 if the program has more rights than its user.
pub const AT_SECURE: u64 = 23;
/// Auxiliary vector: address of the vDSO.
pub const AT_SYSINFO_EHDR: u64 = 33;
