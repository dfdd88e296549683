//! The facts about a system call that a thread is in.

use core::ffi::c_long;

/// The system call that a thread is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub number: c_long,
    pub arguments: [u64; 6],
    /// The stack pointer.
    pub stack: u64,
    /// The address at which the thread continues after the call.
    pub next_instruction: u64,
    /// Number of times that the thread had gone to sleep, the sleep in this call included; 0 if
    /// [`Frame::SHOWS_ARGUMENTS`](crate::frame::Frame::SHOWS_ARGUMENTS).
    pub sleeps: u64,
}
