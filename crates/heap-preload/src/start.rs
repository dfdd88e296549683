//! The first moments: reads the order or the words, takes the pool's pages, and leaves no trace for children that are
//! not meant.

use crate::sys::{base_page, map_anywhere, read_file, say, unmap};
use crate::wishes;
use crate::{ACCOUNT, LARGE_FROM, NODES, SHARED, WITHIN_GRAIN, fork, small};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU8, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use heap_contract::{HeapWords, LIBRARY, ORDER_VARIABLE, Order, WORDS_VARIABLE, program_names};

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
    let variables = || bytes[..length].split(|&byte| byte == 0);
    let text = |name: &str| variables().find_map(|variable| value_of(name, variable)).map(core::str::from_utf8);
    let acting = match (text(ORDER_VARIABLE), text(WORDS_VARIABLE)) {
        (Some(order), _) => order.is_ok_and(begin_as_ordered),
        (None, Some(Ok(words))) => {
            let beside_library = variables().any(|variable| {
                let names = value_of("LD_PRELOAD", variable).unwrap_or_default();
                names.split(|&byte| parts_names(byte)).any(|name| is_file(name, LIFTING_LIBRARY))
            });
            begin_by_words(words, beside_library)
        }
        _ => false,
    };
    // SAFETY:
    // - mapped above with this length; what was read of it is used no more.
    unsafe { unmap(buffer, MOST_ENVIRONMENT) };
    acting
}

/// The library that lifts code and data from inside; it reads the same words.
const LIFTING_LIBRARY: &str = "libpagelift.so";

fn value_of<'a>(name: &str, variable: &'a [u8]) -> Option<&'a [u8]> {
    variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// Blanks and colons part the names in LD_PRELOAD (ld.so(8)).
fn parts_names(byte: u8) -> bool {
    byte == b':' || byte == b' '
}

fn is_file(path: &[u8], name: &str) -> bool {
    path.rsplit(|&byte| byte == b'/').next() == Some(name.as_bytes())
}

fn begin_as_ordered(text: &str) -> bool {
    let Some(order) = Order::parse(text) else {
        say("pagelift: the heap's order is not of this version; the program keeps its own heap\n");
        return false;
    };
    if !order.only.is_empty() && !Program::this(&mut ProgramBuffer::new()).is_named_by(&order) {
        return false;
    }
    begin(&order);
    true
}

fn begin_by_words(text: &str, beside_library: bool) -> bool {
    let mut buffer = ProgramBuffer::new();
    let program = Program::this(&mut buffer);
    let Some(wished) = wishes::order_of(text, &program, beside_library) else { return false };
    begin(&wished.order);
    wished.tell(&program);
    true
}

fn begin(order: &Order) {
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
}

/// Which program this is, as far as it can be told.
pub struct Program<'a> {
    /// The file that it executes.
    path: &'a str,
    called: &'a str,
}

/// The path that was executed, where it leads to this program's file; that of a script leads elsewhere.
fn started_by() -> Option<&'static str> {
    // SAFETY:
    // - getauxval only looks up a number, which is the address of a string that the kernel has put beside the stack and
    //   that stays there; `stat` fills the whole structure where it succeeds, and zeros are a value of it.
    unsafe {
        let path = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        if path.is_null() {
            return None;
        }
        let file = |path: *const c_char| {
            let mut status = core::mem::zeroed::<libc::stat>();
            (libc::stat(path, &mut status) == 0).then_some((status.st_dev, status.st_ino))
        };
        let is_own = file(path).is_some_and(|found| file(c"/proc/self/exe".as_ptr()) == Some(found));
        CStr::from_ptr(path).to_str().ok().filter(|_| is_own)
    }
}

/// Room for a [`Program`]'s texts.
struct ProgramBuffer {
    path: [u8; libc::PATH_MAX as usize],
    arguments: [u8; libc::PATH_MAX as usize],
}

impl ProgramBuffer {
    const fn new() -> Self {
        Self { path: [0; libc::PATH_MAX as usize], arguments: [0; libc::PATH_MAX as usize] }
    }
}

impl<'a> Program<'a> {
    fn this(buffer: &'a mut ProgramBuffer) -> Self {
        let (path, arguments) = (&mut buffer.path, &mut buffer.arguments);
        // SAFETY:
        // - readlink writes at most the length that is told into the buffer.
        let length = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), path.len()) };
        let path = core::str::from_utf8(&path[..usize::try_from(length).unwrap_or(0)]).unwrap_or("");
        let length = read_file(c"/proc/self/cmdline", arguments).unwrap_or(0);
        let called = arguments[..length].split(|&byte| byte == 0).next().unwrap_or_default();
        Self { path, called: core::str::from_utf8(called).unwrap_or("") }
    }

    /// The names by which it can be meant; the first is that of its file.
    pub fn names(&self) -> [&'a str; 5] {
        program_names(self.path, self.called, started_by())
    }

    /// By the same names as `pagelift run --only` goes by.
    fn is_named_by(&self, order: &Order) -> bool {
        self.names().iter().any(|name| !name.is_empty() && order.names(name))
    }

    pub fn pid(&self) -> u64 {
        u64::from(std::process::id())
    }
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

/// Takes the order, and this library's name in LD_PRELOAD, out of the environment, so that children go without. Where
/// programs are named all stays for them. `PAGELIFT` stays always: it is not for this library alone.
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
            None => text(WORDS_VARIABLE).is_some_and(HeapWords::name_programs),
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

/// Bytes of an ordinary page, for blocks aligned to one.
pub fn page() -> usize {
    base_page()
}
