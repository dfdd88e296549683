//! True if two processes have the same memory (kcmp(2)).

use std::io;

/// `KCMP_VM` of `linux/kcmp.h`.
const KCMP_VM: i32 = 1;

/// True where both processes have the same memory, by CLONE_VM.
///
/// # Errors
/// The kernel's: no such process, no permission to trace both, or built without `CONFIG_KCMP`.
pub fn have_same_memory(one: i32, other: i32) -> io::Result<bool> {
    // SAFETY:
    // - kcmp takes integers and touches no memory of this process.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        order => Ok(order == 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_shares_its_memory_with_itself_and_not_with_a_child() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (own, other) = (std::process::id() as i32, child.id() as i32);
        let found = have_same_memory(own, own).and_then(|same| Ok((same, have_same_memory(own, other)?)));
        child.kill().unwrap();
        child.wait().unwrap();
        match found {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {}
            found => assert_eq!(found.unwrap(), (true, false)),
        }
    }
}
