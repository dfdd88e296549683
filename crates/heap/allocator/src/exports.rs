//! The functions of the C library's allocator, under its names.
//!
//! The usual cases of malloc, calloc, free and realloc are in `fast_paths.c`, in one unit with mimalloc. The linker gives
//! their names to the functions there (`build.rs`), so that no jump leads from here to there. Rare cases are here.

use crate::c_library::OfCLibrary;
use crate::start::{is_acting, page};
use crate::sys::{KeepErrno, set_errno};
use crate::{LARGE_FROM, SHARED, WITHIN_GRAIN, passive, small};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;

/// Every block is aligned to this, as in the C library on 64-bit systems (malloc(3)): some programs use the low bits. mimalloc's
/// blocks of fewer bytes are aligned less.
const LEAST: usize = 16;

/// mimalloc aligns blocks in arenas up to this (`MI_PAGE_MAX_OVERALLOC_ALIGN`); a block with a larger alignment gets
/// its own grains.
const MOST_SMALL_ALIGN: usize = 64 << 10;

unsafe extern "C" {
    fn mimalloc_malloc(size: usize) -> *mut c_void;
    fn mimalloc_calloc(count: usize, size: usize) -> *mut c_void;
    fn mimalloc_free(block: *mut c_void);
    fn mimalloc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn mimalloc_realloc_small(block: *mut c_void, size: usize) -> *mut c_void;
    fn mi_malloc(size: usize) -> *mut c_void;
    fn mi_zalloc(size: usize) -> *mut c_void;
    fn mi_malloc_aligned(size: usize, align: usize) -> *mut c_void;
    fn mi_free(block: *mut c_void);
    fn mi_usable_size(block: *const c_void) -> usize;
}

#[inline]
fn is_small(size: usize) -> bool {
    size < LARGE_FROM.load(Relaxed)
}

/// False for every address that a large block may have, and for all addresses if the heap does not act.
#[inline]
fn is_surely_small(block: *mut c_void) -> bool {
    block as usize & WITHIN_GRAIN.load(Relaxed) != 0
}

#[unsafe(export_name = "mimalloc_no_memory")]
extern "C" fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    null_mut()
}

/// Highest number of arenas that are added for one block; each has room for it, but other threads may come first.
const MOST_TRIES: usize = 16;

/// Asks mimalloc for a block of this size, and again after each arena that can be added, at most [`MOST_TRIES`] times.
fn with_new_arenas(bytes: usize, ask: impl Fn() -> *mut c_void) -> *mut c_void {
    let keep = KeepErrno::new();
    for added in 0..=MOST_TRIES {
        let seen = small::arenas();
        let block = ask();
        if !block.is_null() {
            return block;
        }
        if added == MOST_TRIES || !small::grow(seen, bytes) {
            break;
        }
    }
    // Another thread may be about to return the last free memory to the kernel.
    let block = small::search(bytes, ask);
    if !block.is_null() {
        return block;
    }
    drop(keep);
    no_memory()
}

fn large(size: usize, align: usize, zero: bool) -> *mut c_void {
    if size > isize::MAX as usize {
        return no_memory();
    }
    let keep = KeepErrno::new();
    small::pass_by();
    let allocate = || SHARED.allocate(size, align, zero);
    match allocate().or_else(|| small::unmap_free(size).then(allocate).flatten()) {
        Some(address) => address as *mut c_void,
        None => {
            drop(keep);
            no_memory()
        }
    }
}

/// malloc(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY:
    // - takes any size.
    unsafe { mimalloc_malloc(size) }
}

#[cold]
#[unsafe(export_name = "mimalloc_malloc_slowly")]
extern "C" fn malloc_slowly(size: usize) -> *mut c_void {
    if !is_acting() {
        // SAFETY:
        // - any malloc takes any size.
        return unsafe { (passive::functions().malloc)(size) };
    }
    if !is_small(size) {
        return large(size, page(), false);
    }
    // SAFETY:
    // - mimalloc is set up and takes any size.
    with_new_arenas(size, || unsafe { mi_malloc(size.max(LEAST)) })
}

