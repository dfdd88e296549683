//! Another thread of the program, which maps memory in gaps that failed calls leave.

use super::area::Area;
use super::contents::Content;
use super::kernel::SimulatedKernel;
use super::script::{AwaitedGap, Failure, Mode, TakenPart};
use address_space::{AddressRange, RangeSet};

impl SimulatedKernel {
    /// The memory that another thread has mapped ([`Mode::DestinationTaken`]). It holds [`Content::OtherThread`].
    pub fn taken(&self) -> &RangeSet {
        &self.taken
    }

    /// Awaits the other thread, if `failure` gives it a gap.
    pub(super) fn await_other_thread(&mut self, failure: Failure, range: AddressRange) {
        if failure.mode == Mode::DestinationTaken {
            self.awaited.push(AwaitedGap { range, due: self.log.len() + self.script.taking.after });
        }
    }

    /// Lets the other thread map memory after a call. It never replaces anything, because the kernel chooses the
    /// place.
    pub(super) fn run_other_thread(&mut self) {
        let made = self.log.len();
        let (due, later) = self.awaited.drain(..).partition::<Vec<_>, _>(|gap| gap.due <= made);
        self.awaited = later;
        for gap in due {
            let mut free = RangeSet::from_iter([self.wanted_of(gap.range)]);
            self.areas.iter().for_each(|area| free.remove(area.range()));
            free.iter().for_each(|range| self.take(range));
        }
    }

    fn wanted_of(&self, gap: AddressRange) -> AddressRange {
        let page = self.machine.base_page.bytes();
        match self.script.taking.part {
            TakenPart::Whole => gap,
            TakenPart::FirstPage => AddressRange::sized(gap.start(), page),
            TakenPart::LastPage => AddressRange::sized(gap.end() - page, page),
        }
    }

    fn take(&mut self, range: AddressRange) {
        self.insert(Area::anonymous(range, None));
        self.contents.set(range, Content::OtherThread(range.start()));
        self.present.insert(range);
        self.taken.insert(range);
        self.merge();
    }
}
