//! Replaces a file by a copy of itself, as an installer would, with all that it has besides its bytes.
//!
//! A program that runs cannot be written to (`ETXTBSY`), and its pages in the page cache cannot be evicted. A copy that is
//! written in large pieces can lie in huge folios, and may differ in some bytes that the caller names; the processes that
//! run keep the old file until they end, and new ones get the copy. See [`replace`] for what holds.
#![forbid(unsafe_code)]

mod copy;
mod error;
mod metadata;
mod place;
mod replace;

pub use copy::{Moved, Order, Patch};
pub use error::ReplaceError;
pub use replace::{Change, Replaced, replace, write_copy};