/// calloc(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY:
    // - takes any sizes.
    unsafe { mimalloc_calloc(count, size) }
}

#[cold]
#[unsafe(export_name = "mimalloc_calloc_slowly")]
extern "C" fn calloc_slowly(size: usize) -> *mut c_void {
    if !is_acting() {
        // SAFETY:
        // - any calloc takes any size.
        return unsafe { (passive::functions().calloc)(1, size) };
    }
    if !is_small(size) {
        return large(size, page(), true);
    }
    // SAFETY:
    // - as in `malloc_slowly`.
    with_new_arenas(size, || unsafe { mi_zalloc(size.max(LEAST)) })
}

/// free(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY:
    // - the caller's promise.
    unsafe { mimalloc_free(block) };
}

/// # Safety
/// As for [`free`].
#[cold]
#[unsafe(export_name = "mimalloc_free_slowly")]
unsafe extern "C" fn free_slowly(block: *mut c_void) {
    let _keep = KeepErrno::new();
    if !is_acting() {
        // SAFETY:
        // - if this heap does not act, no block is its own.
        unsafe { passive::free(block) };
    } else {
        // SAFETY:
        // - the caller has given the block up; one that is not large came from mimalloc.
        unsafe {
            match SHARED.free(block as usize) {
                true => small::pass_by(),
                false => mi_free(block),
            }
        }
    }
}

/// realloc(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY:
    // - the caller's promise.
    unsafe { mimalloc_realloc(block, size) }
}

/// # Safety
/// As for [`realloc`].
#[cold]
#[unsafe(export_name = "mimalloc_realloc_slowly")]
unsafe extern "C" fn realloc_slowly(block: *mut c_void, size: usize) -> *mut c_void {
    if !is_acting() {
        // SAFETY:
        // - if this heap does not act, no block is its own.
        return unsafe { passive::realloc(block, size) };
    }
    if block.is_null() {
        return malloc_slowly(size);
    }
    if size == 0 {
        // As the GNU C library has it: the block is gone.
        // SAFETY:
        // - the caller's promise.
        unsafe { free_slowly(block) };
        return null_mut();
    }
    if size > isize::MAX as usize {
        return no_memory();
    }
    let large_now = SHARED.usable(block as usize);
    if let Some(bytes) = large_now
        && !is_small(size)
    {
        let keep = KeepErrno::new();
        let address = block as usize;
        // SAFETY:
        // - the caller does not use the block until this returns, and afterwards uses only the returned one.
        let resize = || unsafe { SHARED.resize(address, size).or_else(|| SHARED.move_to_new(address, size)) };
        let moved = resize().or_else(|| small::unmap_free(size.saturating_sub(bytes)).then(resize).flatten());
        if let Some(moved) = moved {
            return moved as *mut c_void;
        }
        drop(keep);
        return no_memory();
    }
    if large_now.is_none() && is_small(size) {
        // SAFETY:
        // - the block came from mimalloc.
        return unsafe { mimalloc_realloc_small(block, size) };
    }
    let new = malloc_slowly(size);
    if !new.is_null() {
        // SAFETY:
        // - by the caller's promise the old block is one of this heap's; the new one is another, and each has at least
        //   so many bytes.
        unsafe {
            let old = usable(block);
            crate::sys::copy(block as usize, new as usize, old.min(size));
            free_slowly(block);
        }
    }
    new
}

/// # Safety
/// The block is one of this heap's that the program holds.
unsafe fn usable(block: *mut c_void) -> usize {
    // SAFETY:
    // - the caller's promise: a block that is no large one came from mimalloc.
    SHARED.usable(block as usize).unwrap_or_else(|| unsafe { mi_usable_size(block) })
}

/// reallocarray(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY:
        // - the caller's promise for reallocarray is that for realloc.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => no_memory(),
    }
}

