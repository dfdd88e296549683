//! Limits that count mappings whether they hold memory or not.

use crate::sys::system_call;
use crate::text::number_of;

/// `vm.overcommit_memory` (proc(5)) where the kernel promises no more memory than it has.
const NEVER_OVERCOMMIT: u64 = 2;

/// True if address space that holds no memory counts: by RLIMIT_AS or RLIMIT_DATA (getrlimit(2)), or since the kernel has to
/// have memory for all private mappings.
pub fn count_address_space() -> bool {
    [libc::RLIMIT_AS, libc::RLIMIT_DATA].into_iter().any(is_set)
        || number_of(format_args!("/proc/sys/vm/overcommit_memory")) == Some(NEVER_OVERCOMMIT)
}

fn is_set(resource: libc::__rlimit_resource_t) -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY:
    // - the kernel writes one such structure, or nothing; no new limit is given.
    let _ = unsafe { system_call(libc::SYS_prlimit64, [0, resource as usize, 0, &raw mut limit as usize]) };
    limit.rlim_cur != libc::RLIM_INFINITY
}
