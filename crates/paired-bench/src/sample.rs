//! What one burst, or one start-up, gave.

use serde::{Deserialize, Serialize};

/// One measured burst. All of them are kept, warm-ups too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Which set of processes this was: contestants are started afresh several times in a run.
    pub generation: u32,
    /// Number of the round since the start of the run, from 0, counted per workload.
    pub round: u32,
    /// Place in the round, from 0.
    pub position: u32,
    /// Number of the contestant in the list of contestants.
    pub contestant: usize,
    /// Number of the workload in the list of workloads.
    pub workload: usize,
    /// Time by the wall clock, in nanoseconds.
    pub wall_nanoseconds: u64,
    /// Time that the kernel charged to the process, in nanoseconds; what is above it in `wall_nanoseconds` was spent
    /// waiting, for another program for example. Absent where it was not read.
    pub cpu_nanoseconds: Option<u64>,
    /// The result of the work, as hexadecimal text in JSON, whose numbers lose precision above 2^53. Equal for all contestants of a round. Absent for whole-process runs.
    #[serde(with = "hexadecimal")]
    pub checksum: Option<u64>,
    /// Taken to warm up; in no statistic.
    pub warm_up: bool,
}

/// Which clock a statistic uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The wall clock.
    Wall,
    /// CPU time of the process: what other programs on the same CPU take is not in it.
    Cpu,
}

impl Sample {
    /// The sample's time by `clock`, in nanoseconds; `None` where that clock was not read.
    pub fn nanoseconds(&self, clock: Clock) -> Option<u64> {
        match clock {
            Clock::Wall => Some(self.wall_nanoseconds),
            Clock::Cpu => self.cpu_nanoseconds,
        }
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
