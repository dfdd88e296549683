//! Reads from the kernel what backs a process's memory, and finds symbols for profilers.
//!
//! All data come from files under `/proc` and from the ELF files that a process has mapped. The crate changes no other
//! process.
#![forbid(unsafe_code)]

mod activity;
mod asking;
mod bounded_file;
mod code;
pub mod coverage;
mod error;
mod foreign_path;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod link_map;
mod loading;
mod mapped_file;
mod mounts;
mod opening;
mod owner;
pub mod perf_map;
mod process_files;
mod process_memory;
mod program_name;
mod rights;
mod served;
pub mod symbols;
mod tree;

pub use activity::{Activity, ActivityReader, page_faults};
pub use address_space::AuxiliaryVector;
pub use asking::{OneByOne, Silence, Unanswered, ask_one, each_of, each_process};
pub use bounded_file::{BoundedFile, is_refusal};
pub use code::{CodePlace, ProcessCode, UnwindSections};
pub use coverage::{Coverage, ProcessMemory, processes_with_huge_pages};
pub use error::ObservationError;
pub use foreign_text::{printable, quoted};
/// The identity of a file in one state.
pub use linux::FileIdentity;
pub use loading::{LoadedObjects, NotUnderstood, NotUnderstoodReason, ObjectReader, load_objects};
pub use mapped_file::{
    Unreadable, executed_metadata, exists_in_root, metadata_in_root, open_executed, open_in_root, open_mapped,
    target_in_root,
};
pub use opening::{FoundFile, open_regular_file};
pub use process_files::ProcessFiles;
pub use process_memory::ProcessMemoryFile;
pub use program_name::{executed_link, file_name, link_name, program_name, without_mark};
pub use rights::{ProcessRights, RightsDifference};
pub use served::{Served, TmpfsDevices};
pub use tree::tree_of;
