//! Acts on a running program, which is never stopped for long.
//!
//! The rule of this module: Pagelift may be killed at any moment, and the program continues unharmed. A thread that
//! makes system calls for Pagelift is therefore given code and data beforehand with which it finishes by itself: it
//! makes the one call in its call page and continues with all registers restored. A thread's registers are only changed
//! by one `PTRACE_SETREGSET`, which sends it into that code.
//!
//! - The code is after the end of a segment, in the unused rest of its last page; it is written through
//!   `/proc/PID/mem`, and the page stays readable and executable all the time (`code_slot`).
//! - The call page is a mapping of Pagelift's own for as long as the lift lasts. A thread maps it and unmaps it by code that
//!   has all its data in the padding: nothing is written to a stack, or to other memory of the program.
//! - A thread in a system call is chosen, if there is one; otherwise one that computes outside of restartable
//!   sequences. The code restores every register and flag that it changes.
//! - The program may be hostile. Before it makes calls, a thread must have the memory that was opened at the beginning;
//!   at the entry of each call it must be about to make exactly that call; and an exec is always reported: no register
//!   is ever set in a program that has replaced the first one.
//! - No seccomp filter is suspended: a thread makes only calls that its filters allow (`remote::seccomp`).
//! - On AArch64 a thread that continues by itself loads its registers from a signal frame in the call page, since a
//!   jump needs a register for its target. A thread with registers that this frame does not hold is not chosen
//!   (`arch::can_be_put_back`).

mod call_page;
mod calls_of_thread;
mod choose_thread;
mod code_slot;
mod executor;
mod inherited;
mod own_mapping;
mod remote_call;
mod restart_block;
mod signal_order;
mod stop;
mod target;
mod waiting;

pub use calls_of_thread::Calls;
pub use executor::{Finished, LiveExecutor, Pause};
pub use stop::{LiveProcess, NotPrepared, StopError};
pub use target::Target;
pub use waiting::{StopWaiter, leave_stops_to_waiters};
