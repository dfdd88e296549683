//! The measure of work: a number that grows with each completed unit.

mod command;
mod instructions;
mod metrics;
mod servers;
mod switches;
mod system_calls;

use crate::tree::tree_of;
pub use command::shell;
pub use servers::without_password;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The source of the number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkSource {
    /// System calls of the process, otherwise its voluntary context switches.
    Auto,
    /// Instructions, counted with the cycles that they took by the CPU's PMU.
    Instructions,
    /// The last number that a shell command prints.
    Command(String),
    /// A metric in Prometheus' text format: address and name.
    Metrics(String, String),
    /// A global status variable of a MySQL or MariaDB server: address and name.
    MySql(String, String),
    /// A column of `pg_stat_database`, summed over all databases: address and name.
    Postgres(String, String),
    /// A field of Redis' INFO: address and name.
    Redis(String, String),
}

/// Why work cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The text names nothing that can be counted.
    #[error("{text}: {problem}")]
    NotUnderstood {
        /// The given text.
        text: String,
        /// The problem, and the correct form.
        problem: String,
    },
    /// The source gives no number.
    #[error("{source_name}: {problem}")]
    NoNumber {
        /// The place that was searched.
        source_name: String,
        /// Found and needed.
        problem: String,
    },
}

impl WorkError {
    pub(crate) fn no_number(source_name: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self::NoNumber { source_name: source_name.to_string(), problem: problem.to_string() }
    }
}

impl FromStr for WorkSource {
    type Err = WorkError;

    fn from_str(text: &str) -> Result<Self, WorkError> {
        let fragment = |otherwise: &str| match text.split_once('#') {
            Some((address, name)) if !name.is_empty() => (address.to_owned(), name.to_owned()),
            Some((address, _)) => (address.to_owned(), otherwise.to_owned()),
            None => (text.to_owned(), otherwise.to_owned()),
        };
        let wrong = |problem: &str| WorkError::NotUnderstood { text: text.to_owned(), problem: problem.to_owned() };
        match text.split_once("://").map(|(scheme, _)| scheme) {
            _ if text == "auto" => Ok(Self::Auto),
            _ if text == "instructions" => Ok(Self::Instructions),
            _ if text.trim().is_empty() => {
                Err(wrong("an empty command counts nothing; needed: auto, a command, or an address"))
            }
            Some("http") => match fragment("") {
                (_, name) if name.is_empty() => {
                    Err(wrong("found no name of a metric; fix: http://HOST:PORT/metrics#NAME"))
                }
                (address, name) => Ok(Self::Metrics(address, name)),
            },
            Some("https") => Err(wrong("TLS is not supported; fix: --work 'curl -s https://… | sed -n s/^NAME //p'")),
            Some("mysql") => Ok(with(fragment("Questions"), Self::MySql)),
            Some("postgres" | "postgresql") => Ok(with(fragment("xact_commit"), Self::Postgres)),
            Some("redis") => Ok(with(fragment("total_commands_processed"), Self::Redis)),
            _ => Ok(Self::Command(text.to_owned())),
        }
    }
}

fn with<T>((address, name): (String, String), make: fn(String, String) -> T) -> T {
    make(address, name)
}

/// A number that grows.
pub trait Counter {
    /// Reads it.
    ///
    /// # Errors
    /// There is no number any more, for example because the server has ended.
    fn read(&mut self) -> Result<f64, WorkError>;

    /// CPU cycles until the last reading, if they are counted with the work.
    fn cycles(&self) -> f64 {
        0.0
    }

    /// The waiting times of the requests since the last call, if requests are the work; otherwise none.
    fn take_times(&mut self) -> Vec<Duration> {
        Vec::new()
    }

    /// The name of one unit, in the plural: `system calls`, `Questions`.
    fn unit(&self) -> String;

    /// True if a switch itself is counted: a lift makes system calls in the program, and stops its threads.
    fn counts_switches(&self) -> bool {
        false
    }

    /// Why a unit is not the preferred one; `None` if it is.
    fn note(&self) -> Option<String> {
        None
    }
}

impl WorkSource {
    /// The counter of a process and its descendants, opened and read once.
    ///
    /// # Errors
    /// [`WorkError`]
    pub fn open(&self, pid: i32) -> Result<Box<dyn Counter>, WorkError> {
        let mut counter: Box<dyn Counter> = match self {
            Self::Auto => {
                let processes = tree_of(pid);
                match system_calls::SystemCalls::of(&processes) {
                    Ok(counter) => Box::new(counter),
                    Err(why) => Box::new(switches::Switches::of(processes, why.to_string())?),
                }
            }
            Self::Instructions => Box::new(instructions::Instructions::of(&tree_of(pid))?),
            Self::Command(command) => Box::new(command::Printed::by(command)),
            Self::Metrics(address, name) => Box::new(metrics::Metric::at(address, name)),
            Self::MySql(address, name) => Box::new(servers::MySql::at(address, name)?),
            Self::Postgres(address, name) => Box::new(servers::Postgres::at(address, name)?),
            Self::Redis(address, name) => Box::new(servers::Redis::at(address, name)?),
        };
        counter.read()?;
        Ok(counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_sources() {
        let parse = |text: &str| text.parse::<WorkSource>();
        assert_eq!(parse("auto").unwrap(), WorkSource::Auto);
        assert_eq!(parse("instructions").unwrap(), WorkSource::Instructions);
        let metric = WorkSource::Metrics("http://localhost:9100/metrics".into(), "requests_total".into());
        assert_eq!(parse("http://localhost:9100/metrics#requests_total").unwrap(), metric);
        assert_eq!(
            parse("redis://h").unwrap(),
            WorkSource::Redis("redis://h".into(), "total_commands_processed".into())
        );
        assert_eq!(
            parse("mysql://u:p@h/#Com_select").unwrap(),
            WorkSource::MySql("mysql://u:p@h/".into(), "Com_select".into())
        );
        assert_eq!(
            parse("postgresql://h#tup_fetched").unwrap(),
            WorkSource::Postgres("postgresql://h".into(), "tup_fetched".into())
        );
        assert_eq!(parse("wc -l < log").unwrap(), WorkSource::Command("wc -l < log".into()));
        assert!(
            parse("http://localhost/metrics").unwrap_err().to_string().contains("fix: http://HOST:PORT/metrics#NAME")
        );
        assert!(parse("https://localhost/metrics#x").unwrap_err().to_string().contains("TLS"));
        assert!(parse("").is_err());
    }
}
