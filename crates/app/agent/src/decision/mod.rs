//! Decisions, as pure functions from facts and rules: the rule that a process meets, whether it is settled, the kinds
//! and pages of its lift, and the reasons against one.

mod chance;
mod facts;
mod interlocks;
mod judgement;
mod progress;
mod refusal;
mod request;
mod selection;
mod verdict;

pub use chance::excluded;
pub use facts::{CgroupRoom, Conditions, ExecutedFile, Identity, Program, Standing, Usage};
pub use interlocks::{BUILT_IN, is_real_time, of_hours, of_machine, of_process};
pub use judgement::{Judgement, Subject, Surroundings, adds_of, judge, over_memory};
pub use progress::{Event, MOST_REFUSALS, Progress, State, Unsettled, cost_of, is_early, least_cpu, unsettled};
pub use refusal::{Reason, Refusal};
pub use request::{Order, VARIABLE, order};
pub use selection::{Selection, Unmet, select};
pub use verdict::{Course, Pending, cost_of_measurement, course, least_cpu_to_measure, most_of_measurement, unpaid};
