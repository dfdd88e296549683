//! Finds out whether anybody sees a register that is changed for the time of a system call.
//!
//! A system call preserves the registers of its arguments, and code that makes one by itself, without a function for it, may
//! use such a register afterwards. In the functions of C libraries it does not: the registers are none that a function
//! preserves, so that nobody expects anything in them once it has returned. In a program's own function, somebody may:
//! where GCC has seen that a function of the same file leaves a register alone, its callers keep what they need there
//! (`-fipa-ra`, a part of -O2).

use super::arch::unused::{self as arch, decode};
use crate::remote::RemoteMemory;
use address_space::{Address, AddressSpace};

/// An instruction, with regard to one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub length: u64,
    /// It may use the register's contents.
    pub uses: bool,
    /// It replaces all of the register, and does not use its contents.
    pub sets: bool,
    pub flow: Flow,
}

/// Where a program continues after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Next,
    /// There, and nowhere else with the register's contents.
    Jump(Address),
    /// There, or at the next instruction.
    Branch(Address),
    /// The function returns, or the program ends.
    Ends,
}

/// Maximum length of an instruction in bytes, on x86-64.
const LONGEST: usize = 15;

/// Maximum number of instructions that are decoded.
const MOST_INSTRUCTIONS: usize = 100;

/// The argument whose register no function in C gets as a parameter: a function that makes the call has set it, so its
/// callers cannot rely on its value. AArch64 has no such register.
const SET_BY_ITSELF: Option<usize> = if cfg!(target_arch = "x86_64") { Some(3) } else { None };

/// Beginnings of the names of C libraries and of the library for asynchronous I/O, whose functions callers know by their
/// declarations only.
const LIBRARIES: [&str; 7] =
    ["libc.so", "libc-2.", "libpthread.so", "libpthread-2.", "ld-musl-", "libc.musl-", "libaio.so"];

/// True if the code at `from`, after a system call, sets the register of an argument, or returns from a function whose
/// callers expect no value in it, before it uses the register, on every path. `index` is the argument's.
pub fn is_unused(memory: &RemoteMemory, space: &AddressSpace, from: Address, index: usize) -> bool {
    let may_return = SET_BY_ITSELF == Some(index) || is_in_library(space, from);
    let read = |at: Address| {
        let mut bytes = vec![0; LONGEST];
        // Less at the end of a mapping.
        while !bytes.is_empty() && memory.read(at, &mut bytes).is_err() {
            bytes.pop();
        }
        bytes
    };
    is_unused_in(read, (from, may_return), |bytes, at| decode(bytes, at, arch::ARGUMENTS[index]))
}

/// True for an address in one of [`LIBRARIES`], even if a lift has replaced the file by a copy: the mappings before that still
/// show the file.
fn is_in_library(space: &AddressSpace, at: Address) -> bool {
    let mut behind = at;
    for mapping in space.mappings().iter().rev().skip_while(|mapping| mapping.range.start() > at) {
        if mapping.range.end() < behind || behind == at && !mapping.range.contains(at) {
            break;
        }
        if let Some(path) = mapping.path() {
            let name = path.rsplit('/').next().unwrap_or_default();
            return LIBRARIES.iter().any(|library| name.starts_with(library));
        }
        behind = mapping.range.start();
    }
    false
}

