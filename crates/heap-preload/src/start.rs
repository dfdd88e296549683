//! The first moments: reads the order, takes the pool's pages, and leaves no trace for children that are not meant.

use crate::sys::{base_page, map_anywhere, read_file, say, unmap};
use crate::{ACCOUNT, LARGE_FROM, NODES, SHARED, WITHIN_GRAIN, fork, small};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU8, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use heap_contract::{LIBRARY, ORDER_VARIABLE, Order};

/// Blocks of this many grains and more are large.
const LARGE_GRAINS: usize = 4;
/// Most bytes of environment and command line, by the kernel's own limit (execve(2): a quarter of the stack, 6 MiB at
/// most).
const MOST_ENVIRONMENT: usize = 6 << 20;

const NEW: u8 = 0;
const STARTING: u8 = 1;
const ACTING: u8 = 2;
const PASSIVE: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(NEW);

/// True where this heap serves the program; the first call decides.
pub fn is_acting() -> bool {
    match STATE.load(Acquire) {
        ACTING => true,
        NEW => {
            STATE.store(STARTING, Relaxed);
            let acting = start();
            STATE.store(if acting { ACTING } else { PASSIVE }, Release);
            acting
        }
        _ => false,
    }
}

fn start() -> bool {
    let Some(buffer) = map_anywhere(MOST_ENVIRONMENT, false, 0) else { return false };
    // SAFETY:
    // - the mapping is new, zero, and only ours until it is unmapped below.
    let bytes = unsafe { core::slice::from_raw_parts_mut(buffer as *mut u8, MOST_ENVIRONMENT) };
    let length = read_file(c"/proc/self/environ", bytes).unwrap_or(0);
    let value = bytes[..length].split(|&byte| byte == 0).find_map(value_of_order);
    let acting = value.and_then(|value| core::str::from_utf8(value).ok()).is_some_and(begin);
    unmap(buffer, MOST_ENVIRONMENT);
    acting
}

fn value_of_order(variable: &[u8]) -> Option<&[u8]> {
    variable.strip_prefix(ORDER_VARIABLE.as_bytes())?.strip_prefix(b"=")
}

fn begin(text: &str) -> bool {
    let Some(order) = Order::parse(text) else {
        say("pagelift: the heap's order is not of this version; the program keeps its own heap\n");
        return false;
    };
    let mut path = [0u8; libc::PATH_MAX as usize];
    if !order.only.is_empty() && !order.names(own_path(&mut path)) {
        return false;
    }
    let (grain, page) = (order.huge as usize, order.page as usize);
    small::set_up(grain);
    ACCOUNT.pool_page.store(order.page, Relaxed);
    ACCOUNT.pool_asked.store(order.pool_bytes(), Relaxed);
    NODES.store(order.pool.iter().filter(|node| node.pages > 0).count(), Relaxed);
    SHARED.with(|large| {
        large.set_grain(grain);
        if page > 0 {
            large.pool.take(&order.pool, page, grain);
        }
    });
    if ACCOUNT.pool_taken.load(Relaxed) == 0 {
        fork::needs_no_guard();
    }
    ACCOUNT.open();
    WITHIN_GRAIN.store(grain.min(if page > 0 { page } else { grain }) - 1, Relaxed);
    LARGE_FROM.store(grain * LARGE_GRAINS, Release);
    true
}

/// The file that this process executes, as far as it can be told.
fn own_path(buffer: &mut [u8]) -> &str {
    // SAFETY:
    // - readlink writes at most the length that is told into the buffer.
    let length = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    core::str::from_utf8(&buffer[..usize::try_from(length).unwrap_or(0)]).unwrap_or("")
}

/// Runs when the library is initialised, before the program's own constructors.
extern "C" fn constructor() {
    if !is_acting() {
        return;
    }
    fork::register();
    // SAFETY:
    // - the process has one thread that could look at the environment, and the C library has set it up.
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

/// Takes the order, and this library's name in LD_PRELOAD, out of the environment, so that children go without; an order
/// that names programs stays for them.
///
/// # Safety
/// No other thread reads or changes the environment.
unsafe fn remove_from_environment() {
    // SAFETY:
    // - by the function's condition the list is stable; it ends with a null pointer, and each string with NUL.
    unsafe {
        let mut place = environ;
        if place.is_null() {
            return;
        }
        while !(*place).is_null() {
            let variable = CStr::from_ptr(*place).to_bytes();
            if let Some(value) = value_of_order(variable) {
                let named = core::str::from_utf8(value).ok().and_then(Order::parse);
                if named.is_some_and(|order| !order.only.is_empty()) {
                    return;
                }
            }
            place = place.add(1);
        }
        let (mut from, mut to) = (environ, environ);
        while !(*from).is_null() {
            let variable = *from;
            from = from.add(1);
            let bytes = CStr::from_ptr(variable).to_bytes();
            if value_of_order(bytes).is_some() || is_only_us(variable) {
                continue;
            }
            *to = variable;
            to = to.add(1);
        }
        *to = core::ptr::null_mut();
    }
}

/// Takes this library out of an LD_PRELOAD variable, in place; true where nothing is left of it.
///
/// # Safety
/// `variable` is a string that ends with NUL, may be written to, and is not used by others meanwhile.
unsafe fn is_only_us(variable: *mut c_char) -> bool {
    const NAME: &[u8] = b"LD_PRELOAD=";
    // SAFETY:
    // - by the function's condition; the length is that of the string, without its NUL.
    let bytes = unsafe {
        let length = CStr::from_ptr(variable).count_bytes();
        core::slice::from_raw_parts_mut(variable.cast::<u8>(), length)
    };
    if !bytes.starts_with(NAME) {
        return false;
    }
    // Blanks and colons part the names (ld.so(8)).
    let parts = |byte: u8| byte == b':' || byte == b' ';
    let (mut read, mut written) = (NAME.len(), NAME.len());
    while read < bytes.len() {
        let end = (read..bytes.len()).find(|&at| parts(bytes[at])).unwrap_or(bytes.len());
        let after = (end + 1).min(bytes.len());
        let name = &bytes[read..end];
        let ours = name.rsplit(|&byte| byte == b'/').next() == Some(LIBRARY.as_bytes());
        if !ours {
            bytes.copy_within(read..after, written);
            written += after - read;
        }
        read = after;
    }
    if written > NAME.len() && parts(bytes[written - 1]) {
        written -= 1;
    }
    if written < bytes.len() {
        bytes[written] = 0;
    }
    written == NAME.len()
}

/// Bytes of an ordinary page, for blocks aligned to one.
pub fn page() -> usize {
    base_page()
}
