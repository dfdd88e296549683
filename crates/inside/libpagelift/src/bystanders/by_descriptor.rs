//! The exec functions that take a file by a descriptor (fexecve(3), execveat(2)). The file's path is the descriptor's entry in
//! `/proc`; without `/proc` the environment stays as it is.

use super::{Call, EXECVEAT, FEXECVE, IS_ACTIVE, LONGEST, Strings, at_path, missing, real};
use crate::symbols;
use core::ffi::{CStr, c_char, c_int};
use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use linux_raw::kernel::general::{__NR_execveat, AT_FDCWD};

type Fexecve = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
type Execveat = unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
type ErrnoPlace = unsafe extern "C" fn() -> *mut c_int;

/// Both C libraries' function for the place of errno.
static ERRNO_PLACE: AtomicUsize = AtomicUsize::new(0);

/// Looks up what [`execveat`] needs if the C library has no such function.
pub(super) fn look_up() {
    ERRNO_PLACE.store(symbols::next_after_this_object(c"__errno_location").unwrap_or(0), Relaxed);
}

/// A path in `/proc` of the file at a descriptor, or at a path below its folder.
struct Path([u8; LONGEST]);

impl Path {
    fn of(descriptor: c_int, below: &CStr) -> Option<Self> {
        const FOLDER: &[u8] = b"/proc/self/fd/";
        let mut digits = [0; 10];
        let (mut rest, mut first) = (u32::try_from(descriptor).ok()?, digits.len());
        while rest > 0 || first == digits.len() {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let parts: [&[u8]; 4] = [FOLDER, &digits[first..], if below.is_empty() { b"" } else { b"/" }, below.to_bytes()];
        let (mut path, mut end) = ([0; LONGEST], 0);
        for part in parts {
            path.get_mut(end..end + part.len())?.copy_from_slice(part);
            end += part.len();
        }
        (end < LONGEST).then_some(Self(path))
    }
}

/// Makes a call with the environment for the program at `below` the folder at a descriptor, or at the descriptor itself.
///
/// # Safety
/// `environment` as for [`super::Changed::of`].
unsafe fn at_descriptor(descriptor: c_int, below: &CStr, environment: Strings, call: Call<'_>) -> c_int {
    /// Not part of the caller's frame: a thread's stack may be small.
    ///
    /// # Safety
    /// As above.
    #[inline(never)]
    unsafe fn changed(descriptor: c_int, below: &CStr, environment: Strings, call: Call<'_>) -> c_int {
        match Path::of(descriptor, below) {
            // SAFETY:
            // - the caller's promise; the path ends with NUL.
            Some(path) => unsafe { at_path(path.0.as_ptr().cast(), environment, call) },
            None => call(environment),
        }
    }
    if !IS_ACTIVE.load(Relaxed) {
        return call(environment);
    }
    // SAFETY:
    // - the caller's promise.
    unsafe { changed(descriptor, below, environment, call) }
}

/// fexecve(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(descriptor: c_int, words: Strings, environment: Strings) -> c_int {
    // SAFETY:
    // - the caller's promise; the function found has this type.
    unsafe {
        let real = transmute::<usize, Fexecve>(real(FEXECVE));
        at_descriptor(descriptor, c"", environment, &|environment| real(descriptor, words, environment))
    }
}

/// execveat(2), which the C library may lack.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    words: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY:
    // - the caller's promise; the function found has this type.
    unsafe {
        let real = match real(EXECVEAT) {
            none if none == missing as *const () as usize => system_execveat,
            real => transmute::<usize, Execveat>(real),
        };
        let call: Call<'_> = &|environment| real(folder, path, words, environment, flags);
        // Without a need the path is not read: the kernel says what is wrong with it.
        if !IS_ACTIVE.load(Relaxed) || path.is_null() || folder == AT_FDCWD || *path == b'/' as c_char {
            return at_path(path, environment, call);
        }
        at_descriptor(folder, CStr::from_ptr(path), environment, call)
    }
}

/// execveat(2) without a C library's function.
unsafe extern "C" fn system_execveat(
    folder: c_int,
    path: *const c_char,
    words: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    let words = [folder as usize, path as usize, words as usize, environment as usize, flags as usize];
    // SAFETY:
    // - the caller's promise; the function found has this type and returns the calling thread's variable.
    unsafe {
        if let Err(errno) = linux_raw::call_with(__NR_execveat, words)
            && let place @ 1.. = ERRNO_PLACE.load(Relaxed)
        {
            *transmute::<usize, ErrnoPlace>(place)() = errno;
        }
    }
    -1
}
