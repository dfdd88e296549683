//! Limits that count mappings whether they hold memory or not.

use crate::sandbox;
use crate::sys::{base_page, map_anywhere, system_call, unmap};
use crate::text::{number_of, text_of};

/// Value of `vm.overcommit_memory` (proc(5)) with which the kernel promises no more memory than it has.
const NEVER_OVERCOMMIT: u64 = 2;

/// Largest size of stacks that statm (proc(5)) counts as data and RLIMIT_DATA does not.
const MOST_STACK: usize = 8 << 20;

/// True if address space that holds no memory counts: by RLIMIT_AS or RLIMIT_DATA (getrlimit(2)), or since the kernel has to
/// have memory for all private mappings.
pub fn count_address_space() -> bool {
    [libc::RLIMIT_AS, libc::RLIMIT_DATA].into_iter().any(|resource| limit_of(resource).is_some()) || never_overcommits()
}

/// True if a mapping of `wanted` bytes that has failed may succeed once `unmapped` bytes are unmapped: a limit counts them,
/// and the mapping fits into each limit then. True if the sizes are not known.
pub fn may_be_mapped(wanted: usize, unmapped: usize) -> bool {
    if sandbox::is_entered() {
        return unmapped > 0;
    }
    let (space, data) = (limit_of(libc::RLIMIT_AS), limit_of(libc::RLIMIT_DATA));
    let never_overcommits = never_overcommits();
    if unmapped == 0 || space.is_none() && data.is_none() && !never_overcommits {
        return false;
    }
    let fits = |limit: Option<usize>, used: Option<usize>| match (limit, used) {
        (Some(limit), Some(used)) => used.saturating_sub(unmapped).saturating_add(wanted) <= limit,
        _ => true,
    };
    let mut buffer = [0; 256];
    let statm = text_of(format_args!("/proc/self/statm"), &mut buffer);
    let used = |field| Some(statm?.split_whitespace().nth(field)?.parse::<usize>().ok()?.saturating_mul(base_page()));
    fits(space, used(0))
        && fits(data, used(5).map(|bytes| bytes.saturating_sub(MOST_STACK)))
        && (!never_overcommits || fits_commitment(fits))
}

/// True if not even one page can be mapped although no limit counts address space: the process has as many mappings as
/// `vm.max_map_count` allows (proc(5)), and can map again once others are unmapped, of whatever size.
pub fn are_mappings_short() -> bool {
    if !sandbox::is_entered() && count_address_space() {
        return false;
    }
    let page = map_anywhere(base_page(), true, 0);
    if let Some(page) = page {
        // SAFETY:
        // - the mapping is new and has no other user.
        unsafe { unmap(page, base_page()) };
    }
    page.is_none()
}

/// True if a mapping fits into `CommitLimit` of /proc/meminfo, as `fits` calculates it.
fn fits_commitment(fits: impl Fn(Option<usize>, Option<usize>) -> bool) -> bool {
    let mut buffer = [0; 4096];
    let Some(text) = text_of(format_args!("/proc/meminfo"), &mut buffer) else { return true };
    let bytes = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.saturating_mul(1024))
    };
    fits(bytes("CommitLimit:"), bytes("Committed_AS:"))
}

fn never_overcommits() -> bool {
    number_of(format_args!("/proc/sys/vm/overcommit_memory")) == Some(NEVER_OVERCOMMIT)
}

/// The limit of a resource in bytes; `None` if there is none.
fn limit_of(resource: libc::__rlimit_resource_t) -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY:
    // - the kernel writes one such structure, or nothing; no new limit is given.
    let _ = unsafe { system_call(libc::SYS_prlimit64, [0, resource as usize, 0, &raw mut limit as usize]) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as usize)
}
