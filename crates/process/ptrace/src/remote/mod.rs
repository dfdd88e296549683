//! Acts on a stopped process.
//!
//! - The states of a traced thread as types: `tracee`.
//! - Requests and reports: `requests`, `wait`, `spin_wait`, `reaping`, `thread_list`, `status`, `refusal`.
//! - The process's state: `memory`, `auxiliary`, `inflight_syscall`; registers and code per architecture: `arch`.
//! - System calls that it is made to make: `injection` by the code of `guest_code`, if its filters allow them (`seccomp`);
//!   `last_call` drops what that code leaves;
//!   `executor` lifts with them, `from_file` copies with them, `outside` lifts without any, and `calls` is what the executors
//!   share.
//! - The program's own system calls that a stop has interrupted: `restart`, with the remaining time: `timed_wait`,
//!   `time_places`, `unused`.

pub mod arch;
pub mod auxiliary;
pub mod calls;
#[cfg(test)]
mod conforms;
mod executor;
mod from_file;
pub mod guest_code;
pub mod inflight_syscall;
pub mod injection;
mod last_call;
mod memory;
pub mod originals;
mod outside;
pub mod reaping;
pub mod refusal;
pub mod requests;
pub mod restart;
pub mod seccomp;
mod spin_wait;
pub mod status;
pub mod thread_list;
pub mod time_places;
pub mod timed_wait;
pub mod tracee;
mod unused;
pub mod wait;

pub use executor::ProcessExecutor;
pub use injection::{InjectError, Injector};
pub use memory::RemoteMemory;
pub use outside::OutsideExecutor;
