//! Pure model of a Linux process's address space and of the ELF objects in it.
//!
//! The crate does no I/O: it turns text of `/proc/PID/maps` and bytes of ELF files into values. It has no policy
//! either; `lift-plan` decides what to do with the model.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod address;
mod auxiliary;
mod counted;
mod dense;
mod elf;
mod images;
mod kernel_writes;
mod maps;
mod object;
mod page_size;
mod process_stat;
mod protection;
mod range_set;
mod roles;
mod semaphores;
mod smaps;
mod space;
mod unnamed;

pub use address::{Address, AddressRange};
pub use auxiliary::AuxiliaryVector;
pub use counted::{agreeing, counted};
pub use dense::{dense_runs, may_be_collapsed};
pub use elf::{ElfError, ElfImage, ElfKind, LoadSegment};
pub use images::drop_images;
pub use kernel_writes::{ProcessFiles, kernel_may_write};
pub use maps::{FileNumbers, Mapping, MappingName, MapsError, parse_maps};
pub use object::{FileKey, LoadedObject, ObjectRole, bias_of, file_groups};
pub use page_size::{
    ByteCount, PageSize, PageSizeError, SizeDirectory, byte_count, format_bytes, parse_bytes, parse_size, size_count,
};
pub use process_stat::{ProcessStat, StatCounters};
pub use protection::Protection;
pub use range_set::RangeSet;
pub use roles::assign_roles;
pub use semaphores::semaphores;
pub use smaps::{MappingFlags, MappingUsage, guards_branches, parse_flags, parse_smaps};
pub use space::AddressSpace;
pub use unnamed::UnnamedMapping;
