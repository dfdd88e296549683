//! The cost of watching for the watched threads: each event delays its thread for a record, some for a stack.
//!
//! Measured on this machine, on a cheap system call of this thread: its tracepoint is recorded by the same code of the kernel as
//! a flush.

use crate::rings::{Rings, Sampling, Selection};
use crate::tracepoints::format_of;
use nix::unistd::{getppid, gettid};
use std::time::Instant;

/// Calls of one round, for whose stacks one ring has room.
const CALLS: u32 = 50;
/// Odd, for a median.
const ROUNDS: usize = 9;

/// Nanoseconds that an event takes more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overhead {
    /// One of which a record is taken.
    pub record: f64,
    /// One of which the stacks are taken.
    pub stack: f64,
}

impl Overhead {
    /// Measures it; `None` if tracepoints cannot be used.
    pub fn measure(cpus: &[usize]) -> Option<Self> {
        let id = format_of("raw_syscalls/sys_enter").ok()?.id;
        let filter = format!("id == {} && common_pid == {}", libc::SYS_getppid, gettid());
        let selection = Selection { name: "raw_syscalls:sys_enter", id, filter: Some(filter) };
        let mut records = Rings::open(&selection, cpus, Sampling::Records).ok()?;
        let mut stacks = Rings::open(&selection, cpus, Sampling::Stacks).ok()?;
        let mut nanoseconds = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            nanoseconds[0].push(round());
            nanoseconds[1].push(recorded(&mut records));
            nanoseconds[2].push(recorded(&mut stacks));
        }
        let [plain, record, stack] = nanoseconds.map(median);
        Some(Self { record: (record - plain).max(0.0), stack: (stack - plain).max(0.0) })
    }
}

fn recorded(rings: &mut Rings) -> f64 {
    rings.run(true);
    let took = round();
    rings.run(false);
    rings.drain(drop);
    took
}

/// Nanoseconds of one call.
fn round() -> f64 {
    let begin = Instant::now();
    for _ in 0..CALLS {
        std::hint::black_box(getppid());
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
