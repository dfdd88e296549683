//! One file per command.

pub mod attach;
pub mod demo;
pub mod generate;
pub mod image;
pub mod inspect;
pub mod perf_map;
mod reading;
pub mod run;
pub mod status;
pub mod via_preload;
