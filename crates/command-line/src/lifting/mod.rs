//! Lifting a stopped process: gathers its facts, plans, executes, reports.

pub mod facts;
pub mod handler;
pub mod heap;
pub mod heap_in_place;
pub mod images;
pub mod live;
pub mod message;
pub mod names;
pub mod probes;
pub mod process;
pub mod report;
pub mod running_heap;
pub mod table;
