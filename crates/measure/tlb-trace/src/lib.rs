//! `libpagelift_trace.so`: a plugin of QEMU's user mode (`qemu-x86_64`, `qemu-aarch64`), which sends the pages that a
//! program touches to `pagelift estimate`, in the form of [`estimate::tlb_model::trace`].
//!
//! QEMU calls it in the thread of each virtual CPU, and in user mode each thread of the program is one. Arguments:
//! `socket=PATH` (a listening Unix socket), `page=BYTES` (the base page), `skip=COUNT` (instructions of all threads before
//! the trace begins), `after=SECONDS` (time before it begins). When the reader hangs up, the program runs on untraced.

mod api;
mod send;
mod thread;

use api::{Block, Info, MemoryInfo, PluginId};
use send::Receiver;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use thread::with_thread;

/// The data for every callback.
struct Plugin {
    receiver: Receiver,
    page_shift: u32,
    begun: Instant,
    after: Duration,
    skip: u64,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// Nothing is sent yet.
const SKIPPING: u8 = 0;
/// Pages are sent.
const TRACING: u8 = 1;
/// Nothing is sent any more.
const DONE: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(SKIPPING);
/// Instructions that have been skipped.
static SKIPPED: AtomicU64 = AtomicU64::new(0);
/// The page of the program's first store; 0 before it.
static FIRST_STORE: AtomicU64 = AtomicU64::new(0);

/// Instructions between two readings of the clock while skipping.
const CLOCK_EVERY: u64 = 1 << 16;

/// The version of the plugin interface, by which QEMU decides whether to load the plugin. QEMU 4.2 to 8.2 take 0 and 1,
/// later ones 2 and more (`QEMU_PLUGIN_MIN_VERSION` in its include/qemu/plugin.h); the functions used here are the same
/// in all. [`choose_version`] sets it while the plugin is loaded, before QEMU checks it.
#[unsafe(export_name = "qemu_plugin_version")]
pub static VERSION: AtomicVersion = AtomicVersion(std::sync::atomic::AtomicI32::new(1));

/// An `int` for QEMU.
#[repr(transparent)]
pub struct AtomicVersion(std::sync::atomic::AtomicI32);

/// Environment variable with the version, removed from the program's environment by QEMU's `-U`.
const VERSION_VARIABLE: &str = "PAGELIFT_QEMU_PLUGIN_VERSION";

// SAFETY:
// - the dynamic linker calls the functions of this section when it has loaded and relocated the plugin; their arguments
//   are ignored.
#[unsafe(link_section = ".init_array")]
#[used]
static CHOOSE_VERSION: extern "C" fn() = choose_version;

extern "C" fn choose_version() {
    if let Some(version) = std::env::var(VERSION_VARIABLE).ok().and_then(|text| text.parse().ok()) {
        VERSION.0.store(version, Ordering::Relaxed);
    }
}

/// QEMU calls this once, when the plugin is loaded.
///
/// # Safety
/// There must be `count` strings at `words`, each ending with NUL.
// SAFETY:
// - the symbol is the one that QEMU looks up, with this signature.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: PluginId,
    _: *const Info,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    // SAFETY:
    // - the caller's promise.
    let word = |index: usize| unsafe { CStr::from_ptr(*words.add(index)) };
    let words: Vec<&str> = (0..count.max(0) as usize).filter_map(|index| word(index).to_str().ok()).collect();
    let plugin = match Plugin::of(&words) {
        Ok(plugin) => plugin,
        Err(why) => {
            eprintln!("pagelift: tracing: {why}");
            return 1;
        }
    };
    if plugin.skip == 0 && plugin.after.is_zero() {
        STATE.store(TRACING, Ordering::Relaxed);
    }
    if PLUGIN.set(plugin).is_err() {
        return 1;
    }
    api::register(id);
    0
}

impl Plugin {
    fn of(words: &[&str]) -> Result<Self, String> {
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let number = |name: &str| value(name).and_then(|text| text.parse::<u64>().ok());
        let page = number("page").filter(|page| page.is_power_of_two()).ok_or("needed: page=BYTES")?;
        let path = value("socket").ok_or("needed: socket=PATH")?;
        Ok(Self {
            receiver: Receiver::connect(path).map_err(|error| format!("connecting to {path:?}: {error}"))?,
            page_shift: page.trailing_zeros(),
            begun: Instant::now(),
            after: Duration::from_secs(number("after").unwrap_or(0)),
            skip: number("skip").unwrap_or(0),
        })
    }

