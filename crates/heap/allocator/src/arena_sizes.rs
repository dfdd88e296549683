//! The sizes of arenas. mimalloc has a limited number of places for them, and an arena stays for ever: sizes grow with the
//! heap, so that the places suffice for any heap, and a pool in pieces does not use them up.
//!
//! Pure: this module neither reads nor changes anything else.

/// mimalloc accepts no smaller arena (`MI_ARENA_MIN_SIZE`); sizes are multiples of this.
pub const LEAST_ARENA: usize = 32 << 20;
/// The largest arena. The records of a larger one have no room in its first 32 MiB, where mimalloc keeps them.
pub const MOST_ARENA: usize = 31 << 29;
/// Number of arenas that mimalloc takes (`MI_MAX_ARENAS`).
pub const PLACES: usize = 160;

/// An arena has at least the size of all earlier ones divided by this.
const SHARE: usize = 8;
/// An arena has at least the size of the pool divided by this: a terabyte must fit.
const POOL_SHARE: usize = 128;
/// Number of places below which pieces of the pool are only taken if they are not too small.
const HALF_OF_PLACES: usize = PLACES / 2;
/// An arena on a piece of the pool has at least the wanted size divided by this, once half of the places are in use.
const PIECE_SHARE: usize = 8;
/// Number of places below which no arena is smaller than wanted, as long as there is memory.
const LAST_PLACES: usize = 32;
/// Like [`SHARE`], for the last places.
const LAST_SHARE: usize = 2;

/// The values that determine the size of the next arena, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct NextArena {
    /// Size of all arenas so far.
    pub so_far: usize,
    /// Size of the pool, used or not.
    pub pool: usize,
    /// Number of arenas that mimalloc still takes; not 0.
    pub places: usize,
    /// Least size that serves the purpose: a multiple of [`LEAST_ARENA`].
    pub least: usize,
}

impl NextArena {
    /// The size if memory suffices.
    pub fn wanted(&self) -> usize {
        let share = if self.places > LAST_PLACES { SHARE } else { LAST_SHARE };
        let wanted = (self.so_far / share).max(self.pool / POOL_SHARE).clamp(LEAST_ARENA, MOST_ARENA);
        wanted.next_multiple_of(LEAST_ARENA).max(self.least)
    }

    /// The size on a pool whose longest run of free memory has so many bytes; `None` if the run is not worth a place as
    /// long as the kernel has memory.
    pub fn on_pool(&self, longest: usize) -> Option<usize> {
        let worth_a_place = match self.places {
            0..=LAST_PLACES => self.wanted(),
            places if places <= HALF_OF_PLACES => self.wanted() / PIECE_SHARE,
            _ => 0,
        };
        self.on_any_pool(longest).filter(|_| longest >= worth_a_place)
    }

    /// Like [`Self::on_pool`], if the kernel has no memory; `None` if the run is too short for any arena.
    pub fn on_any_pool(&self, longest: usize) -> Option<usize> {
        let run = longest - longest % LEAST_ARENA;
        (run >= self.least).then(|| self.wanted().min(run))
    }

    /// The sizes to ask the kernel for, one after the other until it has one.
    pub fn kernel_sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let least = self.least;
        let half = move |&size: &usize| (size > least).then(|| (size / 2).next_multiple_of(LEAST_ARENA).max(least));
        core::iter::successors(Some(self.wanted()), half)
    }
}
