//! Arguments that several commands share.

pub mod bench;
pub mod heap;
pub mod policy;
pub mod report;
pub mod via;
