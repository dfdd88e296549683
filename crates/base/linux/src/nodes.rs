//! NUMA nodes.

use crate::text::text_of;
use address_space::{AddressRange, PageSize};
use std::io;
use std::sync::OnceLock;

/// True on a machine with several NUMA nodes (`Documentation/ABI/stable/sysfs-devices-node`). Read once: a start calls this
/// while the program runs to its entry, so that it does not wait for it there.
pub fn has_several_nodes() -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    *SEVERAL.get_or_init(|| text_of("/sys/devices/system/node/online").is_ok_and(|online| online.contains(['-', ','])))
}

/// Makes memory that this thread allocates from now on come from one node while the node has free memory
/// (`MPOL_PREFERRED`, set_mempolicy(2)), including pages that it writes to files of tmpfs and hugetlbfs, unless the
/// file has its own policy. With a policy that binds, the kernel would kill processes if the node runs out of memory.
///
/// # Errors
/// `EINVAL` where the node does not exist or the thread's cpuset does not have it; `ENOSYS` from a kernel without NUMA.
pub fn prefer_in_this_thread(node: u32) -> io::Result<()> {
    let words = node as usize / 64 + 1;
    let mut mask = vec![0u64; words];
    mask[words - 1] = 1 << (node % 64);
    // The kernel reads one bit less than the number it is given (Linux, `mm/mempolicy.c`, `get_nodes`).
    let bits = words * 64 + 1;
    // SAFETY:
    // - the kernel reads no more of the mask than it has, and the policy changes no contents.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, mask.as_ptr(), bits) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The node of each page of a range of this process, in their order; `None` for a page that is not present. `page` is
/// the distance between the examined pages.
///
/// # Errors
/// Those of move_pages(2): `EPERM` from a filter of system calls, `ENOSYS` from a kernel without NUMA.
pub fn nodes_of_pages(range: AddressRange, page: PageSize) -> io::Result<Vec<Option<u32>>> {
    let addresses: Vec<usize> = range.pages(page).map(|page| page.start().0 as usize).collect();
    let mut nodes = vec![-libc::ENOENT; addresses.len()];
    let nowhere = std::ptr::null::<libc::c_int>();
    // SAFETY:
    // - both arrays have the number of elements that is passed, and outlive the call.
    // - without nodes to move to, the kernel only reports the nodes of the pages.
    let result = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, addresses.len(), addresses.as_ptr(), nowhere, nodes.as_mut_ptr(), 0)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(nodes.into_iter().map(|node| u32::try_from(node).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::base_page;
    use address_space::Address;

    #[test]
    fn pages_that_are_present_have_the_node_that_their_thread_prefers() {
        let page = base_page();
        let bytes = page.bytes() as usize;
        let found = std::thread::spawn(move || -> io::Result<Vec<Option<u32>>> {
            prefer_in_this_thread(0)?;
            let memory = vec![1u8; 4 * bytes];
            let first = Address((memory.as_ptr() as u64).next_multiple_of(bytes as u64));
            nodes_of_pages(AddressRange::sized(first, 2 * page.bytes()), page)
        });
        match found.join().unwrap() {
            Ok(nodes) => assert_eq!(nodes, [Some(0), Some(0)]),
            Err(error) => assert!([Some(libc::ENOSYS), Some(libc::EPERM)].contains(&error.raw_os_error()), "{error}"),
        }
    }

    #[test]
    fn a_node_that_does_not_exist_is_refused() {
        for node in [1023, 5000] {
            assert!(std::thread::spawn(move || prefer_in_this_thread(node)).join().unwrap().is_err());
        }
    }
}
