//! Capabilities of the calling thread (capabilities(7)). Linux keeps them for each thread.

use linux_raw::kernel::general::{__user_cap_data_struct, __user_cap_header_struct, _LINUX_CAPABILITY_VERSION_3};
use linux_raw::kernel::general::{
    CAP_CHECKPOINT_RESTORE, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_NICE, CAP_SYS_PTRACE,
};
use std::io;
use std::ops::{BitAnd, BitOr};

/// A set of capabilities: a bit for each, by its number in `linux/capability.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapabilitySet(u64);

impl CapabilitySet {
    /// No capability.
    pub const NONE: Self = Self(0);
    /// Reads any file and searches any folder.
    pub const DAC_READ_SEARCH: Self = Self(1 << CAP_DAC_READ_SEARCH);
    /// Traces and reads any process.
    pub const SYS_PTRACE: Self = Self(1 << CAP_SYS_PTRACE);
    /// Schedules any process, and advises the kernel about its memory (process_madvise(2)).
    pub const SYS_NICE: Self = Self(1 << CAP_SYS_NICE);
    /// Administers the system; before Linux 5.9, also what `CHECKPOINT_RESTORE` permits.
    pub const SYS_ADMIN: Self = Self(1 << CAP_SYS_ADMIN);
    /// Follows the links in `/proc/PID/map_files` (Linux 5.9).
    pub const CHECKPOINT_RESTORE: Self = Self(1 << CAP_CHECKPOINT_RESTORE);

    /// True where every capability of `other` is in this set.
    pub fn contains(self, other: Self) -> bool {
        self & other == other
    }
}

impl BitAnd for CapabilitySet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for CapabilitySet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The effective and the permitted capabilities of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Capabilities in force.
    pub effective: CapabilitySet,
    /// Capabilities that the thread may put in force.
    pub permitted: CapabilitySet,
}

/// The calling thread, in the form of capget(2) and capset(2): version 3 has sets of 64 bits, in two structures.
const THIS_THREAD: __user_cap_header_struct = __user_cap_header_struct { version: _LINUX_CAPABILITY_VERSION_3, pid: 0 };
const EMPTY: __user_cap_data_struct = __user_cap_data_struct { effective: 0, permitted: 0, inheritable: 0 };

/// Returns the capabilities of the calling thread.
///
/// # Errors
/// Those of capget(2).
pub fn of_this_thread() -> io::Result<Capabilities> {
    let mut header = THIS_THREAD;
    let mut sets = [EMPTY; 2];
    // SAFETY:
    // - the header is of version 3, for which the kernel fills two structures of sets.
    checked(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    let [low, high] = sets;
    let whole = |low: u32, high: u32| CapabilitySet(u64::from(high) << 32 | u64::from(low));
    Ok(Capabilities {
        effective: whole(low.effective, high.effective),
        permitted: whole(low.permitted, high.permitted),
    })
}

/// Drops every capability of the calling thread but these, which it must be permitted; it gives none to a program that
/// it executes. Cannot be undone.
///
/// # Errors
/// Those of capset(2): `EPERM` where one of `kept` is not permitted.
pub fn drop_all_but(kept: CapabilitySet) -> io::Result<()> {
    let mut header = THIS_THREAD;
    let half = |bits: u32| __user_cap_data_struct { effective: bits, permitted: bits, inheritable: 0 };
    let sets = [half(kept.0 as u32), half((kept.0 >> 32) as u32)];
    // SAFETY:
    // - the header is of version 3, for which the kernel reads two structures of sets.
    checked(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) })
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sets_are_those_that_the_kernel_shows() {
        let shown = || {
            let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                CapabilitySet(u64::from_str_radix(line.trim(), 16).unwrap())
            };
            Capabilities { effective: field("CapEff:"), permitted: field("CapPrm:") }
        };
        let check = move || {
            let before = shown();
            assert_eq!(of_this_thread().unwrap(), before);
            // Low and high word.
            let some = CapabilitySet::SYS_PTRACE | CapabilitySet::CHECKPOINT_RESTORE;
            let kept = before.permitted & some;
            drop_all_but(kept).unwrap();
            assert_eq!(shown(), Capabilities { effective: kept, permitted: kept });
            drop_all_but(CapabilitySet::NONE).unwrap();
            assert_eq!(
                of_this_thread().unwrap(),
                Capabilities { effective: CapabilitySet(0), permitted: CapabilitySet(0) }
            );
            assert_eq!(drop_all_but(some).unwrap_err().raw_os_error(), Some(libc::EPERM));
        };
        std::thread::spawn(check).join().unwrap();
    }
}
