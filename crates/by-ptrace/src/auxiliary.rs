//! The auxiliary vector on the stack of a program that has not run yet (getauxval(3), System V ABI 3.4.3).

use crate::RemoteMemory;
use address_space::Address;
use std::io;

/// More words than any argument list has; a stack that does not end is not a fresh one.
const MOST_WORDS: u64 = 8 << 20;

/// Where the vector lies and what is in it.
pub struct AuxiliaryVector {
    start: Address,
    entries: Vec<(u64, u64)>,
}

impl AuxiliaryVector {
    /// Reads it from the stack of a program at its first instruction, where the stack pointer is at `argc`.
    ///
    /// # Errors
    /// Where the stack cannot be read or has not the form of a fresh one.
    pub fn read(memory: &RemoteMemory, stack_pointer: Address) -> io::Result<Self> {
        let arguments = memory.read_word(stack_pointer)?;
        if arguments > MOST_WORDS {
            return Err(io::Error::other("the stack does not begin with a count of arguments"));
        }
        let mut at = stack_pointer + (arguments + 2) * 8;
        let end = at + MOST_WORDS * 8;
        while memory.read_word(at)? != 0 {
            at = at + 8;
            if at > end {
                return Err(io::Error::other("the environment on the stack does not end"));
            }
        }
        let start = at + 8;
        let mut entries = Vec::new();
        // The kernel's vector has at most some fifty entries (AT_VECTOR_SIZE).
        while entries.len() < 256 {
            let entry_at = start + entries.len() as u64 * 16;
            let entry = (memory.read_word(entry_at)?, memory.read_word(entry_at + 8)?);
            entries.push(entry);
            if entry.0 == 0 {
                return Ok(Self { start, entries });
            }
        }
        Err(io::Error::other("the auxiliary vector on the stack does not end"))
    }

    /// Address and length in bytes of the whole vector, its end mark included.
    pub fn place(&self) -> (Address, u64) {
        (self.start, self.entries.len() as u64 * 16)
    }

    /// The value of an entry.
    pub fn value(&self, tag: u64) -> Option<u64> {
        self.entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1)
    }

    /// Changes the value of an entry in the program's memory.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn set(&mut self, memory: &RemoteMemory, tag: u64, value: u64) -> io::Result<()> {
        for (index, entry) in self.entries.iter_mut().enumerate().filter(|(_, entry)| entry.0 == tag) {
            memory.write(self.start + index as u64 * 16 + 8, &value.to_ne_bytes())?;
            entry.1 = value;
        }
        Ok(())
    }
}
