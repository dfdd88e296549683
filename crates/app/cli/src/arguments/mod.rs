//! Arguments that several commands share.

pub mod bench;
pub mod cost;
pub mod heap;
pub mod measure_lift;
pub mod policy;
pub mod process;
pub mod report;
pub mod size;
pub mod time;
pub mod via;
