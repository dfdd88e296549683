//! When the helper looks for programs that are about to be entered.
//!
//! A program announces its entry by a word in its memory, which nobody reports. Most programs come to their entry within a
//! millisecond: until then the helper looks without sleeping, where there is another CPU. Then it sleeps for a small part
//! of the time that has passed, so that a program which takes long waits for a small part of that at its entry.

use crate::remote::wait::sleep_until_report;
use linux::cpus;
use nix::sched::sched_yield;
use nix::sys::prctl::set_timerslack;
use nix::sys::signal::{SigHandler, Signal, signal};
use std::time::{Duration, Instant};

/// Number of looks without a sleep, each of about 0.5 µs.
const LOOKS: u32 = 1500;
/// One look in so many reads the programs' memory; each looks for reports.
const READS_ONE_IN: u32 = 4;
/// The part of the time which has passed that a sleep takes.
const PART: u32 = 64;
/// Limits of a sleep.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(10);
/// A program may have waited in vain for a helper that has not looked for so long: `guest::ROUNDS` take longer.
const LONG: Duration = Duration::from_millis(50);

/// Makes reports of traced threads end the sleeps of this thread, and the kernel end them in time.
pub fn expect_reports() {
    // SAFETY:
    // - no handler is installed. The helper has its own dispositions (`launch`), and may have inherited SIG_IGN.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    // The kernel delays the end by 50 µs otherwise. Where that fails, sleeps are longer.
    let _ = set_timerslack(1);
}

/// The times of looks for programs on their way to their entries.
pub struct Pace {
    /// Looks that are left before the helper sleeps.
    left: u32,
    /// When the last program has set out.
    since: Instant,
    looked: Instant,
}

/// What a look is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Reports of traced threads only.
    Reports,
    /// Announcements, too.
    Announcements,
    /// Programs that may have been entered, too.
    Late,
}

impl Pace {
    /// The pace for a program that sets out now. A helper that `follows` descendants lives long and never looks without a
    /// sleep.
    pub fn new(follows: bool) -> Self {
        let spins = !follows && cpus::several_are_allowed();
        let now = Instant::now();
        Self { left: if spins { LOOKS } else { 0 }, since: now, looked: now }
    }

    /// True as long as the helper looks without a sleep.
    pub fn is_fast(&self) -> bool {
        self.left > 0
    }

    /// Returns what the next look is for.
    pub fn look(&mut self) -> Look {
        if self.left > 0 {
            return if self.left.is_multiple_of(READS_ONE_IN) { Look::Announcements } else { Look::Reports };
        }
        let before = std::mem::replace(&mut self.looked, Instant::now());
        if self.looked - before > LONG { Look::Late } else { Look::Announcements }
    }

    /// Waits for the next look: a report ends a sleep.
    pub fn pause(&mut self) {
        if self.left > 0 {
            self.left -= 1;
            let _ = sched_yield();
        } else {
            sleep_until_report((self.since.elapsed() / PART).clamp(SHORTEST, LONGEST));
        }
    }
}
