//! The planner: a pure function from what is known of a process and its machine to a [`Plan`].
//!
//! Nothing here does I/O and nothing here is unsafe. What cannot be lifted comes back as a [`Refusal`] with its
//! reason; the planner never guesses.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod base;
mod facts;
mod groups;
mod pieces;
mod plan;
mod planner;
mod policy;
mod probes;
mod reason;
mod special;
mod steps;

pub use base::{BaseChoice, Coverable, choose_base, coverable};
pub use facts::{HugePool, ImageSpan, MachineFacts, ProcessFacts, SpecialMapping, ThpFacts, ThpMode};
pub use pieces::{Piece, pieces_of};
pub use plan::{Attempt, Edge, EdgeCure, Kind, Part, Plan, RangeLift, Refusal, Source, Way};
pub use planner::plan;
pub use policy::{Edges, Kinds, ObjectChoice, Pages, Policy, WritablePages, matches};
pub use probes::{CodeReader, holds_probe, probed_pages};
pub use reason::Reason;
pub use special::special_mappings;
pub use steps::{Step, steps_of};
