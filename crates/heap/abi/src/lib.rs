//! The contract between `pagelift` and the heap that it preloads (`libpagelift_heap.so`): the [`Order`] in an
//! environment variable, and the [`Account`], which other processes read. Both carry [`VERSION`]. Without a launcher,
//! the heap makes an order from the words of `PAGELIFT` (crate `options`); this crate has the functions for that.
//!
//! No allocation, no I/O, no `std`: the preloaded side reads its order before the program's first `malloc`.
#![no_std]
#![forbid(unsafe_code)]

mod account;
mod node_pages;
mod order;
mod records;

pub use account::{Account, AccountCopy, Found, Shortage};
pub use node_pages::{
    NO_NODES, NodeMask, available_on, confinement, first_node, free_pages_by_node, has_node, pages_to_take,
    share_by_node, share_evenly,
};
pub use order::{MOST_NODES, NodePages, Order};
pub use records::SmallRecords;

/// Version of the contract; the two sides come from one build and refuse another.
pub const VERSION: u64 = 4;

/// The environment variable that holds the order.
pub const ORDER_VARIABLE: &str = "PAGELIFT_HEAP";

/// File name of the preloaded library.
pub const LIBRARY: &str = "libpagelift_heap.so";

/// Name of the account's symbol in the library's dynamic symbol table.
pub const ACCOUNT_SYMBOL: &str = "pagelift_heap_account";

/// Largest grain in bytes: the heap works in grains of a transparent huge page up to this size.
pub const LARGEST_GRAIN: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_grain_is_a_transparent_huge_page_of_base_pages_of_16_kib() {
        // One table of pages holds as many entries of eight bytes as fit into a base page.
        const BASE_PAGE: u64 = 16 << 10;
        assert_eq!(LARGEST_GRAIN, BASE_PAGE / 8 * BASE_PAGE);
    }
}
