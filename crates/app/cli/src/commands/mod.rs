//! One file per command.

pub mod agent;
pub mod align;
pub mod attach;
pub mod cache;
pub mod demo;
pub mod doctor;
pub mod estimate;
pub mod generate;
pub mod image;
pub mod inspect;
pub mod lift_switcher;
pub mod measure;
pub mod perf_map;
pub mod pool;
pub mod probe;
pub mod reading;
pub mod run;
pub mod service;
pub mod shootdowns;
pub mod stat;
pub mod status;
