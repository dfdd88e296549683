//! The ordinary page size.

use address_space::PageSize;
use nix::unistd::{SysconfVar, sysconf};

/// The ordinary page size of this machine.
pub fn base_page() -> PageSize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| PageSize::new(size as u64).ok());
    size.unwrap_or_else(|| unreachable!("POSIX rules out that sysconf does not know the page size"))
}
