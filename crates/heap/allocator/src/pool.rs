//! Memory from the hugetlb pool. It is taken and populated before the program's first allocation, so that no later access
//! finds the pool empty, and is handed out in grains of a transparent huge page, whatever the pool's page size is.

use crate::sys::{clear, map_anywhere, populate_for_writing, system_call, unmap};
use crate::text::number_of;
use crate::{ACCOUNT, NODES, forget};
use address_space::PageSize;
use core::ffi::{c_int, c_ulong};
use core::sync::atomic::Ordering::Relaxed;
use heap_abi::{MOST_NODES, NodePages, Order, Shortage};
use machine_facts::HugePool;

/// The kernel's folder of pools.
pub const POOLS: &str = "/sys/kernel/mm/hugepages";

/// The state of a grain.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Grain {
    /// Never handed out: all zero. (0, as fresh memory is.)
    Fresh = 0,
    Used = 1,
    /// Was handed out and freed; its contents are arbitrary.
    Returned = 2,
    /// Is no longer pool memory.
    Gone = 3,
}

/// One node's share.
struct Region {
    start: usize,
    states: *mut Grain,
    grains: usize,
    node: u32,
}

/// All pool memory. Lives in a static and is used under the heap's lock.
pub struct Pool {
    regions: [Region; MOST_NODES],
    grain: usize,
    page: usize,
    binding: Binding,
}

/// The binding of pages to their nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Binding {
    /// They come from one node, by the process's own policy.
    None,
    /// The pages come from several nodes, and from any node if a sandbox refuses mbind(2).
    IfPossible,
    /// The user has chosen the nodes: no pages rather than others.
    Always,
}

/// Number of pages that are populated by one call; if the kernel refuses a step, its pages are tried one by one.
const PAGES_AT_ONCE: usize = 64;

impl Pool {
    pub const fn new() -> Self {
        const NONE: Region = Region { start: 0, states: core::ptr::null_mut(), grains: 0, node: 0 };
        Self { regions: [NONE; MOST_NODES], grain: 0, page: 0, binding: Binding::None }
    }

    pub fn is_empty(&self) -> bool {
        self.regions.iter().all(|region| region.grains == 0)
    }

    /// Takes the pages that the order names, or as many as are available.
    pub fn take(&mut self, order: &Order, page: usize, grain: usize) {
        self.binding = match (order.chosen, NODES.load(Relaxed)) {
            (true, _) => Binding::Always,
            (false, ..2) => Binding::None,
            (false, _) => Binding::IfPossible,
        };
        self.page = page;
        self.grain = grain.min(page);
        for (region, wanted) in self.regions.iter_mut().zip(&order.pool).filter(|(_, wanted)| wanted.pages > 0) {
            if let Some(taken) = Region::take(wanted, page, self.grain, self.binding) {
                *region = taken;
                forget(ACCOUNT.pool_taken.fetch_add((region.grains * self.grain) as u64, Relaxed));
            }
        }
    }

    /// The address of a run of usable grains of at least `bytes`, on the given node if possible.
    ///
    /// `from_the_end` keeps arenas apart from large blocks, which come and go.
    pub fn find(&self, bytes: usize, node: u32, from_the_end: bool, usable: fn(Grain) -> bool) -> Option<usize> {
        let count = bytes.div_ceil(self.grain.max(1));
        let of_node = |own: bool| self.regions.iter().filter(move |r| r.grains >= count && (r.node == node) == own);
        of_node(true).chain(of_node(false)).find_map(|region| {
            let at = run_of(region.states(), count, from_the_end, usable)?;
            Some(region.start + at * self.grain)
        })
    }

    /// Bytes of the longest run of free grains.
    pub fn longest_free(&self) -> usize {
        let longest = |region: &Region| region.states().split(|&state| !is_free(state)).map(<[Grain]>::len).max();
        self.regions.iter().filter_map(longest).max().unwrap_or(0) * self.grain
    }

    /// Marks grains; `start` and `bytes` are from a run that `find` returned, or from a block handed out.
    pub fn mark(&mut self, start: usize, bytes: usize, state: Grain) {
        let grain = self.grain;
        let Some(region) = self.regions.iter_mut().find(|region| region.holds(start, grain)) else { return };
        let first = (start - region.start) / grain;
        for place in &mut region.states_mut()[first..first + bytes.div_ceil(grain)] {
            let used = |state: Grain| i64::from(state == Grain::Used);
            let change = (used(state) - used(*place)) * grain as i64;
            forget(ACCOUNT.pool_used.fetch_add(change as u64, Relaxed));
            *place = state;
        }
    }

    /// True if no grain in this range was ever handed out.
    pub fn is_fresh(&self, start: usize, bytes: usize) -> bool {
        self.states_at(start, bytes).is_some_and(|states| states.iter().all(|&state| state == Grain::Fresh))
    }

