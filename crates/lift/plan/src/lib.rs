//! The planner: a pure function from the facts about a process and its machine to a [`Plan`].
//!
//! The crate does no I/O and has no unsafe code. Memory that cannot be lifted is returned as a [`Refusal`] with its
//! reason; the planner never guesses.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod base;
mod cached;
mod groups;
mod kept;
mod mapped;
mod payment;
mod pieces;
mod placement;
mod plan;
mod planner;
mod price;
mod probes;
mod reason;
mod shortfall;
mod special;
mod start;
mod steps;

/// The facts about the machine and the process that the planner uses.
pub use machine_facts::{
    CacheShortfall, CachedFile, HugePool, ImageSpan, MachineFacts, NodeFacts, Nodes, NumaFacts, PoolLimit,
    ProcessFacts, SpecialMapping, ThpFacts, ThpMode,
};
/// The options that the planner uses.
pub use options::{Edges, Kind, Kinds, Numa, ObjectChoice, Pages, Policy, WritablePages};

pub use base::{BaseChoice, Coverable, choose_base, coverable};
pub use cached::{cached_coverable, choose_cached_base};
pub use mapped::{FileView, MappedFile, plan_files};
pub use payment::{Later, Paid, Terms, divide, within};
pub use pieces::{Piece, pieces_of};
pub use placement::{Placement, PoolOnNodes, Preference, nodes_for, pool_on};
pub use plan::{Attempt, Edge, EdgeCure, Method, Part, Plan, PoolPages, RangeLift, Refusal, Source};
pub use planner::plan;
pub use price::{Costs, Price};
pub use probes::{
    CodeReader, MOST_NOTE_BYTES, Probes, holds_probe, probed_pages, probes_of, semaphores_in, semaphores_of,
};
pub use reason::Reason;
pub use shortfall::Shortfall;
pub use special::{special_mappings, special_properties};
pub use start::{BeforeExec, StartWork, shows_files_alone, start_work};
pub use steps::{Step, steps_of};
