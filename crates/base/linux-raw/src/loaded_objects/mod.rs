//! The objects that the dynamic linker has loaded into this process, and the addresses of their symbols, for code that
//! lives in programs of others.
//!
//! A program can define any function of the C library itself, and the dynamic linker then binds the calls of all objects
//! to that definition, and `dlsym` is such a function, too. Databases define `dl_iterate_phdr`, sanitizers `mmap`, and
//! their definitions call others, allocate, take locks, or abort if the program is not set up yet. So the dynamic linker's
//! lookups are not used here: its list of objects is read from the structure that it publishes for debuggers
//! (`struct r_debug`), and the objects' symbol tables are read as the dynamic linker reads them.
//!
//! Nothing here allocates, takes a lock or writes memory.

mod auxiliary;
mod list;
mod tables;
#[cfg(test)]
mod tests;

pub use list::{Linked, Objects, Process};
pub use tables::{FUNCTION, Object, Symbol, SymbolEntry};
