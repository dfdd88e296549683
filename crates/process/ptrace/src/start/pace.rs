//! Times at which the helper checks for programs that are about to be entered.
//!
//! A program announces its entry by a word in its memory, which nobody reports. Most programs reach their entry within a
//! millisecond: until then the helper polls without sleeping, if there is another CPU which nobody else wants. Then it sleeps
//! for a small part of the elapsed time, so that a slow program waits at its entry for a small part of the time that it took.
//!
//! A program that waits at its entry uses its CPU up. The helper must not wait for that CPU when its sleep ends: it asks for
//! shorter slices of time than the program has, and for a higher priority, if it may have one.

use crate::remote::wait::sleep_until_report;
use linux::cpus;
use linux::urgency::{self, Urgency};
use nix::sched::sched_yield;
use nix::sys::prctl::set_timerslack;
use nix::sys::signal::{SigHandler, Signal, signal};
use std::time::{Duration, Instant};

/// Number of looks without a sleep, each of about 0.5 µs.
const LOOKS: u32 = 1500;
/// A yield that takes longer has let another thread run: looks without a sleep would keep it from the CPU.
const ANOTHER_RAN: Duration = Duration::from_micros(50);
/// One look in this many reads the programs' memory; each look polls for reports.
const READS_ONE_IN: u32 = 4;
/// The part of the time which has passed that a sleep takes.
const PART: u32 = 64;
/// Limits of a sleep.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(10);

/// Makes reports of traced threads end the sleeps of this thread, and the kernel end them in time and run it at once.
pub fn expect_reports() {
    // SAFETY:
    // - no handler is installed. The helper has its own dispositions (`launch`), and may have inherited SIG_IGN.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    // The kernel delays the end by 50 µs otherwise. Where that fails, sleeps are longer.
    let _ = set_timerslack(1);
    urgency::take_short_slices();
}

/// Times of the polls for programs that are on their way to their entries.
pub struct Pace {
    /// Looks that are left before the helper sleeps.
    left: u32,
    /// When the last program has set out.
    since: Instant,
    /// Held while the helper sleeps between looks.
    urgency: Option<Urgency>,
}

/// Purpose of a look.
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
        Self { left: if spins { LOOKS } else { 0 }, since: Instant::now(), urgency: None }
    }

    /// True as long as the helper looks without a sleep.
    pub fn is_fast(&self) -> bool {
        self.left > 0
    }

    /// Returns what the next look is for.
    pub fn look(&self) -> Look {
        match self.left {
            // How long a program waits depends on its CPU: a few ms where `pause` takes 3 cycles.
            0 => Look::Late,
            left if left.is_multiple_of(READS_ONE_IN) => Look::Announcements,
            _ => Look::Reports,
        }
    }

    /// Waits for the next look: a report ends a sleep.
    pub fn pause(&mut self) {
        if self.left > 0 {
            self.left -= 1;
            let before = Instant::now();
            let _ = sched_yield();
            if before.elapsed() > ANOTHER_RAN {
                self.left = 0;
            }
        } else {
            self.urgency.get_or_insert_with(Urgency::raise_above_equals);
            sleep_until_report((self.since.elapsed() / PART).clamp(SHORTEST, LONGEST));
        }
    }

    /// Ends the urgency of the looks.
    pub fn rest(&mut self) {
        self.urgency = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    /// Has this thread run on one CPU only, the first that it may use.
    fn on_one_cpu() {
        let (this, mut one) = (Pid::from_raw(0), CpuSet::new());
        let allowed = sched_getaffinity(this).unwrap();
        let first = (0..CpuSet::count()).find(|&cpu| allowed.is_set(cpu).unwrap_or(false)).unwrap();
        one.set(first).unwrap();
        sched_setaffinity(this, &one).unwrap();
    }

    #[test]
    fn looks_without_a_sleep_end_once_another_thread_wants_the_cpu() {
        let is_over = AtomicBool::new(false);
        let looks = thread::scope(|scope| {
            let compute = || {
                on_one_cpu();
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            scope.spawn(compute);
            let look = || {
                on_one_cpu();
                let mut pace = Pace { left: u32::MAX, since: Instant::now(), urgency: None };
                while pace.is_fast() {
                    pace.pause();
                }
                is_over.store(true, Ordering::Relaxed);
            };
            scope.spawn(look).join()
        });
        assert!(looks.is_ok());
    }
}
