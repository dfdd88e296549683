//! Starts the heap: reads the order or the words of `PAGELIFT`, takes the pool's pages, and removes the order from the
//! environment of children that it does not name.

use crate::large::Large;
use crate::program::{Program, ProgramBuffer};
use crate::sys::{base_page, is_privileged, say};
use crate::{
    ACCOUNT, LARGE_FROM, NODES, SHARED, WITHIN_GRAIN, c_library, env_order, fork, limits, passive, python, relief,
    small, threads,
};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use heap_abi::{LIBRARY, ORDER_VARIABLE, Order};
use options::{HeapWords, VARIABLE};

/// Least size of a large block, in grains.
const LARGE_GRAINS: usize = 4;

const NEW: u8 = 0;
const STARTING: u8 = 1;
const ACTING: u8 = 2;
const PASSIVE: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(NEW);

/// True if this heap serves the program. The first call decides.
pub fn is_acting() -> bool {
    match STATE.load(Acquire) {
        ACTING => true,
        NEW => {
            STATE.store(STARTING, Relaxed);
            // SAFETY:
            // - the first call comes with the process's first block, or else before the program's own constructors; the
            //   C library allocates a thread's storage before it starts one.
            let acting = unsafe { start() };
            if !acting {
                // SAFETY:
                // - as above.
                unsafe { passive::look_up() };
            }
            STATE.store(if acting { ACTING } else { PASSIVE }, Release);
            acting
        }
        _ => false,
    }
}

/// # Safety
/// The process has one thread, and the heap has given no block yet.
unsafe fn start() -> bool {
    // The dynamic linker ignores LD_PRELOAD there, but not /etc/ld.so.preload, or a program that is linked with this library.
    if is_privileged() {
        return false;
    }
    // SAFETY:
    // - the caller's promise: no code of the program has run yet.
    let variables = || unsafe { initial_environment() };
    let text = |name: &str| variables().find_map(|variable| value_of(name, variable)).map(core::str::from_utf8);
    match (text(ORDER_VARIABLE), text(VARIABLE)) {
        // SAFETY:
        // - the caller's promise.
        (Some(order), _) => order.is_ok_and(|order| unsafe { begin_as_ordered(order) }),
        (None, Some(Ok(words))) => {
            let beside_library = variables().any(|variable| {
                let names = value_of("LD_PRELOAD", variable).unwrap_or_default();
                names.split(|&byte| parts_names(byte)).any(is_lifting_library)
            });
            // SAFETY:
            // - the caller's promise.
            unsafe { begin_by_words(words, beside_library) }
        }
        _ => false,
    }
}

unsafe extern "C" {
    /// The stack pointer with which the program was started: the number of arguments, their addresses and a null pointer, then
    /// the environment and another (System V ABI, 3.4.1).
    static __libc_stack_end: *const usize;
}

/// The variables with which the program was started. The C library may not have set `environ` yet, and
/// `/proc/self/environ` does not show variables that were added after the exec.
///
/// # Safety
/// The program has not changed its environment, and does not change it while the iterator is used.
unsafe fn initial_environment() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY:
    // - the dynamic linker has stored the pointer before it calls any object; the memory there is laid out as in the
    //   ABI, lives as long as the process, and is unchanged by the caller's promise.
    unsafe {
        let start = __libc_stack_end;
        let mut next = if start.is_null() { core::ptr::null() } else { start.add(*start + 2).cast::<*const c_char>() };
        core::iter::from_fn(move || {
            let variable = *next.as_ref().filter(|variable| !variable.is_null())?;
            next = next.add(1);
            Some(CStr::from_ptr(variable).to_bytes())
        })
    }
}

/// File name, without a version, of the library that lifts code and data from inside; it reads the words of `PAGELIFT`, too.
const LIFTING_LIBRARY: &str = "libpagelift.so";

fn value_of<'a>(name: &str, variable: &'a [u8]) -> Option<&'a [u8]> {
    variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// True for blanks and colons, which separate the names in LD_PRELOAD (ld.so(8)).
fn parts_names(byte: u8) -> bool {
    byte == b':' || byte == b' '
}

fn is_file(path: &[u8], name: &str) -> bool {
    path.rsplit(|&byte| byte == b'/').next() == Some(name.as_bytes())
}

/// True for paths of [`LIFTING_LIBRARY`], with a version such as `.0` or without.
fn is_lifting_library(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.strip_prefix(LIFTING_LIBRARY.as_bytes())
        .is_some_and(|version| version.first().is_none_or(|&byte| byte == b'.'))
}

/// # Safety
/// As for [`start`].
unsafe fn begin_as_ordered(text: &str) -> bool {
    let Some(order) = Order::parse(text) else {
        say("pagelift: the heap's order is not of this version; the program keeps its own heap\n");
        return false;
    };
    if !order.only.is_empty() && !Program::this(&mut ProgramBuffer::new()).is_named_by(&order) {
        return false;
    }
    // SAFETY:
    // - the caller's promise.
    if unsafe { is_declined() } {
        return false;
    }
    // SAFETY:
    // - the caller's promise.
    unsafe { begin(&env_order::within_confinement(&order)) };
    true
}

/// True if the heap has declined to act in a program that its order is for.
static DECLINED: AtomicBool = AtomicBool::new(false);

