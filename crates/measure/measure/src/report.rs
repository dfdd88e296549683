//! The report of measurements: versioned JSON with every sample, so that any other statistic can be computed.

use crate::comparison::{Comparison, compare};
use crate::machine::MachineFacts;
use crate::sample::{Clock, Sample, fitting_clock, waiting_share};
use crate::statistics::{quantile, sorted};
use serde::{Deserialize, Serialize};

/// Version of the report's form. A reader must refuse a greater one.
pub const REPORT_VERSION: u32 = 1;

/// Measurements taken on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkReport {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// The machine, as it was just before.
    pub machine: MachineFacts,
    /// Warnings about possible disturbances of the measurement.
    pub warnings: Vec<String>,
    /// The measurements.
    pub series: Vec<Series>,
    /// The omitted parts, with their reasons.
    pub skipped: Vec<Skipped>,
}

/// One set of variants that ran interleaved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The name of the measurement.
    pub name: String,
    /// Seed of the schedule and of the work.
    pub seed: u64,
    /// The participants.
    #[serde(rename = "contestants")]
    pub variants: Vec<VariantFacts>,
    /// The workloads.
    pub workloads: Vec<WorkloadFacts>,
    /// The CPU on which all ran; absent if they were free.
    pub cpu: Option<usize>,
    /// The statistical method, in words.
    pub method: String,
    /// The clock by which variants are compared: the wall clock, unless other programs made bursts wait.
    pub clock: Clock,
    /// The share of the bursts' time in which their processes did not run; absent if it was not read.
    pub waiting_share: Option<f64>,
    /// The comparisons.
    pub comparisons: Vec<Comparison>,
    /// Every sample in the order taken.
    pub samples: Vec<Sample>,
}

/// A variant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantFacts {
    /// Name.
    pub name: String,
    /// Command by which it was started, in words a shell understands.
    pub command: String,
    /// Bytes on huge pages, as read from the kernel while it ran; absent if not read.
    pub huge_bytes: Option<u64>,
    /// The bytes on huge pages by the source of the pages, in words; empty if there are none.
    pub huge_sources: String,
    /// Other facts.
    pub notes: Vec<String>,
    /// Memory of whole runs; absent if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryFacts>,
}

/// The memory of a run, anonymous and from the pool, of all its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFacts {
    /// The most at one time.
    pub peak_bytes: u64,
    /// The most on huge pages at one time.
    pub huge_bytes: u64,
    /// Resident ten seconds after the end of the work; absent if the program did not end by `exit`.
    pub idle_bytes: Option<u64>,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadFacts {
    /// Name.
    pub name: String,
    /// Steps of a burst; 1 for whole-process runs.
    pub steps: u64,
}

/// Something that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The name.
    pub name: String,
    /// The reason, and the fix.
    pub reason: String,
}

impl BenchmarkReport {
    /// A report without measurements yet; takes its warnings from the machine.
    pub fn new(machine: MachineFacts) -> Self {
        let warnings = machine.warnings();
        Self { version: REPORT_VERSION, machine, warnings, series: Vec::new(), skipped: Vec::new() }
    }

    /// Records an omitted part.
    pub fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.skipped.push(Skipped { name: name.into(), reason: reason.into() });
    }
}

impl Series {
    /// Returns a series with comparisons of every other variant with the first, on each workload.
    pub fn new(
        name: impl Into<String>,
        seed: u64,
        variants: Vec<VariantFacts>,
        workloads: Vec<WorkloadFacts>,
        cpu: Option<usize>,
        samples: Vec<Sample>,
    ) -> Self {
        let clock = fitting_clock(&samples);
        let mut comparisons = Vec::new();
        for workload in 0..workloads.len() {
            for variant in 1..variants.len() {
                comparisons.extend(compare(&samples, workload, 0, variant, clock, seed));
            }
        }
        let (method, waiting_share) = (method_in_words(&samples), waiting_share(&samples));
        let name = name.into();
        Self { name, seed, variants, workloads, cpu, method, clock, waiting_share, comparisons, samples }
    }

