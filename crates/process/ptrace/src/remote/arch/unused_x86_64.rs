//! Finds out whether the code after a system call uses a register before it sets the register or returns, on x86-64.
//!
//! Only the few instructions that compilers emit there are known. Any other instruction counts as a use of the register.

use super::super::unused::{Flow, Instruction};
use address_space::Address;

/// The registers of a system call's arguments, by their number in instructions: rdi, rsi, rdx, r10, r8, r9.
pub const ARGUMENTS: [u8; 6] = [7, 6, 2, 10, 8, 9];

/// How an instruction treats an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Uses,
    /// Replaces all of the register.
    Sets,
    /// It is none of the general registers, or only a part of the instruction's number.
    Other,
}

struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    register: u8,
    rex: u8,
    /// Operands of 16 bits.
    narrow: bool,
}

/// Decodes the instruction at the beginning of `bytes`; `None` for one that is not known. `register` is the number of a
/// register in instructions.
pub fn decode(bytes: &[u8], at: Address, register: u8) -> Option<Instruction> {
    let mut decoder = Decoder { bytes, at: 0, register, rex: 0, narrow: false };
    let (access, flow) = decoder.instruction()?;
    let (length, end) = (decoder.at as u64, at.0.wrapping_add(decoder.at as u64));
    let to = |distance: i64| Address(end.wrapping_add_signed(distance));
    let flow = match flow {
        Relative::Next => Flow::Next,
        Relative::Ends => Flow::Ends,
        Relative::Jump(distance) => Flow::Jump(to(distance)),
        Relative::Branch(distance) => Flow::Branch(to(distance)),
    };
    Some(Instruction { length, uses: access == Access::Uses, sets: access == Access::Sets, flow })
}

/// Where the program continues, as a distance from the end of the instruction.
enum Relative {
    Next,
    Ends,
    Jump(i64),
    Branch(i64),
}

use Access::{Other, Sets, Uses};

