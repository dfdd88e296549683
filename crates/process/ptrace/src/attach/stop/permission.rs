//! Finds out which threads may make the calls of a lift. Seccomp filters belong to threads: a program may confine its
//! workers and leave others free.

use super::{LiveProcess, StopError};
use crate::attach::call_page::MAPPING_FLAGS;
use crate::remote::arch::numbers;
use crate::remote::seccomp::{self, Filters, NamedCall};
use crate::remote::status::ThreadStatus;
use address_space::Protection;
use nix::unistd::Pid;
use std::collections::BTreeMap;

/// Calls without which no range of a running program can be swapped, or a begun lift be undone.
const NEEDED: &[NamedCall] = &[
    seccomp::NEEDED,
    ("mmap", numbers::SYS_mmap, [0, 0, Protection::READ_WRITE.bits() as u64, MAPPING_FLAGS as u64, u64::MAX, 0]),
    ("mremap", libc::SYS_mremap, [0, 0, 0, (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64, 0, 0]),
    ("madvise", libc::SYS_madvise, [0, 0, libc::MADV_SEQUENTIAL as u64, 0, 0, 0]),
    ("madvise", libc::SYS_madvise, [0, 0, libc::MADV_DONTFORK as u64, 0, 0, 0]),
    ("madvise", libc::SYS_madvise, [0, 0, libc::MADV_DOFORK as u64, 0, 0, 0]),
    ("madvise", libc::SYS_madvise, [0, 0, libc::MADV_NORMAL as u64, 0, 0, 0]),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as u64, 0, 0, 8, 0, 0]),
    #[cfg(target_arch = "aarch64")]
    ("restart_syscall", libc::SYS_restart_syscall, [0; 6]),
    #[cfg(target_arch = "aarch64")]
    ("rt_sigreturn", libc::SYS_rt_sigreturn, [0; 6]),
];

/// Threads that may not make the calls.
#[derive(Default)]
pub(super) struct NotPermitted {
    /// Each with the reason.
    threads: BTreeMap<i32, String>,
    /// The filters that were refused last, with the reason: for filters that cannot be read children of this process try
    /// the calls, which is not repeated for each thread.
    last: Option<(Filters, String)>,
}

impl NotPermitted {
    /// True for a thread that was refused when it was last asked. No thread loses its filters.
    pub(super) fn contains(&self, thread: i32) -> bool {
        self.threads.contains_key(&thread)
    }

    /// Forgets a thread that is to be asked anew: its number may belong to another one by now.
    pub(super) fn forget(&mut self, thread: i32) {
        self.threads.remove(&thread);
    }

    /// The reason why none of these threads may make calls; `None` if one was not refused, or there is none.
    pub(super) fn covers(&self, threads: impl Iterator<Item = i32>) -> Option<StopError> {
        let mut why = None;
        for thread in threads {
            why = Some(self.threads.get(&thread)?);
        }
        why.map(|why| StopError::Refused(why.clone()))
    }

    /// The reason why one of these threads may make no calls; `None` if none was refused.
    pub(super) fn of_any(&self, mut threads: impl Iterator<Item = i32>) -> Option<StopError> {
        threads.find_map(|thread| self.threads.get(&thread)).map(|why| StopError::Refused(why.clone()))
    }

    /// Checks whether these filters of a thread let it make the calls.
    fn take(&mut self, thread: i32, filters: Result<Filters, String>) -> Option<Filters> {
        let why = match filters {
            Ok(filters) => {
                let known = self.last.as_ref().filter(|(refused, _)| *refused == filters).map(|(_, why)| why.clone());
                let Some(why) = known.or_else(|| seccomp::check(&filters, NEEDED).err()) else {
                    self.forget(thread);
                    return Some(filters);
                };
                self.last = Some((filters, why.clone()));
                why
            }
            Err(why) => why,
        };
        self.threads.insert(thread, why);
        None
    }
}

impl LiveProcess {
    /// True if the filters of a held thread permit the calls. It is the one that makes them then.
    pub(super) fn permit(&mut self, thread: i32) -> bool {
        let filters = Filters::of(Pid::from_raw(thread), &ThreadStatus::read(Pid::from_raw(thread)));
        let permitted = self.not_permitted.take(thread, filters);
        let is_permitted = permitted.is_some();
        self.filters = permitted.unwrap_or_default();
        is_permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::seccomp::Instruction;

    /// A filter that returns the same for every call.
    fn returning(value: u32) -> Result<Filters, String> {
        Ok(Filters::Known(vec![vec![Instruction { code: 0x06, if_true: 0, if_false: 0, value }]]))
    }

    #[test]
    fn a_program_is_refused_only_where_each_of_its_threads_is() {
        let (allows, kills) = (0x7fff_0000, 0x8000_0000);
        let mut threads = NotPermitted::default();
        assert!(threads.covers([].into_iter()).is_none());
        assert!(threads.take(1, returning(kills)).is_none() && threads.take(2, returning(kills)).is_none());
        assert!(threads.take(3, returning(allows)).is_some() && threads.take(4, Ok(Filters::None)).is_some());
        assert!(threads.take(5, Err("it is in strict mode".to_owned())).is_none());
        assert_eq!([1, 2, 3, 4, 5].map(|thread| threads.contains(thread)), [true, true, false, false, true]);
        let why = threads.covers([1, 2].into_iter()).unwrap().to_string();
        assert!(why.contains("does not let it call munmap"), "{why}");
        assert_eq!(threads.covers([5].into_iter()).unwrap().to_string(), "it is in strict mode");
        assert!(threads.covers([1, 3].into_iter()).is_none());
        assert!(threads.of_any([3, 1].into_iter()).is_some() && threads.of_any([3, 4].into_iter()).is_none());
        threads.forget(1);
        assert!(threads.covers([1, 2].into_iter()).is_none());
    }
}
