//! The executor on its own process passes the suite that every executor passes.
//!
//! Each check runs in this very process, whose allocator is the library's own: its memory is omitted from the
//! executor's view, so that the suite's own allocations do not count as changes. Memory that a check leaves mapped is
//! released with its subject, as with a separate process: otherwise a few checks would hold the whole pool.

mod prepared_ground;

use address_space::{Address, AddressRange, AddressSpace, PageSize, Protection, RangeSet};
use lift_execution::{Backing, CallError, Executor};
use lift_plan::Placement;
use lift_simulation::conformance::{Subject, assert_conforms};
use pagelift::{OwnMemory, OwnProcess};
use prepared_ground::PreparedGround;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

#[global_allocator]
static MEMORY: OwnMemory = OwnMemory;

/// The executor, and the process's memory as a file.
struct Own {
    executor: OwnProcess,
    memory: File,
    mapped: RangeSet,
}

impl Drop for Own {
    fn drop(&mut self) {
        for range in self.mapped.iter() {
            self.executor.unmap(range).expect("what was mapped can be unmapped");
        }
    }
}

impl Own {
    fn new(base_page: PageSize) -> Self {
        let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
        // SAFETY:
        // - the suite acts on memory that it maps by this executor, or on this value's own.
        let executor = unsafe { OwnProcess::new(base_page) };
        Self { executor, memory, mapped: RangeSet::new() }
    }
}

fn failed(error: &std::io::Error) -> CallError {
    CallError { call: "accessing /proc/self/mem", errno: error.raw_os_error().unwrap_or(5) }
}

impl Subject for Own {
    fn read_memory(&mut self, range: AddressRange) -> Result<Vec<u8>, CallError> {
        let mut bytes = vec![0; range.len() as usize];
        self.memory.read_exact_at(&mut bytes, range.start().0).map_err(|error| failed(&error))?;
        Ok(bytes)
    }

    fn write_memory(&mut self, at: Address, bytes: &[u8]) -> Result<(), CallError> {
        self.memory.write_all_at(bytes, at.0).map_err(|error| failed(&error))
    }
}

impl Executor for Own {
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError> {
        let start = self.executor.map(length, backing)?;
        self.mapped.insert(AddressRange::sized(start, length));
        Ok(start)
    }
    fn map_at(&mut self, range: AddressRange, backing: Backing) -> Result<(), CallError> {
        self.executor.map_at(range, backing)?;
        self.mapped.insert(range);
        Ok(())
    }
    fn unmap(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.executor.unmap(range)?;
        self.mapped.remove(range);
        Ok(())
    }
    fn advise_huge(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.executor.advise_huge(range)
    }
    fn place(&mut self, range: AddressRange, placement: &Placement) -> Result<(), CallError> {
        self.executor.place(range, placement)
    }
    fn populate(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError> {
        self.executor.populate(range, page)
    }
    fn collapse(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.executor.collapse(range)
    }
    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        self.executor.protect(range, protection)
    }
    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        self.executor.move_to(from, to)?;
        self.mapped.remove(from);
        self.mapped.insert(AddressRange::sized(to, from.len()));
        Ok(())
    }
    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        self.executor.copy(from, to)
    }
    fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError> {
        self.executor.name(range, name)
    }
    fn query_huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
        self.executor.query_huge(range, size)
    }
    fn space(&mut self) -> Result<AddressSpace, CallError> {
        self.executor.space()
    }
}

fn main() {
    let prepared = PreparedGround::new(None);
    let base_page = prepared.ground.base_page;
    let ran = std::panic::catch_unwind(|| assert_conforms(|| Own::new(base_page), &prepared.ground));
    drop(prepared);
    match ran {
        Ok(ran) => {
            let _ =
                writeln!(std::io::stdout(), "test result: ok. {} passed; 0 failed; 0 ignored; 0 measured", ran.len());
        }
        Err(_) => std::process::exit(1),
    }
}
