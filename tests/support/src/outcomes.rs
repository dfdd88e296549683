//! Outcomes of a foreign test suite, one for each of its tests, and their comparison with a plain run.

use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::fmt;

/// The outcome of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It does not apply to this machine.
    Skipped,
    /// It failed, or could not be run.
    Failed,
}

/// The outcomes of a suite by the names of its tests; the worst of tests that share a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes(BTreeMap<String, Outcome>);

impl Outcomes {
    /// Adds the outcome of a test.
    pub fn add(&mut self, name: impl Into<String>, outcome: Outcome) {
        let known = self.0.entry(name.into()).or_insert(outcome);
        *known = outcome.max(*known);
    }

    /// Number of tests with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.0.values().filter(|&&other| other == outcome).count()
    }

    /// Checks that lifted programs gave the same outcomes as `self`, the outcomes of a plain run. A test that fails
    /// plain shows nothing about lifting: any outcome is accepted.
    ///
    /// # Errors
    /// The tests whose outcomes differ or are missing; or no test passed plain, so that nothing was compared.
    pub fn check_same(&self, lifted: &Self) -> Result<()> {
        ensure!(self.count(Outcome::Passed) > 0, "no test passes plain: {self}");
        let names = self.0.keys().chain(lifted.0.keys().filter(|name| !self.0.contains_key(*name)));
        let differing: Vec<String> = names
            .filter(|name| self.0.get(*name) != Some(&Outcome::Failed) && self.0.get(*name) != lifted.0.get(*name))
            .map(|name| format!("{name}: plain {}, lifted {}", word(self.0.get(name)), word(lifted.0.get(name))))
            .collect();
        ensure!(differing.is_empty(), "{} outcomes differ:\n  {}", differing.len(), differing.join("\n  "));
        Ok(())
    }
}

fn word(outcome: Option<&Outcome>) -> &'static str {
    match outcome {
        Some(Outcome::Passed) => "passed",
        Some(Outcome::Skipped) => "skipped",
        Some(Outcome::Failed) => "failed",
        None => "not run",
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(|outcome| self.count(outcome));
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")?;
        let names: Vec<&str> =
            self.0.iter().filter(|(_, o)| **o == Outcome::Failed).map(|(name, _)| name.as_str()).collect();
        if !names.is_empty() {
            write!(f, " (failed: {})", names.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(outcomes: &[(&str, Outcome)]) -> Outcomes {
        let mut result = Outcomes::default();
        outcomes.iter().for_each(|(name, outcome)| result.add(*name, *outcome));
        result
    }

    #[test]
    fn a_test_that_fails_plain_counts_neither_way() {
        let plain = of(&[("a", Outcome::Passed), ("b", Outcome::Failed)]);
        plain.check_same(&of(&[("a", Outcome::Passed), ("b", Outcome::Failed)])).unwrap();
        plain.check_same(&of(&[("a", Outcome::Passed), ("b", Outcome::Passed)])).unwrap();
        plain.check_same(&of(&[("a", Outcome::Passed)])).unwrap();
    }

    #[test]
    fn failed_skipped_missing_and_added_tests_are_named() {
        let plain = of(&[("a", Outcome::Passed), ("b", Outcome::Passed), ("c", Outcome::Passed)]);
        let lifted = of(&[("a", Outcome::Failed), ("b", Outcome::Skipped), ("d", Outcome::Passed)]);
        let error = plain.check_same(&lifted).unwrap_err().to_string();
        for line in [
            "a: plain passed, lifted failed",
            "b: plain passed, lifted skipped",
            "c: plain passed, lifted not run",
            "d: plain not run, lifted passed",
        ] {
            assert!(error.contains(line), "{error}");
        }
    }

    #[test]
    fn a_suite_of_which_nothing_passes_plain_proves_nothing() {
        assert!(Outcomes::default().check_same(&Outcomes::default()).is_err());
        let failed = of(&[("a", Outcome::Failed)]);
        assert!(failed.check_same(&failed).is_err());
    }

    #[test]
    fn of_tests_that_share_a_name_the_worst_counts() {
        let outcomes = of(&[("a", Outcome::Passed), ("a", Outcome::Failed), ("a", Outcome::Skipped)]);
        assert_eq!(outcomes.to_string(), "0 passed, 1 failed, 0 skipped (failed: a)");
    }
}
