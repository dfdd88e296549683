//! Closed-loop clients: each sends a request as soon as it has the answer to the one before.

use super::super::ServerPlace;
use super::cancel::{Cancel, end};
use super::pattern::Pattern;
use super::protocols::{Connection, LIMIT, Protocol};
use super::{Broken, Burst, Bursts, Reading};
use crate::conduct::Conduct;
use crate::work::without_password;
use fastrand::Rng;
use measure::latency::Latency;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The requests of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLoad {
    protocol: Protocol,
    /// With placeholders.
    address: String,
    request: Pattern,
    /// As it was given, without a password.
    shown: String,
}

impl ClientLoad {
    /// Reads an address with its request: `redis://127.0.0.1:{port}?query=GET k{1..1000}`. `None` if it names no
    /// supported protocol.
    ///
    /// # Errors
    /// The missing part.
    pub(super) fn parse(text: &str) -> Option<Result<Self, String>> {
        let protocol = match text.split_once("://")?.0 {
            "mysql" => Protocol::MySql,
            "postgres" | "postgresql" => Protocol::Postgres,
            "redis" => Protocol::Resp,
            "http" => Protocol::Http,
            "https" => return Some(Err(format!("{text}: TLS is not spoken; needed: http://"))),
            _ => return None,
        };
        let shown = without_password(text);
        if protocol == Protocol::Http {
            return Some(Ok(Self { protocol, address: String::new(), request: Pattern::parse(text), shown }));
        }
        let halves = ["?query=", "&query="].into_iter().find_map(|mark| text.split_once(mark));
        Some(match halves.filter(|(_, request)| !request.trim().is_empty()) {
            Some((address, request)) => {
                Ok(Self { protocol, address: address.to_owned(), request: Pattern::parse(request), shown })
            }
            None => Err(format!(
                "{shown}: found no query; fix: …?query=SELECT 1, or GET key:{{1..1000}}, at the end, as it is"
            )),
        })
    }

    /// Says why a server does not answer yet.
    pub(super) fn is_ready(&self, place: &ServerPlace) -> Result<(), String> {
        let request = self.request.filled_in(|text| place.fill_in(text));
        let request = request.next(&mut Rng::with_seed(0));
        self.protocol.is_ready(&place.fill_in(&self.address), &request)
    }

    pub(super) fn unit(&self) -> &'static str {
        self.protocol.unit()
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }
}

/// A connection with its own random numbers.
pub(super) type Client = (Box<dyn Connection>, Rng);

/// The clients of one server, connected.
pub(in crate::servers) struct Clients {
    connections: Vec<Client>,
    /// The requests; for HTTP a whole address, with port and folder.
    request: Pattern,
    bursts: Bursts,
}

impl Clients {
    /// Connects to a server that is ready, and asks once: a request that cannot be answered is known at once.
    pub(super) fn connect(load: &ClientLoad, count: u32, bursts: Bursts, place: &ServerPlace) -> Result<Self, Broken> {
        let (address, request) = (place.fill_in(&load.address), load.request.filled_in(|text| place.fill_in(text)));
        let mut random = Rng::with_seed(u64::from(place.port));
        let failed = |why| Broken::Failed(format!("{}: {why}", load.shown));
        let mut connections = Vec::new();
        for _ in 0..count {
            let connection = load.protocol.connect(&address).map_err(failed)?;
            connections.push((connection, random.fork()));
        }
        if let Some((first, random)) = connections.first_mut() {
            ask_within_limit(first.as_mut(), &request.next(random)).map_err(failed)?;
        }
        Ok(Self { connections, request, bursts })
    }

    /// The cancellations of each connection's request, if necessary.
    pub(super) fn cancels(&self) -> Vec<Cancel> {
        self.connections.iter().filter_map(|(connection, _)| connection.cancel()).collect()
    }

    /// The connections, and their request.
    pub(super) fn into_parts(self) -> (Vec<Client>, Pattern) {
        (self.connections, self.request)
    }

