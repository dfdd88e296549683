//! Formats the commands' results as lines and tables.

pub mod comparison;
pub mod doctor;
pub mod estimate;
pub mod heap;
pub mod in_place;
pub mod message;
pub mod number;
mod page_sizes;
pub mod pause;
pub mod pool;
pub mod probe;
mod sampled;
pub mod shootdowns;
pub mod stat;
pub mod table;
pub mod unanswered;
