//! Drops the rights that a program does not need for reading, so that an attacker who exploits a reader of hostile
//! files gains no more than the reader's rights.
//!
//! After [`confine`] a thread, and each that it starts, can read files, use memory and write to descriptors that were
//! open before. It cannot open a file for writing, change a file system, make executable memory, execute a program,
//! trace or signal another process, or use a network. This cannot be undone: `no_new_privs` is set, capabilities are
//! dropped from all sets, and the filter cannot be removed (prctl(2), capabilities(7), seccomp(2)).
#![forbid(unsafe_code)]

mod calls;

use linux::capabilities::{self, CapabilitySet};
use nix::sys::prctl::set_no_new_privs;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use std::io;

/// The data that a confined thread may still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Files that its user can read without any capability.
    Own,
    /// Also `/proc/PID` of processes of other users, and files that only capabilities lead to, as far as the thread has
    /// these capabilities now.
    Processes,
}

/// Why a thread is not confined, or only in part.
#[derive(Debug, thiserror::Error)]
pub enum NotConfined {
    /// The kernel refuses to set `no_new_privs`.
    #[error("prctl(PR_SET_NO_NEW_PRIVS): {0}")]
    Privileges(io::Error),
    /// The kernel refuses to drop capabilities.
    #[error("capset: {0}")]
    Capabilities(io::Error),
    /// The kernel takes no filter; needed: a kernel with CONFIG_SECCOMP_FILTER, on x86-64 or AArch64.
    #[error("seccomp: {0}; needed: a kernel with CONFIG_SECCOMP_FILTER")]
    Filter(#[from] seccompiler::Error),
}

impl From<seccompiler::BackendError> for NotConfined {
    fn from(error: seccompiler::BackendError) -> Self {
        Self::Filter(error.into())
    }
}

/// Confines the calling thread, and threads that it starts from now on. Other threads are not confined, so call this
/// before starting any.
///
/// # Errors
/// [`NotConfined`]. The steps before the failing step (privileges, capabilities, filter) stay in force.
pub fn confine(reads: Reads) -> Result<(), NotConfined> {
    set_no_new_privs().map_err(|error| NotConfined::Privileges(error.into()))?;
    drop_capabilities(reads).map_err(NotConfined::Capabilities)?;
    Ok(seccompiler::apply_filter(&filter()?)?)
}

/// Capabilities that reading other users' processes needs: `/proc/PID/{maps,smaps,mem,pagemap}` SYS_PTRACE,
/// `/proc/PID/map_files` CHECKPOINT_RESTORE (Linux 5.9, before that SYS_ADMIN), paths through closed folders
/// DAC_READ_SEARCH.
fn drop_capabilities(reads: Reads) -> io::Result<()> {
    let now = capabilities::of_this_thread()?;
    let mut reading = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::CHECKPOINT_RESTORE;
    if !now.permitted.contains(CapabilitySet::CHECKPOINT_RESTORE) {
        reading = reading | CapabilitySet::SYS_ADMIN;
    }
    let kept = match reads {
        Reads::Own => CapabilitySet::NONE,
        Reads::Processes => now.permitted & now.effective & reading,
    };
    capabilities::drop_all_but(kept)
}

/// Permits [`calls::allowed`]. Any other call gets the answer for a call that the kernel does not have, for which C
/// libraries may have an alternative (clone3, statx).
fn filter() -> Result<BpfProgram, NotConfined> {
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    let refusal = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter = SeccompFilter::new(calls::allowed()?.into_iter().collect(), refusal, SeccompAction::Allow, machine)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests;
