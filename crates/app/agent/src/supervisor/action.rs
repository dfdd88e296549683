//! Actions and decisions of the agent, one line each.

use super::stuck_workers::StuckWorker;
use crate::decision::{Identity, Reason, Refusal};
use address_space::{counted, format_bytes};
use std::fmt;
use std::time::Duration;

/// A program in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Name of the program.
    pub program: String,
    /// Which process.
    pub identity: Identity,
    /// Name of its rule.
    pub rule: String,
    /// Build of the program.
    pub build: String,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.program, self.identity.pid)
    }
}

/// One action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The agent was started.
    Started {
        /// The mode.
        mode: String,
        /// Number of rules.
        rules: usize,
        /// Number of processes that an earlier agent has lifted.
        lifted: usize,
    },
    /// It observes, and would lift.
    WouldLift {
        /// The process.
        named: Named,
        /// Kinds of memory.
        kinds: String,
        /// Bytes of the plan.
        bytes: u64,
        /// Estimated cost.
        cost: Duration,
        /// CPU time that the process has used.
        used: Duration,
        /// A measurement would come first.
        is_measured: bool,
    },
    /// It measures whether a lift pays.
    Measuring {
        /// The process.
        named: Named,
        /// Kinds of memory.
        kinds: String,
        /// Estimated CPU time of the measurement.
        cost: Duration,
    },
    /// A measurement has ended, and the process is plain.
    Measured {
        /// The process.
        named: Named,
        /// The decision, with the gain.
        text: String,
        /// It is lifted next.
        pays: bool,
    },
    /// It has lifted.
    Lifted {
        /// The process.
        named: Named,
        /// Kinds of memory.
        kinds: String,
        /// Bytes on huge pages.
        bytes: u64,
        /// Longest pause in microseconds.
        pause: u64,
        /// CPU time of the worker.
        cost: Duration,
    },
    /// The kernel has taken lifted memory off huge pages.
    Lost {
        /// The process.
        named: Named,
        /// Bytes that are no longer on huge pages.
        lost: u64,
        /// Bytes of the lift.
        of: u64,
    },
    /// It does not lift.
    Refused {
        /// The process.
        named: Named,
        /// Why.
        refusal: Refusal,
        /// It is not tried again.
        last: bool,
    },
    /// A lift was undone.
    Restored {
        /// The process.
        named: Named,
        /// Bytes that are back on their files.
        bytes: u64,
        /// Why.
        why: String,
    },
    /// A lift could not be undone.
    NotRestored {
        /// The process.
        named: Named,
        /// Why.
        why: String,
    },
    /// A build is not lifted any more.
    Blocked {
        /// The process.
        named: Named,
        /// The build.
        build: String,
        /// Why.
        why: String,
    },
    /// A lift of an agent that was killed.
    Interrupted {
        /// The process.
        named: Named,
        /// Bytes that are on huge pages.
        bytes: u64,
    },
    /// A worker was killed and does not end.
    Stuck {
        /// The worker.
        stuck: StuckWorker,
    },
    /// A stuck worker has ended.
    Freed {
        /// The worker.
        stuck: StuckWorker,
    },
    /// The configuration was read again.
    Reloaded {
        /// Number of rules.
        rules: usize,
    },
    /// The configuration has errors, and the rules stay.
    NotReloaded {
        /// The errors, each as several lines.
        errors: Vec<String>,
    },
    /// The kill switch has changed.
    Switch {
        /// Its state.
        state: &'static str,
    },
    /// Something of the agent's own failed.
    Failed {
        /// The failure and its cause.
        what: String,
    },
    /// The agent ends.
    Stopped {
        /// Number of processes that stay lifted.
        lifted: usize,
    },
}

impl Action {
    /// The reason of a refusal.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.reason),
            _ => None,
        }
    }
}

