//! The number to read from the output of a load. Pure.

use regex::Regex;

/// A regular expression of which a group is the number.
#[derive(Clone, Debug)]
pub struct Metric {
    regex: Regex,
    /// The number of the group.
    group: usize,
    kind: Kind,
}

/// The meaning of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Units of work in a second.
    Rate,
    /// Units of work of the whole burst.
    Count,
    /// Seconds, or any other time, for a unit of work.
    Time,
}

impl Metric {
    /// Reads a regular expression: its first group is a rate, unless one is named `count`, `rate` or `time`.
    ///
    /// # Errors
    /// The problem, and the correct form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let regex = Regex::new(text).map_err(|error| error.to_string())?;
        for (name, kind) in [("count", Kind::Count), ("rate", Kind::Rate), ("time", Kind::Time)] {
            if let Some(group) = regex.capture_names().position(|of_group| of_group == Some(name)) {
                return Ok(Self { regex, group, kind });
            }
        }
        if regex.captures_len() < 2 {
            return Err(format!(
                "{text} has no group, so no number; fix: parentheses around it: 'queries/s: ([0-9.]+)'"
            ));
        }
        Ok(Self { regex, group: 1, kind: Kind::Rate })
    }

    /// Units of work done in a burst of so many seconds, by the last match in the load's output.
    ///
    /// # Errors
    /// The text found instead.
    pub(super) fn work_in(&self, output: &str, seconds: f64) -> Result<f64, String> {
        let matches = self.regex.captures_iter(output);
        let number = matches.filter_map(|found| found.get(self.group)).last().ok_or_else(|| {
            let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
            let last: String = last.chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect();
            format!("the metric {} is not in its output, which ends with: {last}", self.regex.as_str())
        })?;
        let text: String = number.as_str().chars().filter(|c| *c != ',').collect();
        let value = text.trim().parse::<f64>().ok().filter(|value| value.is_finite() && *value > 0.0);
        let value = value.ok_or_else(|| {
            format!("the metric {} is {:?}; needed: a number above 0", self.regex.as_str(), number.as_str())
        })?;
        Ok(match self.kind {
            Kind::Count => value,
            Kind::Rate => value * seconds,
            Kind::Time => seconds / value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_say_what_the_number_is() {
        let of = |regex: &str, text: &str| Metric::parse(regex).unwrap().work_in(text, 2.0);
        assert_eq!(of(r"q/s: ([\d.]+)", "q/s: 1\nq/s: 50.5\n"), Ok(101.0));
        assert_eq!(of(r"(\w+) done: (?<count>[\d,]+)", "x done: 1,234"), Ok(1234.0));
        assert_eq!(of(r"latency (?<time>\S+) ms", "latency 0.5 ms"), Ok(4.0));
        assert_eq!(of(r"(?<rate>\d+)/s", "7/s"), Ok(14.0));
    }

    #[test]
    fn what_is_missing_is_said() {
        let of = |regex: &str, text: &str| Metric::parse(regex).unwrap().work_in(text, 2.0).unwrap_err();
        assert!(of("a: ([0-9]+)", "b: 3\nerror: \u{1b}no\n\n").ends_with("ends with: error: ?no"));
        assert!(of("a: (.*)", "a: many").contains("is \"many\"; needed: a number above 0"));
        assert!(of("a: (.*)", "a: 0").contains("needed: a number above 0"));
        assert!(Metric::parse("a").unwrap_err().contains("fix: parentheses"));
        assert!(Metric::parse("(").is_err());
    }
}
