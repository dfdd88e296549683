//! A sequential test: after each block, a lift is kept, undone, or measured further.
//!
//! Blocks are dealt by [`crate::toggle::Blocks::of_decision`]: a fair coin decides the order of the windows of each block,
//! independently of all earlier ones. If a lift changes nothing, the value of a block is then as probably above zero as below,
//! given the past, whatever the load does.
//! [`Signs`] turns counts of blocks into evidence that may be read after each block, and [`Test`] applies the limits of a
//! [`Rule`].

mod evidence;
mod interval;
mod line;
mod test;

pub use evidence::Signs;
pub use interval::{MedianInterval, median_interval};
pub use line::{BlockLine, DroppedLine, Line, Measuring, ResultLine};
pub use test::{Decision, Rule, Test};
