//! The allocator of a program in which this heap does not act: the one that the program would call without this
//! library, from another shared library (tcmalloc, jemalloc, mimalloc) or the C library.
//!
//! Its functions are looked up together, at the first call in the process. Until then, blocks come from a buffer here,
//! and stay there when they are freed.

use crate::c_library::{Kept, next};
use crate::sys::{base_page, copy, set_errno};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute_copy;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::OnceLock;

/// An allocator's functions, with the types that they have in C.
pub struct Functions {
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub memalign: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub aligned_alloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub posix_memalign: unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int,
    pub valloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub pvalloc: unsafe extern "C" fn(usize) -> *mut c_void,
    // For blocks outside the buffer.
    realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    usable_size: unsafe extern "C" fn(*mut c_void) -> usize,
}

/// `malloc_trim`.
pub static TRIM: Kept = Kept::new(c"malloc_trim");
/// `mallinfo`.
pub static INFO: Kept = Kept::new(c"mallinfo");
/// `mallinfo2`.
pub static INFO2: Kept = Kept::new(c"mallinfo2");
/// `malloc_info`.
pub static WRITE_INFO: Kept = Kept::new(c"malloc_info");
/// `malloc_stats`.
pub static STATS: Kept = Kept::new(c"malloc_stats");

static FOUND: OnceLock<Functions> = OnceLock::new();

/// The functions to call. Until [`look_up`] has ended, these are the buffer's.
pub fn functions() -> &'static Functions {
    FOUND.get().unwrap_or(&OF_BUFFER)
}

/// Looks the functions up. Called once.
///
/// # Safety
/// The process has one thread.
pub unsafe fn look_up() {
    // There are none yet, so that setting them cannot fail.
    // SAFETY:
    // - the caller's promise.
    if let Some(names) = unsafe { CLibrary::behind() } {
        _ = C_LIBRARY.set(names);
    }
    // SAFETY:
    // - the caller's promise.
    let next = unsafe { Functions::of_next_objects() };
    _ = [&TRIM, &INFO, &INFO2, &WRITE_INFO, &STATS].map(Kept::get);
    if let Some(functions) = next.or_else(|| C_LIBRARY.get().map(CLibrary::functions)) {
        _ = FOUND.set(functions);
    }
}

impl Functions {
    /// Each function comes from the first object after this library that has it; `None` if one is missing.
    ///
    /// # Safety
    /// The process has one thread.
    unsafe fn of_next_objects() -> Option<Self> {
        // SAFETY:
        // - the caller's promise.
        // - in every library these names are functions with these types: malloc(3), posix_memalign(3),
        //   malloc_usable_size(3).
        unsafe {
            Some(Self {
                malloc: function(c"malloc")?,
                calloc: function(c"calloc")?,
                memalign: function(c"memalign")?,
                aligned_alloc: function(c"aligned_alloc")?,
                posix_memalign: function(c"posix_memalign")?,
                valloc: function(c"valloc")?,
                pvalloc: function(c"pvalloc")?,
                realloc: function(c"realloc")?,
                free: function(c"free")?,
                usable_size: function(c"malloc_usable_size")?,
            })
        }
    }
}

/// # Safety
/// `Function` is the type of a pointer to the function of this name, and the process has one thread.
unsafe fn function<Function>(name: &CStr) -> Option<Function> {
    const { assert!(size_of::<Function>() == size_of::<*mut c_void>()) };
    // SAFETY:
    // - the caller's promise; both have the size of a pointer.
    unsafe { next(name).map(|address| transmute_copy(&address)) }
}

/// The C library's allocator by its names that begin with `__libc_`, in the first object behind this library that has them.
pub struct CLibrary {
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    pub memalign: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub valloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub pvalloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
}

static C_LIBRARY: OnceLock<CLibrary> = OnceLock::new();

/// Those functions. Until [`look_up`] has ended they are the buffer's.
pub fn c_library() -> &'static CLibrary {
    const BUFFER: CLibrary = CLibrary {
        malloc: of_buffer,
        calloc: zeros_of_buffer,
        realloc: resize_null,
        memalign: take,
        valloc: page_of_buffer,
        pvalloc: page_of_buffer,
        free: forget,
    };
    C_LIBRARY.get().unwrap_or(&BUFFER)
}

impl CLibrary {
    /// # Safety
    /// The process has one thread.
    unsafe fn behind() -> Option<Self> {
        // SAFETY:
        // - the caller's promise.
        // - every GNU C library has functions with these types under these names, and replacements have the same types.
        unsafe {
            Some(Self {
                malloc: function(c"__libc_malloc")?,
                calloc: function(c"__libc_calloc")?,
                realloc: function(c"__libc_realloc")?,
                memalign: function(c"__libc_memalign")?,
                valloc: function(c"__libc_valloc")?,
                pvalloc: function(c"__libc_pvalloc")?,
                free: function(c"__libc_free")?,
            })
        }
    }