fn is_unused_in(
    read: impl Fn(Address) -> Vec<u8>,
    (from, may_return): (Address, bool),
    decode: impl Fn(&[u8], Address) -> Option<Instruction>,
) -> bool {
    let (mut next, mut seen) = (vec![from], Vec::new());
    while let Some(at) = next.pop() {
        if seen.contains(&at) {
            continue;
        }
        let found = decode(&read(at), at).filter(|found| !found.uses && seen.len() < MOST_INSTRUCTIONS);
        let Some(found) = found else { return false };
        seen.push(at);
        let behind = Address(at.0.wrapping_add(found.length));
        match found.flow {
            _ if found.sets => {}
            Flow::Next => next.push(behind),
            Flow::Jump(to) => next.push(to),
            Flow::Branch(to) => next.extend([behind, to]),
            Flow::Ends if may_return => {}
            Flow::Ends => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::arch::{unused_aarch64, unused_x86_64};
    use super::*;

    const BASE: u64 = 0x1000;

    fn x86_64(code: &[u8], index: usize) -> bool {
        let read = |at: Address| code.get(at.0.wrapping_sub(BASE) as usize..).unwrap_or_default().to_vec();
        is_unused_in(read, (Address(BASE), true), |bytes, at| {
            unused_x86_64::decode(bytes, at, unused_x86_64::ARGUMENTS[index])
        })
    }

    fn aarch64(code: &[u32], index: usize) -> bool {
        let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        let read = |at: Address| bytes.get(at.0.wrapping_sub(BASE) as usize..).unwrap_or_default().to_vec();
        is_unused_in(read, (Address(BASE), true), |bytes, at| {
            unused_aarch64::decode(bytes, at, unused_aarch64::ARGUMENTS[index])
        })
    }

    /// The end of epoll_pwait in glibc 2.36, with one thread.
    const ALONE: &[u8] = &[
        0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, // cmp rax, -4096
        0x77, 0x01, // ja 1f
        0xc3, // ret
        0x48, 0x8b, 0x15, 0x09, 0xa1, 0x0c, 0x00, // 1: mov rdx, [rip + 0xca109]
        0xf7, 0xd8, // neg eax
        0x64, 0x89, 0x02, // mov fs:[rdx], eax
        0xb8, 0xff, 0xff, 0xff, 0xff, // mov eax, -1
        0xc3, // ret
    ];

    /// The end of epoll_pwait in glibc 2.36, with several threads, and the function that it calls.
    const BESIDE_OTHERS: &[u8] = &[
        0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, // cmp rax, -4096
        0x77, 0x16, // ja 2f
        0x89, 0xef, // 1: mov edi, ebp
        0x89, 0x44, 0x24, 0x04, // mov [rsp + 4], eax
        0xe8, 0x1e, 0x00, 0x00, 0x00, // call 3f
        0x8b, 0x44, 0x24, 0x04, // mov eax, [rsp + 4]
        0x48, 0x83, 0xc4, 0x20, // add rsp, 0x20
        0x5d, // pop rbp
        0xc3, // ret
        0x90, // nop
        0x48, 0x8b, 0x15, 0xf1, 0xa0, 0x0c, 0x00, // 2: mov rdx, [rip + 0xca0f1]
        0xf7, 0xd8, // neg eax
        0x64, 0x89, 0x02, // mov fs:[rdx], eax
        0xb8, 0xff, 0xff, 0xff, 0xff, // mov eax, -1
        0xeb, 0xd7, // jmp 1b
        0x90, // nop
        0x40, 0x84, 0xff, // 3: test dil, dil
        0x74, 0x01, // je 4f
        0xc3, // ret
        0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00, // 4: nop
        0xc3, // ret
    ];

    #[test]
    fn the_functions_of_a_c_library_leave_the_arguments_alone() {
        assert!(x86_64(ALONE, 3) && x86_64(ALONE, 2) && x86_64(ALONE, 4));
        assert!(x86_64(BESIDE_OTHERS, 3) && x86_64(BESIDE_OTHERS, 2));
        // `__syscall_cancel_arch` of glibc 2.41 and musl's `__syscall_cp_asm`.
        assert!(x86_64(&[0xc3], 3));
        // cmn x0, #4095; b.hi 1f; ret; 1: adrp x1; mrs x2, tpidr_el0; neg w0, w0; ret.
        assert!(aarch64(
            &[0xb13f_fc1f, 0x5400_0048, 0xd65f_03c0, 0xb000_0981, 0xd53b_d042, 0x4b00_03e0, 0xd65f_03c0],
            3
        ));
        // mov w20, w0; mov w0, w21; bl 1f; ldp x29, x30, [sp], #32; ret; 1: ret.
        assert!(aarch64(&[0x2a00_03f4, 0x2a15_03e0, 0x9400_0003, 0xa8c2_7bfd, 0xd65f_03c0, 0xd65f_03c0], 3));
    }

    #[test]
    fn code_that_uses_the_register_is_found() {
        let uses: [&[u8]; 10] = [
            // mov r12, r10; ret.
            &[0x4d, 0x89, 0xd4, 0xc3],
            // cmp rax, -4; je back to the call itself, whose code is not readable here.
            &[0x48, 0x83, 0xf8, 0xfc, 0x74, 0xf8, 0xc3],
            // push r10; ret.
            &[0x41, 0x52, 0xc3],
            // mov rax, [rsp + r10 * 8]; ret.
            &[0x4a, 0x8b, 0x04, 0xd4, 0xc3],
            // mov rax, [r10 + 8]; ret.
            &[0x49, 0x8b, 0x42, 0x08, 0xc3],
            // lea eax, [r10 + 1]; ret.
            &[0x41, 0x8d, 0x42, 0x01, 0xc3],
            // mov r10w, 1: the rest of the register stays.
            &[0x66, 0x41, 0xba, 0x01, 0x00, 0xc3],
            // syscall, and jmp rax, which are not known.
            &[0x0f, 0x05, 0xc3],
            &[0xff, 0xe0],
            // The end of readable memory.
            &[0x90],
        ];
        for code in uses {
            assert!(!x86_64(code, 3), "{code:02x?}");
        }
        // mov rax, rdx; mov dh, 1; cmp dl, 1; imul edx.
        for code in [&[0x48, 0x89, 0xd0, 0xc3][..], &[0xb6, 0x01, 0xc3], &[0x80, 0xfa, 0x01, 0xc3], &[0xf7, 0xea, 0xc3]]
        {
            assert!(!x86_64(code, 2), "{code:02x?}");
        }
        // xchg r8, rax: the nop with a prefix.
        assert!(!x86_64(&[0x49, 0x90, 0xc3], 4) && x86_64(&[0x90, 0xc3], 4));
        // xbegin, which is no mov.
        assert!(!x86_64(&[0xc7, 0xf8, 0, 0, 0, 0, 0xc3], 3));
        // cmn x0, #4; b.eq back to the call; mov x0, x3; add x0, x1, x3; str x3, [sp]; svc #0; br x3; cbz x3.
        for code in [
            &[0xb100_101f, 0x54ff_ffa0, 0xd65f_03c0][..],
            &[0xaa03_03e0, 0xd65f_03c0],
            &[0x8b03_0020, 0xd65f_03c0],
            &[0xf900_03e3, 0xd65f_03c0],
            &[0xd400_0001, 0xd65f_03c0],
            &[0xd61f_0060],
            &[0xb400_0043, 0xd65f_03c0, 0xd65f_03c0],
        ] {
            assert!(!aarch64(code, 3), "{code:08x?}");
        }
    }

    #[test]
    fn a_register_that_is_used_behind_a_function_that_leaves_it_alone_is_found() {
        // call 1f; push r10; ret; 1: ret.
        assert!(!x86_64(&[0xe8, 0x03, 0x00, 0x00, 0x00, 0x41, 0x52, 0xc3, 0xc3], 3));
        // bl 1f; mov x0, x3; ret; 1: ret.
        assert!(!aarch64(&[0x9400_0003, 0xaa03_03e0, 0xd65f_03c0, 0xd65f_03c0], 3));
    }

    #[test]
    fn only_a_library_returns_to_those_who_expect_nothing() {
        let maps = "\
            400000-401000 r-xp 0 0:1 1 /bin/libc.program\n401000-402000 r-xp 0 0:0 0\n\
            7f0000000000-7f0000001000 r--p 0 0:1 2 /lib/libc.so.6\n7f0000001000-7f0000003000 r-xp 0 0:0 0\n\
            7f0000004000-7f0000005000 r-xp 0 0:0 0\n7f0000006000-7f0000007000 r-xp 0 0:1 3 /lib/libc-2.31.so\n";
        let space = AddressSpace::parse(maps).unwrap();
        let found =
            [0x40_0010, 0x40_1010, 0x7f00_0000_0010, 0x7f00_0000_2010, 0x7f00_0000_4010, 0x7f00_0000_6010, 0x10];
        let found = found.map(|at| is_in_library(&space, Address(at)));
        assert_eq!(found, [false, false, true, true, false, true, false]);
        let ret = |may_return| {
            let read = |at: Address| [0xc3].get((at.0 - BASE) as usize..).unwrap_or_default().to_vec();
            is_unused_in(read, (Address(BASE), may_return), |bytes, at| unused_x86_64::decode(bytes, at, 2))
        };
        assert_eq!([true, false].map(ret), [true, false]);
    }

    #[test]
    fn a_register_that_is_set_may_be_used_afterwards() {
        // xor r10d, r10d; push r10. mov r10d, 5; push r10. pop r10; push r10. lea r10, [rsp]; push r10.
        for code in [
            &[0x45, 0x31, 0xd2, 0x41, 0x52, 0xc3][..],
            &[0x41, 0xba, 0x05, 0x00, 0x00, 0x00, 0x41, 0x52, 0xc3],
            &[0x41, 0x5a, 0x41, 0x52, 0xc3],
            &[0x4c, 0x8d, 0x14, 0x24, 0x41, 0x52, 0xc3],
        ] {
            assert!(x86_64(code, 3), "{code:02x?}");
        }
        // mov w3, #5; mov x0, x3. mov x3, x19; mov x0, x3.
        assert!(aarch64(&[0x5280_00a3, 0xaa03_03e0, 0xd65f_03c0], 3));
        assert!(aarch64(&[0xaa13_03e3, 0xaa03_03e0, 0xd65f_03c0], 3));
        // movk x3, #1 keeps a part.
        assert!(!aarch64(&[0xf280_0023, 0xd65f_03c0], 3));
    }
}
