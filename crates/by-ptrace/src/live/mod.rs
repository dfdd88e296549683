//! Acts on a program that runs, without ever standing in its way for long.
//!
//! The rule of this folder: whoever lifts may be killed at any moment, and the program runs on unharmed. A thread that
//! makes system calls for us is therefore given code and data beforehand by which it finishes by itself: it makes the
//! one call that stands in its call page and goes on with all its registers as they were. All we ever do to a thread's
//! registers is one `PTRACE_SETREGSET`, which sends it into that code.
//!
//! - The code lies behind the end of a segment, in the rest of its last page, where the program has nothing; it is
//!   written through `/proc/PID/mem`, and the page stays readable and executable all the time.
//! - The call page is a page of the main thread's stack that has never been touched.
//! - A thread is chosen that is in a system call, where there is one; else one that computes, outside of restartable
//!   sequences. The code gives it back every register and flag that it changes.
//! - On AArch64 a thread that goes on by itself loads them from a signal frame in the call page, since a jump would need
//!   a register for its target. A thread with registers that no such frame of ours holds is not chosen
//!   (`arch::can_be_put_back`).

mod borrowing;
mod call_before;
mod executor;
mod hold;
mod page;
mod receivers;
pub(crate) mod restart;
mod stop;
mod timed;
mod waiting;

pub use executor::{Calls, LiveExecutor, Pause};
pub use page::{CallPage, PageError};
pub use stop::{LiveProcess, StopError};
pub use waiting::StopWaiter;
