//! Publishes metrics after each scan: by an HTTP server, and in a file for node_exporter.

use super::action::Action;
use super::known::identity_of_store;
use crate::metrics::server::{Published, Server};
use crate::metrics::text::open_metrics;
use crate::metrics::{Names, ProgramGain, Snapshot, textfile};
use crate::rules::{Listen, Settings};
use crate::verdicts::Store;
use linux::FileIdentity;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time in which a supervisor that is busy does not publish: the end of a measurement.
const LONGEST_DUTY: Duration = Duration::from_secs(60);

/// Places of metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsPlaces {
    /// Address of the server.
    pub listen: Option<Listen>,
    /// The file that is replaced.
    pub textfile: Option<PathBuf>,
}

impl MetricsPlaces {
    /// The places of the command line, or of the settings if it has none.
    fn or(&self, settings: &Settings) -> Self {
        let listen = self.listen.clone().or_else(|| settings.metrics.clone());
        Self { listen, textfile: self.textfile.clone().or_else(|| settings.textfile.clone()) }
    }
}

/// The server and the file of metrics.
#[derive(Debug)]
pub(super) struct Exporter {
    /// Places of the command line, which the settings do not change.
    given: MetricsPlaces,
    places: MetricsPlaces,
    server: Option<Server>,
    published: Published,
    /// Longest time between two scans.
    valid: Duration,
    /// The last write of the file has failed, which is reported once.
    has_failed: bool,
    verdicts: Verdicts,
    names: Names,
}

impl Exporter {
    /// Starts the server.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub(super) fn start(given: &MetricsPlaces, settings: &Settings, verdicts: &Path) -> io::Result<Self> {
        let mut exporter = Self {
            given: given.clone(),
            places: MetricsPlaces::default(),
            server: None,
            published: Published::default(),
            valid: Duration::ZERO,
            has_failed: false,
            verdicts: Verdicts { folder: verdicts.to_owned(), ..Verdicts::default() },
            names: Names::default(),
        };
        exporter.change(settings)?;
        Ok(exporter)
    }

    /// Follows changed settings. A server whose new address cannot be listened on ends all the same.
    ///
    /// # Errors
    /// The new address cannot be listened on.
    pub(super) fn change(&mut self, settings: &Settings) -> io::Result<()> {
        let places = self.given.or(settings);
        let is_other = places.listen != self.places.listen || self.server.is_none();
        self.places = places;
        self.valid = settings.scan.saturating_mul(3).saturating_add(LONGEST_DUTY);
        if is_other {
            self.server = None;
            self.server = self.places.listen.as_ref().map(|listen| started(listen, &self.published)).transpose()?;
        }
        Ok(())
    }

    /// True if anybody reads metrics.
    pub(super) fn is_used(&self) -> bool {
        self.server.is_some() || self.places.textfile.is_some()
    }

    /// Publishes the values of a scan.
    pub(super) fn publish(&mut self, snapshot: &mut Snapshot, report: &mut dyn FnMut(&Action)) {
        self.verdicts.add_to(snapshot);
        self.names.apply(snapshot);
        if self.server.is_some() {
            self.published.publish(open_metrics(snapshot), self.valid);
        }
        let Some(path) = &self.places.textfile else { return };
        match textfile::write(path, snapshot) {
            Ok(()) => self.has_failed = false,
            Err(_) if self.has_failed => {}
            Err(error) => {
                self.has_failed = true;
                let what = format!("the textfile {} was not written: {error}", path.display());
                report(&Action::Failed { what });
            }
        }
    }
}

fn started(listen: &Listen, published: &Published) -> io::Result<Server> {
    Server::start(listen, published.clone()).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another program listens there; fix: end it, or choose another address for the metrics".to_owned()
            }
            _ => error.to_string(),
        };
        io::Error::new(error.kind(), format!("the metrics cannot be served at {listen}: {why}"))
    })
}

/// Verdicts for the metrics, read again when their file has changed.
#[derive(Debug, Default)]
struct Verdicts {
    folder: PathBuf,
    read_at: Option<FileIdentity>,
    store: Store,
}

impl Verdicts {
    fn add_to(&mut self, snapshot: &mut Snapshot) {
        let changed = identity_of_store(&self.folder);
        if changed != self.read_at {
            self.read_at = changed;
            // A file that cannot be read changes no verdict of the agent either.
            self.store = Store::load(&self.folder).unwrap_or_else(|_| std::mem::take(&mut self.store));
        }
        // Verdicts change with time, too: measurements expire.
        let now = snapshot.at as u64;
        for record in self.store.records().iter().filter(|record| record.counts(now)) {
            *snapshot.verdicts.entry(record.standing(now)).or_default() += 1;
            let gain = record.gain(now).map(|gain| ProgramGain { program: record.program.clone(), gain });
            snapshot.gains.extend(gain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Mode;
    use std::fs;
    use std::net::TcpListener;
    use std::os::unix::fs::MetadataExt as _;

    fn snapshot() -> Snapshot {
        Snapshot { at: 1000.0, ..Snapshot::new("0.1.0", Mode::Observe) }
    }

    fn exporter(given: &MetricsPlaces, folder: &Path) -> io::Result<Exporter> {
        Exporter::start(given, &Settings::default(), folder)
    }

    #[test]
    fn a_port_in_use_is_an_error_that_says_so() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap().to_string();
        let given = MetricsPlaces { listen: Some(address.parse().unwrap()), textfile: None };
        let error = exporter(&given, Path::new("/")).unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("another program listens there"), "{error}");
    }

    #[test]
    fn the_settings_may_change_while_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let mut exporter = exporter(&MetricsPlaces::default(), folder.path()).unwrap();
        assert!(!exporter.is_used());
        let socket = folder.path().join("socket");
        let settings = Settings { metrics: Some(Listen::Socket(socket.clone())), ..Settings::default() };
        exporter.change(&settings).unwrap();
        assert!(exporter.is_used() && socket.exists());
        exporter.change(&Settings::default()).unwrap();
        assert!(!exporter.is_used() && !socket.exists());
    }

    #[test]
    fn the_file_is_another_one_after_each_scan() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pagelift.prom");
        let given = MetricsPlaces { listen: None, textfile: Some(path.clone()) };
        let mut exporter = exporter(&given, folder.path()).unwrap();
        exporter.publish(&mut snapshot(), &mut |action| panic!("{action}"));
        let first = fs::File::open(&path).unwrap();
        exporter.publish(&mut snapshot(), &mut |action| panic!("{action}"));
        assert_ne!(first.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
        assert!(fs::read_to_string(&path).unwrap().contains("pagelift_agent_last_update_timestamp_seconds 1000"));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let given = MetricsPlaces { listen: None, textfile: Some(folder.path().join("missing/file")) };
        let mut exporter = exporter(&given, folder.path()).unwrap();
        let mut said = Vec::new();
        for _ in 0..3 {
            exporter.publish(&mut snapshot(), &mut |action| said.push(action.to_string()));
        }
        assert!(said.len() == 1 && said[0].contains("missing/file was not written: No such file"), "{said:?}");
    }
}