/// # Safety
/// As for [`start`].
unsafe fn is_declined() -> bool {
    // SAFETY:
    // - the caller's promise: this heap acts if it does not decline.
    let declines = unsafe { env_order::declines() };
    DECLINED.store(declines, Relaxed);
    declines
}

/// # Safety
/// As for [`start`].
unsafe fn begin_by_words(text: &str, beside_library: bool) -> bool {
    let mut buffer = ProgramBuffer::new();
    let program = Program::this(&mut buffer);
    let Some(requested) = env_order::order_of(text, &program, beside_library) else { return false };
    // SAFETY:
    // - the caller's promise.
    if unsafe { is_declined() } {
        return false;
    }
    // SAFETY:
    // - the caller's promise.
    unsafe { begin(&requested.order) };
    requested.tell(&program);
    true
}

/// # Safety
/// As for [`start`].
unsafe fn begin(order: &Order) {
    let (grain, page) = (order.huge as usize, order.page as usize);
    // SAFETY:
    // - the caller's promise.
    unsafe { small::set_up(grain) };
    ACCOUNT.pool_page.store(order.page, Relaxed);
    ACCOUNT.pool_asked.store(order.pool_bytes(), Relaxed);
    if order.python {
        // SAFETY:
        // - the caller's promise.
        unsafe { python::use_malloc() };
    }
    NODES.store(order.pool.iter().filter(|node| node.pages > 0).count(), Relaxed);
    let space_is_limited = limits::count_address_space();
    let take = |large: &mut Large| {
        large.set_up(grain, space_is_limited);
        if page > 0 {
            large.pool.take(order, page, grain);
        }
    };
    // SAFETY:
    // - `take` only acts on its argument.
    unsafe { SHARED.with(take) };
    if ACCOUNT.pool_taken.load(Relaxed) == 0 {
        fork::needs_no_guard();
    }
    // Memory of the pool counts to no such limit.
    if page == 0 {
        // SAFETY:
        // - the caller's promise.
        unsafe { relief::set_up() };
    }
    ACCOUNT.open();
    WITHIN_GRAIN.store(grain.min(if page > 0 { page } else { grain }) - 1, Relaxed);
    LARGE_FROM.store(grain * LARGE_GRAINS, Release);
}

/// Runs when the library is initialised, before the program's own constructors.
extern "C" fn constructor() {
    c_library::look_up();
    if is_acting() {
        fork::register();
        threads::look_up_their_number();
    } else if !DECLINED.load(Relaxed) {
        return;
    }
    // SAFETY:
    // - the process has one thread that could read the environment, and the C library has set it up.
    unsafe { remove_from_environment() };
}

// SAFETY:
// - the section holds pointers to functions without arguments that need none.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Removes the order, and this library's name in LD_PRELOAD, from the environment, so that children start without them.
/// If the order names programs, everything stays, for those programs. `PAGELIFT` always stays: other libraries read it.
///
/// # Safety
/// No other thread reads or changes the environment.
unsafe fn remove_from_environment() {
    // SAFETY:
    // - by the function's condition the list is stable; it ends with a null pointer, and each string with NUL.
    unsafe {
        if environ.is_null() {
            return;
        }
        let text = |name: &str| {
            let mut place = environ;
            while !(*place).is_null() {
                if let Some(value) = value_of(name, CStr::from_ptr(*place).to_bytes()) {
                    return Some(core::str::from_utf8(value).unwrap_or_default());
                }
                place = place.add(1);
            }
            None
        };
        let names_programs = match text(ORDER_VARIABLE) {
            Some(order) => Order::parse(order).is_some_and(|order| !order.only.is_empty()),
            None => text(VARIABLE).is_some_and(HeapWords::name_programs),
        };
        if names_programs {
            return;
        }
        let (mut from, mut to) = (environ, environ);
        while !(*from).is_null() {
            let variable = *from;
            from = from.add(1);
            let bytes = CStr::from_ptr(variable).to_bytes();
            if value_of(ORDER_VARIABLE, bytes).is_some() || is_only_us(variable) {
                continue;
            }
            *to = variable;
            to = to.add(1);
        }
        *to = core::ptr::null_mut();
    }
}

/// Removes this library from an LD_PRELOAD variable, in place; true if nothing is left in it.
///
/// # Safety
/// `variable` is a string that ends with NUL, may be written to, and is not used by others during the call.
unsafe fn is_only_us(variable: *mut c_char) -> bool {
    const NAME: &[u8] = b"LD_PRELOAD=";
    // SAFETY:
    // - by the function's condition; this is the length of the string, without its NUL.
    let bytes = unsafe {
        let length = CStr::from_ptr(variable).count_bytes();
        core::slice::from_raw_parts_mut(variable.cast::<u8>(), length)
    };
    if !bytes.starts_with(NAME) {
        return false;
    }
    let (mut read, mut written) = (NAME.len(), NAME.len());
    while read < bytes.len() {
        let end = (read..bytes.len()).find(|&at| parts_names(bytes[at])).unwrap_or(bytes.len());
        let after = (end + 1).min(bytes.len());
        if !is_file(&bytes[read..end], LIBRARY) {
            bytes.copy_within(read..after, written);
            written += after - read;
        }
        read = after;
    }
    if written > NAME.len() && parts_names(bytes[written - 1]) {
        written -= 1;
    }
    if written < bytes.len() {
        bytes[written] = 0;
    }
    written == NAME.len()
}

/// Size of an ordinary page in bytes, for blocks that are aligned to one.
pub fn page() -> usize {
    base_page()
}
