//! Lifting a stopped process: gathers its facts, plans, executes, reports.

pub mod facts;
pub mod handler;
pub mod heap;
pub mod heap_in_place;
pub mod images;
#[cfg(target_arch = "x86_64")]
pub mod live;
#[cfg(not(target_arch = "x86_64"))]
#[path = "live_elsewhere.rs"]
pub mod live;
pub mod message;
pub mod names;
pub mod probes;
pub mod process;
pub mod report;
pub mod running_heap;
pub mod table;