/// Fields of an entry in the journal.
type Fields = Vec<(&'static str, String)>;

impl Action {
    /// The word of the action.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::WouldLift { .. } => "would-lift",
            Self::Measuring { .. } => "measuring",
            Self::Measured { .. } => "measured",
            Self::Lifted { .. } => "lifted",
            Self::Lost { .. } => "lost",
            Self::Refused { .. } => "refused",
            Self::Restored { .. } => "restored",
            Self::NotRestored { .. } => "not-restored",
            Self::Blocked { .. } => "blocked",
            Self::Interrupted { .. } => "interrupted",
            Self::Stuck { .. } => "stuck",
            Self::Freed { .. } => "freed",
            Self::Reloaded { .. } => "reloaded",
            Self::NotReloaded { .. } => "not-reloaded",
            Self::Switch { .. } => "switch",
            Self::Failed { .. } => "failed",
            Self::Stopped { .. } => "stopped",
        }
    }

    /// True if the action needs attention.
    pub const fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::Lost { .. }
                | Self::NotRestored { .. }
                | Self::Blocked { .. }
                | Self::Stuck { .. }
                | Self::NotReloaded { .. }
                | Self::Failed { .. }
        )
    }

    /// The process that it is about.
    pub const fn named(&self) -> Option<&Named> {
        match self {
            Self::WouldLift { named, .. }
            | Self::Measuring { named, .. }
            | Self::Measured { named, .. }
            | Self::Lifted { named, .. }
            | Self::Lost { named, .. }
            | Self::Refused { named, .. }
            | Self::Restored { named, .. }
            | Self::NotRestored { named, .. }
            | Self::Blocked { named, .. }
            | Self::Interrupted { named, .. } => Some(named),
            Self::Started { .. }
            | Self::Stuck { .. }
            | Self::Freed { .. }
            | Self::Reloaded { .. }
            | Self::NotReloaded { .. }
            | Self::Switch { .. }
            | Self::Failed { .. }
            | Self::Stopped { .. } => None,
        }
    }

    /// The fields of its entry in the journal, without the message.
    pub fn fields(&self) -> Fields {
        let mut fields = vec![("PAGELIFT_ACTION", self.word().to_owned())];
        if let Some(Named { program, identity, rule, build }) = self.named() {
            fields.extend([
                ("PAGELIFT_PROGRAM", program.clone()),
                ("PAGELIFT_PID", identity.pid.to_string()),
                ("PAGELIFT_RULE", rule.clone()),
                ("PAGELIFT_BUILD_ID", build.clone()),
            ]);
        }
        let microseconds = |time: &Duration| time.as_micros().to_string();
        match self {
            Self::WouldLift { kinds, bytes, cost, .. } => fields.extend([
                ("PAGELIFT_LIFT", kinds.clone()),
                ("PAGELIFT_BYTES", bytes.to_string()),
                ("PAGELIFT_COST_US", microseconds(cost)),
            ]),
            Self::Measuring { kinds, cost, .. } => {
                fields.extend([("PAGELIFT_LIFT", kinds.clone()), ("PAGELIFT_COST_US", microseconds(cost))]);
            }
            Self::Measured { text, pays, .. } => fields.extend([
                ("PAGELIFT_VERDICT", if *pays { "keep" } else { "left-plain" }.to_owned()),
                ("PAGELIFT_REASON", text.clone()),
            ]),
            Self::Lifted { kinds, bytes, pause, cost, .. } => fields.extend([
                ("PAGELIFT_LIFT", kinds.clone()),
                ("PAGELIFT_BYTES", bytes.to_string()),
                ("PAGELIFT_PAUSE_US", pause.to_string()),
                ("PAGELIFT_COST_US", microseconds(cost)),
            ]),
            Self::Refused { refusal, .. } => fields.push(("PAGELIFT_REASON", refusal.reason.word().to_owned())),
            Self::Restored { bytes, why, .. } => {
                fields.extend([("PAGELIFT_BYTES", bytes.to_string()), ("PAGELIFT_REASON", why.clone())]);
            }
            Self::NotRestored { why, .. } | Self::Blocked { why, .. } => fields.push(("PAGELIFT_REASON", why.clone())),
            Self::Stuck { stuck } | Self::Freed { stuck } => {
                fields.push(("PAGELIFT_PID", stuck.process.pid.to_string()));
            }
            Self::Lost { lost: bytes, .. } | Self::Interrupted { bytes, .. } => {
                fields.push(("PAGELIFT_BYTES", bytes.to_string()));
            }
            Self::Started { .. }
            | Self::Reloaded { .. }
            | Self::NotReloaded { .. }
            | Self::Switch { .. }
            | Self::Failed { .. }
            | Self::Stopped { .. } => {}
        }
        fields
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { mode, rules, lifted } => {
                write!(
                    f,
                    "started: mode {mode}, {}, {} lifted",
                    counted(*rules as u64, "rule"),
                    counted(*lifted as u64, "process")
                )
            }
            Self::WouldLift { named, kinds, bytes, cost, used, is_measured } => write!(
                f,
                "would {} {named}: {} of {kinds} by rule \"{}\", at a cost of about {} beside {:.0} s of CPU time used",
                if *is_measured { "measure" } else { "lift" },
                format_bytes(*bytes),
                named.rule,
                milliseconds(*cost),
                used.as_secs_f64()
            ),
            Self::Measuring { named, kinds, cost } => write!(
                f,
                "measuring {named}: whether a lift of {kinds} pays, by rule \"{}\", at a cost of about {}",
                named.rule,
                milliseconds(*cost)
            ),
            Self::Measured { named, text, pays } => {
                write!(f, "measured {named}: {text}{}", if *pays { "" } else { "; left plain" })
            }
            Self::Lifted { named, kinds, bytes, pause, cost } => write!(
                f,
                "lifted {named}: {} of {kinds} on huge pages by rule \"{}\", stopped for {:.1} ms, cost {}",
                format_bytes(*bytes),
                named.rule,
                *pause as f64 / 1e3,
                milliseconds(*cost)
            ),
            Self::Lost { named, lost, of } => write!(
                f,
                "lost {named}: {} of {} are no longer on huge pages; the kernel may have reclaimed or split them",
                format_bytes(*lost),
                format_bytes(*of)
            ),
            Self::Refused { named, refusal, last } => {
                let again = if *last { "; not tried again" } else { "" };
                write!(f, "not lifted {named} by rule \"{}\": {refusal}{again}", named.rule)
            }
            Self::Restored { named, bytes, why } => {
                write!(f, "restored {named}: {} back on the pages of its files: {why}", format_bytes(*bytes))
            }
            Self::NotRestored { named, why } => write!(f, "not restored {named}: {why}"),
            Self::Blocked { named, build, why } => {
                write!(f, "blocked {named}, build {}, until the next boot: {why}", &build[..build.len().min(12)])
            }
            Self::Interrupted { named, bytes } => write!(
                f,
                "{named} was being lifted when the agent ended: {} on huge pages; not lifted again",
                format_bytes(*bytes)
            ),
            Self::Stuck { stuck: StuckWorker { worker, process, .. } } => write!(
                f,
                "worker {worker} for process {} was killed and does not end: it is in an uninterruptible sleep; nothing is \
                 lifted until it ends",
                process.pid
            ),
            Self::Freed { stuck: StuckWorker { worker, process, .. } } => {
                write!(f, "worker {worker} for process {} has ended", process.pid)
            }
            Self::Reloaded { rules } => write!(f, "configuration read: {}", counted(*rules as u64, "rule")),
            Self::NotReloaded { errors } => {
                write!(f, "configuration not read, the present rules are kept: {}", errors.join("; "))
            }
            Self::Switch { state } => write!(f, "kill switch: {state}"),
            Self::Failed { what } => f.write_str(what),
            Self::Stopped { lifted } => write!(f, "stopped: {} still lifted", counted(*lifted as u64, "process")),
        }
    }
}