    /// All functions, for a process in which the look-up of the others fails.
    fn functions(&self) -> Functions {
        Functions {
            malloc: self.malloc,
            calloc: self.calloc,
            memalign: self.memalign,
            aligned_alloc: self.memalign,
            posix_memalign: libc_posix_memalign,
            valloc: self.valloc,
            pvalloc: self.pvalloc,
            realloc: self.realloc,
            free: self.free,
            usable_size: unknown_size,
        }
    }
}

/// # Safety
/// As for posix_memalign(3), with an alignment that it takes.
unsafe extern "C" fn libc_posix_memalign(place: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY:
    // - the caller's promise.
    unsafe { put(place, (c_library().memalign)(align, size)) }
}

/// # Safety
/// `place` is one for an address.
unsafe fn put(place: *mut *mut c_void, block: *mut c_void) -> c_int {
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY:
    // - the caller's promise.
    unsafe { place.write(block) };
    0
}

/// The C library's malloc_usable_size has no other name: bytes beyond the requested ones are not known to be usable.
extern "C" fn unknown_size(_: *mut c_void) -> usize {
    0
}

/// Bytes of the buffer.
const ROOM: usize = 16 << 10;
/// Bytes before each block of the buffer, of which the last eight are its size; also the least alignment.
const HEADER: usize = 16;

#[repr(align(16))]
struct Buffer(UnsafeCell<[u8; ROOM]>);

// SAFETY:
// - each byte belongs to one block, which `take` gives to one caller.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer(UnsafeCell::new([0; ROOM]));
/// Bytes that were taken of the buffer.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// The buffer's, during the look-up.
static OF_BUFFER: Functions = Functions {
    malloc: of_buffer,
    calloc: zeros_of_buffer,
    memalign: take,
    aligned_alloc: take,
    posix_memalign: place_in_buffer,
    valloc: page_of_buffer,
    pvalloc: page_of_buffer,
    realloc: resize_null,
    free: forget,
    usable_size: unknown_size,
};

/// A block of zeros of the buffer; null with `ENOMEM` if it has no room.
extern "C" fn take(align: usize, size: usize) -> *mut c_void {
    let start = BUFFER.0.get() as usize;
    let place = |taken: usize| {
        let block = (start + taken + HEADER).checked_next_multiple_of(align.max(HEADER))?;
        let end = block.checked_add(size)?.checked_next_multiple_of(HEADER)?;
        (end <= start + ROOM).then_some((block, end - start))
    };
    let taken = TAKEN.fetch_update(Relaxed, Relaxed, |taken| place(taken).map(|(_, end)| end));
    let Some((block, _)) = taken.ok().and_then(place) else {
        set_errno(libc::ENOMEM);
        return null_mut();
    };
    // SAFETY:
    // - the header is in the buffer, aligned, before a block that has no user yet: `place` ensures that.
    unsafe { ((block - size_of::<usize>()) as *mut usize).write(size) };
    block as *mut c_void
}

extern "C" fn of_buffer(size: usize) -> *mut c_void {
    take(HEADER, size)
}

extern "C" fn zeros_of_buffer(count: usize, size: usize) -> *mut c_void {
    take(HEADER, count.saturating_mul(size))
}

extern "C" fn page_of_buffer(size: usize) -> *mut c_void {
    take(base_page(), size)
}

/// # Safety
/// As for posix_memalign(3).
unsafe extern "C" fn place_in_buffer(place: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY:
    // - the caller's promise.
    unsafe { put(place, take(align, size)) }
}

/// There are no blocks but the buffer's yet.
extern "C" fn resize_null(_: *mut c_void, size: usize) -> *mut c_void {
    take(HEADER, size)
}

extern "C" fn forget(_: *mut c_void) {}

/// Size in bytes of a block of the buffer; `None` for other blocks.
fn size_in_buffer(block: *mut c_void) -> Option<usize> {
    let (start, address) = (BUFFER.0.get() as usize, block as usize);
    if !(start..start + ROOM).contains(&address) {
        return None;
    }
    // SAFETY:
    // - a block of the buffer has its size before it, which `take` has written.
    Some(unsafe { ((address - size_of::<usize>()) as *const usize).read() })
}

/// free(3).
///
/// # Safety
/// As in C.
pub unsafe fn free(block: *mut c_void) {
    if size_in_buffer(block).is_none() {
        // SAFETY:
        // - the caller's promise: a block that is not of the buffer came from these functions.
        unsafe { (functions().free)(block) };
    }
}

/// realloc(3).
///
/// # Safety
/// As in C.
pub unsafe fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY:
    // - the caller's promise: a block that is not of the buffer is null or came from these functions.
    // - one of the buffer and a new one have so many bytes each.
    unsafe {
        let Some(old) = size_in_buffer(block) else { return (functions().realloc)(block, size) };
        let new = (functions().malloc)(size);
        if !new.is_null() {
            copy(block as usize, new as usize, old.min(size));
        }
        new
    }
}

/// malloc_usable_size(3).
///
/// # Safety
/// As in C.
pub unsafe fn usable_size(block: *mut c_void) -> usize {
    // SAFETY:
    // - the caller's promise: a block that is not of the buffer came from these functions.
    size_in_buffer(block).unwrap_or_else(|| unsafe { (functions().usable_size)(block) })
}
