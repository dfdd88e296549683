//! The executor on a stopped process passes the suite that every executor passes, each check on a separate process.

#[path = "../../../../inside/libpagelift/tests/prepared_ground/mod.rs"]
mod prepared_ground;

use super::status::ThreadStatus;
use super::tracee::{Running, Waited};
use super::{Injector, ProcessExecutor};
use address_space::{Address, AddressRange, AddressSpace, Mapping, PageSize, Protection, RangeSet};
use lift_execution::{Backing, CallError, Executor, FileMapping};
use lift_plan::Placement;
use lift_simulation::conformance::{Subject, assert_conforms};
use nix::unistd::Pid;
use prepared_ground::PreparedGround;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};

/// A child that sleeps, stopped, whose calls are made by an injector.
struct StoppedChild {
    child: Child,
    injector: Injector<'static>,
    memory: File,
    base_page: PageSize,
}

impl Drop for StoppedChild {
    fn drop(&mut self) {
        // One that has ended by itself has failed its check.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl StoppedChild {
    fn new(base_page: PageSize) -> Self {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let running = Running::seize(pid, libc::PTRACE_O_EXITKILL).unwrap();
        running.interrupt().unwrap();
        let Ok(Waited::Stopped(stopped, _)) = running.wait() else { panic!("the child does not stop") };
        // The injector borrows the stop for as long as the child lives; a child is killed, never resumed.
        let stopped = Box::leak(Box::new(stopped));
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let space = AddressSpace::parse(&maps).unwrap();
        let injector = Injector::new(stopped, &space, &ThreadStatus::read(pid)).unwrap();
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
        Self { child, injector, memory, base_page }
    }

    fn executor(&mut self) -> ProcessExecutor<'_, 'static> {
        ProcessExecutor::new(&mut self.injector, self.base_page, &[])
    }
}

fn failed(error: &io::Error) -> CallError {
    CallError { call: "accessing the child's memory", errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

impl Subject for StoppedChild {
    fn read_memory(&mut self, range: AddressRange) -> Result<Vec<u8>, CallError> {
        let mut bytes = vec![0; range.len() as usize];
        self.memory.read_exact_at(&mut bytes, range.start().0).map_err(|error| failed(&error))?;
        Ok(bytes)
    }

    fn write_memory(&mut self, at: Address, bytes: &[u8]) -> Result<(), CallError> {
        self.memory.write_all_at(bytes, at.0).map_err(|error| failed(&error))
    }
}

impl Executor for StoppedChild {
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError> {
        self.executor().map(length, backing)
    }
    fn map_at(&mut self, range: AddressRange, backing: Backing) -> Result<(), CallError> {
        self.executor().map_at(range, backing)
    }
    fn unmap(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.executor().unmap(range)
    }
    fn advise_huge(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.executor().advise_huge(range)
    }
    fn place(&mut self, range: AddressRange, placement: &Placement) -> Result<(), CallError> {
        self.executor().place(range, placement)
    }
    fn populate(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError> {
        self.executor().populate(range, page)
    }
    fn collapse(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.executor().collapse(range)
    }
    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        self.executor().protect(range, protection)
    }
    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        self.executor().move_to(from, to)
    }
    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        self.executor().copy(from, to)
    }
    fn map_file(&mut self, file: FileMapping<'_>, length: u64) -> Result<Address, CallError> {
        self.executor().map_file(file, length)
    }
    fn map_file_at(&mut self, file: FileMapping<'_>, range: AddressRange) -> Result<(), CallError> {
        self.executor().map_file_at(file, range)
    }
    fn map_own_file(&mut self, file: FileMapping<'_>, length: u64) -> Result<Address, CallError> {
        self.executor().map_own_file(file, length)
    }
    fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError> {
        self.executor().name(range, name)
    }
    fn unchanged_files(&mut self, range: AddressRange) -> Vec<Mapping> {
        self.executor().unchanged_files(range)
    }
    fn query_huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
        self.executor().query_huge(range, size)
    }
    fn space(&mut self) -> Result<AddressSpace, CallError> {
        self.executor().space()
    }
}

#[test]
fn the_executor_on_a_stopped_process_conforms() {
    let own_file = fs::canonicalize("/proc/self/exe").unwrap().to_string_lossy().into_owned();
    let prepared = PreparedGround::new(Some(own_file.leak()));
    let base_page = prepared.ground.base_page;
    let ran = assert_conforms(|| StoppedChild::new(base_page), &prepared.ground);
    println!("{} checks passed", ran.len());
}
