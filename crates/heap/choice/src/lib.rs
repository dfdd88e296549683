//! How a program's heap gets huge pages: which allocator it uses ([`Program`], [`Allocator`]), and what fits that allocator
//! best ([`choose`]).
//!
//! Reading files and choosing are apart: [`Program::read`] looks at ELF files and nothing else, and the choice is a
//! function of what was found, the machine and the user's environment. For programs that no setting and no preloaded
//! library reaches there is [`collapse_while_it_runs`]. What a preloaded heap holds is read by [`read_preloaded`].
#![forbid(unsafe_code)]

mod account;
mod allocator;
mod choice;
mod collapse;
mod default_folders;
mod elf;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod kept;
mod libraries;
mod program;
mod settings;
mod small_blocks;

pub use account::{NotRead, PreloadedHeap, SmallUse, read_preloaded};
pub use allocator::{Allocator, Family, Place, Runtime};
pub use choice::{Context, Forced, HeapChoice, Preload, choose};
pub use collapse::{CollapseError, collapse_once, collapse_while_it_runs};
pub use default_folders::Linker;
pub use elf::{ElfFacts, Reads};
pub use libraries::{LoaderCache, SearchPaths};
pub use program::Program;
pub use settings::{Environment, merged};
pub use small_blocks::NotKnown;
