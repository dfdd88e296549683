//! The command line of `pagelift`: its definition, its commands, and their output. The program itself is the package
//! `pagelift`; the commands of `bench` and `report` are the crate `measure-cli`.

#[cfg(target_env = "musl")]
pub mod allocator;
pub mod arguments;
pub mod commands;
pub mod definition;
pub mod exit;
pub mod help;
pub mod output;
mod overview;
mod root_program;
mod signals;
pub mod text;
pub mod usual_run;
pub mod width;
