//! Data files that are lifted as they become resident, in words.

use super::pause::pause;
use session::running::Attached;
use session::{LiftedFiles, process_name_in_time};
use std::collections::HashSet;

/// Most reasons that are printed. A build can execute many thousands of programs.
const MOST_REASONS: usize = 1000;

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
    /// Returns the lines about a check, each with the lift that it describes. A lift is printed if twice as much has been
    /// lifted as at the last one, a reason if it is new, and a fault always.
    pub fn lines<'a>(&mut self, lifted: &'a [LiftedFiles], is_verbose: bool) -> Vec<(&'a LiftedFiles, String)> {
        self.lifted += lifted.iter().map(LiftedFiles::covered).sum::<u64>();
        let has_doubled = self.lifted > 0 && self.lifted >= self.told.saturating_mul(2);
        let tells = has_doubled || is_verbose;
        let lines: Vec<_> = lifted.iter().filter_map(|lifted| Some((lifted, self.line(lifted, tells)?))).collect();
        if has_doubled {
            self.told = self.lifted;
        }
        lines
    }

    fn line(&mut self, lifted: &LiftedFiles, tells: bool) -> Option<String> {
        let Attached { report, pause: paused, .. } = match &lifted.outcome {
            Ok(attached) => attached,
            Err(error) => {
                let why = error.in_full();
                // Each process that does not answer is named. Another reason is printed once for all processes.
                let key = if lifted.is_silent() { why.clone() } else { why.replace(&lifted.pid.to_string(), "PID") };
                let is_new = self.is_new(key);
                // The process may not answer.
                return is_new.then(|| format!("{}: {NOUN}: {why}", process_name_in_time(lifted.pid)));
            }
        };
        // The rest of a reason has figures, which change at each check.
        let reason = |text: String| text.split(';').next().unwrap_or_default().to_owned();
        let mut is_new = lifted.has_fault();
        for refusal in &report.lift.refusals {
            is_new |= self.is_new(reason(refusal.reason.to_string()));
        }
        let is_due = is_new || (tells && lifted.covered() > 0);
        let line = report.line();
        let line = line.strip_prefix("pagelift: ").unwrap_or(&line);
        is_due.then(|| format!("{line}; {}", pause(*paused)))
    }

    /// Notes a reason; false if it was noted before, or if too many were.
    fn is_new(&mut self, reason: String) -> bool {
        self.reasons.len() < MOST_REASONS && self.reasons.insert(reason)
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
        assert!(told.lines(&[failed()], false)[0].1.ends_with("mapped data files: why"));
        assert!(told.lines(&[failed()], true).is_empty());
    }

    #[test]
    fn a_reason_with_the_number_of_the_process_is_printed_once() {
        let mut told = ToldFiles::default();
        let failed = |pid: i32| {
            let why = format!("not permitted to inspect process {pid}");
            LiftedFiles { pid, outcome: Err(SessionError::Refused(why)) }
        };
        assert_eq!(told.lines(&[failed(i32::MAX), failed(i32::MAX - 1)], false).len(), 1);
    }

    #[test]
    fn the_number_of_reasons_is_limited() {
        let mut told = ToldFiles::default();
        let are_new = (0..=MOST_REASONS).filter(|number| told.is_new(number.to_string())).count();
        assert_eq!(are_new, MOST_REASONS);
    }
}
