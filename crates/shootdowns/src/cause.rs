//! Why the kernel sends shootdowns, from the names of the functions on its stack.

use serde::Serialize;
use std::fmt;

/// What made the kernel invalidate translations that other CPUs may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// munmap(2).
    Munmap,
    /// madvise(2) or process_madvise(2) with an advice that drops or changes pages.
    Madvise,
    /// mprotect(2) that takes a right away.
    Mprotect,
    /// mremap(2).
    Mremap,
    /// mmap(2) over what was mapped.
    Mmap,
    /// brk(2) that shrinks the heap.
    Brk,
    /// The end of a process or an exec.
    Exit,
    /// fork(2): the parent's pages become read-only.
    Fork,
    /// A write to a page that is shared since a fork or maps a file.
    CopyOnWrite,
    /// NUMA balancing samples accesses by taking translations away.
    NumaBalancing,
    /// Kernel samepage merging.
    Ksm,
    /// khugepaged collapses pages to a huge one.
    Khugepaged,
    /// Memory is compacted, or pages move for another reason.
    Migration,
    /// Pages are reclaimed or swapped.
    Reclaim,
    /// Dirty pages of a shared file are written back.
    Writeback,
    /// A huge page is split.
    Split,
    /// None of these is on the stack, or kernel addresses are hidden.
    Unknown,
}

/// Functions by which a cause is recognised, the most telling first. A name matches where a function's begins with it; the
/// names are those of Linux 5.10 to 7.2, in mm/, kernel/sched/fair.c and the entry points of system calls.
const TELLING: [(&str, Cause); 44] = [
    ("task_numa_work", Cause::NumaBalancing),
    ("change_prot_numa", Cause::NumaBalancing),
    ("ksm_scan_thread", Cause::Ksm),
    ("ksm_do_scan", Cause::Ksm),
    ("khugepaged", Cause::Khugepaged),
    ("compact_zone", Cause::Migration),
    ("kcompactd", Cause::Migration),
    ("migrate_pages", Cause::Migration),
    ("do_numa_page", Cause::NumaBalancing),
    ("shrink_folio_list", Cause::Reclaim),
    ("shrink_page_list", Cause::Reclaim),
    ("shrink_lruvec", Cause::Reclaim),
    ("try_to_unmap_flush", Cause::Reclaim),
    ("folio_mkclean", Cause::Writeback),
    ("page_mkclean", Cause::Writeback),
    ("dup_mm", Cause::Fork),
    ("copy_page_range", Cause::Fork),
    ("exit_mmap", Cause::Exit),
    ("do_exit", Cause::Exit),
    ("begin_new_exec", Cause::Exit),
    ("do_wp_page", Cause::CopyOnWrite),
    ("wp_page_copy", Cause::CopyOnWrite),
    ("__x64_sys_munmap", Cause::Munmap),
    ("__arm64_sys_munmap", Cause::Munmap),
    ("__x64_sys_madvise", Cause::Madvise),
    ("__arm64_sys_madvise", Cause::Madvise),
    ("__x64_sys_process_madvise", Cause::Madvise),
    ("__arm64_sys_process_madvise", Cause::Madvise),
    ("do_madvise", Cause::Madvise),
    ("__x64_sys_mprotect", Cause::Mprotect),
    ("__arm64_sys_mprotect", Cause::Mprotect),
    ("do_mprotect_pkey", Cause::Mprotect),
    ("__x64_sys_mremap", Cause::Mremap),
    ("__arm64_sys_mremap", Cause::Mremap),
    ("do_mmap", Cause::Mmap),
    ("mmap_region", Cause::Mmap),
    ("__x64_sys_brk", Cause::Brk),
    ("__arm64_sys_brk", Cause::Brk),
    // What stands on the stack where the compiler makes the entry point's last call a jump.
    ("__do_sys_munmap", Cause::Munmap),
    ("__do_sys_madvise", Cause::Madvise),
    ("__do_sys_mprotect", Cause::Mprotect),
    ("__do_sys_mremap", Cause::Mremap),
    ("__do_sys_brk", Cause::Brk),
    ("__split_huge_p", Cause::Split),
];

impl Cause {
    /// Finds the cause in the names of the kernel's functions on a stack, in any order.
    pub fn of<'a>(functions: impl IntoIterator<Item = &'a str> + Clone) -> Self {
        let stands_there = |name: &str| functions.clone().into_iter().any(|function| function.starts_with(name));
        TELLING.iter().find(|(name, _)| stands_there(name)).map_or(Self::Unknown, |(_, cause)| *cause)
    }

    /// The cause that a system call stands for, by its number on this machine.
    pub fn of_system_call(number: i64) -> Self {
        let calls = [
            (libc::SYS_munmap, Self::Munmap),
            (libc::SYS_madvise, Self::Madvise),
            (libc::SYS_mprotect, Self::Mprotect),
            (libc::SYS_mremap, Self::Mremap),
        ];
        calls.iter().find(|(call, _)| *call == number).map_or(Self::Unknown, |(_, cause)| *cause)
    }

    /// True where a call of the program asked for it, not the kernel by itself.
    pub fn is_call(self) -> bool {
        matches!(
            self,
            Self::Munmap | Self::Madvise | Self::Mprotect | Self::Mremap | Self::Mmap | Self::Brk | Self::Exit
        )
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Munmap => "munmap",
            Self::Madvise => "madvise",
            Self::Mprotect => "mprotect",
            Self::Mremap => "mremap",
            Self::Mmap => "mmap over a mapping",
            Self::Brk => "brk",
            Self::Exit => "end of a process",
            Self::Fork => "fork",
            Self::CopyOnWrite => "copy on write",
            Self::NumaBalancing => "NUMA balancing",
            Self::Ksm => "KSM",
            Self::Khugepaged => "khugepaged",
            Self::Migration => "compaction or migration",
            Self::Reclaim => "reclaim or swap",
            Self::Writeback => "writeback",
            Self::Split => "split of a huge page",
            Self::Unknown => "not known",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_telling_function_counts() {
        let numa = ["flush_tlb_mm_range", "change_protection", "change_prot_numa", "task_numa_work", "task_work_run"];
        assert_eq!(Cause::of(numa), Cause::NumaBalancing);
        let unmap = ["flush_tlb_mm_range", "tlb_finish_mmu", "unmap_region", "__vm_munmap", "__x64_sys_munmap"];
        assert_eq!(Cause::of(unmap), Cause::Munmap);
        let reclaim = ["arch_tlbbatch_flush", "try_to_unmap_flush", "shrink_folio_list", "do_exc_page_fault"];
        assert_eq!(Cause::of(reclaim), Cause::Reclaim);
        // Linux 6.18.
        let moved =
            ["flush_tlb_mm_range", "move_page_tables", "move_vma", "do_mremap", "__do_sys_mremap", "do_syscall_64"];
        assert_eq!(Cause::of(moved), Cause::Mremap);
        assert_eq!(Cause::of([]), Cause::Unknown);
    }

    #[test]
    fn calls_are_known_by_their_number() {
        assert_eq!(Cause::of_system_call(libc::SYS_madvise), Cause::Madvise);
        assert_eq!(Cause::of_system_call(-1), Cause::Unknown);
        assert!(Cause::Madvise.is_call() && !Cause::Ksm.is_call());
    }
}
