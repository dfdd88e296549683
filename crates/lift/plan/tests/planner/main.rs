//! Properties of every plan, on random programs, machines and policies, and on the layouts of real programs.

#[path = "../support/mod.rs"]
mod support;

mod bases;
mod bounds;
mod fates;
mod files;
mod means;
mod memory;
mod nodes;
mod oracle;
mod payments;
mod probes;
mod ranges;
mod real_programs;
mod sources;
mod starts;
mod steps;
