//! Replaces a file by a copy of itself, as an installer would, with all its metadata.
//!
//! A program that runs cannot be written (`ETXTBSY`), and its pages in the page cache cannot be evicted. A copy that is
//! written in large pieces can be in huge folios, and may differ in some bytes that the caller names; the running
//! processes keep the old file until they end, and new ones get the copy. See [`replace`] for the guarantees.
#![forbid(unsafe_code)]

mod copy;
mod error;
mod metadata;
mod place;
mod replace;

pub use copy::{Moved, Order, Patch};
pub use error::ReplaceError;
pub use replace::{Change, Replaced, replace, write_copy};
