//! The rounds over the blocks of a segment: whether another one follows, and the pause before it.
//!
//! The kernel refuses a block while one of its pages has an additional reference: under I/O, in a list of a CPU, or because
//! another CPU faults it in. Each try of a block in use removes some of its pages from all page tables, and the programs have
//! to map them again. So such blocks wait for the end of a round, and rounds follow only as long as they lift something.

use core::time::Duration;

/// The first pause between two rounds. It doubles, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(640);
/// Longest pause after many tries in vain, which is as long as the tries.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// Divisor of the blocks in use: a round that lifts a smaller share makes no progress.
const LEAST_PROGRESS: u64 = 32;

/// The outcome of one round over the blocks of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// Number of blocks that were lifted.
    pub lifted: u64,
    /// Number of blocks that were in use.
    pub in_use: u64,
    /// Time of the tries of blocks in use.
    pub in_vain: Duration,
    /// No huge page was free for some block.
    pub lacks_pages: bool,
    /// No huge page was free for many blocks in a row, or for any: the rest was not tried.
    pub is_cut: bool,
}

/// All rounds over one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    /// Most rounds in a row that lift next to nothing.
    tries: u32,
    /// Time of all rounds for blocks in use, in all segments.
    time: Duration,
    number: u32,
    pause: Duration,
    /// Number of rounds in a row without progress at blocks in use.
    idle: u32,
    /// Number of rounds in a row that lacked huge pages and lifted nothing.
    without_pages: u32,
}

impl Rounds {
    /// Before the first round: at most `tries` rounds in a row lift next to nothing, and `time` is the time of all rounds for
    /// blocks in use, in all segments.
    pub fn new(tries: u32, time: Duration) -> Self {
        Self { tries: tries.max(1), time, number: 0, pause: FIRST_PAUSE, idle: 0, without_pages: 0 }
    }

    /// Records a round.
    pub fn add(&mut self, round: Round) {
        self.number += 1;
        self.without_pages = if round.is_cut && round.lifted == 0 { self.without_pages + 1 } else { 0 };
        if round.lifted > 0 && round.lifted.saturating_mul(LEAST_PROGRESS) >= round.in_use {
            self.idle = 0;
        } else if round.in_use > 0 {
            self.idle += 1;
        }
    }

    /// True if the segment is left for lack of huge pages.
    pub const fn lack_pages(&self) -> bool {
        self.without_pages >= self.tries
    }

    /// Returns why blocks in use are left, if they are. `spent` is the time of the rounds for such blocks so far.
    pub fn leaves_blocks_in_use(&self, spent: Duration) -> Option<Left> {
        match () {
            () if self.idle >= self.tries => Some(Left::NoProgress),
            // Each segment has a few rounds, whatever others have taken.
            () if spent >= self.time && self.number >= self.tries => Some(Left::TimeIsUp),
            () => None,
        }
    }

    /// Returns the pause before the next round.
    pub fn pause(&mut self, last: Round) -> Duration {
        let pause = self.pause.max(last.in_vain.min(LONGEST_REST));
        let has_found_pages = last.is_cut && last.lifted > 0;
        self.pause = if has_found_pages { FIRST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        pause
    }
}

/// Why blocks in use are not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    NoProgress,
    TimeIsUp,
}

#[cfg(test)]
mod tests {
    use super::*;
    fn after(all: &[Round]) -> Rounds {
        let mut rounds = Rounds::new(3, Duration::from_secs(20));
        all.iter().for_each(|round| rounds.add(*round));
        rounds
    }

    fn round(lifted: u64, in_use: u64) -> Round {
        Round { lifted, in_use, ..Round::default() }
    }

    #[test]
    fn rounds_follow_as_long_as_they_lift_a_part() {
        let left = |all: &[Round]| after(all).leaves_blocks_in_use(Duration::ZERO);
        assert_eq!(left(&[round(3, 96); 100]), None);
        assert_eq!(left(&[round(2, 96); 3]), Some(Left::NoProgress), "less than a 32nd");
        assert_eq!(left(&[round(0, 1), round(0, 1), round(1, 1), round(0, 1), round(0, 1)]), None);
        assert_eq!(left(&[round(1, 1), round(0, 1), round(0, 1), round(0, 1)]), Some(Left::NoProgress));
        assert_eq!(left(&[round(0, 0); 100]), None, "no block was in use");
    }

    #[test]
    fn rounds_end_with_the_time_but_each_segment_has_a_few() {
        let left =
            |number, seconds| after(&vec![round(5, 10); number]).leaves_blocks_in_use(Duration::from_secs(seconds));
        assert_eq!([left(100, 19), left(2, 20), left(3, 20)], [None, None, Some(Left::TimeIsUp)]);
    }

    #[test]
    fn pauses_grow_and_are_as_long_as_tries_in_vain() {
        let mut rounds = after(&[]);
        let pauses: Vec<_> = (0..7).map(|_| rounds.pause(round(1, 1)).as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 640]);
        let in_vain = |seconds| Round { in_vain: Duration::from_secs(seconds), ..round(1, 1) };
        assert_eq!([rounds.pause(in_vain(2)).as_secs(), rounds.pause(in_vain(60)).as_secs()], [2, 5]);
        // A huge page may come free soon.
        rounds.pause(Round { is_cut: true, ..round(1, 0) });
        assert_eq!(rounds.pause(round(0, 0)), FIRST_PAUSE);
    }
}
