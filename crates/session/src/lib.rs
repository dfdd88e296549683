//! Pagelift's use cases as a library: start a program lifted, lift a running one and put it back, inspect, status.
//!
//! Results are values, and progress is reported by [`start::StartEvent`]s; nothing here prints. The command line is one
//! user of this crate; a benchmark or a daemon is another.
#![deny(unsafe_code)]

pub mod costs;
mod data_files;
mod error;
mod facts;
mod files;
mod growing_files;
pub mod heap;
mod images;
pub mod inspect;
pub mod kept;
mod names;
mod nodes;
pub mod parts;
mod payment;
pub mod perf_map;
mod probes;
mod report;
pub mod running;
pub mod shared;
pub mod start;
pub mod status;

pub use data_files::DataFileReport;
pub use error::SessionError;
pub use growing_files::{FilesStart, GrowingFiles, LiftedFiles, files_are_refused};
pub use names::{named_below, process_name, process_name_in_time, program_name, program_name_in_time};
pub use nodes::{FarPages, NodeBytes};
pub use report::{Base, DataFilesLifted, LiftReport, Postponed, PostponedState, Watched, WatchedState};
