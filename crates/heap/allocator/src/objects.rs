//! The objects that the dynamic linker has loaded: which of them define an allocator's functions, and which use C++'s.
//!
//! dlsym(3) would not do: where it finds nothing it allocates a message, and the heap has not started yet.

use crate::object::{DynamicEntry, Object};
use core::ffi::{CStr, c_char, c_int};

/// Why blocks of this heap and blocks of another allocator would meet in this program; `None` where they do not.
///
/// All objects that the program starts with are relocated already; those of dlopen(3) come later.
pub fn obstacle() -> Option<&'static str> {
    let (mut count, mut own, mut next, mut new) = (0, None, None, None);
    let mut executable_has_malloc = false;
    each(&mut |object| {
        if count == 0 {
            executable_has_malloc = object.defines(c"malloc");
        }
        if own.is_none() {
            own = is_own(object).then_some(count);
        } else if next.is_none() {
            next = object.defines(c"malloc").then_some(count);
        }
        if new.is_none() {
            new = object.defines(OPERATOR_NEW).then_some(count);
        }
        count += 1;
    });
    if executable_has_malloc {
        return Some("the executable defines malloc itself");
    }
    // The operators of whoever would serve malloc without this library; those of the C++ library call malloc.
    let is_past_malloc = next.is_some() && next == new;
    (is_past_malloc && is_new_used()).then_some(
        "its allocator has C++'s operators new and delete of its own, which the program uses and this heap does not replace",
    )
}

/// True where an object defines this symbol.
pub fn define(name: &CStr) -> bool {
    let mut found = false;
    each(&mut |object| found = found || object.defines(name));
    found
}

/// C++'s plain operator new, beside which there are all others (Itanium C++ ABI, 5.1.5).
const OPERATOR_NEW: &CStr = c"_Znwm";
/// Beginnings of the names of all global operators new and delete.
const OPERATORS: [&[u8]; 4] = [b"_Znwm", b"_Znam", b"_ZdlPv", b"_ZdaPv"];

/// True where an object uses an operator of another one. What defines the operators does not use those of others.
fn is_new_used() -> bool {
    let mut found = false;
    each(&mut |object| found = found || !object.defines(OPERATOR_NEW) && object.uses(&OPERATORS));
    found
}

/// The function of this name in the first object behind this library that has it; unlike dlsym(3), this allocates nothing.
pub fn function_behind(name: &CStr) -> Option<usize> {
    let mut found = None;
    each_behind(&mut |object| found = found.or_else(|| object.function(name)));
    found
}

/// This library's function of this name, which others of the name in the program do not hide.
pub fn own_function(name: &CStr) -> Option<usize> {
    let mut found = None;
    each(&mut |object| {
        if is_own(object) {
            found = object.function(name);
        }
    });
    found
}

/// Calls `act` for each object behind this library, in the order in which symbols are looked up.
pub fn each_behind(act: &mut dyn FnMut(&Object)) {
    let mut is_behind = false;
    each(&mut |object| {
        if is_behind {
            act(object);
        }
        is_behind |= is_own(object);
    });
}

fn is_own(object: &Object) -> bool {
    object.has_dynamic(&raw const _DYNAMIC)
}

/// The dynamic linker's structure for debuggers (`link.h`). It is used because a program could define
/// dl_iterate_phdr(3) and call this heap in that function.
#[repr(C)]
struct DebuggerInterface {
    version: c_int,
    first: *const LinkMap,
}

/// The beginning of `struct link_map` (`link.h`).
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const DynamicEntry,
    next: *const LinkMap,
}

unsafe extern "C" {
    static _r_debug: DebuggerInterface;
    static _DYNAMIC: DynamicEntry;
}

/// Calls `act` for each object, in the order in which symbols are looked up: the executable comes first. Only while the process
/// has one thread.
fn each(act: &mut dyn FnMut(&Object)) {
    // SAFETY:
    // - the dynamic linker has set its list up before it relocates the first object, and nothing changes it meanwhile.
    // - the objects in it are loaded, and none is unloaded before the calls return.
    unsafe {
        let mut next = (&raw const _r_debug.first).read_volatile();
        while let Some(map) = next.as_ref() {
            if !map.dynamic.is_null() {
                act(&Object::of(map.base, map.dynamic));
            }
            next = map.next;
        }
    }
}
