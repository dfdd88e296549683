//! The model as an executor: a call fails by the script, or otherwise by the rules.

use super::area::Area;
use super::errno::*;
use super::kernel::{Errno, SimulatedKernel};
use super::script::{Call, Failure, Mode};
use crate::conformance::Subject;
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingName, PageSize, Protection, RangeSet};
use lift_execution::{Backing, CallError, ENOSYS, Executor, FileMapping};
use lift_plan::Placement;

impl SimulatedKernel {
    /// Notes a call and asks the script about it.
    fn scripted(&mut self, call: Call, range: AddressRange) -> Option<Failure> {
        let number = self.log.len();
        self.log.push((call, range));
        let splits = self.machine.thp.and_then(|thp| thp.splits_every);
        if splits.is_some_and(|every| self.log.len().is_multiple_of(every)) {
            self.split_a_page_of_zeros();
        }
        self.script.failure(number, call)
    }

    /// A call that the script may let fail, after `half` of its work.
    fn called(
        &mut self,
        (call, name): (Call, &'static str),
        range: AddressRange,
        half: impl FnOnce(&mut Self, Mode),
        work: impl FnOnce(&mut Self) -> Errno,
    ) -> Result<(), CallError> {
        let result = match self.scripted(call, range) {
            Some(failure) => {
                half(self, failure.mode);
                self.await_other_thread(failure, range);
                Err(failure.errno)
            }
            None => work(self),
        };
        self.run_other_thread();
        result.map_err(|errno| CallError { call: name, errno })
    }

    /// The lower half of `range`, in whole pages of `size`.
    fn half_of(range: AddressRange, size: PageSize) -> AddressRange {
        AddressRange::sized(range.start(), range.len() / 2 / size.bytes() * size.bytes())
    }

    fn copy_bytes(&mut self, from: AddressRange, to: Address) -> Errno {
        let readable = |area: &Area| area.mapping.protection.read;
        let sources = self.overlapping(from);
        let mapped: u64 = sources.iter().filter(|a| readable(a)).map(|a| a.range().intersect(from).len()).sum();
        if mapped != from.len() {
            return Err(EFAULT);
        }
        self.write_to(AddressRange::sized(to, from.len()))?;
        self.contents.copy(from, to);
        Ok(())
    }
}

fn nothing(_: &mut SimulatedKernel, _: Mode) {}

impl Executor for SimulatedKernel {
    fn map(&mut self, length: u64, backing: Backing) -> Result<Address, CallError> {
        let pool = backing.pool();
        let place = self.free_place(length, pool.unwrap_or(self.machine.base_page)).unwrap_or_default();
        let range = AddressRange::sized(place, length);
        self.called((Call::Map, "mmap"), range, nothing, |kernel| match place {
            Address(0) => Err(ENOMEM),
            _ => kernel.place(range, pool),
        })?;
        Ok(place)
    }

    fn map_at(&mut self, range: AddressRange, backing: Backing) -> Result<(), CallError> {
        self.called((Call::MapAt, "mmap"), range, nothing, |kernel| {
            if !kernel.overlapping(range).is_empty() {
                return Err(EEXIST);
            }
            kernel.place(range, backing.pool())
        })
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.called((Call::Unmap, "munmap"), range, nothing, |kernel| kernel.remove(range))
    }

    fn advise_huge(&mut self, range: AddressRange) -> Result<(), CallError> {
        let advise = |kernel: &mut Self, range: AddressRange| {
            if kernel.machine.thp.is_none() || kernel.overlapping(range).iter().any(|area| area.pool.is_some()) {
                return Err(EINVAL);
            }
            kernel.change(range, |area| area.advised = true)
        };
        let half = |kernel: &mut Self, mode| {
            if mode == Mode::Halfway {
                let _ = advise(kernel, Self::half_of(range, kernel.machine.base_page));
            }
        };
        self.called((Call::AdviseHuge, "madvise(MADV_HUGEPAGE)"), range, half, |kernel| advise(kernel, range))
    }

