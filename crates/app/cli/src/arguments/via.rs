//! The way in which a program is lifted.

use clap::ValueEnum;

/// `--via`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ViaArg {
    /// From outside, for any program; nothing remains in the program.
    Ptrace,
    /// From inside, by libpagelift.so in LD_PRELOAD, for dynamically linked programs; also lifts objects that are
    /// loaded later.
    Preload,
}
