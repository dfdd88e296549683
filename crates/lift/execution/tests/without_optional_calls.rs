//! An executor without any of the optional calls: each returns `ENOSYS`, and none claims success.

use address_space::{Address, AddressRange, AddressSpace, PageSize, Protection, RangeSet};
use lift_execution::{Backing, CallError, ENOSYS, Executor, FileMapping};
use lift_plan::{Placement, Preference};

/// Has only the calls that every executor must have, and these fail by another error.
struct Bare;

const REQUIRED: CallError = CallError { call: "a call that every executor has", errno: ENOSYS + 1 };

impl Executor for Bare {
    fn map(&mut self, _: u64, _: Backing) -> Result<Address, CallError> {
        Err(REQUIRED)
    }
    fn map_at(&mut self, _: AddressRange, _: Backing) -> Result<(), CallError> {
        Err(REQUIRED)
    }
    fn unmap(&mut self, _: AddressRange) -> Result<(), CallError> {
        Err(REQUIRED)
    }
    fn advise_huge(&mut self, _: AddressRange) -> Result<(), CallError> {
        Err(REQUIRED)
    }
    fn populate(&mut self, _: AddressRange, _: PageSize) -> Result<(), CallError> {
        Err(REQUIRED)
    }
    fn collapse(&mut self, _: AddressRange) -> Result<(), CallError> {
        Err(REQUIRED)
    }
    fn protect(&mut self, _: AddressRange, _: Protection) -> Result<(), CallError> {
        Err(REQUIRED)
    }
    fn move_to(&mut self, _: AddressRange, _: Address) -> Result<(), CallError> {
        Err(REQUIRED)
    }
    fn copy(&mut self, _: AddressRange, _: Address) -> Result<(), CallError> {
        Err(REQUIRED)
    }
    fn name(&mut self, _: AddressRange, _: &str) -> Result<(), CallError> {
        Err(REQUIRED)
    }
    fn query_huge(&mut self, _: AddressRange, _: PageSize) -> Result<RangeSet, CallError> {
        Err(REQUIRED)
    }
    fn space(&mut self) -> Result<AddressSpace, CallError> {
        Err(REQUIRED)
    }
}

#[test]
fn calls_that_an_executor_lacks_fail_and_do_nothing() {
    let range = AddressRange::new(Address(0x20_0000), Address(0x40_0000));
    let file = || FileMapping { path: "/image", offset: 0, protection: Protection::READ };
    let placement = Placement { preference: Preference::Bind, nodes: (0..1).collect() };
    let missing = [
        Bare.place(range, &placement),
        Bare.map_file(file(), range.len()).map(drop),
        Bare.map_file_at(file(), range),
        Bare.map_own_file(file(), range.len()).map(drop),
        Bare.expect_unchanged(range),
        Bare.refault(range),
        Bare.touch(range),
        Bare.leave_out_of_dumps(range),
        Bare.seal(range),
    ];
    for result in missing {
        assert_eq!(result.expect_err("a call that is not there").errno, ENOSYS);
    }
    assert!(Bare.unchanged_files(range).is_empty());
}
