//! The auxiliary vector on the stack of a program that has not run yet (getauxval(3), System V ABI 3.4.3).

use crate::remote::RemoteMemory;
use address_space::Address;
use std::io;

/// More words than any argument list has; a stack with more does not belong to a new program.
const MOST_WORDS: u64 = 8 << 20;

/// The auxiliary vector of a program, with its address.
pub struct AuxiliaryVector {
    start: Address,
    entries: Vec<(u64, u64)>,
}

impl AuxiliaryVector {
    /// Reads the vector from the stack of a program at its first instruction, where the stack pointer is at `argc`.
    ///
    /// # Errors
    /// The stack cannot be read, or does not have the layout of a new program.
    pub fn read(memory: &RemoteMemory, stack_pointer: Address) -> io::Result<Self> {
        let mut words = Words { memory, next: stack_pointer, buffer: Vec::new() };
        let arguments = words.take()?;
        if arguments > MOST_WORDS {
            return Err(io::Error::other("the stack does not begin with a count of arguments"));
        }
        // The arguments and the null pointer after them.
        for _ in 0..=arguments {
            words.take()?;
        }
        let end = words.next + MOST_WORDS * 8;
        while words.take()? != 0 {
            if words.next > end {
                return Err(io::Error::other("the environment on the stack does not end"));
            }
        }
        let start = words.next;
        let mut entries = Vec::new();
        // The kernel's vector has at most about 50 entries (AT_VECTOR_SIZE).
        while entries.len() < 256 {
            let entry = (words.take()?, words.take()?);
            entries.push(entry);
            if entry.0 == 0 {
                return Ok(Self { start, entries });
            }
        }
        Err(io::Error::other("the auxiliary vector on the stack does not end"))
    }

    /// Address and length in bytes of the whole vector, including its end mark.
    pub fn place(&self) -> (Address, u64) {
        (self.start, self.entries.len() as u64 * 16)
    }

    /// The value of an entry.
    pub fn value(&self, tag: u64) -> Option<u64> {
        self.entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1)
    }

    /// The address of an entry's value.
    pub fn place_of(&self, tag: u64) -> Option<Address> {
        let index = self.entries.iter().position(|entry| entry.0 == tag)?;
        Some(self.start + index as u64 * 16 + 8)
    }

    /// Changes the value of an entry in the program's memory.
    ///
    /// # Errors
    /// Where the memory cannot be written.
    pub fn set(&mut self, memory: &RemoteMemory, tag: u64, value: u64) -> io::Result<()> {
        for (index, entry) in self.entries.iter_mut().enumerate().filter(|(_, entry)| entry.0 == tag) {
            memory.write(self.start + index as u64 * 16 + 8, &value.to_ne_bytes())?;
            entry.1 = value;
        }
        Ok(())
    }
}

/// Reads the words of a stack one after the other. Each read of another process's memory is a system call, so that many
/// words are read at once.
struct Words<'a> {
    memory: &'a RemoteMemory,
    next: Address,
    /// Words from `next` on, in reverse order.
    buffer: Vec<u64>,
}

impl Words<'_> {
    /// Number of words that are read at once. It is halved at the end of the stack, where fewer can be read.
    const AT_ONCE: usize = 512;

    fn take(&mut self) -> io::Result<u64> {
        if self.buffer.is_empty() {
            let mut bytes = vec![0; Self::AT_ONCE * 8];
            while let Err(error) = self.memory.read(self.next, &mut bytes) {
                if bytes.len() <= 8 {
                    return Err(error);
                }
                bytes.truncate((bytes.len() / 16) * 8);
            }
            let words = bytes.chunks_exact(8).rev();
            self.buffer.extend(words.map(|word| word.try_into().map_or(0, u64::from_ne_bytes)));
        }
        self.next = self.next + 8;
        self.buffer.pop().ok_or_else(|| io::Error::other("the stack ends"))
    }
}
