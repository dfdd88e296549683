//! What a process's memory really stands on, as the kernel tells it; and symbols for profilers.
//!
//! Everything comes from files under `/proc` and from the ELF files that a process has mapped. Nothing here changes
//! another process.
#![forbid(unsafe_code)]

mod auxiliary;
mod bounded_file;
pub mod coverage;
mod error;
mod file_identity;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod link_map;
mod loading;
mod mapped_file;
pub mod perf_map;
mod process_files;
mod roles;
pub mod symbols;
mod text;

pub use auxiliary::AuxiliaryVector;
pub use bounded_file::BoundedFile;
pub use coverage::{Coverage, ProcessMemory, processes_with_huge_pages};
pub use error::ObservationError;
pub use file_identity::FileIdentity;
pub use loading::{LoadedObjects, NotUnderstood, NotUnderstoodReason, ObjectReader, load_objects};
pub use mapped_file::{Unreadable, open_mapped, open_regular_file};
pub use process_files::ProcessFiles;
pub use text::printable;
