//! Checks whether a machine and a program are ready for huge pages.
//!
//! [`gather`] reads and tries; [`examine`] is a pure function from these facts to a report. Each check is a small function
//! in [`checks`] from facts to outcomes, so that every one is tested with ill and with healthy facts.
//!
//! The order of a command that needs both: [`gather::try_features`] first, since it acts on a child and makes memory
//! executable; then give up rights; then read foreign data ([`gather::gather`]).
#![forbid(unsafe_code)]

pub mod checks;
pub mod facts;
mod finding;
pub mod gather;
mod own_pages;
mod place;
mod pool_need;
mod report;
mod standing;
mod verdict;

pub use facts::Facts;
pub use finding::{Area, CheckOutcome, Finding, Fix, NotSeen, Severity};
pub use own_pages::{Buffer, OwnPages, Request};
pub use report::{FineCheck, HealthReport, examine};
pub use standing::{Standing, State};
pub use verdict::{Estimate, Verdict};
