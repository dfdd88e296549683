//! `libpagelift_heap.so`: replaces the C library's allocator in a program that `pagelift run --heap` starts, or that is
//! started with this library in LD_PRELOAD and named by the variable `PAGELIFT` (`wishes`).
//!
//! Small blocks are mimalloc's, in arenas that we provide (`small`); large ones have grains of huge pages to themselves
//! (`large`); pool pages are taken and populated before the first allocation (`pool`), and left at the first fork
//! (`fork`, `leave`). In programs that the order does not name, every call goes on to the C library.
//!
//! Rules of this library, since it runs before and beneath everything else in the process:
//! - it never allocates by itself: no `Vec`, no `String`, text only in a `Text` of its own; what it needs it maps;
//! - it never panics on purpose, and holds no lock while it calls anything that might allocate;
//! - whatever fails, the program gets memory as long as the kernel has any, on ordinary pages in the end.

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
compile_error!("the preloaded heap knows Linux with the GNU C library only");

mod again;
mod cleaning;
mod directory;
mod exports;
mod fork;
mod frame;
mod handover;
mod kernel_writes;
mod large;
mod leave;
mod locks;
mod mapped;
mod memory;
mod places;
mod pool;
mod small;
mod start;
mod stop;
mod sys;
mod text;
mod threads;
mod wishes;

use core::sync::atomic::AtomicUsize;
use heap_contract::Account;

/// The account that `pagelift status` reads; its name is [`heap_contract::ACCOUNT_SYMBOL`].
// SAFETY:
// - no other object defines a symbol of this name.
#[unsafe(export_name = "pagelift_heap_account")]
pub static ACCOUNT: Account = Account::new();

static SHARED: large::Shared = large::Shared::new();

/// Blocks of fewer bytes are mimalloc's. 0 until the heap has started, and for ever where it is not to act.
static LARGE_FROM: AtomicUsize = AtomicUsize::new(0);
/// Large blocks' addresses have none of these bits. 0 as `LARGE_FROM`.
static WITHIN_GRAIN: AtomicUsize = AtomicUsize::new(0);
/// Nodes that the pool's pages come from.
static NODES: AtomicUsize = AtomicUsize::new(0);

/// Drops the old value of a counter.
fn forget(_: u64) {}

/// The NUMA node that the calling thread runs on, where that matters.
fn current_node() -> u32 {
    if NODES.load(core::sync::atomic::Ordering::Relaxed) < 2 {
        return 0;
    }
    let mut node = 0u32;
    // SAFETY:
    // - the place for the node is valid, and the CPU is not asked for.
    unsafe { libc::syscall(libc::SYS_getcpu, core::ptr::null_mut::<u32>(), &mut node, core::ptr::null_mut::<u8>()) };
    node
}
