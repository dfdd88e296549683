//! The whole examination.

use crate::checks::CHECKS;
use crate::facts::Facts;
use crate::finding::{Area, CheckOutcome, Finding, NotSeen, Severity};
use crate::verdict::Verdict;
use serde::Serialize;

/// A check that found all well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FineCheck {
    /// Its name.
    pub check: &'static str,
    /// The area.
    pub area: Area,
    /// The fact.
    pub seen: String,
}

/// The results of all checks.
#[derive(Clone, Debug, Serialize)]
pub struct HealthReport {
    /// Always `pagelift-doctor`.
    pub format: &'static str,
    /// Version of the format; it grows with every change that breaks a reader.
    pub version: u32,
    /// The program and its process, or "this machine".
    pub subject: String,
    /// The worst severity; `None` if nothing was found.
    pub severity: Option<Severity>,
    /// Unmet requirements, worst first.
    pub findings: Vec<Finding>,
    /// Met requirements.
    pub fine: Vec<FineCheck>,
    /// Facts that could not be read.
    pub not_seen: Vec<NotSeen>,
    /// The advice.
    pub verdict: Verdict,
    /// The allocator of the program, and the action of `run --heap=auto` on it at the next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<String>,
}

impl HealthReport {
    /// The exit status: 0 if all is well or only noted, 1 with advice, 2 with problems.
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
                CheckOutcome::Fine(seen) => fine.push(FineCheck { check: name, area, seen }),
                CheckOutcome::NotSeen { what, root_sees } => not_seen.push(NotSeen { check: name, what, root_sees }),
                CheckOutcome::Found { severity, title, found, wanted, why, fix } => {
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
    let mut verdict = Verdict::of(facts, &findings);
    for command in [&mut verdict.run, &mut verdict.measure].into_iter().flatten() {
        *command = facts.place.typed(command);
    }
    for fix in findings.iter_mut().filter_map(|finding| finding.fix.as_mut()) {
        *fix = facts.place.fixed(std::mem::take(fix), facts.is_root);
    }
    let heap = facts.program.as_ref().and_then(|program| program.heap_choice.clone());
    HealthReport { format: "pagelift-doctor", version: 1, subject, severity, findings, fine, not_seen, verdict, heap }
}
