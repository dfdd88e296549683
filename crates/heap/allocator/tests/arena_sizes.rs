//! The sizes of arenas: mimalloc's places suffice for any pool and as much again from the kernel, in one piece or in many.
//!
//! The library itself, which would replace this program's allocator, is not linked.

#[path = "../src/arena_sizes.rs"]
mod arena_sizes;

use arena_sizes::{LEAST_ARENA, MOST_ARENA, NextArena, PLACES};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// A heap that has small blocks only.
struct Heap {
    pool: usize,
    /// The free runs of the pool, each with its node.
    free: Vec<(usize, usize)>,
    arenas: Vec<usize>,
    on_pool: usize,
}

impl Heap {
    /// On a pool of this size, in equal parts on so many nodes.
    fn on_nodes(pool: usize, nodes: usize) -> Self {
        Self::of_runs(pool, (0..nodes).map(|node| (node, pool / nodes)).collect())
    }

    fn of_runs(pool: usize, free: Vec<(usize, usize)>) -> Self {
        Self { pool, free, arenas: Vec::new(), on_pool: 0 }
    }

    fn size(&self) -> usize {
        self.arenas.iter().sum()
    }

    fn next(&self, least: usize) -> NextArena {
        NextArena { so_far: self.size(), pool: self.pool, places: PLACES - self.arenas.len(), least }
    }

    /// Adds an arena for a thread on `node`, while the kernel has memory.
    fn grow(&mut self, node: usize) {
        let next = self.next(LEAST_ARENA);
        let longest = self.free.iter().map(|&(_, run)| run).max().unwrap_or(0);
        let Some(size) = next.on_pool(longest) else {
            return self.arenas.extend(next.kernel_sizes().next());
        };
        // As the pool does: on the thread's own node first, then on any.
        let fits = |own: bool| self.free.iter().position(|&(of, run)| run >= size && (of == node) == own);
        let place = fits(true).or_else(|| fits(false)).expect("no longer than the longest run");
        self.free[place].1 -= size;
        self.arenas.push(size);
        self.on_pool += size;
    }

    /// Grows to a size, by threads on all nodes in turn or on one node; false if the pool runs out before.
    fn grow_to(&mut self, size: usize, nodes: usize, in_turn: bool) -> bool {
        while self.size() < size && self.arenas.len() < PLACES {
            self.grow(if in_turn { self.arenas.len() % nodes } else { 0 });
        }
        self.size() >= size
    }
}

#[test]
fn places_suffice_for_any_pool_and_as_much_again() {
    for gibibytes in 1..=1024 {
        for (nodes, in_turn) in
            [(1, false), (2, false), (2, true), (3, true), (4, true), (8, false), (8, true), (16, true)]
        {
            let pool = gibibytes * GIB;
            let mut heap = Heap::on_nodes(pool, nodes);
            let reached = heap.grow_to(2 * pool, nodes, in_turn);
            let what =
                format!("{gibibytes} GiB on {nodes} nodes: {} arenas of {} bytes", heap.arenas.len(), heap.size());
            assert!(reached && heap.arenas.len() < PLACES, "{what}");
            assert!(heap.on_pool >= pool / 16 * 15, "{what}, {} on the pool", heap.on_pool);
        }
    }
}

#[test]
fn a_heap_without_a_pool_holds_more_than_a_terabyte() {
    let mut heap = Heap::on_nodes(0, 1);
    assert!(heap.grow_to(1536 * GIB, 1, false), "{} arenas of {} bytes", heap.arenas.len(), heap.size());
    assert_eq!(heap.arenas[..8], [LEAST_ARENA; 8]);
}

/// Large blocks that come and go leave such pools.
#[test]
fn a_pool_in_pieces_does_not_use_up_the_places() {
    for gibibytes in [1, 4, 36, 64, 256, 1024] {
        for piece in [2 * MIB, 32 * MIB, 62 * MIB, 96 * MIB, 256 * MIB, GIB] {
            let pool = gibibytes * GIB;
            let pieces = vec![(0, piece); pool / 2 / piece];
            let some_fit = !pieces.is_empty() && piece >= LEAST_ARENA;
            let mut heap = Heap::of_runs(pool, pieces);
            let reached = heap.grow_to(pool / 2 + 256 * GIB, 1, false);
            assert!(reached, "{gibibytes} GiB in pieces of {piece}: {:?}", heap.arenas);
            assert_eq!(heap.on_pool > 0, some_fit, "{gibibytes} GiB in pieces of {piece}");
        }
    }
}

#[test]
fn a_small_pool_in_pieces_is_used() {
    let mut heap = Heap::of_runs(GIB, vec![(0, 33 * MIB); 16]);
    heap.grow_to(GIB, 1, false);
    assert_eq!(heap.on_pool, 16 * LEAST_ARENA);
}

#[test]
fn sizes_are_what_mimalloc_takes_and_never_below_the_least() {
    for so_far in [0, MIB, 300 * MIB, 5 * GIB, 5 * GIB + 1, 200 * GIB, 3000 * GIB] {
        for (pool, places) in [(0, 160), (GIB, 81), (100 * GIB, 80), (4096 * GIB, 33), (GIB, 32), (0, 1)] {
            for least in [LEAST_ARENA, 5 * LEAST_ARENA, 66 * LEAST_ARENA] {
                let next = NextArena { so_far, pool, places, least };
                let from_pool = (0..=MOST_ARENA).step_by(33 * MIB).map(|run| (next.on_pool(run), run));
                let on_any = (0..=MOST_ARENA).step_by(33 * MIB).map(|run| (next.on_any_pool(run), run));
                for (size, run) in from_pool.chain(on_any).filter_map(|(size, run)| Some((size?, run))) {
                    assert!(size <= run && size >= least && size.is_multiple_of(LEAST_ARENA), "{next:?}: {size}");
                }
                let sizes: Vec<usize> = next.kernel_sizes().collect();
                assert_eq!(sizes.last(), Some(&least), "{next:?}");
                assert!(sizes.is_sorted_by(|a, b| a > b), "{next:?}: {sizes:?}");
                assert!(sizes.iter().all(|size| size.is_multiple_of(LEAST_ARENA)), "{next:?}: {sizes:?}");
                assert!(sizes[0] == next.wanted() && sizes[0] <= MOST_ARENA, "{next:?}: {sizes:?}");
            }
        }
    }
}

/// If the kernel's memory is short, the rest of the pool serves requests that are too small for a place otherwise.
#[test]
fn the_rest_of_the_pool_is_the_last_resort() {
    let next = NextArena { so_far: 100 * GIB, pool: 36 * GIB, places: 20, least: LEAST_ARENA };
    assert_eq!(next.on_pool(40 * MIB), None);
    assert_eq!(next.on_any_pool(40 * MIB), Some(LEAST_ARENA));
    assert_eq!(next.on_any_pool(31 * MIB), None);
}
