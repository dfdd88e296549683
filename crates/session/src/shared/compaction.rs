//! Compaction of the machine's memory, for a lift that finds no free huge page.

use shared_memory::rest_after;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::spawn;
use std::time::{Duration, Instant};

/// Compacts the memory of all nodes (`Documentation/admin-guide/sysctl/vm.rst`). Only root may write to it.
const COMPACT: &str = "/proc/sys/vm/compact_memory";
/// Longest wait for a compaction. On a large machine it continues beside the lift.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The times of compactions: they take 2 % of a CPU at most.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    /// No compaction begins before this time.
    not_before: Option<Instant>,
}

impl Compaction {
    /// Compacts memory, unless the last compaction was too recent. True if free pages may have become adjacent.
    pub fn compact(&mut self) -> bool {
        self.compact_by(Path::new(COMPACT))
    }

    fn compact_by(&mut self, path: &Path) -> bool {
        let begin = Instant::now();
        if self.not_before.is_some_and(|time| begin < time) {
            return false;
        }
        let ((ended, end), path) = (channel(), path.to_owned());
        // Nothing waits for this thread: it ends with the process.
        spawn(move || ended.send(fs::write(path, "1").is_ok()));
        let compacted = match end.recv_timeout(LONGEST_WAIT) {
            Ok(compacted) => compacted,
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        };
        self.not_before = Instant::now().checked_add(rest_after(begin.elapsed()));
        compacted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compaction_is_followed_by_a_rest() {
        let file = std::env::temp_dir().join(format!("pagelift-compact-{}", std::process::id()));
        let mut compaction = Compaction::default();
        assert!(compaction.compact_by(&file));
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
        fs::remove_file(&file).unwrap();
        compaction.not_before = Some(Instant::now() + Duration::from_secs(3600));
        assert!(!compaction.compact_by(&file) && !file.exists());
        let of_another = Path::new("/proc/self/no-such-file");
        assert!(!Compaction::default().compact_by(of_another), "this user may not");
    }
}