    /// True if the grains after a block are free, so that it can grow in place.
    pub fn is_free(&self, start: usize, bytes: usize) -> bool {
        self.states_at(start, bytes).is_some_and(|states| states.iter().all(|&state| is_free(state)))
    }

    pub fn holds(&self, address: usize) -> bool {
        self.regions.iter().any(|region| region.holds(address, self.grain))
    }

    pub fn grain(&self) -> usize {
        self.grain
    }

    fn states_at(&self, start: usize, bytes: usize) -> Option<&[Grain]> {
        let region = self.regions.iter().find(|region| region.holds(start, self.grain))?;
        let first = (start - region.start) / self.grain;
        region.states().get(first..first + bytes.div_ceil(self.grain))
    }

    /// True if each node's pool has as many free pages as this heap uses from that node, and they can be reserved all
    /// at once.
    pub fn has_room_for_copies(&self) -> bool {
        // As they were taken.
        let mut room = [None; MOST_NODES];
        for (region, taken) in self.regions.iter().zip(&mut room) {
            let pages = region.states().chunks((self.page / self.grain.max(1)).max(1));
            let used = pages.filter(|states| states.contains(&Grain::Used)).count();
            if used > 0 {
                *taken = Some((map_pages(used, self.page, region.node, self.binding), used));
            }
        }
        let mut enough = true;
        for (mapped, pages) in room.into_iter().flatten() {
            // SAFETY:
            // - mapped above with this length.
            let populated = mapped.map_or(0, |start| unsafe { populate(start, pages, self.page) });
            enough &= populated == pages;
        }
        for (mapped, pages) in room.into_iter().flatten() {
            if let Some(start) = mapped {
                // SAFETY:
                // - mapped above with this length, without another user.
                unsafe { unmap(start, pages * self.page) };
            }
        }
        enough
    }

    /// Calls `step` for each page of the pool with its address, its size, and whether anything in it is handed out. If
    /// `step` returns true, the page is no longer a pool page and is forgotten. False if any step returned false.
    pub fn dissolve(&mut self, mut step: impl FnMut(usize, usize, bool) -> bool) -> bool {
        let (page, grain) = (self.page, self.grain);
        let mut whole = true;
        for region in self.regions.iter_mut().filter(|region| region.grains > 0) {
            let start = region.start;
            let mut left = false;
            for (index, states) in region.states_mut().chunks_mut(page / grain).enumerate() {
                if states[0] == Grain::Gone {
                    continue;
                }
                let used = states.contains(&Grain::Used);
                if step(start + index * page, page, used) {
                    states.fill(Grain::Gone);
                } else {
                    left = true;
                }
            }
            if !left {
                let bytes = region.grains.next_multiple_of(crate::sys::base_page());
                region.grains = 0;
                // SAFETY:
                // - the states' own mapping; with no grains nobody refers to them any more.
                unsafe { unmap(region.states as usize, bytes) };
            }
            whole &= !left;
        }
        whole
    }
}

pub fn is_free(state: Grain) -> bool {
    matches!(state, Grain::Fresh | Grain::Returned)
}

pub fn is_fresh(state: Grain) -> bool {
    state == Grain::Fresh
}

pub fn is_returned(state: Grain) -> bool {
    state == Grain::Returned
}

/// The index of the first, or last, run of `count` usable grains.
fn run_of(states: &[Grain], count: usize, from_the_end: bool, usable: fn(Grain) -> bool) -> Option<usize> {
    let mut length = 0;
    for step in 0..states.len() {
        let at = if from_the_end { states.len() - 1 - step } else { step };
        length = if usable(states[at]) { length + 1 } else { 0 };
        if length == count {
            return Some(if from_the_end { at } else { at + 1 - count });
        }
    }
    None
}

impl Region {
    fn holds(&self, address: usize, grain: usize) -> bool {
        address >= self.start && address < self.start + self.grains * grain
    }

    fn states(&self) -> &[Grain] {
        if self.grains == 0 {
            return &[];
        }
        // SAFETY:
        // - the states are a mapping of at least `grains` bytes, which are 0 (`Fresh`) at first and later only written
        //   as `Grain`; it lives as long as `grains` is not 0.
        unsafe { core::slice::from_raw_parts(self.states, self.grains) }
    }

    fn states_mut(&mut self) -> &mut [Grain] {
        if self.grains == 0 {
            return &mut [];
        }
        // SAFETY:
        // - as in `states`, and `self` is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.states, self.grains) }
    }

