//! Properties of every plan, on random programs, machines and policies, and on the layouts of real programs.

#[path = "../support/mod.rs"]
mod support;

mod bases;
mod bounds;
mod fates;
mod means;
mod memory;
mod nodes;
mod oracle;
mod probes;
mod ranges;
mod real_programs;
mod sources;
mod starts;
mod steps;
