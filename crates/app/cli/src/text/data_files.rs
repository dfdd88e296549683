//! Data files that are lifted as they become resident, in words.

use super::pause::pause;
use session::LiftedFiles;
use session::running::Attached;
use std::collections::HashSet;

/// The name of this memory.
pub const NOUN: &str = "mapped data files";

/// Printed lines about the data files of some processes.
#[derive(Default)]
pub struct ToldFiles {
    reasons: HashSet<String>,
    /// Bytes lifted so far, and at the last printed lift.
    lifted: u64,
    told: u64,
}

impl ToldFiles {
    /// Returns the lines about a check. A lift is printed if twice as much has been lifted as at the last one, a reason if it
    /// is new, and a fault always.
    pub fn lines(&mut self, lifted: &[LiftedFiles], is_verbose: bool) -> Vec<String> {
        self.lifted += lifted.iter().map(LiftedFiles::covered).sum::<u64>();
        let has_doubled = self.lifted > 0 && self.lifted >= self.told.saturating_mul(2);
        let tells = has_doubled || is_verbose;
        let lines: Vec<_> = lifted.iter().filter_map(|lifted| self.line(lifted, tells)).collect();
        if has_doubled {
            self.told = self.lifted;
        }
        lines
    }

    fn line(&mut self, lifted: &LiftedFiles, tells: bool) -> Option<String> {
        let Attached { report, pause: paused, .. } = match &lifted.outcome {
            Ok(attached) => attached,
            Err(error) => {
                let line = format!("{}: {NOUN}: {}", session::process_name(lifted.pid), error.in_full());
                return self.reasons.insert(line.clone()).then_some(line);
            }
        };
        let known = self.reasons.len();
        // The rest of a reason has figures, which change at each check.
        let reason = |text: String| text.split(';').next().unwrap_or_default().to_owned();
        self.reasons.extend(report.lift.refusals.iter().map(|refusal| reason(refusal.reason.to_string())));
        let is_new = self.reasons.len() > known || !report.lift.unexpected.is_empty();
        let is_due = is_new || (tells && lifted.covered() > 0);
        let line = report.line();
        let line = line.strip_prefix("pagelift: ").unwrap_or(&line);
        is_due.then(|| format!("{line}; {}", pause(*paused)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lift_plan::Price;
    use session::running::Pause;
    use session::{LiftReport, SessionError};

    fn lifted(covered: u64) -> LiftedFiles {
        let mut report = LiftReport::new(7, "x".to_owned());
        (report.lift.covered_bytes, report.lift.considered_bytes) = (covered, covered);
        let (pause, price) = (Pause::default(), Price::default());
        LiftedFiles { pid: 7, outcome: Ok(Attached { report, pause, is_cut_short: false, price, heap_refused: None }) }
    }

    #[test]
    fn a_lift_is_printed_when_the_amount_has_doubled() {
        let mut told = ToldFiles::default();
        let mut count = |mib: u64| told.lines(&[lifted(mib << 20)], false).len();
        assert_eq!([count(0), count(4), count(2), count(2), count(0)], [0, 1, 0, 1, 0]);
        assert_eq!(told.lines(&[lifted(1 << 20)], true).len(), 1);
    }

    #[test]
    fn an_error_is_printed_once() {
        let mut told = ToldFiles::default();
        let failed = || LiftedFiles { pid: i32::MAX, outcome: Err(SessionError::Refused("why".to_owned())) };
        assert!(told.lines(&[failed()], false)[0].ends_with("mapped data files: why"));
        assert!(told.lines(&[failed()], true).is_empty());
    }
}
