//! Adds variables to the environment of a program that has not run yet, of which its dynamic linker is the first reader.
//!
//! The kernel's block of arguments, environment and auxiliary vector stays unchanged. A changed copy is written below the stack
//! pointer, where nothing has been written yet. `/proc/PID/environ` shows the variables of the exec.

use super::handler::ExecStop;
use crate::remote::RemoteMemory;
use crate::remote::arch::{self, guest};
use crate::remote::auxiliary::AuxiliaryVector;
use crate::remote::requests;
use address_space::Address;
use linux::constants::AT_SECURE;
use std::ffi::CString;
use std::io;

/// Alignment of the stack pointer at a program's start (System V ABI, 3.2.2; AAPCS64).
const STACK_ALIGNMENT: u64 = 16;
/// Longest name of a variable that is compared, in bytes.
const LONGEST_NAME: usize = 64;

impl ExecStop<'_> {
    /// Sets variables, each `NAME=VALUE`, in the program's environment. Returns false if the program has more rights than its
    /// user: nobody may set any then.
    ///
    /// # Errors
    /// The stack is not understood or has no room. The program is unchanged then.
    pub fn set_variables(&self, variables: &[CString]) -> io::Result<bool> {
        let pid = self.stopped.pid();
        let memory = RemoteMemory::open(pid.as_raw())?;
        let mut registers = requests::registers(pid)?;
        let stack_pointer = arch::stack_pointer(&registers);
        let auxiliary = AuxiliaryVector::read(&memory, stack_pointer)?;
        if auxiliary.value(AT_SECURE) != Some(0) {
            return Ok(false);
        }
        let (vector, length) = auxiliary.place();
        let mut words = vec![0; (vector.0 + length - stack_pointer.0) as usize];
        memory.read(stack_pointer, &mut words)?;
        let words: Vec<u64> = words.as_chunks().0.iter().copied().map(u64::from_ne_bytes).collect();
        let start = Start::of(&words, length as usize / 8)
            .ok_or_else(|| io::Error::other("the stack does not have the layout of a new program"))?;
        let is_replaced = |place: u64| {
            let mut text = [0; LONGEST_NAME];
            // A text at the very end of the stack has fewer bytes behind it.
            let read =
                (1..=LONGEST_NAME).rev().find(|&length| memory.read(Address(place), &mut text[..length]).is_ok());
            let text = &text[..read.unwrap_or(0)];
            variables.iter().any(|variable| name_of(variable).is_some_and(|name| text.starts_with(name)))
        };
        let (at, bytes) = start.with(variables, stack_pointer.0, is_replaced);
        memory.write(Address(at), &bytes)?;
        guest::after_exec(&mut registers);
        arch::set_stack_pointer(&mut registers, Address(at));
        requests::set_registers(pid, &registers)?;
        Ok(true)
    }
}

/// A variable's name with the `=` behind it.
fn name_of(variable: &CString) -> Option<&[u8]> {
    let bytes = variable.to_bytes();
    let equals = bytes.iter().position(|byte| *byte == b'=').filter(|equals| *equals < LONGEST_NAME)?;
    Some(&bytes[..=equals])
}

/// The words on a new program's stack.
struct Start<'a> {
    /// The number of arguments, their addresses, and a null pointer.
    arguments: &'a [u64],
    /// Addresses of variables.
    environment: &'a [u64],
    /// The auxiliary vector.
    auxiliary: &'a [u64],
}

impl<'a> Start<'a> {
    /// Parts the words of a stack, of which the last ones are the auxiliary vector.
    fn of(words: &'a [u64], auxiliary: usize) -> Option<Self> {
        let (rest, auxiliary) = words.split_at_checked(words.len().checked_sub(auxiliary)?)?;
        let arguments = usize::try_from(*rest.first()?).ok()?.checked_add(2)?;
        let (arguments, environment) = rest.split_at_checked(arguments)?;
        let (end, environment) = environment.split_last()?;
        (*end == 0 && !environment.contains(&0)).then_some(Self { arguments, environment, auxiliary })
    }

    /// Returns a copy with these variables in place of the variables for which `is_replaced` is true: its address, below
    /// `stack_pointer`, and its bytes.
    fn with(&self, variables: &[CString], stack_pointer: u64, is_replaced: impl Fn(u64) -> bool) -> (u64, Vec<u8>) {
        let texts: Vec<u8> = variables.iter().flat_map(|variable| variable.to_bytes_with_nul()).copied().collect();
        let texts_at = stack_pointer - texts.len() as u64;
        let kept: Vec<u64> = self.environment.iter().copied().filter(|&place| !is_replaced(place)).collect();
        let mut words = self.arguments.to_vec();
        let mut next = texts_at;
        // Before the others: programs that write their title over their arguments take the last variable's end for the end of
        // the block.
        for variable in variables {
            words.push(next);
            next += variable.to_bytes_with_nul().len() as u64;
        }
        words.extend(kept);
        words.push(0);
        words.extend(self.auxiliary);
        let at = (texts_at - words.len() as u64 * 8) / STACK_ALIGNMENT * STACK_ALIGNMENT;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.resize((texts_at - at) as usize, 0);
        bytes.extend(texts);
        (at, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_added_and_replaced() {
        // One argument, two variables at 100 and 200, a vector of two entries.
        let words = [1, 50, 0, 100, 200, 0, 33, 7, 0, 0];
        let start = Start::of(&words, 4).unwrap();
        let variables = [c"A=1".to_owned(), c"LD_PRELOAD=/x".to_owned()];
        let (at, bytes) = start.with(&variables, 4096, |place| place == 200);
        let texts_at = 4096 - b"A=1\0LD_PRELOAD=/x\0".len() as u64;
        assert_eq!((at % 16, at + bytes.len() as u64), (0, 4096));
        assert!(bytes.ends_with(b"A=1\0LD_PRELOAD=/x\0"));
        let written: Vec<u64> = bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes).take(11).collect();
        assert_eq!(written, [1, 50, 0, texts_at, texts_at + 4, 100, 0, 33, 7, 0, 0]);
    }

    #[test]
    fn a_stack_of_another_form_is_left_alone() {
        for words in
            [&[][..], &[9, 1, 0, 0, 0, 0], &[0, 0, 5, 1, 0, 0], &[0, 0, 5, 0, 5, 0, 0, 0], &[u64::MAX, 0, 0, 0]]
        {
            assert!(Start::of(words, 2).is_none(), "{words:?}");
        }
    }

    #[test]
    fn names_end_with_their_sign() {
        assert_eq!(name_of(&c"LD_PRELOAD=/x=y".to_owned()), Some(&b"LD_PRELOAD="[..]));
        assert_eq!(name_of(&c"nothing".to_owned()), None);
    }
}
