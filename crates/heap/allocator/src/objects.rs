//! The objects that the dynamic linker has loaded: those that define an allocator's functions, and those that use C++'s
//! operators.

use crate::c_library::{self, is_own};
use core::ffi::CStr;
use linux_raw::loaded_objects::Object;

/// Why blocks of this heap and blocks of another allocator would meet in this program; `None` if they do not.
///
/// All objects of the program's start are relocated already; dlopen(3) loads others later.
///
/// # Safety
/// The process has one thread.
pub unsafe fn obstacle() -> Option<&'static str> {
    let (mut is_behind, mut next, mut new) = (false, None, None);
    let mut executable_has_malloc = false;
    // SAFETY:
    // - the caller's promise.
    for (count, object) in unsafe { each() }.enumerate() {
        if count == 0 {
            executable_has_malloc = object.symbol(c"malloc").is_some();
        }
        if is_own(&object) {
            is_behind = true;
        } else if is_behind && next.is_none() {
            next = object.symbol(c"malloc").map(|_| count);
        }
        if new.is_none() {
            new = object.symbol(OPERATOR_NEW).map(|_| count);
        }
    }
    if !is_behind {
        return Some("the dynamic linker's list of loaded objects is not found, or is without this heap");
    }
    if executable_has_malloc {
        return Some("the executable defines malloc itself");
    }
    // The operators that would serve without this library; those in the C++ library call malloc.
    let is_past_malloc = next.is_some() && next == new;
    // SAFETY:
    // - the caller's promise.
    (is_past_malloc && unsafe { is_new_used() }).then_some(
        "its allocator defines its own C++ operators new and delete, which the program uses and this heap does not replace",
    )
}

/// True if an object defines this symbol.
///
/// # Safety
/// The process has one thread.
pub unsafe fn define(name: &CStr) -> bool {
    // SAFETY:
    // - the caller's promise.
    unsafe { each() }.any(|object| object.symbol(name).is_some())
}

/// C++'s plain operator new, beside which there are all others (Itanium C++ ABI, 5.1.5).
const OPERATOR_NEW: &CStr = c"_Znwm";
/// Beginnings of the names of all global operators new and delete.
const OPERATORS: [&[u8]; 4] = [b"_Znwm", b"_Znam", b"_ZdlPv", b"_ZdaPv"];

/// True if an object uses an operator of another one. Objects that define the operators use their own.
///
/// # Safety
/// The process has one thread.
unsafe fn is_new_used() -> bool {
    // SAFETY:
    // - the caller's promise.
    unsafe { each() }.any(|object| object.symbol(OPERATOR_NEW).is_none() && object.uses(&OPERATORS))
}

/// The objects, in the order in which symbols are looked up.
///
/// # Safety
/// The process has one thread.
unsafe fn each() -> impl Iterator<Item = Object> {
    // SAFETY:
    // - the caller's promise.
    unsafe { c_library::objects() }.map(|linked| linked.object)
}
