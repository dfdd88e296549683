//! Free memory, and the kernel's own actions on memory.

use super::{fine, found};
use crate::facts::{Facts, FreeMemory};
use crate::finding::{CheckOutcome, Fix, Severity};
use address_space::{counted, format_bytes};

/// Huge pages that should be free at least.
const FEW_PAGES: u64 = 32;
/// Page blocks of each zone that khugepaged keeps free so that kinds of memory do not mix: two, and one for each pair of
/// the three kinds (`set_recommended_min_free_kbytes` in `mm/khugepaged.c`).
const BLOCKS_OF_ZONE: u64 = 2 + 3 * 3;
/// No more than this part of memory, in that function.
const LARGEST_SHARE: u64 = 20;

/// Free blocks of the size of a huge page (`/proc/buddyinfo`).
pub fn fragmentation(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(huge) = facts.huge_page.filter(|_| !facts.memory.nodes.is_empty()) else { return Vec::new() };
    let usable = |node: &u32| facts.permission.allowed_nodes.as_ref().is_none_or(|allowed| allowed.contains(node));
    let nodes: Vec<_> = facts.memory.nodes.iter().filter(|node| usable(&node.node)).collect();
    let free: u64 = nodes.iter().map(|node| node.free).sum();
    let in_blocks: u64 = nodes.iter().map(|node| node.in_blocks).sum();
    let needed = facts.program.as_ref().map_or(0, |program| program.pool_pages).max(FEW_PAGES) * huge.bytes();
    // Compaction moves used movable blocks together; kernel memory in between stays.
    let each = nodes.iter().map(|FreeMemory { node, free, in_blocks }| {
        format!("node {node}: {}, at most {} after compaction", in_blocks / huge.bytes(), free / huge.bytes())
    });
    let each = each.collect::<Vec<_>>().join(", ");
    if in_blocks >= needed || free < needed {
        return fine(format!("free blocks of {huge}: {each}"));
    }
    let lasting = match facts.memory.proactiveness {
        Some(now) if now < 50 => "vm.compaction_proactiveness = 50 lets the kernel do it by itself",
        _ => "it helps until memory is in pieces again",
    };
    found(
        Severity::Advice,
        "free memory is in small pieces",
        format!("{} free, of which blocks of {huge} {each}", format_bytes(free)),
        format!("{} or more", counted(needed / huge.bytes(), "block")),
        "if no huge page is free, memory is compacted first, or the program gets no huge page",
        Some(Fix::write(1, "/proc/sys/vm/compact_memory").with_note(lasting)),
    )
}

/// `vm.min_free_kbytes`, by the kernel's own rule.
pub fn min_free(facts: &Facts) -> Vec<CheckOutcome> {
    let (Some(found_kib), Some(huge), Some(total)) = (facts.memory.min_free_kib, facts.thp.size, facts.memory.total)
    else {
        return Vec::new();
    };
    let blocks = facts.memory.zones * BLOCKS_OF_ZONE * huge.kib();
    let wanted = blocks.min(total / 1024 / LARGEST_SHARE);
    // The kernel rounds, and counts fewer zones if some take no ordinary allocations.
    if found_kib.saturating_mul(2) >= wanted || facts.thp_mode() == Some("never") {
        return fine(format!("vm.min_free_kbytes: {found_kib}"));
    }
    found(
        Severity::Advice,
        "little memory is kept free",
        format!("vm.min_free_kbytes = {found_kib}"),
        format!("{wanted}, which the kernel itself sets for transparent huge pages"),
        "movable and unmovable memory mix in the same blocks, and compaction cannot make huge pages there",
        Some(Fix::sysctl("vm.min_free_kbytes", wanted)),
    )
}

/// The swapped-out parts of the program.
pub fn swap(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(running) = facts.running() else { return Vec::new() };
    if running.swapped == 0 {
        return fine("no part of it is swapped out");
    }
    found(
        Severity::Advice,
        "a part of the program is swapped out",
        format!("{} (VmSwap)", format_bytes(running.swapped)),
        "none",
        "swapping splits huge pages, and base pages are swapped in",
        Some(Fix::sysctl("vm.swappiness", 1)),
    )
}

/// KSM, which merges equal pages.
pub fn ksm(facts: &Facts) -> Vec<CheckOutcome> {
    let merged = facts.running().map_or(0, |running| running.merged);
    let off = Fix::write(2, "/sys/kernel/mm/ksm/run").with_note("2 also separates what is merged");
    match (facts.memory.ksm, merged) {
        (None, _) => Vec::new(),
        (_, 1..) => found(
            Severity::Advice,
            "KSM splits the program's huge pages",
            format!("{} merged", format_bytes(merged)),
            "none",
            "pages are merged one by one, for which huge pages are split, and each merge is a TLB shootdown",
            Some(off),
        ),
        (Some(1), 0) => found(
            Severity::Note,
            "KSM runs",
            "/sys/kernel/mm/ksm/run = 1",
            "0, unless virtual machines or containers share memory here",
            "it splits huge pages of programs that ask for merging (MADV_MERGEABLE, PR_SET_MEMORY_MERGE)",
            Some(off),
        ),
        (Some(_), 0) => fine("KSM does not run"),
    }
}

/// DAMON, which reclaims memory that it has seen idle although some is free.
pub fn damon(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(schemes) = &facts.memory.damon else {
        return vec![CheckOutcome::for_root("whether DAMON reclaims memory")];
    };
    let Some(first) = schemes.first() else { return fine("DAMON does not reclaim memory") };
    let of_what = match schemes.iter().all(|scheme| scheme.spares_mapped) {
        true => "pages that no process maps",
        false => "idle pages",
    };
    found(
        Severity::Note,
        "DAMON reclaims memory",
        format!("{}: pageout of {of_what}", first.place),
        "files held in memory whose huge folios matter",
        "huge folios of files are dropped within seconds of their last use, and are read again in small ones",
        Some(Fix::by_hand(
            "name the files in /etc/pagelift/cache.conf and run `pagelift cache keep --lock --budget SIZE`",
        )),
    )
}

/// Balancing, which unmaps pages to see who uses them.
pub fn numa_balancing(facts: &Facts) -> Vec<CheckOutcome> {
    match facts.memory.numa_balancing {
        Some(mode @ 1..) if facts.memory.online.len() > 1 => found(
            Severity::Note,
            "NUMA balancing is on",
            format!("kernel.numa_balancing = {mode}, on {} nodes", facts.memory.online.len()),
            "0 for programs that are bound to a node (numactl)",
            "it unmaps memory from time to time to see who uses it: page faults and TLB shootdowns",
            Some(Fix::sysctl("kernel.numa_balancing", 0)),
        ),
        Some(_) => fine("NUMA balancing does nothing here"),
        None => Vec::new(),
    }
}
