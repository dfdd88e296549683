//! Makes the program reap its helper, where the helper has become its child.
//!
//! The helper is no relative of the program, unless the program is the first process of a container. Then the helper
//! is the program's child, and would stay a zombie. Only such a program begins
//! with a stub that waits for the helper's end and continues at the entry with all registers unchanged. The stub has
//! a separate page, which is readable and executable, never writable, and stays mapped.

use crate::remote::arch::{self, GuestCall, Registers, numbers};
use crate::remote::{InjectError, Injector};
use address_space::Address;
use nix::unistd::{Pid, getpid, getppid};

/// `__WALL` of `linux/wait.h`, with which the code waits.
const WAITED_FOR: u64 = 0x4000_0000;

/// True if this process, the helper, is a child of the program that it traces.
pub fn is_needed(program: Pid) -> bool {
    getppid() == program
}

/// Makes the stopped thread begin with the stub. It must be released at once afterwards, and this process must end.
///
/// # Errors
/// [`InjectError`]. Where a filter would judge the wait, or the kernel refuses the page, the thread continues without the stub and keeps a zombie.
pub fn prepare(injector: &mut Injector<'_>) -> Result<(), InjectError> {
    let length = linux::pages::base_page().bytes();
    let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let arguments = [0, length, protection, flags, u64::MAX, 0];
    // The address 0 has no code, so that no filter makes an exception for it.
    let waits = GuestCall { number: libc::SYS_wait4, arguments: [getpid().as_raw() as u64, 0, WAITED_FOR, 0, 0, 0] };
    if !injector.allows(&waits, Address(0)) {
        return Ok(());
    }
    let Ok(page) = injector.call(numbers::SYS_mmap, arguments)? else { return Ok(()) };
    let code = code_for(getpid(), injector.registers());
    injector.memory().write(Address(page), &code)?;
    injector.change_registers(|registers| arch::set_instruction_pointer(registers, Address(page)))?;
    Ok(())
}

/// Returns the code with its words filled in: the child to wait for, the registers that it uses, and the address at
/// which to continue.
fn code_for(helper: Pid, registers: &Registers) -> Vec<u8> {
    let mut code = arch::WAIT_CODE.code().to_vec();
    let mut words = vec![helper.as_raw() as u64];
    words.extend(arch::registers_used_by_wait(registers));
    words.push(arch::instruction_pointer(registers).0);
    code.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_small_and_ends_with_its_words() {
        // SAFETY:
        // - the structure is plain integers.
        let registers: Registers = unsafe { std::mem::zeroed() };
        let code = code_for(Pid::from_raw(77), &registers);
        let words = 2 + arch::registers_used_by_wait(&registers).len();
        assert!(code.len() < 512 && code.len().is_multiple_of(8));
        let first = code.len() - words * 8;
        assert_eq!(u64::from_ne_bytes(code[first..first + 8].try_into().unwrap()), 77);
    }
}
