//! The NUMA nodes from which this process may take memory (get_mempolicy(2)). None of this allocates.

use crate::sys::system_call;
use core::ffi::c_int;
use heap_abi::{NO_NODES, NodeMask, confinement};

/// The nodes that the cpuset allows this process; `None` on a kernel without NUMA, and if a sandbox refuses the call.
/// Then it refuses mbind(2) too, and the process's own policy selects pages.
pub fn allowed() -> Option<NodeMask> {
    /// `MPOL_F_MEMS_ALLOWED` (`linux/mempolicy.h`).
    const MEMS_ALLOWED: usize = 4;
    Some(policy(MEMS_ALLOWED)?.1).filter(|mask| *mask != NO_NODES)
}

/// The nodes to which the cpuset and the process's memory policy keep it; `None` as for [`allowed`].
pub fn own() -> Option<NodeMask> {
    let allowed = allowed()?;
    let (mode, nodes) = policy(0)?;
    Some(confinement(&allowed, mode, &nodes))
}

/// The node of the CPU on which this thread runs.
pub fn running_on() -> Option<u32> {
    let mut node = 0u32;
    // SAFETY:
    // - the place for the node is valid, and the CPU is not requested.
    unsafe { system_call(libc::SYS_getcpu, [0, &raw mut node as usize, 0]) }.ok()?;
    Some(node)
}

/// The mode and the nodes that the kernel returns for these flags.
fn policy(flags: usize) -> Option<(c_int, NodeMask)> {
    let (mut mode, mut nodes): (c_int, NodeMask) = (0, NO_NODES);
    let bits = size_of::<NodeMask>() * 8;
    // SAFETY:
    // - both places are valid for writing, and the mask has as many bits as the argument `bits`.
    unsafe {
        let places = [&raw mut mode as usize, nodes.as_mut_ptr() as usize, bits, 0, flags];
        system_call(libc::SYS_get_mempolicy, places)
    }
    .ok()?;
    Some((mode, nodes))
}
