//! Every way in which a lift can fail, on plans of real programs' layouts: afterwards each huge page is either lifted
//! or unchanged, no mapping is left behind, and the outcome is true.

#[path = "../../../plan/tests/support/mod.rs"]
mod support;

mod allowance;
mod dumps;
mod files;
mod guarded;
mod judge;
mod lasting;
mod random_failures;
mod restore;
mod scenario;
mod sealing;
mod shortages;
mod single;
mod taken;
mod told;
