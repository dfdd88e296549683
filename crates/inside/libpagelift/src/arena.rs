//! The library's allocator. Its memory is mapped by the library itself, never taken from the program's allocator, and
//! never lifted.
//!
//! Small blocks come from chunks, in classes of powers of two, and are reused; large ones are mapped and unmapped one
//! by one. Every mapping is listed, so that the library can distinguish its own memory from the program's.
//!
//! A call begins with a reserve ([`Arena::reserve`]) for what the kernel refuses to map later, in a program near its limit
//! of address space or of mappings. If the reserve cannot be mapped either, the call returns without an effect.
//!
//! Callers hold all signals (`own_state::Call`): a handler that needs the lock in its own thread would wait forever.
//! The thread that forks holds the lock during the fork (`own_memory::hold_for_fork`): otherwise a child could find it
//! taken by a thread that the child does not have.

use crate::reserve::Reserve;
use address_space::{Address, AddressRange};
use core::alloc::Layout;
use core::cell::UnsafeCell;
use linux_raw::Lock;
use linux_raw::kernel::general::{MADV_DONTNEED, MADV_NOHUGEPAGE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE};

/// Smallest and largest block that is cut from a chunk, as powers of two.
const SMALLEST: u32 = 4;
const LARGEST: u32 = 20;
const CLASSES: usize = (LARGEST - SMALLEST + 1) as usize;
/// Size of a chunk in bytes: enough for a whole lift, so that a lift that has begun does not fail because of
/// `vm.max_map_count`. Untouched parts of a chunk take no memory.
const CHUNK: usize = 8 << 20;
/// Size of a chunk if there is no memory for a larger one.
const SMALL_CHUNK: usize = 3 << 20;
/// Bytes of a chunk that a call begins with.
const LEAST: usize = 256 << 10;
/// Power of two from which a freed block gives its pages back to the kernel.
const GIVEN_BACK: u32 = 16;
/// Highest number of mappings at a time, chunks and the largest blocks together.
const MOST_MAPPINGS: usize = 256;
/// The size of a block that is mapped by itself is a multiple of this. It only affects accounting: the kernel rounds to its
/// page size, which is never smaller than this on machines that Pagelift runs on.
const ROUNDING: usize = 4096;

/// `PROT_READ | PROT_WRITE`.
const READ_WRITE: i32 = 3;

/// The name that maps shows for the library's own memory.
const NAME: &core::ffi::CStr = c"pagelift library";

/// A free block.
struct Free {
    next: *mut Self,
}

struct Inner {
    free: [*mut Free; CLASSES],
    chunk: usize,
    chunk_end: usize,
    mappings: [(usize, usize); MOST_MAPPINGS],
    count: usize,
    reserve: Reserve,
}

/// An allocator on separate mappings. All zero, like fresh memory from the kernel, means without memory.
pub struct Arena {
    lock: Lock,
    inner: UnsafeCell<Inner>,
}

// SAFETY:
// - `inner` is only touched while `lock` is held by the toucher.
unsafe impl Sync for Arena {}

impl Arena {
    fn with<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> R {
        self.lock.take();
        // SAFETY:
        // - the lock is held, so that nobody else has a reference.
        let result = act(unsafe { &mut *self.inner.get() });
        self.lock.release();
        result
    }

    /// Keeps all other threads from the arena, and the calling one too, until [`Arena::let_go`].
    pub fn hold(&self) {
        self.lock.take();
    }

    /// Ends what [`Arena::hold`] has begun, in the same thread or in its copy in a child.
    pub fn let_go(&self) {
        self.lock.release();
    }

    /// Allocates a block for the layout; null if there is no memory.
    pub fn allocate(&self, layout: Layout) -> *mut u8 {
        self.with(|inner| match class_of(layout) {
            Some(class) => inner.small(class),
            None => inner.map(layout.size()) as *mut u8,
        })
    }

    /// Makes sure that some small blocks can be allocated. False if there is no memory.
    pub fn has_room(&self) -> bool {
        self.with(|inner| inner.chunk_end - inner.chunk >= LEAST || inner.add_chunk())
    }

    /// Maps this many bytes for later allocations, until [`Arena::release`]. False if there is no memory.
    pub fn reserve(&self, bytes: usize) -> bool {
        self.with(|inner| inner.keep_reserve(bytes))
    }

    /// Ends what [`Arena::reserve`] has begun.
    pub fn release(&self) {
        self.with(Inner::release_reserve);
    }

    /// Frees a block.
    ///
    /// # Safety
    /// The block came from [`Arena::allocate`] of this arena with the same layout and is not used any more.
    pub unsafe fn free(&self, block: *mut u8, layout: Layout) {
        self.with(|inner| match class_of(layout) {
            Some(class) => {
                let free = block.cast::<Free>();
                // SAFETY:
                // - the block is nobody's any more, is as large as its class and aligned to it, so a `Free` fits.
                unsafe {
                    inner.give_back(block, class);
                    free.write(Free { next: inner.free[class] });
                }
                inner.free[class] = free;
            }
            // SAFETY:
            // - the caller's promise.
            None => unsafe { inner.unmap(block as usize) },
        });
    }

    /// Calls `take` with every mapping of the arena.
    pub fn mappings(&self, mut take: impl FnMut(AddressRange)) {
        let mut index = 0;
        // One at a time, for `take` may allocate.
        while let Some((start, length)) =
            self.with(|inner| inner.mappings.get(index).copied().filter(|_| index < inner.count))
        {
            take(AddressRange::sized(Address(start as u64), length as u64));
            index += 1;
        }
    }
}

