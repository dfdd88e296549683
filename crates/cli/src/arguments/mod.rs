//! Arguments that several commands share.

pub mod heap;
pub mod policy;
