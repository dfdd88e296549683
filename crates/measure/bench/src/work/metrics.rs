//! A metric in Prometheus' text format (its documentation, "Exposition formats").

use super::{Counter, WorkError};
use std::time::Duration;
use ureq::Agent;

/// The longest that a server may take.
const LIMIT: Duration = Duration::from_secs(5);
/// The most that is read of an answer, in bytes.
const MOST: u64 = 32 << 20;

/// The sum of all samples of one name.
pub(super) struct Metric {
    agent: Agent,
    address: String,
    name: String,
}

impl Metric {
    pub(super) fn at(address: &str, name: &str) -> Self {
        let agent = Agent::config_builder().timeout_global(Some(LIMIT)).build().into();
        Self { agent, address: address.to_owned(), name: name.to_owned() }
    }
}

impl Counter for Metric {
    fn read(&mut self) -> Result<f64, WorkError> {
        let failed = |problem: String| WorkError::no_number(&self.address, problem);
        let mut answer = self.agent.get(&self.address).call().map_err(|error| failed(error.to_string()))?;
        let text = answer.body_mut().with_config().limit(MOST).read_to_string();
        let text = text.map_err(|error| failed(error.to_string()))?;
        sum_of(&text, &self.name).ok_or_else(|| failed(format!("there is no metric {}", self.name)))
    }

    fn unit(&self) -> String {
        self.name.clone()
    }
}

/// The sum of all samples named `name`, which may have labels: `requests_total{code="200"}` takes only samples whose
/// labels begin so.
fn sum_of(text: &str, name: &str) -> Option<f64> {
    let name = name.strip_suffix('}').unwrap_or(name);
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let ends_here = rest.starts_with(['{', ' ', '\t', '}', ',']);
        let after_labels = rest.rsplit_once('}').map_or(rest, |(_, after)| after);
        after_labels
            .split_ascii_whitespace()
            .next()
            .filter(|_| ends_here)?
            .parse::<f64>()
            .ok()
            .filter(|value| value.is_finite())
    };
    // A quantile of which nothing was observed yet is NaN.
    let values: Vec<f64> = text.lines().filter(|line| !line.starts_with('#')).filter_map(value).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP requests_total All.\nrequests_total{code=\"200\",path=\"/a b\"} 10\n\
                        requests_total{code=\"500\"} 2 1700000000\nrequests_total_age 7\nup 1\n";

    #[test]
    fn samples_of_a_name_are_summed() {
        assert_eq!(sum_of(TEXT, "requests_total"), Some(12.0));
        assert_eq!(sum_of(TEXT, "requests_total{code=\"200\"}"), Some(10.0));
        assert_eq!(sum_of(TEXT, "up"), Some(1.0));
        assert_eq!(sum_of(TEXT, "down"), None);
        assert_eq!(sum_of("x{quantile=\"0.5\"} NaN\ny +Inf\n", "x"), None);
    }
}
