//! The whole examination.

use crate::checks::CHECKS;
use crate::facts::Facts;
use crate::finding::{Area, Finding, NotSeen, Outcome, Severity};
use crate::verdict::Verdict;
use serde::Serialize;

/// A check that found all well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FineCheck {
    /// Its name.
    pub check: &'static str,
    /// What it is about.
    pub area: Area,
    /// What was seen.
    pub seen: String,
}

/// What all checks found.
#[derive(Clone, Debug, Serialize)]
pub struct HealthReport {
    /// Always `pagelift-doctor`.
    pub format: &'static str,
    /// Version of the format; it grows with every change that breaks a reader.
    pub version: u32,
    /// The program and its process, or "this machine".
    pub subject: String,
    /// The worst severity; `None` where nothing was found.
    pub severity: Option<Severity>,
    /// What was found wanting, worst first.
    pub findings: Vec<Finding>,
    /// What is as it should be.
    pub fine: Vec<FineCheck>,
    /// What could not be looked at.
    pub not_seen: Vec<NotSeen>,
    /// What to do.
    pub verdict: Verdict,
}

impl HealthReport {
    /// The exit status: 0 where all is well or only noted, 1 with advice, 2 with problems.
    pub fn exit_status(&self) -> u8 {
        match self.severity {
            None | Some(Severity::Note) => 0,
            Some(Severity::Advice) => 1,
            Some(Severity::Problem) => 2,
        }
    }
}

/// Runs all checks. Pure.
pub fn examine(facts: &Facts) -> HealthReport {
    let (mut findings, mut fine, mut not_seen) = (Vec::new(), Vec::new(), Vec::new());
    for check in CHECKS {
        let (name, area) = (check.name, check.area);
        for outcome in (check.run)(facts) {
            match outcome {
                Outcome::Fine(seen) => fine.push(FineCheck { check: name, area, seen }),
                Outcome::NotSeen { what, root_sees } => not_seen.push(NotSeen { check: name, what, root_sees }),
                Outcome::Found { severity, title, found, wanted, why, fix } => {
                    findings.push(Finding { check: name, area, severity, title, found, wanted, why, fix });
                }
            }
        }
    }
    // Stable: within a severity the order of the checks stays.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let severity = findings.first().map(|finding| finding.severity);
    let subject = match &facts.program {
        None => "this machine".to_owned(),
        Some(program) => match &program.running {
            Some(running) => format!("{}[{}]", program.name, running.pid),
            None => program.name.clone(),
        },
    };
    let verdict = Verdict::of(facts, &findings);
    HealthReport { format: "pagelift-doctor", version: 1, subject, severity, findings, fine, not_seen, verdict }
}
