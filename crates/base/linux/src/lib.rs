//! Raw system calls that no library wraps. This crate has no policy: the callers decide what to do with an answer.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod advice;
pub mod attributes;
pub mod bare;
pub mod bounded;
pub mod capabilities;
pub mod constants;
pub mod cpu_time;
pub mod cpus;
pub mod descriptors;
pub mod ended;
pub mod exec_events;
pub mod executed;
pub mod features;
pub mod file_cache;
pub mod file_flags;
pub mod file_holes;
pub mod file_mapping;
pub mod file_rights;
pub mod file_systems;
pub mod interrupted;
pub mod job_control;
pub mod leases;
pub mod local_time;
pub mod lock_file;
pub mod mappings;
pub mod nodes;
pub mod owner;
pub mod pagemap;
pub mod pages;
pub mod perf_event;
pub mod process_handle;
pub mod processor;
pub mod received_signals;
pub mod release;
pub mod same_memory;
pub mod search_path;
pub mod sleep_clock;
pub mod terminal;
pub mod text;
pub mod tracefs;
pub mod unasked;
pub mod urgency;
pub mod watch;
pub mod written_file;

pub use linux_raw::{FileIdentity, device_number, device_numbers, directory};