/// The class of blocks for this layout; `None` for a block that is mapped by itself.
fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST).next_power_of_two();
    let power = size.trailing_zeros();
    (power <= LARGEST).then(|| (power - SMALLEST) as usize)
}

impl Inner {
    fn small(&mut self, class: usize) -> *mut u8 {
        let head = self.free[class];
        if !head.is_null() {
            // SAFETY:
            // - what is in the list is a free block of this class, written as a `Free` when it was taken back.
            self.free[class] = unsafe { (*head).next };
            return head.cast();
        }
        let size = 1usize << (class as u32 + SMALLEST);
        // Chunks begin on page boundaries, so that a multiple of the size is aligned to the size.
        let start = self.chunk.next_multiple_of(size);
        if self.chunk == 0 || start + size > self.chunk_end {
            return if self.add_chunk() { self.small(class) } else { core::ptr::null_mut() };
        }
        self.chunk = start + size;
        start as *mut u8
    }

    /// Goes on with another chunk. False if there is no memory.
    fn add_chunk(&mut self) -> bool {
        let large = self.map_fresh(CHUNK);
        let (chunk, length) = if large == 0 { (self.map(SMALL_CHUNK), SMALL_CHUNK) } else { (large, CHUNK) };
        if chunk != 0 {
            (self.chunk, self.chunk_end) = (chunk, chunk + length);
        }
        chunk != 0
    }

    /// Maps memory, or takes it from the reserve, and returns its address; 0 if there is none.
    fn map(&mut self, bytes: usize) -> usize {
        match self.map_fresh(bytes) {
            0 => self.reserve.take(bytes.next_multiple_of(ROUNDING)),
            fresh => fresh,
        }
    }

    fn keep_reserve(&mut self, bytes: usize) -> bool {
        if self.reserve.room() < bytes {
            let left = self.reserve.pieces().len();
            let fresh = if self.count + left < MOST_MAPPINGS { self.map_fresh(bytes) } else { 0 };
            if fresh == 0 {
                return false;
            }
            self.end_reserve();
            self.reserve.begin(fresh, bytes.next_multiple_of(ROUNDING));
        }
        self.reserve.users += 1;
        true
    }

    fn release_reserve(&mut self) {
        self.reserve.users -= 1;
        if self.reserve.users == 0 && self.reserve.pieces().is_empty() {
            self.end_reserve();
        }
    }

    /// Unmaps the reserve. Pieces that are in use become mappings of their own, for which the list has room.
    fn end_reserve(&mut self) {
        let Some((start, length)) = self.reserve.memory() else { return };
        let Some(index) = self.mappings[..self.count].iter().position(|(at, _)| *at == start) else { return };
        self.count -= 1;
        self.mappings[index] = self.mappings[self.count];
        let end = start + length;
        let mut gap = start;
        while gap < end {
            // The next piece in the order of addresses.
            let pieces = self.reserve.pieces().iter().copied();
            let (next, length) = pieces.filter(|(at, _)| *at >= gap).min().unwrap_or((end, 0));
            if next > gap {
                // SAFETY:
                // - the reserve is the arena's, and no piece is in this part.
                let _ = unsafe { linux_raw::munmap(AddressRange::new(Address(gap as u64), Address(next as u64))) };
            }
            if length > 0 {
                self.mappings[self.count] = (next, length);
                self.count += 1;
            }
            gap = next + length;
        }
        self.reserve.begin(0, 0);
    }

    /// Maps memory and returns its address; 0 if there is none.
    fn map_fresh(&mut self, bytes: usize) -> usize {
        let length = bytes.next_multiple_of(ROUNDING);
        if self.count == MOST_MAPPINGS {
            return 0;
        }
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        // SAFETY:
        // - no MAP_FIXED: only free addresses are taken.
        let Ok(start) = (unsafe { linux_raw::mmap(0, length, READ_WRITE, flags, -1, 0) }) else { return 0 };
        let range = AddressRange::sized(Address(start as u64), length as u64);
        let _ = linux_raw::name_memory(range, NAME);
        // SAFETY:
        // - advice about future pages. One huge page would be more than the library ever needs.
        let _ = unsafe { linux_raw::madvise(range, MADV_NOHUGEPAGE) };
        self.mappings[self.count] = (start, length);
        self.count += 1;
        start
    }

    /// Gives the pages of a large free block back to the kernel.
    ///
    /// # Safety
    /// The block is one of this class that nobody uses any more.
    unsafe fn give_back(&self, block: *mut u8, class: usize) {
        let power = class as u32 + SMALLEST;
        if power >= GIVEN_BACK {
            let range = AddressRange::sized(Address(block as u64), 1 << power);
            // SAFETY:
            // - the caller's promise; the block is aligned to its size, which is one of whole pages.
            let _ = unsafe { linux_raw::madvise(range, MADV_DONTNEED) };
        }
    }

    /// # Safety
    /// Nobody uses the block that begins there any more.
    unsafe fn unmap(&mut self, start: usize) {
        if let Some(length) = self.reserve.give_back(start) {
            // SAFETY:
            // - the caller's promise: nobody uses the contents.
            let _ =
                unsafe { linux_raw::madvise(AddressRange::sized(Address(start as u64), length as u64), MADV_DONTNEED) };
            return;
        }
        let Some(index) = self.mappings[..self.count].iter().position(|(at, _)| *at == start) else { return };
        let (_, length) = self.mappings[index];
        self.count -= 1;
        self.mappings[index] = self.mappings[self.count];
        // SAFETY:
        // - the list says that the block is one of ours; the caller's promise for the rest.
        let _ = unsafe { linux_raw::munmap(AddressRange::sized(Address(start as u64), length as u64)) };
    }
}
