//! TLB shootdowns: their senders, the calls, the interrupted CPUs, the cost, and the cures.
//!
//! [`Watch`] samples the kernel's tracepoints on all CPUs, or falls back to sources that the machine and the user's
//! rights allow ([`Evidence`]); [`Summary`] adds up the samples; [`diagnose`] names the responsible allocator or part
//! of the kernel, and the setting that ends the shootdowns. Nothing here changes another process.
#![forbid(unsafe_code)]

mod begins;
mod calls;
pub mod cause;
pub mod diagnosis;
mod evidence;
pub mod format;
mod identity;
pub mod kernel_symbols;
mod lives;
pub mod machine;
mod overhead;
mod pace;
pub mod reason;
mod rings;
mod schedule;
pub mod severity;
mod sources;
mod stackless;
pub mod stacks;
pub mod summary;
mod tally;
pub mod times;
mod tracepoints;
mod usage;
mod watch;

pub use cause::Cause;
pub use diagnosis::Diagnosis;
pub use evidence::Evidence;
pub use lives::Life;
pub use severity::Severity;
pub use summary::Summary;
pub use tracepoints::NoTracepoint;
pub use watch::Watch;
