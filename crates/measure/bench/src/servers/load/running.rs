//! A load that continues as long as an experiment does.

use super::super::ServerPlace;
use super::cancel::{Cancel, end};
use super::clients::{Client, ClientLoad, Clients};
use super::tool::{end_of, last_words, run};
use super::{Broken, Bursts, LoadSource};
use crate::work::{Counter, WorkError};
use nix::sys::signal::SigSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A load that runs in threads of this process. Dropped, it ends.
pub struct RunningLoad {
    /// Its name in messages.
    shown: String,
    state: Arc<State>,
    /// The name of a unit of work, if the answers are counted here.
    unit: Option<&'static str>,
    threads: Vec<JoinHandle<()>>,
    cancels: Vec<Cancel>,
}

/// Time to wait for a request once the load has to stop.
const TO_ANSWER: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    answers: AtomicU64,
    /// Waiting times of each client's requests, until they are taken; a list for each client, so that clients do not
    /// wait for each other.
    times: Mutex<Vec<Arc<Mutex<Vec<Duration>>>>>,
    /// Somebody takes them.
    is_timed: AtomicBool,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl State {
    fn has_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Keeps the first reason; failures after the request to stop do not count.
    fn fails(&self, why: String) {
        if !self.stop.swap(true, Ordering::Relaxed) {
            *locked(&self.failure) = Some(why);
        }
    }

    fn new_list(&self) -> Arc<Mutex<Vec<Duration>>> {
        let list = Arc::default();
        locked(&self.times).push(Arc::clone(&list));
        list
    }

    fn take_times(&self) -> Vec<Duration> {
        locked(&self.times).iter().flat_map(|list| std::mem::take(&mut *locked(list))).collect()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunningLoad {
    /// Begins to load a server that is ready: clients without a pause, or the command, again whenever it has ended. `{seconds}`
    /// in it becomes `time`.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn start(source: &LoadSource, clients: u32, place: &ServerPlace, time: Duration) -> Result<Self, String> {
        let state = Arc::new(State::default());
        let (threads, cancels) = match source {
            LoadSource::Clients(load) => clients_of(load, clients, place, &state)?,
            LoadSource::Tool(command, _) => {
                let command = place.fill_in(command).replace("{seconds}", &time.as_secs_f64().to_string());
                let state = state.clone();
                (vec![std::thread::spawn(move || repeat(&command, &state))], Vec::new())
            }
        };
        let unit = matches!(source, LoadSource::Clients(_)).then(|| source.unit());
        Ok(Self { shown: source.shown().to_owned(), state, unit, threads, cancels })
    }

    /// The counter of the answers that its clients have received; absent if a command makes the load.
    pub fn counter(&self) -> Option<Box<dyn Counter>> {
        let unit = self.unit?;
        self.state.is_timed.store(true, Ordering::Relaxed);
        Some(Box::new(Answers { state: self.state.clone(), unit }))
    }

    /// Says why it has ended, if so.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<(), String> {
        match locked(&self.state.failure).as_ref() {
            Some(why) => Err(format!("the load {:?}: {why}", self.shown)),
            None => Ok(()),
        }
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        let have_ended = || self.threads.iter().all(JoinHandle::is_finished);
        end(&self.cancels, &have_ended, &|waited| waited > TO_ANSWER);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The threads of clients, and the cancellations of their requests.
type Threads = (Vec<JoinHandle<()>>, Vec<Cancel>);

fn clients_of(load: &ClientLoad, count: u32, place: &ServerPlace, state: &Arc<State>) -> Result<Threads, String> {
    let bursts = Bursts { window: Duration::ZERO, settle: Duration::ZERO };
    let clients = Clients::connect(load, count, bursts, place).map_err(|broken| match broken {
        Broken::Failed(why) => why,
        Broken::Interrupted => "interrupted".to_owned(),
        Broken::Record(error) => error.to_string(),
    })?;
    let cancels = clients.cancels();
    let (connections, request) = clients.into_parts();
    let request = Arc::new(request);
    let client = |(mut connection, mut random): Client| {
        let (state, request) = (state.clone(), request.clone());
        let times = state.new_list();
        std::thread::spawn(move || {
            // A read with a time limit is interrupted by SIGCHLD of a shell that another thread has started, though nobody
            // handles it, because that thread blocks it for the moment.
            let _ = SigSet::all().thread_block();
            while !state.has_to_stop() {
                let request = request.next(&mut random);
                let asked = Instant::now();
                match connection.ask(&request) {
                    Ok(()) => {
                        if state.is_timed.load(Ordering::Relaxed) {
                            locked(&times).push(asked.elapsed());
                        }
                        state.answers.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(why) => state.fails(format!("a request failed: {why}")),
                }
            }
        })
    };
    Ok((connections.into_iter().map(client).collect(), cancels))
}

/// Runs the command until it fails or has to stop.
fn repeat(command: &str, state: &State) {
    while !state.has_to_stop() {
        let once = || {
            let output = tempfile::tempfile().map_err(|error| error.to_string())?;
            match run(command, &output, &|| state.has_to_stop()) {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => {
                    let said = end_of(&output).map_err(|error| error.to_string())?;
                    Err(format!("{status}; it printed last: {}", last_words(&said)))
                }
                Err(Broken::Interrupted) => Ok(()),
                Err(Broken::Failed(why)) => Err(why),
                Err(Broken::Record(error)) => Err(error.to_string()),
            }
        };
        if let Err(why) = once() {
            state.fails(why);
        }
    }
}

/// The answers to all requests so far.
struct Answers {
    state: Arc<State>,
    unit: &'static str,
}

impl Counter for Answers {
    fn read(&mut self) -> Result<f64, WorkError> {
        Ok(self.state.answers.load(Ordering::Relaxed) as f64)
    }

    fn take_times(&mut self) -> Vec<Duration> {
        self.state.take_times()
    }

    fn unit(&self) -> String {
        self.unit.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(command: &str) -> RunningLoad {
        let place = ServerPlace { port: 7, folder: "/tmp".into() };
        let source = LoadSource::parse(command, None).unwrap();
        RunningLoad::start(&source, 1, &place, Duration::from_secs(5)).unwrap()
    }

    fn until(condition: impl Fn() -> bool) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < limit);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_command_is_run_again_until_the_load_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let load = started(&format!("echo {{port}} {{seconds}} >> {}", log.display()));
        let text = || std::fs::read_to_string(&log).unwrap_or_default();
        until(|| text().lines().count() >= 3);
        assert!(load.check().is_ok() && load.counter().is_none());
        drop(load);
        let after = text();
        assert!(after.lines().all(|line| line == "7 5"), "{after}");
        assert_eq!(after, text());
    }

    #[test]
    fn a_command_that_fails_is_said_and_one_that_lasts_is_ended() {
        let load = started("echo no connection; exit 3");
        until(|| load.check().is_err());
        let why = load.check().unwrap_err();
        assert!(why.ends_with("exit status: 3; it printed last: no connection"), "{why}");
        drop(started("exec sleep 1000"));
    }
}