    /// Counts instructions that are skipped. True when these are the last.
    fn skips_last(&self, instructions: u64) -> bool {
        let before = SKIPPED.fetch_add(instructions, Ordering::Relaxed);
        let now = before + instructions;
        let looks = before / CLOCK_EVERY != now / CLOCK_EVERY || before < self.skip;
        now >= self.skip && (self.after.is_zero() || looks && self.begun.elapsed() >= self.after)
    }
}

/// The data that a translated block passes to its callback: its first page, whether it ends in the next page, and its
/// number of instructions.
#[derive(Clone, Copy)]
struct BlockData(usize);

impl BlockData {
    const COUNT: u32 = 12;

    fn new(page: u64, ends_in_next: bool, instructions: usize) -> Self {
        let count = instructions.min((1 << Self::COUNT) - 1);
        Self((page as usize) << (Self::COUNT + 1) | usize::from(ends_in_next) << Self::COUNT | count)
    }

    fn page(self) -> u64 {
        (self.0 >> (Self::COUNT + 1)) as u64
    }

    fn ends_in_next(self) -> bool {
        self.0 >> Self::COUNT & 1 == 1
    }

    fn instructions(self) -> u64 {
        (self.0 & ((1 << Self::COUNT) - 1)) as u64
    }
}

/// QEMU has translated a block.
///
/// # Safety
/// Called by QEMU, with a block that it keeps until this returns.
unsafe extern "C" fn translated(_: PluginId, block: *mut Block) {
    let Some(plugin) = PLUGIN.get().filter(|_| STATE.load(Ordering::Relaxed) != DONE) else { return };
    let data = |first, last, count| BlockData::new(first, last != first, count).0 as *mut c_void;
    // SAFETY:
    // - QEMU passes the block, and this callback has not returned.
    unsafe { api::watch_block(block, plugin.page_shift, data) };
}

/// A block begins.
extern "C" fn executes(cpu: u32, data: *mut c_void) {
    let block = BlockData(data as usize);
    match STATE.load(Ordering::Relaxed) {
        TRACING => {}
        SKIPPING => {
            if PLUGIN.get().is_some_and(|plugin| plugin.skips_last(block.instructions())) {
                // The reader's answer may be there already.
                let _ = STATE.compare_exchange(SKIPPING, TRACING, Ordering::Relaxed, Ordering::Relaxed);
            }
            return;
        }
        _ => return,
    }
    with_thread(cpu, |thread| {
        thread.executes(block.page(), block.instructions());
        if block.ends_in_next() {
            thread.executes(block.page() + 1, 0);
        }
    });
}

/// A load or store.
extern "C" fn touches(cpu: u32, info: MemoryInfo, address: u64, _: *mut c_void) {
    let Some(plugin) = PLUGIN.get() else { return };
    match STATE.load(Ordering::Relaxed) {
        TRACING | SKIPPING if FIRST_STORE.load(Ordering::Relaxed) == 0 && api::is_store(info) => {
            FIRST_STORE.store(address >> plugin.page_shift, Ordering::Relaxed);
        }
        _ => {}
    }
    if STATE.load(Ordering::Relaxed) != TRACING {
        return;
    }
    with_thread(cpu, |thread| {
        let last = address.wrapping_add(api::size_of_access(info) - 1) >> plugin.page_shift;
        thread.touches(address >> plugin.page_shift);
        thread.touches(last);
    });
}

/// A system call begins.
extern "C" fn calls(
    _: PluginId,
    cpu: u32,
    number: i64,
    a1: u64,
    a2: u64,
    a3: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) {
    if STATE.load(Ordering::Relaxed) == TRACING && thread::changes_mappings(number) {
        with_thread(cpu, |thread| thread.call = [a1, a2, a3]);
    }
}

/// A system call has returned.
extern "C" fn returns(_: PluginId, cpu: u32, number: i64, result: i64) {
    let Some(plugin) = PLUGIN.get() else { return };
    if STATE.load(Ordering::Relaxed) == TRACING && thread::changes_mappings(number) {
        with_thread(cpu, |thread| thread.mapped(number, result, plugin.page_shift));
    }
}

/// A thread ends.
extern "C" fn ends(_: PluginId, cpu: u32) {
    if STATE.load(Ordering::Relaxed) == TRACING {
        with_thread(cpu, thread::Thread::end);
    }
}

/// The program ends; QEMU has stopped all other threads.
extern "C" fn exits(_: PluginId, _: *mut c_void) {
    if STATE.load(Ordering::Relaxed) == TRACING {
        thread::end_all();
    }
    if STATE.swap(DONE, Ordering::Relaxed) != DONE
        && let Some(plugin) = PLUGIN.get()
    {
        plugin.receiver.finish();
    }
}
