//! Services of systemd: their commands, their sandbox, the way to lift them in it, and the drop-in file that does so.
//!
//! A drop-in file empties `ExecStart=` and gives each command again with `pagelift run … --` before it. Everything behind
//! the program's path is kept as it was written, so that quotes, specifiers and variables mean what they meant
//! ([`ExecCommand`]). Where a sandbox refuses that, the service is lifted from outside once it runs ([`Way::AfterStart`]).
//! Where a command is a shell's, the programs are those that its words execute ([`executed_paths`]).
//!
//! Pure: files and properties come in as text, and a text comes out.
#![forbid(unsafe_code)]

mod choice;
mod command;
mod drop_in;
mod file;
mod properties;
mod shell;
mod words;

pub use choice::{Choice, Program, Refusal, Shell, Surroundings, Wanted, Way, choose};
pub use command::{CommandError, ExecCommand, Launcher, shows};
pub use drop_in::{DropIn, FILE_NAME};
pub use file::{Assignment, assignments, exec_start};
pub use properties::{CallRule, NAMES, Properties, ShownCommand};
pub use shell::{ExecutedPaths, executed_paths, is_shell};
pub use words::{WordError, first_word, quoted};
