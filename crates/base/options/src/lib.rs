//! What a user can ask for: policies, heap pages, names of programs, and their words on the command line and in the
//! environment variable `PAGELIFT`.
//!
//! Pure: no I/O, no `unsafe`. What the preloaded heap reads before the program's first `malloc` ([`HeapWords`], the
//! names) allocates nothing.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod choices;
mod heap;
mod kind;
mod names;
mod numa;
mod policy;
mod variable;
mod words;

pub use choices::{Choice, Named};
pub use heap::{HeapPages, HeapWords, NotUnderstood};
pub use kind::{Kind, Kinds};
pub use names::{is_named, matches, program_names};
pub use numa::Numa;
pub use policy::{Edges, ObjectChoice, Pages, Policy, Prepare, WritablePages};
pub use variable::{VARIABLE, Variable};
pub use words::WORDS;
