//! Executes seccomp filters: the classic BPF that `seccomp_check_filter` of the kernel's `seccomp.c` accepts. Pure: no
//! I/O, no system call.

/// One instruction, `struct sock_filter` of `linux/filter.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub if_true: u8,
    pub if_false: u8,
    pub value: u32,
}

/// The input of a filter, `struct seccomp_data` of `linux/seccomp.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub number: i32,
    /// `AUDIT_ARCH_*` of `linux/audit.h`.
    pub architecture: u32,
    /// The address after the instruction that makes the call.
    pub behind: u64,
    pub arguments: [u64; 6],
}

/// Size of `struct seccomp_data`. In bytes.
const DATA_BYTES: u32 = 64;
/// `BPF_MEMWORDS` of `linux/filter.h`.
const MEMORY_WORDS: usize = 16;

impl Call {
    /// Returns the word at an offset of `struct seccomp_data`.
    fn word(&self, offset: u32) -> Option<u32> {
        let wide = |value: u64| {
            let bytes = value.to_ne_bytes();
            let half = if offset.is_multiple_of(8) { &bytes[..4] } else { &bytes[4..] };
            half.try_into().map(u32::from_ne_bytes).ok()
        };
        match offset {
            _ if !offset.is_multiple_of(4) => None,
            0 => Some(self.number as u32),
            4 => Some(self.architecture),
            8 | 12 => wide(self.behind),
            16..DATA_BYTES => wide(self.arguments[(offset as usize - 16) / 8]),
            _ => None,
        }
    }
}

/// Classes, sizes, modes and operations (`linux/bpf_common.h`).
mod code {
    pub const LOAD: u16 = 0x00;
    pub const LOAD_INDEX: u16 = 0x01;
    pub const STORE: u16 = 0x02;
    pub const STORE_INDEX: u16 = 0x03;
    pub const CALCULATE: u16 = 0x04;
    pub const JUMP: u16 = 0x05;
    pub const RETURN: u16 = 0x06;
    pub const MOVE: u16 = 0x07;
    pub const CLASS: u16 = 0x07;

    pub const IMMEDIATE: u16 = 0x00;
    pub const ABSOLUTE: u16 = 0x20;
    pub const MEMORY: u16 = 0x60;
    pub const LENGTH: u16 = 0x80;
    pub const MODE: u16 = 0xf8;

    /// The operand is the index register, not the instruction's value.
    pub const BY_INDEX: u16 = 0x08;
    pub const OPERATION: u16 = 0xf0;
    pub const RETURN_ACCUMULATOR: u16 = 0x10;
    pub const TO_ACCUMULATOR: u16 = 0x80;
}

/// Runs a filter for a call and returns its 32 bits; `None` for an instruction that the kernel does not accept.
pub fn run(filter: &[Instruction], call: &Call) -> Option<u32> {
    let mut machine = Machine { call, accumulator: 0, index: 0, memory: [0; MEMORY_WORDS] };
    let mut at = 0;
    // Every jump goes forward, so that this loop ends.
    loop {
        let instruction = filter.get(at)?;
        match machine.execute(instruction)? {
            Next::Skip(count) => at = at.checked_add(1)?.checked_add(count)?,
            Next::Return(value) => return Some(value),
        }
    }
}

enum Next {
    /// Skips this number of instructions.
    Skip(usize),
    Return(u32),
}

struct Machine<'a> {
    call: &'a Call,
    accumulator: u32,
    index: u32,
    memory: [u32; MEMORY_WORDS],
}

impl Machine<'_> {
    fn execute(&mut self, instruction: &Instruction) -> Option<Next> {
        let Instruction { code, value, .. } = *instruction;
        match code & code::CLASS {
            code::LOAD => self.accumulator = self.load(code, value)?,
            code::LOAD_INDEX => self.index = self.load_index(code, value)?,
            code::STORE => *self.memory.get_mut(value as usize)? = self.accumulator,
            code::STORE_INDEX => *self.memory.get_mut(value as usize)? = self.index,
            code::MOVE if code & code::TO_ACCUMULATOR != 0 => self.accumulator = self.index,
            code::MOVE => self.index = self.accumulator,
            code::CALCULATE => match self.calculate(code, value)? {
                Some(result) => self.accumulator = result,
                // A filter that divides by zero returns 0, as in the kernel.
                None => return Some(Next::Return(0)),
            },
            code::JUMP => return self.jump(instruction).map(Next::Skip),
            code::RETURN if code & 0x18 == code::RETURN_ACCUMULATOR => return Some(Next::Return(self.accumulator)),
            code::RETURN => return Some(Next::Return(value)),
            _ => return None,
        }
        Some(Next::Skip(0))
    }

    fn load(&self, code: u16, value: u32) -> Option<u32> {
        match code & code::MODE {
            code::IMMEDIATE => Some(value),
            code::ABSOLUTE => self.call.word(value),
            code::MEMORY => self.memory.get(value as usize).copied(),
            code::LENGTH => Some(DATA_BYTES),
            _ => None,
        }
    }

    fn load_index(&self, code: u16, value: u32) -> Option<u32> {
        if code & code::MODE == code::ABSOLUTE { None } else { self.load(code, value) }
    }

    fn operand(&self, code: u16, value: u32) -> u32 {
        if code & code::BY_INDEX != 0 { self.index } else { value }
    }

    /// Returns an outer `None` for an unknown operation, an inner one for a division by zero.
    fn calculate(&self, code: u16, value: u32) -> Option<Option<u32>> {
        let (a, b) = (self.accumulator, self.operand(code, value));
        Some(Some(match code & code::OPERATION {
            0x00 => a.wrapping_add(b),
            0x10 => a.wrapping_sub(b),
            0x20 => a.wrapping_mul(b),
            0x30 => return Some(a.checked_div(b)),
            0x40 => a | b,
            0x50 => a & b,
            // CPUs use the lowest five bits of the count.
            0x60 => a.wrapping_shl(b),
            0x70 => a.wrapping_shr(b),
            0x80 => a.wrapping_neg(),
            0xa0 => a ^ b,
            _ => return None,
        }))
    }

    fn jump(&self, instruction: &Instruction) -> Option<usize> {
        let Instruction { code, if_true, if_false, value } = *instruction;
        let (a, b) = (self.accumulator, self.operand(code, value));
        let holds = match code & code::OPERATION {
            0x00 => return Some(value as usize),
            0x10 => a == b,
            0x20 => a > b,
            0x30 => a >= b,
            0x40 => a & b != 0,
            _ => return None,
        };
        Some(usize::from(if holds { if_true } else { if_false }))
    }
}