    fn place(&mut self, range: AddressRange, placement: &Placement) -> Result<(), CallError> {
        self.called((Call::Place, "mbind"), range, nothing, |kernel| kernel.bind(range, placement))
    }

    fn populate(&mut self, range: AddressRange, page: PageSize) -> Result<(), CallError> {
        let half = |kernel: &mut Self, mode| {
            if mode == Mode::Halfway {
                let _ = kernel.make_present(Self::half_of(range, page));
            }
        };
        let name = "madvise(MADV_POPULATE_WRITE)";
        self.called((Call::Populate, name), range, half, |kernel| kernel.make_present(range))
    }

    fn collapse(&mut self, range: AddressRange) -> Result<(), CallError> {
        let half = |kernel: &mut Self, mode| {
            let size = kernel.machine.thp.map_or(kernel.machine.base_page, |thp| thp.size);
            if mode == Mode::Halfway {
                let _ = kernel.collapse_in(Self::half_of(range, size));
            }
        };
        self.called((Call::Collapse, "madvise(MADV_COLLAPSE)"), range, half, |kernel| kernel.collapse_in(range))
    }

    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        let work = |kernel: &mut Self| kernel.change_protection(range, protection);
        self.called((Call::Protect, "mprotect"), range, nothing, work)
    }

    fn guards_branches(&mut self, range: AddressRange) -> Result<bool, CallError> {
        Ok(self.overlapping(range).iter().any(|area| area.guards_branches))
    }

    fn guard_branches(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        let work = |kernel: &mut Self| {
            kernel.change_protection(range, protection)?;
            kernel.change(range, |area| area.guards_branches = true)
        };
        self.called((Call::GuardBranches, "mprotect(PROT_BTI)"), range, nothing, work)
    }

    fn move_to(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let target = AddressRange::sized(to, from.len());
        let remove = |kernel: &mut Self, mode| {
            if matches!(mode, Mode::DestinationGone | Mode::DestinationTaken) && !kernel.machine.holds_threads {
                let _ = kernel.remove(target);
            }
        };
        self.called((Call::MoveTo, "mremap"), target, remove, |kernel| {
            if !kernel.machine.holds_threads {
                return kernel.move_area(from, to);
            }
            let mut moved = kernel.clone();
            moved.move_area(from, to).map(|()| *kernel = moved)
        })
    }

