//! Memory of running processes that is lifted in place, shared or anonymous: the blocks that can be put on huge pages,
//! the cost, and the lift, block by block, within a budget.
//!
//! A block is the memory of one huge page. The kernel collapses a block for all processes that share it at once
//! (`process_madvise` with `MADV_COLLAPSE`), so processes that share a segment are planned together, and each block is done
//! once. All private memory of one kind in a process is one segment, whose offsets are its addresses. Everything here is
//! calculated from values; the kernel is called through the trait [`Kernel`].
#![forbid(unsafe_code)]

mod count;
mod kind;
mod lift;
mod margin;
mod plan;
mod reason;
mod rhythm;
mod rounds;
mod segment;

pub use count::{Counted, PageTables, count};
pub use kind::SegmentKind;
pub use lift::{Budget, Collapse, InPlaceOutcome, Kernel, Lifted, Refusal, Shown, lift};
pub use margin::Margins;
pub use plan::{Machine, Plan, Policy, Refused, SegmentPlan, Work, plan, plan_within, refused_contents};
pub use reason::{Reason, SHMEM_ENABLED};
pub use rhythm::{Glance, Rhythm, rest_after};
pub use segment::{Contents, Held, Mapped, Segment, SegmentKey, View};

use address_space::PageSize;

/// Divisor of a block: this share may be holes if its pages are the only copy, since the memory that fills them stays.
const HOLES: u64 = 8;

/// The blocks with holes that a lift fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Those with at most 1/8 of holes.
    #[default]
    Few,
    /// Those that are half full at least.
    Half,
    /// Any that hold data, in memory or swapped out.
    All,
}

impl From<bool> for Fill {
    /// The choice by `--fill`.
    fn from(all: bool) -> Self {
        if all { Self::All } else { Self::Few }
    }
}

/// Maximum bytes of holes in a block that is filled without a request.
pub const fn most_holes(huge: PageSize) -> u64 {
    huge.bytes() / HOLES
}
