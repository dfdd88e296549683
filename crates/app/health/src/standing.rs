//! Amounts of memory on huge pages: the numbers and the words that `status`, `inspect` and `doctor` share.

use address_space::format_bytes;
use session::shared::{InPlace, InPlaceAmounts};

/// Bytes of a process on huge pages, and bytes that a lift would add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Bytes on huge pages.
    pub huge: u64,
    /// Resident bytes, those on huge pages included.
    pub resident: u64,
    /// Bytes that a lift would add; `None` if no plan was made.
    pub more: Option<u64>,
    /// Bytes that lifts in place would add at most, which a lift makes only on request.
    pub in_place: InPlaceAmounts,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is on huge pages, and a lift would add nothing.
    Unliftable,
    /// Nothing is on huge pages, and something can be lifted.
    Liftable,
    /// Something is on huge pages, and more can be lifted.
    PartlyLifted,
    /// Something is on huge pages, and a lift would add nothing.
    Lifted,
}

impl Standing {
    /// The state; without a plan, as if nothing could be added.
    pub fn state(&self) -> State {
        match (self.huge > 0, self.more.unwrap_or(0) > 0) {
            (false, false) => State::Unliftable,
            (false, true) => State::Liftable,
            (true, true) => State::PartlyLifted,
            (true, false) => State::Lifted,
        }
    }

    /// The numbers in words. The beginning is the same with and without a plan.
    pub fn in_words(&self) -> String {
        let now = format!("{} of {} resident on huge pages", format_bytes(self.huge), format_bytes(self.resident));
        match (self.more, self.state()) {
            (None, _) => now,
            (Some(_), State::Unliftable) if self.on_request().is_none() => {
                format!("{now}; no part of its code, data or heap fills a huge page that could be lifted")
            }
            (Some(_), State::Unliftable | State::Lifted) => {
                format!("{now}; a lift would add nothing{}", self.besides())
            }
            (Some(more), _) => format!("{now}; a lift would add {}{}", format_bytes(more), self.besides()),
        }
    }

    /// The options of `attach` by which memory is lifted in place, with the most that each can add; `None` if none can.
    pub fn on_request(&self) -> Option<String> {
        let option =
            |(memory, bytes): (InPlace, u64)| format!("`--lift {}` up to {}", memory.kind(), format_bytes(bytes));
        let heap = Some(self.in_place.heap).filter(|bytes| *bytes > 0);
        let heap = heap.map(|bytes| format!("`--heap=thp` up to {}", format_bytes(bytes)));
        let options: Vec<_> = self.in_place.kinds().map(option).chain(heap).collect();
        (!options.is_empty()).then(|| options.join(", "))
    }

    fn besides(&self) -> String {
        self.on_request().map_or_else(String::new, |options| format!(", {options}"))
    }
}
