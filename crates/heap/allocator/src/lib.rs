//! `libpagelift_heap.so`: replaces the C library's allocator in a program that `pagelift run --heap` starts, or that is
//! started with this library in LD_PRELOAD and named by the variable `PAGELIFT` (`env_order`).
//!
//! Small blocks are mimalloc's (`fast_paths.c`), in arenas that we provide (`small`), whose free memory is returned to the
//! kernel in time (`give_back.c`); large ones have grains of huge pages to themselves (`large`); pool pages are taken and
//! populated before the first allocation (`pool`), and left at the first fork (`fork_calls`, `fork`, `pool_exit`). Lookups
//! of the C library's functions find the heap's functions (`redirect`, `c_names`). In programs that the order does not name,
//! every call is passed to the allocator that the program has without this library (`passive`).
//!
//! Rules of this library, which runs before and beneath everything else in the process:
//! - It never allocates: it uses neither `Vec` nor `String`, formats text into its own `Text`, and maps the memory that it
//!   needs.
//! - It does not panic on purpose, and holds no lock while it calls anything that might allocate.
//! - Whatever fails, the program gets memory as long as the kernel has any, in the end on ordinary pages.

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
compile_error!("the preloaded heap knows Linux with the GNU C library only");

mod again;
mod arena_sizes;
mod by_address;
mod c_library;
mod c_names;
mod call;
mod cleaning;
mod confinement;
mod directory;
mod env_order;
mod exports;
mod fork;
mod fork_calls;
mod frame;
mod handover;
mod kept;
mod kernel_writes;
mod large;
mod limits;
mod locks;
mod mapped;
mod memory;
mod near_limit;
mod objects;
mod observer;
mod passive;
mod places;
mod pool;
mod pool_exit;
mod prctl;
mod program;
mod python;
mod redirect;
mod relief;
mod sandbox;
mod small;
mod start;
mod statistics;
mod stop;
mod streams;
mod swap;
mod sys;
mod text;
mod threads;
mod turn;

use core::sync::atomic::AtomicUsize;
use heap_abi::Account;

/// The account that `pagelift status` reads; its name is [`heap_abi::ACCOUNT_SYMBOL`].
// SAFETY:
// - no other object defines a symbol of this name.
#[unsafe(export_name = "pagelift_heap_account")]
pub static ACCOUNT: Account = Account::new();

static SHARED: large::Shared = large::Shared::new();

unsafe extern "C" {
    /// Defined in `fast_paths.c`: least size of a large block in bytes; 0 if the heap does not act.
    #[link_name = "mimalloc_large_from"]
    safe static LARGE_FROM: AtomicUsize;
    /// Mask of the bits that are 0 in the address of every large block; 0 whenever `LARGE_FROM` is.
    #[link_name = "mimalloc_within_grain"]
    safe static WITHIN_GRAIN: AtomicUsize;
}

/// Number of nodes that the pool's pages come from.
static NODES: AtomicUsize = AtomicUsize::new(0);

/// Drops the old value of a counter.
fn forget(_: u64) {}

/// The NUMA node that the calling thread runs on; 0 if the pool's pages are of one node.
fn current_node() -> u32 {
    if NODES.load(core::sync::atomic::Ordering::Relaxed) < 2 || sandbox::is_entered() {
        return 0;
    }
    confinement::running_on().unwrap_or(0)
}
