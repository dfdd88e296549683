//! The counts of the PMU, and the samples on AMD CPUs.

use super::report::{CountedWalks, Outcome};
use confinement::{Reads, confine};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use translation::walk_counters::{Counting, NoCounters, Sampling, Target, Walks};

/// Interval between reads of samples from their rings.
const DRAIN: Duration = Duration::from_millis(20);

/// Counters, and samples beside them.
pub struct Counters {
    counting: Result<Vec<Counting>, NoCounters>,
    samples: Option<Samples>,
}

impl Counters {
    /// Starts counting. [`Target::Children`]: in the thread that starts them.
    pub fn start(target: Target) -> Self {
        let counting = Counting::start(target);
        let wanted = counting.as_ref().is_ok_and(|cores| cores.iter().any(|core| !core.counts_cycles_of_walks()));
        Self { counting, samples: wanted.then(|| Sampling::start(target)).flatten().map(Samples::take) }
    }

    /// The counts.
    pub fn finish(self) -> Outcome<Vec<CountedWalks>> {
        let mut counting = match self.counting {
            Ok(counting) => counting,
            Err(error) => return Outcome::NotMeasured(error.to_string()),
        };
        let counts: Vec<_> = counting.iter_mut().map(Counting::read).collect();
        let sampling = self.samples.and_then(Samples::finish);
        let walks = counts.into_iter().map(|counts| CountedWalks {
            walks: Walks::of(&counts),
            sampled: sampling.as_ref().map(|sampling| sampling.with(&counts)),
            counts,
        });
        Outcome::Measured(walks.collect())
    }
}

/// A thread that takes samples. It has rights to read only: the rings are mapped before.
struct Samples {
    told_to_end: Sender<()>,
    thread: JoinHandle<Sampling>,
}

impl Samples {
    fn take(mut sampling: Sampling) -> Self {
        let (told_to_end, end) = channel();
        let thread = thread::spawn(move || {
            // The main thread reports why rights were kept.
            let _ = confine(Reads::Processes);
            while end.recv_timeout(DRAIN) == Err(RecvTimeoutError::Timeout) {
                sampling.drain();
            }
            sampling.drain();
            sampling
        });
        Self { told_to_end, thread }
    }

    fn finish(self) -> Option<Sampling> {
        drop(self.told_to_end);
        self.thread.join().ok()
    }
}
