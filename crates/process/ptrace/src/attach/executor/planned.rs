//! Compares the mappings of a range with the plan while threads are stopped.
//!
//! The time must not grow with the number of the program's other mappings: a list of 60,000 takes the kernel about 50 ms.

use super::LiveExecutor;
use address_space::{AddressRange, UnnamedMapping};
use lift_execution::Executor;
use linux::mappings::mappings_in;

impl LiveExecutor {
    /// True if a range has the mappings that it had when it was planned.
    pub(super) fn is_as_planned(&mut self, range: AddressRange) -> bool {
        let planned: Vec<UnnamedMapping> = self.planned.overlapping(range).iter().map(UnnamedMapping::from).collect();
        let found = mappings_in(self.process.pid().as_raw(), range);
        if found.is_ok_and(|found| UnnamedMapping::are_same(&planned, &found, range)) {
            return true;
        }
        // Before Linux 6.11 only the list shows them.
        let Ok(space) = self.space() else { return false };
        let listed: Vec<UnnamedMapping> = space.overlapping(range).iter().map(UnnamedMapping::from).collect();
        UnnamedMapping::are_same(&planned, &listed, range)
    }
}
