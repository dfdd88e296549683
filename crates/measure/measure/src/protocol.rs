//! The words between the runner and a worker: one line each way, over the worker's standard input and output.
//!
//! ```text
//! worker:  pagelift-worker 1 code data both        who it is, the protocol's version, the workloads it knows
//! runner:  burst code 20000 1000 77                workload, steps to time, steps to run before the clock, seed
//! worker:  done 10231004 10228911 1f00ab           wall and CPU nanoseconds, checksum in hexadecimal
//! ```
//!
//! A worker that cannot serve a request answers `error` and a sentence. It ends when its input ends.

/// Version of the protocol that this crate speaks.
pub const VERSION: u32 = 1;
const GREETING: &str = "pagelift-worker";

/// A burst of work, requested by the runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Name of the workload.
    pub workload: String,
    /// Steps to run under the clock.
    pub steps: u64,
    /// Steps to run before the clock starts, to refill the caches after the other variant.
    pub lead_in: u64,
    /// Seed of the work: the same seed gives the same checksum in every variant.
    pub seed: u64,
}

/// An answer of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Greeting, with the names of its workloads.
    Hello(Vec<String>),
    /// A burst is done.
    Done {
        /// Wall-clock nanoseconds of the timed steps.
        wall_nanoseconds: u64,
        /// CPU nanoseconds of the worker's process over the timed steps; absent if the worker cannot report them (`-`).
        cpu_nanoseconds: Option<u64>,
        /// Result of the timed steps.
        checksum: u64,
    },
    /// The worker cannot do it, in its own words.
    Error(String),
}

impl Burst {
    /// The line without its end.
    pub fn to_line(&self) -> String {
        format!("burst {} {} {} {}", self.workload, self.steps, self.lead_in, self.seed)
    }

    /// Parses a line; `None` if it is not a burst.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        if words.next()? != "burst" {
            return None;
        }
        let workload = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        let burst = Self { workload, steps: number()?, lead_in: number()?, seed: number()? };
        words.next().is_none().then_some(burst)
    }
}

impl Answer {
    /// The line without its end.
    pub fn to_line(&self) -> String {
        match self {
            Self::Hello(workloads) => format!("{GREETING} {VERSION} {}", workloads.join(" ")).trim_end().to_owned(),
            Self::Done { wall_nanoseconds, cpu_nanoseconds, checksum } => {
                let cpu = cpu_nanoseconds.map_or_else(|| "-".to_owned(), |n| n.to_string());
                format!("done {wall_nanoseconds} {cpu} {checksum:x}")
            }
            Self::Error(text) => format!("error {}", text.replace(['\n', '\r'], " ")),
        }
    }

    /// Reads a line; the error is a sentence that names the defect.
    ///
    /// # Errors
    /// A line that is not in the protocol, or a greeting of another version.
    pub fn parse(line: &str) -> Result<Self, String> {
        let wrong =
            || format!("it said `{}`, which is not in the worker protocol", line.chars().take(120).collect::<String>());
        let line = line.trim_end();
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        match (first, words.as_slice()) {
            (GREETING, [version, workloads @ ..]) => match version.parse::<u32>() {
                Ok(VERSION) => Ok(Self::Hello(workloads.iter().map(|w| (*w).to_owned()).collect())),
                Ok(other) => Err(format!("it speaks version {other} of the worker protocol, and {VERSION} is needed")),
                Err(_) => Err(wrong()),
            },
            ("done", [wall, cpu, checksum]) => Ok(Self::Done {
                wall_nanoseconds: wall.parse().map_err(|_| wrong())?,
                cpu_nanoseconds: if *cpu == "-" { None } else { Some(cpu.parse().map_err(|_| wrong())?) },
                checksum: u64::from_str_radix(checksum, 16).map_err(|_| wrong())?,
            }),
            ("error", _) => Ok(Self::Error(rest.to_owned())),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bursts_survive_the_wire(workload in "[a-z-]{1,12}", steps: u64, lead_in: u64, seed: u64) {
            let burst = Burst { workload, steps, lead_in, seed };
            prop_assert_eq!(Burst::parse(&burst.to_line()), Some(burst));
        }

        #[test]
        fn answers_survive_the_wire(
            wall_nanoseconds: u64, cpu_nanoseconds: Option<u64>, checksum: u64,
            names in prop::collection::vec("[a-z-]{1,12}", 0..4), text in "[ -~]{0,40}",
        ) {
            for answer in [
                Answer::Done { wall_nanoseconds, cpu_nanoseconds, checksum },
                Answer::Hello(names.clone()),
                Answer::Error(text.trim().to_owned()),
            ] {
                prop_assert_eq!(Answer::parse(&answer.to_line()), Ok(answer));
            }
        }

        #[test]
        fn no_line_makes_the_readers_panic(line in "\\PC*", tail in "[0-9a-f -]{0,40}") {
            let _ = (Burst::parse(&line), Answer::parse(&line));
            for start in ["burst ", "done ", "pagelift-worker ", "error "] {
                let line = format!("{start}{tail}");
                let _ = (Burst::parse(&line), Answer::parse(&line));
            }
        }
    }

    #[test]
    fn another_version_is_named() {
        assert!(Answer::parse("pagelift-worker 2 code").unwrap_err().contains("version 2"));
        assert!(Answer::parse("hello").unwrap_err().contains("`hello`"));
    }
}
