//! The library's own memory: one mapping that holds the arena, and the room in which `own_state` keeps its state.
//!
//! The library's `.data` and `.bss` contain no data that changes. Linked statically, they belong to the lifted program,
//! and a change between the copy of a range and its swap would be lost. One pointer is there; it is written once,
//! before any lift, and its page is not lifted to writable pool pages (`live_restrictions`).

use crate::arena::Arena;
use address_space::{Address, AddressRange};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use linux_raw::kernel::general::{MAP_ANONYMOUS, MAP_PRIVATE};

/// The place of `own_state`'s state. All zero at first.
pub type Room = [u64; 128];

/// Number of words for [`kept`].
pub const KEPT: usize = 5;

/// The contents of the mapping. All zero, like fresh memory from the kernel, means an arena without memory and an empty
/// room.
struct Memory {
    arena: Arena,
    kept: [AtomicUsize; KEPT],
    room: UnsafeCell<Room>,
}

static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(core::ptr::null_mut());

/// The address of the pointer. A child needs it before the fork guard has installed copies instead of pool pages.
pub fn place_of_pointer() -> Address {
    Address((&raw const MEMORY) as u64)
}

/// The mapping, if it has been made already.
fn known() -> Option<&'static Memory> {
    // SAFETY:
    // - the pointer was published by `memory`, is never unmapped, and nobody has a `&mut` to it.
    unsafe { MEMORY.load(Ordering::Acquire).as_ref() }
}

fn memory() -> Option<&'static Memory> {
    if let Some(known) = known() {
        return Some(known);
    }
    // SAFETY:
    // - no MAP_FIXED: only free addresses are taken.
    let fresh = unsafe { linux_raw::mmap(0, size_of::<Memory>(), 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) }.ok()?;
    let _ = linux_raw::name_memory(extent(fresh), c"pagelift library");
    let null = core::ptr::null_mut();
    if MEMORY.compare_exchange(null, fresh as *mut Memory, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY:
        // - another thread was first; nobody knows of this mapping.
        let _ = unsafe { linux_raw::munmap(extent(fresh)) };
    }
    known()
}

fn extent(start: usize) -> AddressRange {
    AddressRange::sized(Address(start as u64), size_of::<Memory>() as u64)
}

/// Words in which `linking` keeps what it has found. All zero at first. `None` if there is no memory.
pub fn kept() -> Option<&'static [AtomicUsize; KEPT]> {
    memory().map(|memory| &memory.kept)
}

/// The room for the state; maps the memory if this has not been done yet. `None` if there is no memory.
pub fn room() -> Option<NonNull<Room>> {
    memory().and_then(|memory| NonNull::new(memory.room.get()))
}

/// The room for the state; `None` if the memory has not been mapped yet.
pub fn known_room() -> Option<NonNull<Room>> {
    known().and_then(|memory| NonNull::new(memory.room.get()))
}

/// Keeps the arena from all threads until [`release_after_fork`], so that a child finds it whole and free.
pub fn hold_for_fork() {
    if let Some(memory) = known() {
        memory.arena.hold();
    }
}

/// Ends what [`hold_for_fork`] has begun, in the parent or in the child.
pub fn release_after_fork() {
    if let Some(memory) = known() {
        memory.arena.let_go();
    }
}

/// Makes sure that a call can allocate what does not grow with the program. False if there is no memory.
pub fn has_room() -> bool {
    memory().is_some_and(|memory| memory.arena.has_room())
}

/// Keeps this many bytes for a call, until [`release`]. False if there is no memory.
pub fn reserve(bytes: usize) -> bool {
    memory().is_some_and(|memory| memory.arena.reserve(bytes))
}

/// Ends what [`reserve`] has begun.
pub fn release() {
    if let Some(memory) = known() {
        memory.arena.release();
    }
}

/// The library's allocator.
pub struct OwnMemory;

// SAFETY:
// - blocks come from the arena, which never gives out a block twice, with the alignment of their class or of a page.
unsafe impl GlobalAlloc for OwnMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        memory().map_or(core::ptr::null_mut(), |memory| memory.arena.allocate(layout))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(memory) = memory() {
            // SAFETY:
            // - the caller's promise: the block is one of this allocator's, with its layout.
            unsafe { memory.arena.free(block, layout) };
        }
    }
}

/// Every mapping of the library's own.
pub fn own_mappings(mut take: impl FnMut(AddressRange)) {
    if let Some(memory) = memory() {
        take(extent(core::ptr::from_ref(memory) as usize));
        memory.arena.mappings(take);
    }
}
