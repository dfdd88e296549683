//! The page sizes that are fixed when the kernel is built.

use crate::text::text_of;
use address_space::PageSize;
use nix::unistd::{SysconfVar, sysconf};
use std::sync::OnceLock;

/// Returns the base page size of this machine.
pub fn base_page() -> PageSize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| PageSize::new(size as u64).ok());
    size.unwrap_or_else(|| unreachable!("POSIX rules out that sysconf does not know the page size"))
}

/// Returns the size of a transparent huge page; `None` on a kernel without them. The size is read once.
pub fn transparent_huge_page() -> Option<PageSize> {
    static SIZE: OnceLock<Option<PageSize>> = OnceLock::new();
    *SIZE.get_or_init(|| {
        let text = text_of("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok()?;
        PageSize::new(text.trim().parse().ok()?).ok()
    })
}
