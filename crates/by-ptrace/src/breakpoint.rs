//! A stop before one instruction: by a debug register, or by a trap instruction where there is none to be had.

use crate::arch;
use crate::{RemoteMemory, requests};
use address_space::Address;
use nix::unistd::Pid;
use std::io;

/// Linux's `TRAP_BRKPT`, `TRAP_TRACE` and `TRAP_HWBKPT`, and `SI_KERNEL` that x86 gives for `int3` (sigaction(2)).
const TRAP_CODES: [i32; 4] = [1, 2, 4, 0x80];

/// A breakpoint in a thread that stands still.
#[derive(Debug)]
pub struct Breakpoint {
    at: Address,
    /// The code that a trap instruction stands in place of.
    replaced: Option<Vec<u8>>,
}

impl Breakpoint {
    /// Sets it.
    ///
    /// # Errors
    /// Where neither way works.
    pub fn set(pid: Pid, at: Address) -> io::Result<Self> {
        if arch::set_hardware_breakpoint(pid, at).is_ok() {
            return Ok(Self { at, replaced: None });
        }
        let memory = RemoteMemory::open(pid.as_raw())?;
        let mut code = vec![0; arch::BREAKPOINT_INSTRUCTION.len()];
        memory.read(at, &mut code)?;
        memory.write(at, arch::BREAKPOINT_INSTRUCTION)?;
        Ok(Self { at, replaced: Some(code) })
    }

    /// True where the thread, which has stopped for SIGTRAP, stands at this breakpoint.
    pub fn is_hit(&self, pid: Pid) -> bool {
        let Ok(registers) = requests::registers(pid) else { return false };
        let advanced = if self.replaced.is_some() { arch::BREAKPOINT_ADVANCES } else { 0 };
        let here = arch::instruction_pointer(&registers) == self.at + advanced;
        here && requests::signal_code(pid).is_ok_and(|code| TRAP_CODES.contains(&code))
    }

    /// Takes it back; a thread that has hit it stands before the instruction afterwards.
    ///
    /// # Errors
    /// Where the thread or its memory is gone.
    pub fn clear(self, pid: Pid, hit: bool) -> io::Result<()> {
        let Some(code) = self.replaced else {
            return Ok(arch::clear_hardware_breakpoint(pid)?);
        };
        RemoteMemory::open(pid.as_raw())?.write(self.at, &code)?;
        if hit {
            let mut registers = requests::registers(pid)?;
            arch::set_instruction_pointer(&mut registers, self.at);
            requests::set_registers(pid, &registers)?;
        }
        Ok(())
    }
}
