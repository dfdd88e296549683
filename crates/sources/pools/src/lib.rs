//! The machine's pools of huge pages: their users, a program's needs, and all operations that change them.
//!
//! Decisions (number, node, obstacles, texts of boot files) are pure; facts are read through [`machine_facts::Files`]
//! and changes are made through [`Settings`], so that a test can use a simulated machine. This crate does not print.
#![forbid(unsafe_code)]

mod boot;
mod change;
mod demote;
mod earlier;
mod error;
mod held;
mod holder;
mod hugetlbfs;
mod install;
mod need;
mod obstacle;
mod overcommit;
mod record;
mod release;
mod request;
mod reserve;
mod root;
mod settings;
mod system_v;
mod users;
mod view;

#[cfg(test)]
mod simulated;

pub use boot::{BootFile, BootKind, BootMachine, KernelArguments, cma_arguments, kernel_arguments};
pub use change::{Change, GivenBack};
pub use demote::{Demoted, demote};
pub use error::PoolError;
pub use held::HeldPages;
pub use hugetlbfs::HugetlbFile;
pub use install::{InstallError, Installation, KeptFile, Uninstalled};
pub use need::{NodeNeed, PoolNeed, needs_of, on_each_of, spread_over, unused};
pub use obstacle::Obstacle;
pub use overcommit::{Overcommitted, overcommit};
pub use record::{RecordedOutcome, RecordedPages, RecordedRelease, ReservationRecord, records};
pub use release::{Amount, KeptFor, ReleaseRequest, Released, release};
pub use request::{PoolRequest, RequestError, short_size};
pub use reserve::{Goal, ReserveOptions, ReserveOutcome, reserve, usual_floor};
pub use settings::{KernelSettings, PoolLock, Settings};
pub use system_v::Unattached;
pub use users::{PoolUser, UserKind, Users};
pub use view::{CmaView, FreeView, MemoryView, PoolView, PoolsView};
