//! The requests of a user: policies, heap pages, names of programs, and their words on the command line and in the
//! environment variable `PAGELIFT`.
//!
//! Pure: no I/O, no `unsafe`. The parts that the preloaded heap uses before the program's first `malloc`
//! ([`HeapWords`], the names) do not allocate.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod choices;
mod heap;
mod kind;
mod names;
mod numa;
mod payment;
mod policy;
mod time;
mod variable;
mod words;

pub use choices::{Choice, Named};
pub use heap::{HeapPages, HeapWords, NotUnderstood};
pub use kind::{Kind, Kinds};
pub use names::{is_named, matches, program_names};
pub use numa::Numa;
pub use payment::{CostShare, StartCost};
pub use policy::{Edges, ObjectChoice, Pages, Policy, Prepare, WritablePages};
pub use time::{TimeRange, time_word};
pub use variable::{VARIABLE, Variable};
pub use words::WORDS;