    /// Sends requests for a while; only answers between the two readings count.
    pub(super) fn burst(
        &mut self,
        conduct: &Conduct<'_>,
        read: &mut dyn FnMut() -> Result<Reading, Broken>,
    ) -> Result<Burst, Broken> {
        let (answers, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        // Set between the two readings.
        let counts = AtomicBool::new(false);
        let times: Mutex<Vec<Duration>> = Mutex::new(Vec::new());
        let failure: Mutex<Option<String>> = Mutex::new(None);
        let (cancels, ended) = (self.cancels(), AtomicUsize::new(0));
        let all = self.connections.len();
        let burst = std::thread::scope(|scope| {
            for (connection, random) in &mut self.connections {
                let (answers, stop, failure, request) = (&answers, &stop, &failure, &self.request);
                let (counts, times, ended) = (&counts, &times, &ended);
                scope.spawn(move || {
                    let _ended = Ended(ended);
                    let mut own_times = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let request = request.next(random);
                        let asked = Instant::now();
                        if let Err(why) = connection.ask(&request) {
                            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
                            stop.store(true, Ordering::Relaxed);
                            return;
                        }
                        answers.fetch_add(1, Ordering::Relaxed);
                        if counts.load(Ordering::Relaxed) {
                            own_times.push(asked.elapsed());
                        }
                    }
                    times.lock().unwrap_or_else(PoisonError::into_inner).append(&mut own_times);
                });
            }
            let mut timed = || {
                wait(conduct, self.bursts.settle)?;
                // A reading begins with the CPU time, so that both are of one moment.
                let (before, from) = (answers.load(Ordering::Relaxed), read()?);
                counts.store(true, Ordering::Relaxed);
                wait(conduct, self.bursts.window)?;
                counts.store(false, Ordering::Relaxed);
                let (after, to) = (answers.load(Ordering::Relaxed), read()?);
                Ok(Burst { work: (after - before) as f64, from, to, latency: None })
            };
            let burst = timed();
            stop.store(true, Ordering::Relaxed);
            let have_ended = || ended.load(Ordering::Relaxed) == all;
            end(&cancels, &have_ended, &|waited| conduct.is_interrupted() || waited > LIMIT);
            burst
        });
        let latency = Latency::of(times.into_inner().unwrap_or_else(PoisonError::into_inner));
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            // A request that was cancelled for it.
            Some(_) if conduct.is_interrupted() => Err(Broken::Interrupted),
            Some(why) => Err(Broken::Failed(format!("a request failed: {why}"))),
            None => burst.map(|burst| Burst { latency, ..burst }),
        }
    }
}

/// Counts a client when it ends.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends one request, and gives up without an answer.
fn ask_within_limit(connection: &mut dyn Connection, request: &str) -> Result<(), String> {
    let cancels: Vec<Cancel> = connection.cancel().into_iter().collect();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let answer = connection.ask(request);
            has_ended.store(true, Ordering::Relaxed);
            answer
        });
        end(&cancels, &|| has_ended.load(Ordering::Relaxed), &|waited| waited > LIMIT);
        asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn wait(conduct: &Conduct<'_>, time: Duration) -> Result<(), Broken> {
    if conduct.wait(time) { Ok(()) } else { Err(Broken::Interrupted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Result<ClientLoad, String>> {
        ClientLoad::parse(text)
    }

    #[test]
    fn addresses_name_protocol_and_request() {
        let load = parse("mysql://root:secret@localhost/db?socket={dir}/s&query=SELECT c FROM t WHERE id={1..9}&x")
            .unwrap()
            .unwrap();
        assert_eq!((load.protocol, load.unit()), (Protocol::MySql, "queries"));
        assert_eq!(load.address, "mysql://root:secret@localhost/db?socket={dir}/s");
        assert_eq!(load.request, Pattern::parse("SELECT c FROM t WHERE id={1..9}&x"));
        assert!(!load.shown().contains("secret") && load.shown().contains("{1..9}"));
        assert_eq!(parse("http://127.0.0.1:{port}/{1..3}").unwrap().unwrap().protocol, Protocol::Http);
        assert!(parse("redis://127.0.0.1:{port}").unwrap().unwrap_err().contains("fix: "));
        assert!(parse("postgres://u@h/db?query= ").unwrap().is_err());
        assert!(parse("https://h/").unwrap().unwrap_err().contains("TLS"));
        assert_eq!(parse("sysbench --mysql-socket={dir}/s run"), None);
    }
}
