//! Why the kernel sends shootdowns, from the names of the functions on its stack.

use serde::Serialize;
use std::fmt;

/// The reason why the kernel invalidated translations that other CPUs may hold.
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
    /// mmap(2) over an existing mapping.
    Mmap,
    /// brk(2) that shrinks the heap.
    Brk,
    /// A part of a mapped file is taken away: fallocate(2) with a hole, ftruncate(2).
    Truncate,
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
    /// DAMON has pages reclaimed or moved that it takes for unused.
    Damon,
    /// Pages are reclaimed or swapped.
    Reclaim,
    /// Dirty pages of a shared file are written back.
    Writeback,
    /// A huge page is split.
    Split,
    /// No known function is on the stack, or kernel addresses are hidden.
    Unknown,
}

/// Functions that identify a cause, the most specific first. A name matches if a function's name begins with it; the
/// names exist in Linux 5.10 to 7.2, in mm/, kernel/sched/fair.c and the entry points of system calls.
const TELLING: [(&str, Cause); 50] = [
    ("task_numa_work", Cause::NumaBalancing),
    ("change_prot_numa", Cause::NumaBalancing),
    ("ksm_scan_thread", Cause::Ksm),
    ("ksm_do_scan", Cause::Ksm),
    ("kdamond_", Cause::Damon),
    ("damon_", Cause::Damon),
    // MADV_PAGEOUT and MADV_COLD reclaim by the functions that serve a shortage, too.
    ("madvise_cold_or_pageout", Cause::Madvise),
    ("madvise_pageout", Cause::Madvise),
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
    ("unmap_mapping_range", Cause::Truncate),
    ("unmap_mapping_pages", Cause::Truncate),
    // The function on the stack if the compiler makes the entry point's last call a jump.
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

    /// The cause for a system call, by its number on this machine.
    pub fn of_system_call(number: i64) -> Self {
        let calls = [
            (libc::SYS_munmap, Self::Munmap),
            (libc::SYS_madvise, Self::Madvise),
            (libc::SYS_mprotect, Self::Mprotect),
            (libc::SYS_mremap, Self::Mremap),
        ];
        calls.iter().find(|(call, _)| *call == number).map_or(Self::Unknown, |(_, cause)| *cause)
    }

    /// The cause for a function of the C library, which makes the system call of its name: if the kernel hides its own
    /// names, the program's stack still identifies it.
    pub fn of_wrapper(function: &str) -> Self {
        let bare = function.split('@').next().unwrap_or(function).trim_start_matches('_');
        match bare {
            "munmap" => Self::Munmap,
            "madvise" | "process_madvise" => Self::Madvise,
            "mprotect" | "pkey_mprotect" => Self::Mprotect,
            "mremap" => Self::Mremap,
            "mmap" | "mmap64" => Self::Mmap,
            "brk" | "sbrk" => Self::Brk,
            _ => Self::Unknown,
        }
    }

    /// True if a call of the program caused it, not the kernel.
    pub fn is_call(self) -> bool {
        matches!(
            self,
            Self::Munmap
                | Self::Madvise
                | Self::Mprotect
                | Self::Mremap
                | Self::Mmap
                | Self::Brk
                | Self::Truncate
                | Self::Exit
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
            Self::Truncate => "fallocate or ftruncate of a mapped file",
            Self::Exit => "end of a process",
            Self::Fork => "fork",
            Self::CopyOnWrite => "copy on write",
            Self::NumaBalancing => "NUMA balancing",
            Self::Ksm => "KSM",
            Self::Khugepaged => "khugepaged",
            Self::Migration => "compaction or migration",
            Self::Damon => "DAMON",
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
        let asked_for = [
            "try_to_unmap_flush",
            "shrink_folio_list",
            "reclaim_pages",
            "madvise_cold_or_pageout_pte_range",
            "do_madvise",
        ];
        assert_eq!(Cause::of(asked_for), Cause::Madvise);
        let damon = ["try_to_unmap_flush", "shrink_folio_list", "reclaim_pages", "damon_pa_pageout", "kdamond_fn"];
        assert_eq!(Cause::of(damon), Cause::Damon);
        let compaction =
            ["flush_tlb_page", "ptep_clear_flush", "try_to_migrate_one", "migrate_pages_batch", "kcompactd"];
        assert_eq!(Cause::of(compaction), Cause::Migration);
        let huge = ["pmdp_collapse_flush", "collapse_huge_page", "hpage_collapse_scan_pmd", "khugepaged"];
        assert_eq!(Cause::of(huge), Cause::Khugepaged);
        let collapsed = ["pmdp_collapse_flush", "collapse_huge_page", "madvise_collapse", "do_madvise"];
        assert_eq!(Cause::of(collapsed), Cause::Madvise);
        // Linux 6.18.
        let moved =
            ["flush_tlb_mm_range", "move_page_tables", "move_vma", "do_mremap", "__do_sys_mremap", "do_syscall_64"];
        assert_eq!(Cause::of(moved), Cause::Mremap);
        let hole = ["flush_tlb_mm_range", "tlb_finish_mmu", "unmap_mapping_range", "shmem_fallocate", "vfs_fallocate"];
        assert_eq!(Cause::of(hole), Cause::Truncate);
        assert_eq!(Cause::of([]), Cause::Unknown);
    }

    #[test]
    fn the_program_s_stack_tells_where_the_kernel_hides_its_names() {
        let causes = ["__madvise", "munmap@GLIBC_2.2.5", "cfree"].map(Cause::of_wrapper);
        assert_eq!(causes, [Cause::Madvise, Cause::Munmap, Cause::Unknown]);
    }

    #[test]
    fn calls_are_known_by_their_number() {
        assert_eq!(Cause::of_system_call(libc::SYS_madvise), Cause::Madvise);
        assert_eq!(Cause::of_system_call(-1), Cause::Unknown);
        assert!(Cause::Madvise.is_call() && !Cause::Ksm.is_call());
    }
}
