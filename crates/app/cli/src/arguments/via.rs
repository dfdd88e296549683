//! The way in which a program is lifted.

use clap::ValueEnum;

/// `--via`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ViaArg {
    /// From outside: any program, and nothing stays in it.
    Ptrace,
    /// From inside, by libpagelift.so in its environment: dynamically linked programs; objects loaded later too.
    Preload,
}
