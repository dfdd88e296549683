//! The load for servers, one at a time, in bursts.

mod cancel;
mod clients;
mod metric;
mod pattern;
mod protocols;
mod running;
mod tool;

pub use clients::ClientLoad;
pub use metric::Metric;
pub use running::RunningLoad;
pub(super) use tool::{end_of, last_words, run};

use super::ServerPlace;
use crate::conduct::Conduct;
use clients::Clients;
use measure::latency::Latency;
use measure::record::Counters;
use std::time::{Duration, Instant};
use tool::Tool;

/// A load.
#[derive(Clone, Debug)]
pub enum LoadSource {
    /// Clients of this process.
    Clients(ClientLoad),
    /// A shell command, and the number in its output; without a number each run is the same work.
    Tool(String, Option<Metric>),
}

/// Lengths of bursts.
#[derive(Clone, Copy, Debug)]
pub struct Bursts {
    /// The measured time.
    pub window: Duration,
    /// The discarded time before.
    pub settle: Duration,
}

impl LoadSource {
    /// Reads `--load` and `--metric`.
    ///
    /// # Errors
    /// The problem, and the correct form.
    pub fn parse(load: &str, metric: Option<&str>) -> Result<Self, String> {
        match (ClientLoad::parse(load), metric) {
            (Some(_), Some(_)) => {
                Err(format!("{load}: clients of Pagelift count by themselves; fix: leave out --metric"))
            }
            (Some(clients), None) => clients.map(Self::Clients),
            (None, _) if load.trim().is_empty() => {
                Err("an empty command loads nothing; needed: a command or an address with a request".to_owned())
            }
            (None, metric) => Ok(Self::Tool(load.to_owned(), metric.map(Metric::parse).transpose()?)),
        }
    }

    /// The name of a unit of work, in the plural.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Clients(clients) => clients.unit(),
            Self::Tool(_, Some(_)) => "operations",
            Self::Tool(_, None) => "runs of the load",
        }
    }

    /// As it was given, without a password.
    pub fn shown(&self) -> &str {
        match self {
            Self::Clients(clients) => clients.shown(),
            Self::Tool(command, _) => command,
        }
    }

    /// Returns why a server does not answer yet. `None` if only the server's own method can decide.
    pub(super) fn is_ready(&self, place: &ServerPlace) -> Option<Result<(), String>> {
        match self {
            Self::Clients(clients) => Some(clients.is_ready(place)),
            Self::Tool(..) => None,
        }
    }

    /// The load of one server that is ready.
    pub(super) fn open<'a>(
        &'a self,
        clients: u32,
        bursts: Bursts,
        place: &ServerPlace,
    ) -> Result<OpenLoad<'a>, Broken> {
        match self {
            Self::Clients(load) => Clients::connect(load, clients, bursts, place).map(OpenLoad::Clients),
            Self::Tool(command, metric) => {
                let seconds = bursts.window.as_secs_f64();
                Ok(OpenLoad::Tool(Tool { command, metric: metric.as_ref(), seconds }))
            }
        }
    }
}

/// The load of one server.
pub(super) enum OpenLoad<'a> {
    Clients(Clients),
    Tool(Tool<'a>),
}

impl OpenLoad<'_> {
    pub(super) fn burst(
        &mut self,
        place: &ServerPlace,
        conduct: &Conduct<'_>,
        read: &mut dyn FnMut() -> Result<Reading, Broken>,
    ) -> Result<Burst, Broken> {
        match self {
            Self::Clients(clients) => clients.burst(conduct, read),
            Self::Tool(tool) => tool.burst(place, conduct, read),
        }
    }
}

/// A server's usage until a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) cpu: f64,
    pub(super) counters: Counters,
    pub(super) at: Instant,
}

/// The work between two moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) work: f64,
    pub(super) from: Reading,
    pub(super) to: Reading,
    /// The waiting times of requests between them; absent if a command sends them.
    pub(super) latency: Option<Latency>,
}

/// The reason why it cannot continue.
#[derive(Debug)]
pub(super) enum Broken {
    Interrupted,
    Failed(String),
    Record(std::io::Error),
}
