//! The sample of one burst, or of one start-up.

use serde::{Deserialize, Serialize};

/// One measured burst. All are kept, warm-ups too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Which set of processes this was: variants are started afresh several times in a run.
    pub generation: u32,
    /// Number of the round since the start of the run, from 0, counted per workload.
    pub round: u32,
    /// Place in the round, from 0.
    pub position: u32,
    /// Number of the variant in the list of variants.
    #[serde(rename = "contestant")]
    pub variant: usize,
    /// Number of the workload in the list of workloads.
    pub workload: usize,
    /// Time by the wall clock, in nanoseconds.
    pub wall_nanoseconds: u64,
    /// Time that the kernel charged to the process, in nanoseconds; the difference to `wall_nanoseconds` was spent
    /// waiting, for example for another program. Absent if it was not read.
    pub cpu_nanoseconds: Option<u64>,
    /// The result of the work, as hexadecimal text in JSON, whose numbers lose precision above 2^53. Equal for all
    /// variants of a round; absent for whole-process runs.
    #[serde(with = "hexadecimal")]
    pub checksum: Option<u64>,
    /// Taken to warm up; not used in statistics.
    pub warm_up: bool,
}

/// Which clock a statistic uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The wall clock.
    Wall,
    /// CPU time of the process, without the time of other programs on the same CPU.
    Cpu,
}

impl Sample {
    /// The sample's time by `clock`, in nanoseconds; `None` if that clock was not read.
    pub fn nanoseconds(&self, clock: Clock) -> Option<u64> {
        match clock {
            Clock::Wall => Some(self.wall_nanoseconds),
            Clock::Cpu => self.cpu_nanoseconds,
        }
    }
}

/// Above this share of waiting, CPU time describes the variants better than the wall clock.
const NOTABLE_WAITING: f64 = 0.02;

/// The share of the bursts' wall time in which their processes did not run, for example because others had the CPU.
/// `None` if the CPU clock was not read for every burst that counts.
pub fn waiting_share(samples: &[Sample]) -> Option<f64> {
    let (mut wall, mut cpu) = (0u128, 0u128);
    for sample in samples.iter().filter(|sample| !sample.warm_up) {
        wall += u128::from(sample.wall_nanoseconds);
        cpu += u128::from(sample.cpu_nanoseconds?);
    }
    (wall > 0).then(|| (wall.saturating_sub(cpu)) as f64 / wall as f64)
}

/// The clock for comparisons: the wall clock, which users observe, unless the bursts waited notably for others and
/// their CPU time is known.
pub fn fitting_clock(samples: &[Sample]) -> Clock {
    match waiting_share(samples) {
        Some(share) if share > NOTABLE_WAITING => Clock::Cpu,
        _ => Clock::Wall,
    }
}

mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(&format_args!("{value:x}")),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        let parse = |text: String| u64::from_str_radix(&text, 16).map_err(de::Error::custom);
        Option::<String>::deserialize(deserializer)?.map(parse).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(wall: u64, cpu: Option<u64>, warm_up: bool) -> Sample {
        Sample {
            generation: 0,
            round: 0,
            position: 0,
            variant: 0,
            workload: 0,
            wall_nanoseconds: wall,
            cpu_nanoseconds: cpu,
            checksum: None,
            warm_up,
        }
    }

    #[test]
    fn the_cpu_clock_is_taken_only_where_bursts_waited_and_it_is_known() {
        let waited = [sample(100, Some(99), false), sample(100, Some(50), false)];
        assert!(waiting_share(&waited).is_some_and(|share| (share - 0.255).abs() < 1e-9));
        assert_eq!(fitting_clock(&waited), Clock::Cpu);
        assert_eq!(fitting_clock(&[sample(100, Some(99), false), sample(900, Some(1), true)]), Clock::Wall);
        assert_eq!(fitting_clock(&[sample(100, Some(50), false), sample(100, None, false)]), Clock::Wall);
        assert_eq!(fitting_clock(&[]), Clock::Wall);
        assert_eq!((waiting_share(&[]), waiting_share(&[sample(9, Some(1), true)])), (None, None));
        assert_eq!(fitting_clock(&[sample(100, Some(98), false)]), Clock::Wall, "no more than is usual");
    }

    #[test]
    fn a_sample_survives_its_text() {
        for checksum in [Some(0xfedc_ba98_7654_3210), Some(0), None] {
            let sample = Sample { checksum, ..sample(100, Some(99), false) };
            let text = serde_json::to_string(&sample).unwrap();
            assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), sample, "{text}");
        }
    }
}