/// A block of this heap, which must be acting.
fn aligned(align: usize, size: usize) -> *mut c_void {
    if !is_small(size) || align > MOST_SMALL_ALIGN {
        return large(size, align, false);
    }
    // SAFETY:
    // - mimalloc takes any size, and gives nothing for an alignment that is no power of two.
    let ask = || unsafe { mi_malloc_aligned(size, align.max(LEAST)) };
    let block = ask();
    if !block.is_null() {
        return block;
    }
    with_new_arenas(size + align, ask)
}

/// memalign(3): like the C library's, it takes the next power of two as alignment.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if !is_acting() {
        // SAFETY:
        // - the caller's promise.
        return unsafe { (passive::functions().memalign)(align, size) };
    }
    match align.max(size_of::<usize>()).checked_next_power_of_two() {
        Some(align) => aligned(align, size),
        None => {
            set_errno(libc::EINVAL);
            null_mut()
        }
    }
}

/// aligned_alloc(3): as in the C library of this process. Up to 2.37 it is another name of memalign; since then it
/// refuses alignments that are no power of two (glibc's malloc/malloc.c, `aligned_alloc`).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !is_acting() {
        // SAFETY:
        // - the caller's promise.
        return unsafe { (passive::functions().aligned_alloc)(align, size) };
    }
    if !align.is_power_of_two() && refuses_odd_alignments() {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY:
    // - the caller's promise for aligned_alloc is that for memalign.
    unsafe { memalign(align, size) }
}

#[cold]
fn refuses_odd_alignments() -> bool {
    /// glibc 2.MINOR is the first that does.
    const MINOR: u32 = 38;
    static FOUND: OfCLibrary = OfCLibrary::new(c"gnu_get_libc_version");
    let Some(function) = FOUND.get() else { return true };
    // SAFETY:
    // - the symbol is the C library's function of this type; its version is a static string that ends with NUL.
    let version = unsafe {
        CStr::from_ptr(core::mem::transmute::<*mut c_void, extern "C" fn() -> *const core::ffi::c_char>(function)())
    };
    let minor = version.to_str().ok().and_then(|text| text.split('.').nth(1)?.parse::<u32>().ok());
    minor.is_none_or(|minor| minor >= MINOR)
}

/// posix_memalign(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !is_acting() {
        // SAFETY:
        // - the caller's promise.
        return unsafe { (passive::functions().posix_memalign)(place, align, size) };
    }
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let keep = KeepErrno::new();
    let block = aligned(align, size);
    drop(keep);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY:
    // - the caller gives a place for the address.
    unsafe { place.write(block) };
    0
}

/// valloc(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    if !is_acting() {
        // SAFETY:
        // - the caller's promise.
        return unsafe { (passive::functions().valloc)(size) };
    }
    aligned(page(), size)
}

/// pvalloc(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    if !is_acting() {
        // SAFETY:
        // - the caller's promise.
        return unsafe { (passive::functions().pvalloc)(size) };
    }
    match size.max(1).checked_next_multiple_of(page()) {
        Some(bytes) => aligned(page(), bytes),
        None => no_memory(),
    }
}

/// malloc_usable_size(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if is_surely_small(block) {
        // SAFETY:
        // - the block is no large one, so that it came from mimalloc.
        return unsafe { mi_usable_size(block) };
    }
    if block.is_null() {
        return 0;
    }
    // SAFETY:
    // - the caller's promise: the block is from this heap exactly if the heap is active.
    unsafe { if is_acting() { usable(block) } else { passive::usable_size(block) } }
}

/// cfree(3), which old programs still call.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY:
    // - the caller's promise for cfree is that for free.
    unsafe { free(block) };
}

/// free_sized(3) of C23.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _size: usize) {
    // SAFETY:
    // - the caller's promise for free_sized is that for free.
    unsafe { free(block) };
}

/// free_aligned_sized(3) of C23.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _align: usize, _size: usize) {
    // SAFETY:
    // - the caller's promise for free_aligned_sized is that for free.
    unsafe { free(block) };
}
