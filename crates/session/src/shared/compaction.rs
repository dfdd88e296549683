//! Compaction of the machine's memory, for a lift that finds no free huge page.

use shared_memory::rest_after;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Compacts the memory of all nodes (`Documentation/admin-guide/sysctl/vm.rst`). Only root may write to it.
const COMPACT: &str = "/proc/sys/vm/compact_memory";
/// Longest wait for a compaction. On a large machine it continues beside the lift.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The compactions of this process, whose effect is on the whole machine.
static COMPACTIONS: Compactions = Compactions { times: Mutex::new(Times { runs: false, not_before: None }) };

/// Compactions that take 2 % of a CPU at most.
struct Compactions {
    times: Mutex<Times>,
}

struct Times {
    /// One runs.
    runs: bool,
    /// No other one begins before this time.
    not_before: Option<Instant>,
}

/// Compacts memory, unless the last compaction was too recent. True if free pages may have become adjacent.
pub(super) fn compact() -> bool {
    COMPACTIONS.compact(COMPACT.into())
}

impl Compactions {
    fn compact(&'static self, path: PathBuf) -> bool {
        if !self.begin() {
            return false;
        }
        let (ended, end) = channel();
        let work = move || {
            let begin = Instant::now();
            let compacted = fs::write(path, "1").is_ok();
            self.end(begin.elapsed());
            let _ = ended.send(compacted);
        };
        // Nothing waits for the thread: it ends with the process.
        if Builder::new().spawn(work).is_err() {
            self.end(Duration::ZERO);
            return false;
        }
        match end.recv_timeout(LONGEST_WAIT) {
            Ok(compacted) => compacted,
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> bool {
        let mut times = self.times();
        let may = !times.runs && times.not_before.is_none_or(|time| Instant::now() >= time);
        times.runs |= may;
        may
    }

    fn end(&self, took: Duration) {
        let not_before = Instant::now().checked_add(rest_after(took));
        *self.times() = Times { runs: false, not_before };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn compactions() -> &'static Compactions {
        Box::leak(Box::new(Compactions { times: Mutex::new(Times { runs: false, not_before: None }) }))
    }

    #[test]
    fn a_compaction_is_followed_by_a_rest() {
        let file = std::env::temp_dir().join(format!("pagelift-compact-{}", std::process::id()));
        let compactions = compactions();
        let begin = Instant::now();
        assert!(compactions.compact(file.clone()));
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
        fs::remove_file(&file).unwrap();
        assert!(compactions.times().not_before.is_some_and(|time| time > begin));
        compactions.end(Duration::from_secs(3600));
        assert!(!compactions.compact(file.clone()) && !file.exists());
    }

    #[test]
    fn no_compaction_begins_while_one_runs() {
        let compactions = compactions();
        assert!(compactions.begin() && !compactions.begin());
        compactions.end(Duration::ZERO);
        assert!(!compactions.times().runs);
    }

    #[test]
    fn a_user_who_may_not_compact_learns_it() {
        assert!(!compactions().compact(Path::new("/proc/self/no-such-file").into()));
    }
}
