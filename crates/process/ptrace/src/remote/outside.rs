//! Lifts without any call of the process, as far as possible: if its file is in huge folios and no part of a range is
//! mapped by ordinary pages, it suffices to touch one page of each huge page, which can be done from here.

use super::calls;
use address_space::{Address, AddressRange, AddressSpace, PageSize, Protection, RangeSet};
use lift_execution::{Backing, CallError, Executor};
use linux::pagemap::Pagemap;
use linux::text::text_of;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::{self, IoSliceMut};

/// Most places that one call takes (`UIO_MAXIOV`, `linux/uio.h`).
const MOST_PLACES: usize = 1024;

/// An executor that makes no call in the process. Every method that would need one answers `ENOSYS`.
pub struct OutsideExecutor {
    pid: i32,
    huge: PageSize,
    pagemap: Pagemap,
}

const NOT_FROM_OUTSIDE: CallError = CallError { call: "a call of the process", errno: Errno::ENOSYS as i32 };

impl OutsideExecutor {
    /// An executor for a stopped process, whose huge pages have this size.
    ///
    /// # Errors
    /// Its pagemap cannot be opened.
    pub fn new(pid: i32, base_page: PageSize, huge: PageSize) -> io::Result<Self> {
        Ok(Self { pid, huge, pagemap: Pagemap::open(pid, base_page)? })
    }
}

impl Executor for OutsideExecutor {
    /// Only touches: existing page table entries are not changed.
    fn refault(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.touch(range)
    }

    fn touch(&mut self, range: AddressRange) -> Result<(), CallError> {
        let places: Vec<_> =
            range.pages(self.huge).map(|page| RemoteIoVec { base: page.start().0 as usize, len: 1 }).collect();
        let failed = |errno: Errno| CallError { call: "process_vm_readv", errno: errno as i32 };
        for batch in places.chunks(MOST_PLACES) {
            let mut bytes = [0; MOST_PLACES];
            let into = &mut [IoSliceMut::new(&mut bytes[..batch.len()])];
            match process_vm_readv(Pid::from_raw(self.pid), into, batch) {
                Ok(read) if read == batch.len() => {}
                Ok(_) => return Err(failed(Errno::EFAULT)),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn query_huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
        calls::huge(self.pid, &self.pagemap, range, size)
    }

    fn space(&mut self) -> Result<AddressSpace, CallError> {
        let failed = |errno| CallError { call: "reading maps", errno };
        let text = text_of(format!("/proc/{}/maps", self.pid));
        let text = text.map_err(|error| failed(error.raw_os_error().unwrap_or(Errno::EIO as i32)))?;
        AddressSpace::parse(&text).map_err(|_| failed(Errno::EINVAL as i32))
    }

    fn map(&mut self, _: u64, _: Backing) -> Result<Address, CallError> {
        Err(NOT_FROM_OUTSIDE)
    }

    fn map_at(&mut self, _: AddressRange, _: Backing) -> Result<(), CallError> {
        Err(NOT_FROM_OUTSIDE)
    }

    fn unmap(&mut self, _: AddressRange) -> Result<(), CallError> {
        Err(NOT_FROM_OUTSIDE)
    }

    fn advise_huge(&mut self, _: AddressRange) -> Result<(), CallError> {
        Err(NOT_FROM_OUTSIDE)
    }

    fn populate(&mut self, _: AddressRange, _: PageSize) -> Result<(), CallError> {
        Err(NOT_FROM_OUTSIDE)
    }

    fn collapse(&mut self, _: AddressRange) -> Result<(), CallError> {
        Err(NOT_FROM_OUTSIDE)
    }

    fn protect(&mut self, _: AddressRange, _: Protection) -> Result<(), CallError> {
        Err(NOT_FROM_OUTSIDE)
    }

    fn move_to(&mut self, _: AddressRange, _: Address) -> Result<(), CallError> {
        Err(NOT_FROM_OUTSIDE)
    }

    fn copy(&mut self, _: AddressRange, _: Address) -> Result<(), CallError> {
        Err(NOT_FROM_OUTSIDE)
    }

    fn name(&mut self, _: AddressRange, _: &str) -> Result<(), CallError> {
        Err(NOT_FROM_OUTSIDE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::file_mapping::FileMapping;

    /// This process itself serves: the call is the same for each.
    #[test]
    fn each_huge_page_is_touched_and_nothing_else_is_done() {
        let base_page = linux::pages::base_page();
        let huge = PageSize::new(base_page.bytes() * 512).unwrap();
        let path = std::env::temp_dir().join(format!("pagelift-outside-{}", std::process::id()));
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(3 * huge.bytes()).unwrap();
        let mapping = FileMapping::readable(&file, 0, 3 * huge.bytes(), huge).unwrap();
        mapping.expect_random_reads().unwrap();
        let own = std::process::id() as i32;
        let mut executor = OutsideExecutor::new(own, base_page, huge).unwrap();
        let first = AddressRange::sized(mapping.range().start(), 2 * huge.bytes());
        executor.refault(first).unwrap();
        let touched =
            |at| Pagemap::open(own, base_page).unwrap().touched(AddressRange::sized(at, 1)).unwrap().bytes() > 0;
        let start = mapping.range().start();
        assert!(touched(start) && touched(start + huge.bytes()) && !touched(start + 2 * huge.bytes()));
        assert_eq!(executor.map(huge.bytes(), Backing::Ordinary).unwrap_err().errno, Errno::ENOSYS as i32);
        file.set_len(huge.bytes()).unwrap();
        assert_eq!(executor.touch(mapping.range()).unwrap_err().errno, Errno::EFAULT as i32);
    }
}