    fn take(wanted: &NodePages, page: usize, grain: usize, binding: Binding) -> Option<Self> {
        let mut pages = wanted.pages as usize;
        let start = loop {
            // Without MAP_NORESERVE mmap fails at once if the pool has too few pages, or if a cgroup does not allow a
            // reservation of this size.
            if let Some(start) = map_pages(pages, page, wanted.node, binding) {
                break start;
            }
            let refused = available(page).is_some_and(|available| available >= pages);
            ACCOUNT.note(if refused { Shortage::PopulationRefused } else { Shortage::PoolTooSmall });
            pages -= pages.div_ceil(8);
            if pages == 0 {
                return None;
            }
        };
        // SAFETY:
        // - mapped above with this length.
        let populated = unsafe { populate(start, pages, page) };
        if populated < pages {
            ACCOUNT.note(Shortage::PopulationRefused);
            // SAFETY:
            // - a part of the mapping above, without another user.
            unsafe { unmap(start + populated * page, (pages - populated) * page) };
        }
        let grains = populated * (page / grain);
        let states = map_anywhere(grains.next_multiple_of(crate::sys::base_page()), false, 0).filter(|_| grains > 0);
        if states.is_none() {
            // SAFETY:
            // - as above.
            unsafe { unmap(start, populated * page) };
        }
        Some(Self { start, states: states? as *mut Grain, grains, node: wanted.node })
    }
}

/// Maps pages of the pool without populating them, of `node` if they are bound to it.
fn map_pages(pages: usize, page: usize, node: u32, binding: Binding) -> Option<usize> {
    let size = (page.trailing_zeros() as c_int) << libc::MAP_HUGE_SHIFT;
    let start = map_anywhere(pages.checked_mul(page)?, false, libc::MAP_HUGETLB | size)?;
    if binding != Binding::None && !bind_to_node(start, pages * page, node) && binding == Binding::Always {
        // SAFETY:
        // - mapped above with this length, without another user.
        unsafe { unmap(start, pages * page) };
        return None;
    }
    Some(start)
}

/// Free pages of the pool that are not reserved; `None` if the kernel does not report them.
fn available(page: usize) -> Option<usize> {
    let size = PageSize::new(page as u64).ok()?;
    let reserved = HugePool::reserved_of(pool_count(size, "resv_hugepages")?);
    usize::try_from(HugePool::available_of(pool_count(size, "free_hugepages")?, reserved, 0, 0)).ok()
}

/// A count that the kernel shows of the machine's pool of one page size, by the name of its file.
pub fn pool_count(size: PageSize, file: &str) -> Option<u64> {
    number_of(format_args!("{POOLS}/{}/{file}", size.directory()))
}

/// Populates fresh pages until the kernel refuses one, and returns their number. An access to them raises no SIGBUS.
///
/// # Safety
/// The pages belong to a mapping of this heap, and nobody has written to them.
unsafe fn populate(start: usize, pages: usize, page: usize) -> usize {
    let mut done = 0;
    let mut step = PAGES_AT_ONCE;
    while done < pages {
        let count = step.min(pages - done);
        // SAFETY:
        // - the caller's promise; the advice keeps contents.
        match unsafe { populate_for_writing(start + done * page, count * page) } {
            Ok(()) => done += count,
            // Before Linux 5.14.
            Err(libc::EINVAL) => {
                // SAFETY:
                // - the caller's promise.
                let refused = (done..pages).find(|at| !unsafe { is_written(start + at * page) });
                return refused.unwrap_or(pages);
            }
            Err(_) if step > 1 => step = 1,
            Err(_) => break,
        }
    }
    done
}

/// Makes the kernel write to a fresh page: without a free page the call returns an error, and no SIGBUS is sent. False
/// on an error.
///
/// # Safety
/// The page belongs to a mapping of this heap, and nobody has written to it.
unsafe fn is_written(page: usize) -> bool {
    const BYTES: usize = size_of::<u64>();
    // SAFETY:
    // - the call changes no mask, and writes the present one to memory that nobody uses.
    let asked = unsafe { system_call(libc::SYS_rt_sigprocmask, [libc::SIG_BLOCK as usize, 0, page, BYTES]) };
    if asked.is_ok() {
        // SAFETY:
        // - as above; the page is present.
        unsafe { clear(page, BYTES) };
    }
    asked.is_ok()
}

/// Binds a range to a node (mbind(2)); false if the kernel refuses.
fn bind_to_node(start: usize, bytes: usize, node: u32) -> bool {
    const BITS: usize = 1024;
    let mut mask = [0 as c_ulong; BITS / c_ulong::BITS as usize];
    let word = c_ulong::BITS;
    let Some(place) = mask.get_mut((node / word) as usize) else { return false };
    *place = 1 << (node % word);
    // SAFETY:
    // - the range is a mapping of ours, and the mask has as many bits as the argument `BITS`.
    let bound = unsafe {
        system_call(libc::SYS_mbind, [start, bytes, libc::MPOL_BIND as usize, mask.as_ptr() as usize, BITS, 0])
    };
    bound.is_ok()
}
