//! The meaning of an accessed mark on this kernel and CPU: a page was walked to since the marks were cleared, not that
//! it was used. A thread reads its pages again and again while the marks of this process are cleared and read.
#![cfg(target_arch = "x86_64")]

use address_space::{Address, MappingUsage};
use linux::pages::base_page;
use process_view::ProcessFiles;
use std::fs;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Fewer than any TLB of the last ten years holds, with room for the thread that looks.
const PAGES: usize = 256;
/// Longest search for pages that are used without a mark: other programs' turns on the CPU flush the TLB, too.
const LONGEST_SEARCH: Duration = Duration::from_secs(60);

struct Walker {
    passes: AtomicU64,
    told_to_end: AtomicBool,
}

impl Walker {
    fn walk(&self, memory: &[u8]) {
        while !self.told_to_end.load(Ordering::Relaxed) {
            memory.iter().step_by(base_page().bytes() as usize).for_each(|byte| {
                black_box(*byte);
            });
            self.passes.fetch_add(1, Ordering::Release);
        }
    }

    /// Waits until every page has been used at least once from now on.
    fn wait_for_a_whole_pass(&self) {
        let now = self.passes.load(Ordering::Acquire);
        while self.passes.load(Ordering::Acquire) < now + 2 {
            spin_loop();
        }
    }
}

fn mapping_of(memory: &[u8]) -> MappingUsage {
    let address = Address(memory.as_ptr() as u64);
    let usages = ProcessFiles::of(std::process::id() as i32).smaps().unwrap();
    usages.into_iter().find(|usage| usage.mapping.range.contains(address)).unwrap()
}

#[test]
fn a_mark_means_a_walk_and_not_a_use() {
    const LONG: Duration = Duration::from_secs(20);
    let base = base_page().bytes();
    // Larger than an allocator keeps in a heap, so it has a separate mapping.
    let memory = vec![1_u8; 4 * PAGES * base as usize];
    let (used, _) = memory.split_at(PAGES * base as usize);
    if mapping_of(&memory).huge() > 0 {
        println!("skipped: the memory lies on huge pages (transparent_hugepage/enabled is always)");
        return;
    }
    let walker = Walker { passes: AtomicU64::new(0), told_to_end: AtomicBool::new(false) };
    let (mut unmarked, mut all_marked) = (PAGES as u64, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| walker.walk(used));
        let start = Instant::now();
        while unmarked >= PAGES as u64 / 2 && start.elapsed() < LONGEST_SEARCH {
            fs::write("/proc/self/clear_refs", "1").unwrap();
            walker.wait_for_a_whole_pass();
            unmarked = unmarked.min(mapping_of(&memory).referenced / base);
        }
        // Sooner or later the translations leave the TLB, and each page is walked to again.
        let start = Instant::now();
        while all_marked < PAGES as u64 && start.elapsed() < LONG {
            all_marked = mapping_of(&memory).referenced / base;
        }
        walker.told_to_end.store(true, Ordering::Relaxed);
    });
    assert!(
        unmarked < PAGES as u64 / 2,
        "each time at least {unmarked} of {PAGES} used pages were marked: here a mark means use, not a walk"
    );
    // The page at each end of the used pages can be shared with the rest of the vector.
    assert!(all_marked >= PAGES as u64 && all_marked <= PAGES as u64 + 2, "{all_marked} of {PAGES} pages were marked");
}
