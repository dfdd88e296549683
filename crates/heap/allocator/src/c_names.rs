//! The C library's allocator under its other names, by which a program can call it past the preloaded `malloc`: if the
//! heap acts, their blocks are the heap's; otherwise the calls go to the C library.

use crate::exports;
use crate::passive::c_library;
use crate::start::is_acting;
use core::ffi::c_void;

macro_rules! other_name {
    ($name:ident, $usual:ident, ($($word:ident: $type:ty),*) $(-> $result:ty)?) => {
        /// Another name of the C library's function without the prefix `__libc_`.
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($word: $type),*) $(-> $result)? {
            // SAFETY:
            // - the caller's promise is that for the function of the usual name.
            unsafe {
                if is_acting() { exports::$usual($($word),*) } else { (c_library().$usual)($($word),*) }
            }
        }
    };
}

other_name!(__libc_malloc, malloc, (size: usize) -> *mut c_void);
other_name!(__libc_calloc, calloc, (count: usize, size: usize) -> *mut c_void);
other_name!(__libc_realloc, realloc, (block: *mut c_void, size: usize) -> *mut c_void);
other_name!(__libc_free, free, (block: *mut c_void));
other_name!(__libc_memalign, memalign, (align: usize, size: usize) -> *mut c_void);
other_name!(__libc_valloc, valloc, (size: usize) -> *mut c_void);
other_name!(__libc_pvalloc, pvalloc, (size: usize) -> *mut c_void);
