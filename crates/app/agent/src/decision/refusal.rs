//! Reasons not to lift.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Writes [`Reason`] with the word and the duration of each.
macro_rules! reasons {
    ($($(#[$comment:meta])* $name:ident $word:literal $lasts:literal,)*) => {
        /// Why a process is not lifted: a closed list, so that it can be a label of a metric.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Reason {
            $($(#[$comment])* $name,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word in metrics and in JSON.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// True if the reason holds until the program or the configuration changes.
            pub const fn is_lasting(self) -> bool {
                match self {
                    $(Self::$name => $lasts,)*
                }
            }
        }
    };
}

reasons! {
    /// PID 1.
    Init "init" true,
    /// A thread of the kernel.
    KernelThread "kernel-thread" true,
    /// The agent itself, or a process above it.
    OwnLine "own-line" true,
    /// A program that machines depend on.
    BuiltIn "built-in" true,
    /// Its executable cannot be identified.
    Unidentified "unidentified" true,
    /// `PAGELIFT_AGENT=off`.
    OptedOut "opted-out" true,
    /// `PAGELIFT_AGENT` is not understood.
    BadRequest "bad-request" true,
    /// `PAGELIFT_AGENT` requests more than the rule allows.
    NotAllowed "not-allowed" true,
    /// The rule is not active on this machine.
    NotRolledOut "not-rolled-out" true,
    /// The process is part of the control group.
    Holdout "holdout" true,
    /// The rule exempts it.
    Exempt "exempt" true,
    /// A lift of this build had a long pause or was followed by a crash.
    Blocked "blocked" true,
    /// Measurements of its build say that a lift does not pay.
    DoesNotPay "does-not-pay" true,
    /// Its own measurement has shown no sufficient gain.
    NoGain "no-gain" true,
    /// A debugger or tracer is attached.
    Traced "traced" false,
    /// Real-time scheduling.
    RealTime "real-time" false,
    /// Its memory is closed to others.
    Closed "closed" false,
    /// CPUs are under pressure.
    CpuPressure "cpu-pressure" false,
    /// Memory is under pressure.
    MemoryPressure "memory-pressure" false,
    /// Little memory is free.
    LowMemory "low-memory" false,
    /// A cgroup is near its limit.
    CgroupLimit "cgroup-limit" false,
    /// Limits and pressure of its cgroup cannot be read.
    CgroupHidden "cgroup-hidden" false,
    /// Quiet hours.
    QuietHours "quiet-hours" false,
    /// The kill switch.
    KillSwitch "kill-switch" false,
    /// The agent's budget of CPU time.
    CpuBudget "cpu-budget" false,
    /// A budget of memory.
    MemoryBudget "memory-budget" false,
    /// The agent has as many lifted processes as it can record.
    TooManyLifted "too-many-lifted" false,
    /// The processes of its build have used too little CPU time for a measurement.
    MeasurementUnpaid "measurement-unpaid" false,
    /// The measurement failed or took too long.
    NotMeasured "not-measured" false,
    /// The lift was refused.
    LiftRefused "lift-refused" false,
    /// The worker ended without an answer.
    WorkerFailed "worker-failed" false,
}

/// A reason with the values behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// The value found, and the value needed.
    pub text: String,
}

impl Refusal {
    /// A refusal; the text names the value found and the value needed.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
