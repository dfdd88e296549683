//! The raw system calls that no library wraps. No policy: what to do with an answer is decided elsewhere.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod advice;
pub mod attributes;
pub mod bare;
pub mod descriptors;
pub mod file_mapping;
pub mod file_systems;
pub mod interrupted;
pub mod leases;
pub mod numbers;
pub mod pagemap;
pub mod pages;
pub mod processors;
pub mod release;
pub mod text;
pub mod urgency;
