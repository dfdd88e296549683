//! Results of measurements, kept by build of a program and by machine: which programs a lift pays for.
//!
//! - [`record`]: one key with its measurements, and the verdict that they give.
//! - [`summary`]: the verdict in words.
//! - [`scope`]: the key of a program on this machine.
//! - [`store`]: the file of all records.

mod record;
mod scope;
mod store;
mod summary;

pub use record::{Key, Measurement, Standing, VerdictRecord};
pub use scope::Scope;
pub use store::{FILE, MOST_KEYS, Problem, Store, StoreError};
pub use summary::{Summary, decision_text, gain_text};
