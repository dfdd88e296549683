//! Finds processes and reads facts about them. Nothing here decides.

mod forks;
mod machine;
mod program;
mod sample;

pub use forks::{forks, with_stacks};
pub use machine::{Machine, conditions};
pub use program::{executed_file, own_line, program_of, scheduling_of, standing_of};
pub use sample::{Sample, Sampler, own_identity, processes};
