//! Formats the commands' results as lines and tables.

pub mod agent;
pub mod comparison;
pub mod data_files;
pub mod doctor;
pub mod estimate;
mod grid;
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
pub mod sum;
pub mod table;
pub mod unanswered;
pub mod worker;
