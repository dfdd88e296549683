//! The effect of a lift on a program's TLB misses: the program runs under QEMU's user mode, whose plugin sends the
//! pages that it touches, and the TLBs of a CPU are simulated once for today's pages and once for the planned pages.
//!
//! The trace is read while it is made and never stored. Its addresses are QEMU's; addresses in an object are translated
//! to addresses of the planned process by path and address in the file (`places`).
#![deny(unsafe_code)]

mod error;
mod page_sizes;
mod places;
mod plan;
mod process_maps;
mod qemu;
mod result;
mod simulation;
mod stream;
pub mod tlb_model;
mod today;

pub use error::EstimateError;
pub use page_sizes::Transparent;
pub use places::Kind;
pub use plan::{PlannedObject, PlannedPages};
pub use qemu::{Qemu, fix_addresses};
pub use result::{Estimate, PagesOf, Side, Slice, Trace, Variant, WalksOfKind};
pub use today::Today;

use crate::tlb_model::Geometry;
use process_maps::ProcessMaps;
use simulation::Simulation;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use stream::Stream;

/// The input of an estimate.
pub struct Request<'a> {
    /// The ELF file to execute.
    pub program: &'a Path,
    /// Its arguments, with its own name first.
    pub words: &'a [OsString],
    /// Its environment; `None`: the environment of this program.
    pub environment: Option<&'a [(OsString, OsString)]>,
    /// The CPU.
    pub cpu: Geometry,
    /// Cores that the threads share in turn, without any of a thread's entries being lost at a switch, as in one address
    /// space; `None`: each thread has its own.
    pub cores: Option<u32>,
    /// The part of the run.
    pub slice: Slice,
    /// The changes by the lift.
    pub planned: PlannedPages,
    /// The parts of the running process that are on huge pages, if there is a process: its objects are used as today's,
    /// instead of base pages.
    pub today: Option<PlannedPages>,
    /// The kernel's treatment of anonymous memory, and the effect of a lift of the heap.
    pub transparent: Transparent,
    /// The plugin.
    pub plugin: PathBuf,
}

/// Runs the program and simulates. `interrupted` ends the slice early.
///
/// # Errors
/// [`EstimateError`].
pub fn estimate(request: &Request<'_>, qemu: &Qemu, interrupted: &dyn Fn() -> bool) -> Result<Estimate, EstimateError> {
    let mut traced = qemu.start(request, interrupted)?;
    let maps = ProcessMaps::of(traced.pid());
    let mut simulation = Simulation::new(request, maps);
    let mut stream = Stream::of(traced.stream()?, interrupted);
    let ended = simulation.run(&mut stream, &request.slice)?;
    drop(stream);
    let status = traced.end();
    if simulation.instructions() <= request.slice.warm_up {
        let found = simulation.instructions();
        return Err(EstimateError::TooShort { found, warm_up: request.slice.warm_up, status });
    }
    Ok(simulation.into_estimate(request, qemu, ended))
}
