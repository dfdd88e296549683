//! Services of systemd: their commands, their sandbox, the way to lift them in it, and the drop-in file that does so.
//!
//! A drop-in file empties `ExecStart=` and repeats each command with `pagelift run … --` before it. The text after the
//! program's path is copied unchanged, so that quotes, specifiers and variables keep their meaning ([`ExecCommand`]).
//! If a sandbox refuses that, the service is lifted from outside once it runs ([`Way::AfterStart`]). If a command is a
//! shell's, the programs are those in its words ([`executed_paths`]).
//!
//! Pure: files and properties come in as text, and a text comes out.
#![forbid(unsafe_code)]

mod choice;
mod command;
mod drop_in;
mod file;
mod memory;
mod properties;
mod shell;
mod words;

pub use choice::{Choice, Program, Refusal, Shell, Surroundings, Wanted, Way, choose};
pub use command::{CommandError, ExecCommand, Launcher, shows};
pub use drop_in::{DropIn, FILE_NAME, LaunchWords, UnitCommands};
pub use file::{Assignment, assignments, exec_start};
pub use memory::{ALIGNMENT_UNIT, MEMORY_FILE_NAME, MemoryUnits, alignment_unit};
pub use properties::{CallRule, NAMES, Properties, ShownCommand};
pub use shell::{ExecutedPaths, executed_paths, is_shell};
pub use words::{WordError, first_word, quoted};
