//! The price of a lift, predicted from the plan and from measured costs.

use crate::{Kind, Method, Part, Plan, RangeLift, steps_of};
use core::iter::Sum;
use core::ops::Add;
use core::time::Duration;
use serde::Serialize;

/// Times of the operations of a lift on one machine, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// Making 1 MiB of huge pages present: the page faults, and clearing the memory.
    pub fill: u64,
    /// Copying 1 MiB onto huge pages.
    pub copy: u64,
    /// One system call that the program makes for the lift.
    pub call: u64,
    /// Stopping and resuming the program for the exchange of one part of a range.
    pub pause: u64,
}

impl Costs {
    /// Costs of a machine that was not measured: a virtual machine of a busy host, so that a lift rarely costs more.
    pub const USUAL: Self = Self { fill: 250_000, copy: 200_000, call: 10_000, pause: 50_000 };

    /// The price of copying `filled` bytes of new huge pages and `copied` bytes onto them.
    fn of_bytes(&self, filled: u64, copied: u64) -> u64 {
        let of = |bytes: u64, mib: u64| (u128::from(bytes) * u128::from(mib)) >> 20;
        u64::try_from(of(filled, self.fill) + of(copied, self.copy)).unwrap_or(u64::MAX)
    }
}

/// The price of a lift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Price {
    /// CPU time in nanoseconds.
    pub nanoseconds: u64,
    /// Memory that becomes resident for this process alone, in bytes.
    pub private_bytes: u64,
}

impl Price {
    /// The CPU time.
    pub const fn time(self) -> Duration {
        Duration::from_nanos(self.nanoseconds)
    }
}

impl Add for Price {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            nanoseconds: self.nanoseconds.saturating_add(other.nanoseconds),
            private_bytes: self.private_bytes.saturating_add(other.private_bytes),
        }
    }
}

impl Sum for Price {
    fn sum<I: Iterator<Item = Self>>(prices: I) -> Self {
        prices.fold(Self::default(), Add::add)
    }
}

impl RangeLift {
    /// Returns the price of the first attempt.
    pub fn price(&self, costs: &Costs) -> Price {
        let Some(attempt) = self.attempts.first() else { return Price::default() };
        let of_part = |part: &Part| {
            let calls = steps_of(self, attempt, part).len() as u64;
            let bytes = match &part.method {
                Method::Swap { copy } | Method::MoveAside { copy, .. } => {
                    costs.of_bytes(part.range.len(), copy.bytes())
                }
                // The kernel copies the touched pages and clears the rest.
                Method::InPlace { collapse } => costs.of_bytes(collapse.bytes(), 0),
                Method::MapImage { .. } | Method::Refault | Method::MapAgain { .. } => 0,
            };
            bytes.saturating_add(calls.saturating_mul(costs.call)).saturating_add(costs.pause)
        };
        let nanoseconds = attempt.parts.iter().map(of_part).fold(0, u64::saturating_add);
        Price { nanoseconds, private_bytes: attempt.memory }
    }

    /// True if the first attempt copies memory, or has the kernel copy it.
    pub fn copies(&self) -> bool {
        let copies = |part: &Part| match &part.method {
            Method::Swap { .. } | Method::MoveAside { .. } => true,
            Method::InPlace { collapse } => !collapse.is_empty(),
            Method::MapImage { .. } | Method::Refault | Method::MapAgain { .. } => false,
        };
        self.attempts.first().is_some_and(|attempt| attempt.parts.iter().any(copies))
    }

    /// Returns the expected gain of the range: its bytes, weighted by how densely programs use this kind of memory.
    /// Written memory is used most. Much of the code and most constants are never used.
    pub(crate) fn gain(&self) -> u64 {
        let weight = |kind: &Kind| match kind {
            Kind::Rodata => 1,
            Kind::Text => 2,
            _ => 4,
        };
        self.range.len().saturating_mul(self.kinds.iter().map(weight).max().unwrap_or(1))
    }
}

impl Plan {
    /// Returns the price of the lift if the first attempts succeed.
    pub fn price(&self, costs: &Costs) -> Price {
        self.lifts.iter().map(|lift| lift.price(costs)).sum()
    }

    /// Returns the bytes that become resident if the first attempts succeed.
    pub fn makes_resident(&self) -> u64 {
        self.lifts.iter().filter_map(|lift| lift.attempts.first()).map(|attempt| attempt.memory).sum()
    }
}