    fn restores_destination(&self) -> bool {
        self.machine.holds_threads
    }

    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let half = |kernel: &mut Self, mode| {
            if mode == Mode::Halfway {
                let _ = kernel.copy_bytes(Self::half_of(from, kernel.machine.base_page), to);
            }
        };
        let target = AddressRange::sized(to, from.len());
        self.called((Call::Copy, "process_vm_readv"), target, half, |kernel| kernel.copy_bytes(from, to))
    }

    fn map_file(&mut self, file: FileMapping<'_>, length: u64) -> Result<Address, CallError> {
        let place = self.free_place(length, self.machine.base_page).unwrap_or_default();
        let range = AddressRange::sized(place, length);
        self.called((Call::MapFile, "mmap of an image"), range, nothing, |kernel| match place {
            Address(0) => Err(ENOMEM),
            _ => {
                kernel.place_image(range, file)?;
                // mmap does not report errors of populating.
                let _ = kernel.make_readable(range);
                Ok(())
            }
        })?;
        Ok(place)
    }

    fn map_file_at(&mut self, file: FileMapping<'_>, range: AddressRange) -> Result<(), CallError> {
        let remove = |kernel: &mut Self, mode| {
            if matches!(mode, Mode::DestinationGone | Mode::DestinationTaken) {
                let _ = kernel.remove(range);
            }
        };
        if !self.machine.maps_in_place {
            return Err(CallError { call: "mapping a shared image in place", errno: ENOSYS });
        }
        self.called((Call::MapFileAt, "mmap of an image"), range, remove, |kernel| {
            kernel.place_image(range, file)?;
            let _ = kernel.make_readable(range);
            Ok(())
        })
    }

    fn map_own_file(&mut self, file: FileMapping<'_>, length: u64) -> Result<Address, CallError> {
        let place = self.free_place(length, self.machine.base_page).unwrap_or_default();
        let range = AddressRange::sized(place, length);
        self.called((Call::MapOwnFile, "mmap of its file"), range, nothing, |kernel| match place {
            Address(0) => Err(ENOMEM),
            _ => kernel.place_file(range, file),
        })?;
        Ok(place)
    }

    fn expect_unchanged(&mut self, range: AddressRange) -> Result<(), CallError> {
        let name = "reading the pagemap";
        self.called((Call::ExpectUnchanged, name), range, nothing, |kernel| kernel.expect_files_unchanged(range))
    }

    fn refault(&mut self, range: AddressRange) -> Result<(), CallError> {
        let half = |kernel: &mut Self, mode| {
            if mode == Mode::Halfway {
                kernel.withdraw(Self::half_of(range, kernel.machine.base_page));
            }
        };
        self.called((Call::Refault, "madvise(MADV_DONTNEED)"), range, half, |kernel| kernel.refault_in(range))
    }

    fn touch(&mut self, range: AddressRange) -> Result<(), CallError> {
        let half = |kernel: &mut Self, mode| {
            if mode == Mode::Halfway {
                let _ = kernel.touch_in(Self::half_of(range, kernel.machine.base_page));
            }
        };
        self.called((Call::Touch, "madvise(MADV_POPULATE_READ)"), range, half, |kernel| kernel.touch_in(range))
    }

    fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError> {
        self.called((Call::Name, "prctl(PR_SET_VMA)"), range, nothing, |kernel| {
            if kernel.overlapping(range).iter().any(|area| !area.is_plain()) {
                return Err(EINVAL);
            }
            kernel.change(range, |area| area.mapping.name = MappingName::Named(name.to_owned()))
        })
    }

    fn unchanged_files(&mut self, range: AddressRange) -> Vec<Mapping> {
        let shows_file = |area: &&Area| matches!(area.mapping.name, MappingName::File { deleted: false, .. });
        self.overlapping(range).iter().filter(shows_file).map(|area| area.mapping.clone()).collect()
    }

    fn leave_out_of_dumps(&mut self, range: AddressRange) -> Result<(), CallError> {
        let name = "madvise(MADV_DONTDUMP)";
        self.called((Call::LeaveOutOfDumps, name), range, nothing, |kernel| {
            kernel.change(range, |area| area.not_dumped = true)
        })
    }

    fn seal(&mut self, range: AddressRange) -> Result<(), CallError> {
        self.called((Call::Seal, "mseal"), range, nothing, |kernel| kernel.change(range, |area| area.sealed = true))
    }

    fn query_huge(&mut self, range: AddressRange, size: PageSize) -> Result<RangeSet, CallError> {
        self.called((Call::Huge, "PAGEMAP_SCAN"), range, nothing, |_| Ok(()))?;
        Ok(self.huge_in(range, size))
    }

    fn space(&mut self) -> Result<AddressSpace, CallError> {
        let everything = AddressRange::new(Address(0), Address(u64::MAX));
        self.called((Call::Space, "reading maps"), everything, nothing, |_| Ok(()))?;
        Ok(self.mappings())
    }
}

impl Subject for SimulatedKernel {
    fn read_memory(&mut self, range: AddressRange) -> Result<Vec<u8>, CallError> {
        let mapped: u64 = self.overlapping(range).iter().map(|area| area.range().intersect(range).len()).sum();
        if mapped == range.len() { Ok(self.read(range)) } else { Err(CallError { call: "read", errno: EFAULT }) }
    }

    fn write_memory(&mut self, at: Address, bytes: &[u8]) -> Result<(), CallError> {
        self.write(at, bytes).map_err(|errno| CallError { call: "write", errno })
    }
}
