//! Counts and states of the agent for Prometheus.
//!
//! - [`Snapshot`]: the supervisor's values, filled after each scan.
//! - [`kernel`]: pools, and counters of the kernel about huge pages.
//! - [`text`]: OpenMetrics for HTTP, and the older text format for files of node_exporter, which refuses OpenMetrics.
//! - [`server`]: answers HTTP on loopback or on a Unix socket.
//! - [`textfile`]: replaces a file by rename.
//!
//! No label holds a PID, a path, a container or text that users choose, and a node has at most [`MOST_SERIES`] series.
//! Over the run of an agent, few programs get a name ([`Names`]).

mod families;
pub mod kernel;
mod names;
mod pauses;
pub mod server;
mod snapshot;
pub mod text;
pub mod textfile;

pub use families::MOST_SERIES;
pub use names::Names;
pub use pauses::Pauses;
pub use snapshot::{Heard, LiftResults, Lifted, ProgramGain, Snapshot};
