//! Functions of the C library that this library's own replace.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The function of this name in the next object, which is the C library. Looked up at each call, since calls are rare.
pub fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY:
    // - the name ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The C library's malloc_usable_size, for programs in which this heap does not act. The next object's function will not
/// do: it is that of the program's own allocator if it has one (redis has jemalloc), and the blocks are the C library's.
///
/// # Safety
/// The block is one of the C library's that the program holds.
pub unsafe fn libc_usable_size(block: *mut c_void) -> usize {
    static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut real = KNOWN.load(Relaxed);
    if real.is_null() {
        // SAFETY:
        // - both names end with NUL; the C library is loaded already, so that nothing is loaded here, and stays.
        real = unsafe {
            let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() { library } else { libc::dlsym(library, c"malloc_usable_size".as_ptr()) }
        };
        if real.is_null() {
            return 0;
        }
        KNOWN.store(real, Relaxed);
    }
    // SAFETY:
    // - the symbol is the C library's function of this type, and the block came from it by the caller's promise.
    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> usize>(real)(block) }
}
