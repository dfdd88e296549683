//! The frame from which `rt_sigreturn` loads all registers on AArch64: `struct rt_sigframe` of the kernel's `signal.c`,
//! `asm/ucontext.h`, `asm/sigcontext.h`. Only the part that the kernel reads is built: the room for records is left
//! out.

/// Size in bytes of `struct user_fpsimd_state`, as read by a tracer: 32 vector registers, status, control, padding.
pub const VECTOR_BYTES: usize = 528;

/// Offsets after `struct siginfo`: flags of the alternate stack, the signal mask, registers, records.
const STACK_FLAGS: usize = 128 + 24;
const MASK: usize = 128 + 40;
pub const REGISTERS: usize = 128 + 176 + 8;
const RECORDS: usize = 128 + 176 + 288;
/// The record of the vector registers (`FPSIMD_MAGIC`), which is mandatory; eight zero bytes end the records.
const FPSIMD_MAGIC: u32 = 0x4650_8001;
const FPSIMD_BYTES: usize = 528;
const VECTORS: usize = 512;
/// Length of the frame in bytes.
pub const LENGTH: usize = RECORDS + FPSIMD_BYTES + 16;
/// An invalid mode for an alternate stack, with which rt_sigreturn does not change the thread's: `restore_altstack`
/// ignores all errors except those of memory access.
const NO_MODE: u32 = 0x4000_0000;

/// Builds the frame. `others` are stack pointer, program counter and PSTATE (the state of the CPU).
pub fn frame(registers: &[u64; 31], others: [u64; 3], vectors: &[u8; VECTOR_BYTES], mask: u64) -> [u8; LENGTH] {
    let mut frame = [0; LENGTH];
    let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
    put(STACK_FLAGS, &NO_MODE.to_ne_bytes());
    put(MASK, &mask.to_ne_bytes());
    for (index, value) in registers.iter().chain(&others).enumerate() {
        put(REGISTERS + index * 8, &value.to_ne_bytes());
    }
    put(RECORDS, &FPSIMD_MAGIC.to_ne_bytes());
    put(RECORDS + 4, &(FPSIMD_BYTES as u32).to_ne_bytes());
    // A tracer reads status and control after the vectors; a record has them before.
    put(RECORDS + 8, &vectors[VECTORS..VECTORS + 8]);
    put(RECORDS + 16, &vectors[..VECTORS]);
    frame
}

/// Returns the general registers of a frame, and the others in the order of [`frame`]; `None` where the frame is too
/// short.
pub fn registers_of(frame: &[u8]) -> Option<([u64; 31], [u64; 3])> {
    let mut words =
        frame.get(REGISTERS..)?.chunks_exact(8).filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
    let (mut registers, mut others) = ([0; 31], [0; 3]);
    for register in registers.iter_mut().chain(&mut others) {
        *register = words.next()?;
    }
    Some((registers, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(frame: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(frame[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn everything_lies_where_the_kernel_reads_it() {
        let registers = std::array::from_fn(|index| 100 + index as u64);
        let vectors = std::array::from_fn(|index| index as u8);
        let frame = frame(&registers, [201, 202, 203], &vectors, 0x1234);
        assert_eq!(word(&frame, MASK), 0x1234);
        // struct sigcontext begins with the fault's address.
        assert_eq!((word(&frame, 0x138), word(&frame, 0x138 + 30 * 8)), (100, 130));
        assert_eq!([word(&frame, 560), word(&frame, 568), word(&frame, 576)], [201, 202, 203]);
        assert_eq!(frame[592..600], [0x01, 0x80, 0x50, 0x46, 0x10, 0x02, 0, 0]);
        assert_eq!((frame[600], frame[608], frame[1119]), (0, 0, 255));
        assert_eq!(word(&frame, 1120), 0);
        assert_eq!(registers_of(&frame), Some((registers, [201, 202, 203])));
        assert_eq!(registers_of(&frame[..580]), None);
        assert!(RECORDS.is_multiple_of(16));
    }
}
