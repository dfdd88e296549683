//! Finds out whether the code after a system call uses a register before it sets the register or returns, on AArch64.
//!
//! All bits of an instruction in which a register may be named count as one, except for the most frequent instructions.
//! For an unknown instruction the answer is that the register is used.

use super::super::unused::{Flow, Instruction};
use address_space::Address;

/// The registers of a system call's arguments.
pub const ARGUMENTS: [u8; 6] = [0, 1, 2, 3, 4, 5];

/// The register that is always zero.
const ZERO: u32 = 31;

/// Decodes the instruction at the beginning of `bytes`; `None` for one that is not known.
pub fn decode(bytes: &[u8], at: Address, register: u8) -> Option<Instruction> {
    let word = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    let (uses, sets, flow) = access(word, u32::from(register), at)?;
    Some(Instruction { length: 4, uses, sets, flow })
}

fn access(word: u32, register: u32, at: Address) -> Option<(bool, bool, Flow)> {
    let to = |distance: i64| Address(at.0.wrapping_add_signed(distance));
    // A distance of `bits` bits from bit `first` on, in instructions.
    let distance = |first: u32, bits: u32| i64::from((word << (32 - first - bits)) as i32 >> (32 - bits)) * 4;
    let [target, first, third, second] = [0, 5, 10, 16].map(|bit| word >> bit & 31);
    let is_named = |fields: &[u32]| fields.contains(&register);
    let next = |fields: &[u32]| Some((is_named(fields), false, Flow::Next));
    match word {
        // ret, retaa and retab.
        _ if word & 0xffff_fc1f == 0xd65f_0000 || matches!(word, 0xd65f_0bff | 0xd65f_0fff) => {
            Some((is_named(&[first]), false, Flow::Ends))
        }
        // A function that is called (bl) may use the register as well as its caller may; after it, too, where a compiler has
        // seen that the function leaves the register alone (GCC's -fipa-ra, a part of -O2).
        _ if word & 0xfc00_0000 == 0x9400_0000 => Some((false, false, Flow::Branch(to(distance(0, 26))))),
        _ if word & 0xfc00_0000 == 0x1400_0000 => Some((false, false, Flow::Jump(to(distance(0, 26))))),
        _ if word & 0xff00_0010 == 0x5400_0000 => Some((false, false, Flow::Branch(to(distance(5, 19))))),
        _ if word & 0x7e00_0000 == 0x3400_0000 => Some((is_named(&[target]), false, Flow::Branch(to(distance(5, 19))))),
        _ if word & 0x7e00_0000 == 0x3600_0000 => Some((is_named(&[target]), false, Flow::Branch(to(distance(5, 14))))),
        // Hints (nop, bti, paciasp), barriers; mrs.
        _ if word & 0xffff_f01f == 0xd503_201f || word & 0xffff_f01f == 0xd503_301f => next(&[]),
        _ if word & 0xfff0_0000 == 0xd530_0000 => Some((false, target == register, Flow::Next)),
        // The other branches, calls and exceptions.
        _ if word & 0x1c00_0000 == 0x1400_0000 => None,
        // movz and movn; movk keeps a part.
        _ if word & 0x1f80_0000 == 0x1280_0000 && word & 0x6000_0000 != 0x6000_0000 => {
            Some((false, target == register, Flow::Next))
        }
        _ if word & 0x1f80_0000 == 0x1280_0000 => next(&[target]),
        // adr and adrp.
        _ if word & 0x1f00_0000 == 0x1000_0000 => Some((false, target == register, Flow::Next)),
        // mov of a register.
        _ if word & 0x7fe0_ffe0 == 0x2a00_03e0 => {
            Some((second == register, second != register && target == register, Flow::Next))
        }
        // add, sub and cmp of a constant; loads and stores at a constant distance.
        _ if word & 0x1f80_0000 == 0x1100_0000 || word & 0x3b00_0000 == 0x3900_0000 => next(&[target, first]),
        // Loads and stores of pairs.
        _ if word & 0x3a00_0000 == 0x2800_0000 => next(&[target, first, third]),
        _ if register == ZERO => None,
        _ => next(&[target, first, third, second]),
    }
}