    /// Compares any two variants, by number, on a workload, by the series' clock.
    pub fn compare(&self, workload: usize, baseline: usize, variant: usize) -> Option<Comparison> {
        compare(&self.samples, workload, baseline, variant, self.clock, self.seed)
    }

    /// The fifth percentile of a variant's bursts, in nanoseconds. Disturbances on a machine only add time, so this
    /// shows the speed of a variant even if medians at different times differ by half; it is no paired measurement, and
    /// has no interval.
    pub fn fast(&self, workload: usize, variant: usize) -> Option<f64> {
        let own = self.samples.iter().filter(|s| !s.warm_up && (s.workload, s.variant) == (workload, variant));
        let times: Vec<f64> = own.filter_map(|s| s.nanoseconds(self.clock)).map(|n| n as f64).collect();
        (!times.is_empty()).then(|| quantile(&sorted(&times), 0.05))
    }

    /// Which clock was used and why, for people.
    pub fn clock_in_words(&self) -> String {
        match (self.clock, self.waiting_share) {
            (Clock::Wall, _) => "by the wall clock".to_owned(),
            (Clock::Cpu, share) => {
                format!(
                    "by CPU time, since other programs made bursts wait {:.0} % of it",
                    share.unwrap_or(0.0) * 100.0
                )
            }
        }
    }
}

/// The use of the samples in words, for readers of the report.
fn method_in_words(samples: &[Sample]) -> String {
    let warm_ups = samples.iter().filter(|s| s.warm_up).count();
    let generations = samples.iter().map(|s| s.generation + 1).max().unwrap_or(0);
    format!(
        "interleaved rounds in mirrored twos (ABBA or BAAB by lot); {} bursts used, {warm_ups} warm-up bursts dropped; \
         processes started afresh {generations} time(s); 20 % trimmed mean of the blocks' log ratios; 95 % interval: \
         Student's t over generations where there are {} or more, else a circular block bootstrap",
        samples.len() - warm_ups,
        crate::statistics::GENERATIONS_FOR_T,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_json() {
        let sample = |round: u32, position: u32| Sample {
            generation: 0,
            round,
            position,
            variant: if round.is_multiple_of(2) { position as usize } else { 1 - position as usize },
            workload: 0,
            wall_nanoseconds: 1_000_003 + u64::from(round),
            cpu_nanoseconds: Some(999_999),
            checksum: Some(u64::MAX),
            warm_up: round < 2,
        };
        let samples: Vec<Sample> = (0..40).flat_map(|round| [sample(round, 0), sample(round, 1)]).collect();
        let variant = |name: &str| VariantFacts { name: name.into(), ..Default::default() };
        let workloads = vec![WorkloadFacts { name: "code".into(), steps: 9 }];
        let variants = vec![variant("plain"), variant("lifted")];
        let mut report = BenchmarkReport::new(MachineFacts::default());
        report.series.push(Series::new("code", 7, variants, workloads, Some(1), samples));
        report.skip("tcmalloc", "not installed");
        assert_eq!(report.series[0].comparisons.len(), 1);
        // Warm-up would have been the fastest.
        assert!(report.series[0].fast(0, 1).is_some_and(|n| (1_000_005.0..1_000_008.0).contains(&n)));
        assert_eq!(report.series[0].fast(1, 1), None);
        assert!(report.series[0].method.contains("76 bursts used, 4 warm-up bursts dropped"));
        let text = serde_json::to_string(&report).unwrap();
        // The reader may lose the last bit of a fraction; the samples are whole numbers and must come back as they were.
        let back: BenchmarkReport = serde_json::from_str(&text).unwrap();
        assert!(back.series[0].samples == report.series[0].samples, "samples differ");
        assert_eq!(back.series[0].variants, report.series[0].variants);
        assert_eq!((back.version, &back.skipped), (REPORT_VERSION, &report.skipped));
        let ratio = |report: &BenchmarkReport| report.series[0].comparisons[0].ratio.centre;
        assert!((ratio(&back) - ratio(&report)).abs() < 1e-12);
    }
}
