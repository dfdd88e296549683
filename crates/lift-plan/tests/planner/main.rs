//! Properties of every plan, on random programs, machines and wishes, and on the layouts of real programs.

#[path = "../support/mod.rs"]
mod support;

mod bases;
mod bounds;
mod means;
mod memory;
mod oracle;
mod ranges;
mod real_programs;
