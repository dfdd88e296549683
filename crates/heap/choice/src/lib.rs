//! The choice of huge pages for a program's heap: the allocator that it uses ([`Program`], [`Allocator`]), and the best
//! way for that allocator ([`choose`]).
//!
//! Reading files and choosing are separate: [`Program::read`] only reads ELF files, and the choice is a function of the
//! facts, the machine and the user's environment. [`read_preloaded`] reads the contents of a preloaded heap. [`cures`] are
//! settings that end the TLB shootdowns of an allocator.
#![forbid(unsafe_code)]

mod account;
mod allocator;
mod choice;
pub mod cures;
mod default_folders;
mod elf;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod kept;
mod libraries;
mod program;
mod settings;
#[cfg(test)]
mod silent_folder;
mod small_blocks;

pub use account::{NotRead, PreloadedHeap, SmallUse, read_preloaded};
pub use allocator::{Allocator, AllocatorOrigin, Family, Runtime};
pub use choice::{Context, Forced, HeapChoice, Preload, choose};
pub use default_folders::Linker;
pub use elf::{ElfFacts, Reads};
pub use libraries::{LoaderCache, SearchPaths};
pub use program::Program;
pub use settings::{Environment, merged};
pub use small_blocks::NotKnown;