impl Decoder<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.at += count;
        (self.at <= self.bytes.len()).then_some(())
    }

    fn near(&mut self) -> Option<i64> {
        Some(i64::from(self.byte()? as i8))
    }

    fn far(&mut self) -> Option<i64> {
        let bytes = self.bytes.get(self.at..self.at + 4)?;
        self.at += 4;
        Some(i64::from(i32::from_le_bytes(bytes.try_into().ok()?)))
    }

    fn instruction(&mut self) -> Option<(Access, Relative)> {
        let opcode = loop {
            match self.byte()? {
                0x66 => self.narrow = true,
                // lock, repne, rep; cs, ds, fs and gs.
                0xf0 | 0xf2 | 0xf3 | 0x2e | 0x3e | 0x64 | 0x65 => {}
                byte => break byte,
            }
        };
        let opcode = if opcode & 0xf0 == 0x40 {
            self.rex = opcode;
            self.byte()?
        } else {
            opcode
        };
        // REX.W prevails.
        self.narrow &= self.rex & 8 == 0;
        let immediate = if self.narrow { 2 } else { 4 };
        let low = opcode & 7 | (self.rex & 1) << 3;
        let next = |access| Some((access, Relative::Next));
        match opcode {
            0x0f => self.second_map(),
            // Arithmetic with rax and a constant.
            _ if opcode < 0x40 && opcode & 7 == 4 => self.skip(1).and_then(|()| next(self.named(0, Uses))),
            _ if opcode < 0x40 && opcode & 7 == 5 => self.skip(immediate).and_then(|()| next(self.named(0, Uses))),
            // A register that is xored with itself, or subtracted from itself, is set to 0.
            0x31 | 0x33 | 0x29 | 0x2b if !self.narrow && self.has_equal_operands() => {
                self.operands(Sets, Sets, false).and_then(next)
            }
            _ if opcode < 0x40 && opcode & 7 < 4 => self.operands(Uses, Uses, opcode & 1 == 0).and_then(next),
            0x50..=0x57 => next(self.named(low, Uses)),
            0x58..=0x5f => next(self.named(low, Sets)),
            0x63 => self.operands(Sets, Uses, false).and_then(next),
            0x70..=0x7f => Some((Other, Relative::Branch(self.near()?))),
            0x80 | 0xc0 => self.operands(Other, Uses, true).and_then(|access| self.skip(1).and_then(|()| next(access))),
            0x83 | 0xc1 => {
                self.operands(Other, Uses, false).and_then(|access| self.skip(1).and_then(|()| next(access)))
            }
            0x81 => {
                self.operands(Other, Uses, false).and_then(|access| self.skip(immediate).and_then(|()| next(access)))
            }
            0x84 | 0x86 | 0x88 | 0x8a => self.operands(Uses, Uses, true).and_then(next),
            0x85 | 0x87 => self.operands(Uses, Uses, false).and_then(next),
            0x89 => self.operands(Uses, Sets, false).and_then(next),
            0x8b | 0x8d => self.operands(Sets, Uses, false).and_then(next),
            // nop, which with REX.B exchanges r8; leave.
            0x90 => next(self.named(low, Uses)),
            0xc9 => next(Other),
            // cdqe; cdq sets rdx.
            0x98 => next(self.named(0, Uses)),
            0x99 if !self.narrow => next(if self.register == 2 { Sets } else { self.named(0, Uses) }),
            0xa8 => self.skip(1).and_then(|()| next(self.named(0, Uses))),
            0xa9 => self.skip(immediate).and_then(|()| next(self.named(0, Uses))),
            0xb0..=0xb7 => self.skip(1).and_then(|()| next(self.byte_named(low, Uses))),
            0xb8..=0xbf => {
                self.skip(if self.rex & 8 != 0 { 8 } else { immediate })?;
                next(self.named(low, Sets))
            }
            0xc3 => Some((Other, Relative::Ends)),
            // Any other operation than a mov belongs to a transaction, and branches.
            0xc6 | 0xc7 if self.operation()? != 0 => None,
            0xc6 => self.operands(Other, Uses, true).and_then(|access| self.skip(1).and_then(|()| next(access))),
            0xc7 => {
                self.operands(Other, Sets, false).and_then(|access| self.skip(immediate).and_then(|()| next(access)))
            }
            0xd0..=0xd3 => self.operands(Other, Uses, opcode & 1 == 0).and_then(next),
            // A function that is called may use the register as well as its caller may; after it, too, where a compiler has
            // seen that the function leaves the register alone (GCC's -fipa-ra, a part of -O2).
            0xe8 => Some((Other, Relative::Branch(self.far()?))),
            0xe9 => Some((Other, Relative::Jump(self.far()?))),
            0xeb => Some((Other, Relative::Jump(self.near()?))),
            // not and neg; the multiplications use rdx.
            0xf7 if matches!(self.operation()?, 2 | 3) => self.operands(Other, Uses, false).and_then(next),
            0xfe if self.operation()? < 2 => self.operands(Other, Uses, true).and_then(next),
            0xff if matches!(self.operation()?, 0 | 1 | 6) => self.operands(Other, Uses, false).and_then(next),
            _ => None,
        }
    }

    fn second_map(&mut self) -> Option<(Access, Relative)> {
        let opcode = self.byte()?;
        let next = |access| Some((access, Relative::Next));
        match opcode {
            // ud2.
            0x0b => Some((Other, Relative::Ends)),
            // Moves of vectors, and of one to memory; nops, endbr64; xor of vectors.
            0x10 | 0x11 | 0x28 | 0x29 | 0x57 | 0x6f | 0x7f | 0xd6 | 0xef | 0x1e | 0x1f => {
                self.operands(Other, Other, false).and_then(next)
            }
            0x40..=0x4f | 0xaf | 0xb1 | 0xc1 => self.operands(Uses, Uses, false).and_then(next),
            0x80..=0x8f => Some((Other, Relative::Branch(self.far()?))),
            0x90..=0x9f => self.operands(Other, Uses, true).and_then(next),
            0xb6 | 0xbe => self.operands_of_sizes((Sets, false), (Uses, true)).and_then(next),
            0xb7 | 0xbf => self.operands(Sets, Uses, false).and_then(next),
            _ => None,
        }
    }

    /// The part of the instruction's number that is in the byte for its operands.
    fn operation(&self) -> Option<u8> {
        Some(self.bytes.get(self.at)? >> 3 & 7)
    }

    fn has_equal_operands(&self) -> bool {
        let Some(&modrm) = self.bytes.get(self.at) else { return false };
        modrm >> 6 == 3 && modrm >> 3 & 7 | (self.rex & 4) << 1 == modrm & 7 | (self.rex & 1) << 3
    }

    fn named(&self, register: u8, access: Access) -> Access {
        match access {
            _ if register != self.register => Other,
            // The upper bits stay.
            Sets if self.narrow => Uses,
            access => access,
        }
    }

    /// As `named`, for a byte: without a REX prefix 4 to 7 are the second bytes of the first four registers.
    fn byte_named(&self, register: u8, access: Access) -> Access {
        let whole = if self.rex == 0 { register & 3 } else { register };
        if access != Other && (whole == self.register || register == self.register) { Uses } else { Other }
    }

    fn operands(&mut self, first: Access, second: Access, are_bytes: bool) -> Option<Access> {
        self.operands_of_sizes((first, are_bytes), (second, are_bytes))
    }

    /// Reads the byte for the operands, a register and a register or memory, and what belongs to it.
    fn operands_of_sizes(&mut self, first: (Access, bool), second: (Access, bool)) -> Option<Access> {
        let modrm = self.byte()?;
        let (mode, low) = (modrm >> 6, modrm & 7);
        let of = |(access, is_byte): (Access, bool), register: u8| match (access, is_byte) {
            (Other, _) => Other,
            (access, true) => self.byte_named(register, access),
            (access, false) => self.named(register, access),
        };
        let first = of(first, modrm >> 3 & 7 | (self.rex & 4) << 1);
        if mode == 3 {
            return Some(both(first, of(second, low | (self.rex & 1) << 3)));
        }
        let mut second = Other;
        let mut has_base = !(mode == 0 && low == 5);
        if low == 4 {
            let sib = self.byte()?;
            let index = sib >> 3 & 7 | (self.rex & 2) << 2;
            if index != 4 {
                second = both(second, self.named(index, Uses));
            }
            has_base = !(mode == 0 && sib & 7 == 5);
            if has_base {
                second = both(second, self.named(sib & 7 | (self.rex & 1) << 3, Uses));
            }
        } else if has_base {
            second = self.named(low | (self.rex & 1) << 3, Uses);
        }
        self.skip(match (mode, has_base) {
            (1, _) => 1,
            (2, _) | (0, false) => 4,
            _ => 0,
        })?;
        Some(both(first, second))
    }
}

/// An instruction uses its operands before it sets any.
fn both(first: Access, second: Access) -> Access {
    match (first, second) {
        (Uses, _) | (_, Uses) => Uses,
        (Sets, _) | (_, Sets) => Sets,
        _ => Other,
    }
}
