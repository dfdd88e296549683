//! The contract between `pagelift` and the heap that it preloads (`libpagelift_heap.so`): the [`Order`] that goes in by
//! an environment variable, and the [`Account`] that is read from outside. Both carry [`VERSION`].
//!
//! No allocation, no I/O, no `std`: the preloaded side reads its order before the program's first `malloc`.
#![no_std]
#![forbid(unsafe_code)]

mod account;
mod order;

pub use account::{Account, AccountCopy, Shortage};
pub use order::{MOST_NODES, NodePages, Order};

/// Version of the contract; the two sides come from one build and refuse another.
pub const VERSION: u64 = 1;

/// The environment variable that holds the order.
pub const ORDER_VARIABLE: &str = "PAGELIFT_HEAP";

/// File name of the preloaded library.
pub const LIBRARY: &str = "libpagelift_heap.so";

/// Name of the account's symbol in the library's dynamic symbol table.
pub const ACCOUNT_SYMBOL: &str = "pagelift_heap_account";
