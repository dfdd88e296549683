//! The pages of a process to which its CPUs walk in a time, and whether the TLBs hold them: an answer without a PMU.
//!
//! The kernel clears the accessed marks of a process on request (`/proc/PID/clear_refs`) and counts the marked pages
//! (`Referenced` in smaps). The meaning of a mark was tried on Linux 6.18 on x86-64 (`tests/meaning.rs`) and agrees
//! with `fs/proc/task_mmu.c`, which clears the bits without a flush of the TLB:
//!
//! - **A marked page was walked to since the clear.** A CPU sets the bit in a page table entry when it loads the entry into a
//!   TLB. A page whose translation stays in a TLB is used without a mark: a loop over 1,024 pages had none marked after
//!   1 ms, and all after 10 ms, when something else had flushed the TLB.
//! - So few marks in a short time mean that the TLBs hold the pages in use, and each mark in private anonymous memory
//!   is at least one page walk. In a longer time the marks approach the pages in use; at most as many as the TLBs of
//!   the CPUs have entries are missed.
//! - Page faults mark the mapped pages, and the pages around them. Pages or folios of files can be marked by others,
//!   too: by read(2), and when a process that has mapped them ends (seen on ext4 and tmpfs).
//! - Pages of the hugetlb pool are neither cleared nor counted. A transparent huge page is marked as a whole.
//!
//! Clearing holds the process's memory map for writing: for that time its threads wait for page faults and `mmap`. The
//! kernel's reclaim also uses the marks: cleared pages look idle until they are used again, so that under memory
//! pressure the order of reclaim changes. Contents, protections and soft-dirty bits are not touched.
//!
//! All functions work for an ordinary user on processes of the same user; root (CAP_SYS_PTRACE and CAP_DAC_OVERRIDE)
//! can use them on all processes.
#![forbid(unsafe_code)]

mod clearing;
mod observer;
mod part;
mod reach;
mod result;
mod verdict;

pub use clearing::{Cleared, LeftOut};
pub use observer::{Observer, Options, WorkingSetError};
pub use part::{Entries, Part, PartMarks, count};
pub use reach::{HeldPages, Holds, Level, PageClass, Reach};
pub use result::{Cost, Reading, Round, VERSION, WalkBound, WorkingSet};
pub use verdict::{PartVerdict, ReachVerdict, verdicts};

#[cfg(test)]
mod simulated;
