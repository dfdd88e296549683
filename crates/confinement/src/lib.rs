//! Takes from a program what it does not need for reading: whoever finds a mistake in a reader of hostile files gains
//! nothing by it but what the reader may do.
//!
//! After [`confine`] a thread, and each that it starts, can read files, use memory and write to descriptors that were open
//! before. It cannot open a file for writing, change a file system, make executable memory, execute a program, trace or
//! signal another process, or use a network. There is no way back: `no_new_privs` is set, capabilities are dropped from
//! all sets, and the filter cannot be removed (prctl(2), capabilities(7), seccomp(2)).
#![forbid(unsafe_code)]

mod calls;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use std::io;

/// What a confined thread may still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// What its user may read without any capability.
    Own,
    /// Also `/proc/PID` of processes of other users, and files that only capabilities lead to, as far as the thread has
    /// these capabilities now.
    Processes,
}

/// Why a thread is not confined, or not in every way.
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

/// Confines the calling thread, and threads that it starts from now on. Other threads stay as they are: call it before
/// there are any.
///
/// # Errors
/// [`NotConfined`]. What came before the failing step (privileges, capabilities, filter) stays in force.
pub fn confine(reads: Reads) -> Result<(), NotConfined> {
    set_no_new_privs(true).map_err(|error| NotConfined::Privileges(error.into()))?;
    drop_capabilities(reads).map_err(|error| NotConfined::Capabilities(error.into()))?;
    Ok(seccompiler::apply_filter(&filter()?)?)
}

/// Capabilities that reading of other users' processes takes: `/proc/PID/{maps,smaps,mem,pagemap}` SYS_PTRACE,
/// `/proc/PID/map_files` CHECKPOINT_RESTORE (Linux 5.9, before that SYS_ADMIN), paths through closed folders
/// DAC_READ_SEARCH.
fn drop_capabilities(reads: Reads) -> rustix::io::Result<()> {
    let now = capabilities(None)?;
    let mut reading = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::CHECKPOINT_RESTORE;
    if !now.permitted.contains(CapabilitySet::CHECKPOINT_RESTORE) {
        reading |= CapabilitySet::SYS_ADMIN;
    }
    let kept = match reads {
        Reads::Own => CapabilitySet::empty(),
        Reads::Processes => now.permitted & now.effective & reading,
    };
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })
}

/// Lets [`calls::allowed`] pass. Anything else is answered like a call that the kernel does not have, for which C libraries
/// have another way where there is one (clone3, statx).
fn filter() -> Result<BpfProgram, NotConfined> {
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    let refusal = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter = SeccompFilter::new(calls::allowed()?.into_iter().collect(), refusal, SeccompAction::Allow, machine)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests;
