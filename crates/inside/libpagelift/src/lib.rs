//! `libpagelift`: lifts the process it lives in.
//!
//! It is linked to no library and starts no thread. Its memory comes from a separate mapping (`arena`), it makes all
//! system calls itself (`linux_raw`), and it calls two functions of the program's C library if there is one,
//! `dl_iterate_phdr` and `pthread_atfork`, before and after a lift, never during it, and never by a name that the
//! program could define (`linking`). The rules of the lift itself are at the top of `executor`, the restrictions on
//! lifted memory in `live_restrictions`, the rules of forks in `fork_guard`.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;

mod advise;
mod arena;
mod auxiliary;
#[cfg(feature = "preload")]
pub mod bystanders;
pub mod c_api;
mod cached;
mod copies;
#[cfg(any(feature = "preload", test))]
#[cfg_attr(not(feature = "preload"), allow(dead_code))]
mod environment;
mod executor;
mod files;
mod fork_guard;
mod fork_handlers;
#[cfg(feature = "freestanding")]
mod freestanding;
mod heap;
mod held_writes;
mod library;
mod linking;
mod live_restrictions;
mod loaded;
mod look;
mod machine;
mod mapped_file;
#[cfg(feature = "freestanding")]
mod memory_functions;
mod needs;
mod objects;
mod own_memory;
mod own_state;
mod pagemap;
#[cfg(feature = "preload")]
pub mod preload;
mod probes;
mod records;
mod report;
mod reserve;
#[cfg(any(feature = "preload", test))]
mod seccomp;
#[cfg(feature = "preload")]
mod symbols;

pub use executor::OwnProcess;
pub use own_memory::OwnMemory;
