//! Address translation: page walks that the CPU counts ([`walk_counters`]), pages that a process uses ([`working_set`]), and
//! the cost of a translation on this machine ([`tlb_probe`]).
#![deny(unsafe_code)]

pub mod tlb_probe;
pub mod walk_counters;
pub mod working_set;
