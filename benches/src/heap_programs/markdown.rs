//! The table of docs/guides/large-heaps.md, from one or more reports.

use super::spread;
use super::ways::{BASELINE, CONTROL, OURS, PEERS};
use address_space::format_bytes;
use anyhow::{Context as _, Result};
use clap::Args;
use measure::machine::MachineFacts;
use measure::report::{BenchmarkReport, MemoryFacts, Series};
use measure::sample::Sample;
use std::fmt;
use std::path::PathBuf;

/// Programs with less memory than this are left out of the tables of memory.
const NOTABLE_BYTES: u64 = 50 << 20;
/// Greatest ratios that the goals permit: time beside the best other allocator and beside glibc, memory beside glibc.
const TIME_BESIDE_THE_BEST: f64 = 1.03;
const TIME_BESIDE_GLIBC: f64 = 1.01;
const PEAK: f64 = 1.25;
const IDLE: f64 = 1.5;
/// Two huge pages, which any program may keep.
const IDLE_SLACK: f64 = (4 << 20) as f64;
/// Names of the columns, in the order of [`columns`].
const HEADINGS: [&str; 9] = ["h=1", "h=2", "je", "je, thp", "tc", "mi3", "auto", "thp", "2M"];

/// Writes the tables of reports that `heap-programs --json` wrote. Rounds of a program in several reports are taken
/// together if the ways are the same; otherwise the last report counts.
#[derive(Args)]
pub(crate) struct HeapTable {
    #[arg(required = true)]
    reports: Vec<PathBuf>,
}

impl HeapTable {
    pub(crate) fn run(&self) -> Result<()> {
        let mut machine = MachineFacts::default();
        let mut all: Vec<Series> = Vec::new();
        let mut skipped: Vec<String> = Vec::new();
        for path in &self.reports {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            let report: BenchmarkReport =
                serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))?;
            for series in report.series.into_iter().filter(|series| series.name.starts_with(super::NAME)) {
                match all.iter_mut().find(|older| older.name == series.name) {
                    Some(older) => *older = together(older, series),
                    None => all.push(series),
                }
            }
            let of_heap = report.skipped.into_iter().filter(|skipped| skipped.name.starts_with(super::NAME));
            skipped.extend(of_heap.map(|skipped| format!("skipped: {}: {}", skipped.name, skipped.reason)));
            machine = report.machine;
        }
        skipped.sort();
        skipped.dedup();
        println!("{}\n{}", Table::of(&machine, &all), skipped.join("\n"));
        Ok(())
    }
}

/// The rounds of two series if their ways are the same, and the greater memory; otherwise the later series.
fn together(older: &Series, later: Series) -> Series {
    let names = |series: &Series| series.variants.iter().map(|variant| variant.name.clone()).collect::<Vec<_>>();
    if names(older) != names(&later) {
        return later;
    }
    let mut variants = later.variants;
    for (variant, other) in variants.iter_mut().zip(&older.variants) {
        if let (Some(own), Some(other)) = (&mut variant.memory, other.memory) {
            own.peak_bytes = own.peak_bytes.max(other.peak_bytes);
            own.huge_bytes = own.huge_bytes.max(other.huge_bytes);
            own.idle_bytes = own.idle_bytes.max(other.idle_bytes);
        }
    }
    let rounds = older.samples.iter().map(|sample| sample.round + 1).max().unwrap_or(0);
    let shifted = later.samples.into_iter().map(|sample| Sample { round: sample.round + rounds, ..sample });
    let samples = older.samples.iter().cloned().chain(shifted).collect();
    Series::new(later.name, later.seed, variants, later.workloads, None, samples)
}

/// Tables of time and memory in Markdown, and the goals that are missed.
pub(crate) struct Table<'a> {
    machine: &'a MachineFacts,
    rows: Vec<Row<'a>>,
}

/// The measurements of one program.
struct Row<'a> {
    name: &'a str,
    series: &'a Series,
}

impl<'a> Table<'a> {
    pub(crate) fn of(machine: &'a MachineFacts, series: &'a [Series]) -> Self {
        let rows = series.iter().map(|series| Row { name: series.name.trim_start_matches("heap-programs: "), series });
        Self { machine, rows: rows.filter(|row| row.number(OURS[0]).is_some()).collect() }
    }

    /// A table of memory: a value of glibc in MiB, and of the other ways beside it.
    fn memory(&self, f: &mut fmt::Formatter<'_>, heading: &str, value: Value) -> fmt::Result {
        writeln!(f, "\n| {heading}, MiB | glibc | {} |\n{}", HEADINGS.join(" | "), rule(10))?;
        for row in self.rows.iter().filter(|row| row.is_notable()) {
            let cells = columns().map(|way| row.memory(way).and_then(value).map_or_else(absent, mebibytes));
            let cells: Vec<String> = cells.collect();
            let glibc = row.memory(BASELINE).and_then(value).map_or_else(absent, mebibytes);
            writeln!(f, "| {} | {glibc} | {} |", row.name, cells.join(" | "))?;
        }
        Ok(())
    }
}

type Value = fn(MemoryFacts) -> Option<u64>;

/// The ways with a column, in order.
fn columns() -> impl Iterator<Item = &'static str> {
    PEERS.into_iter().chain(OURS)
}

/// The heading of a way's column.
fn short(way: &'static str) -> &'static str {
    columns().zip(HEADINGS).find_map(|(name, heading)| (name == way).then_some(heading)).unwrap_or(way)
}

fn rule(columns: usize) -> String {
    "|---".to_owned() + &"|--:".repeat(columns) + "|"
}

fn mebibytes(bytes: u64) -> String {
    ((bytes + (1 << 19)) >> 20).to_string()
}

fn absent() -> String {
    "-".to_owned()
}

impl Row<'_> {
    fn number(&self, way: &str) -> Option<usize> {
        self.series.variants.iter().position(|variant| variant.name == way)
    }

    fn memory(&self, way: &str) -> Option<MemoryFacts> {
        self.series.variants[self.number(way)?].memory
    }

    /// True if the program's memory is compared.
    fn is_notable(&self) -> bool {
        self.memory(BASELINE).is_some_and(|memory| memory.peak_bytes >= NOTABLE_BYTES)
    }

    /// CPU seconds of a way, by round.
    fn seconds(&self, way: &str) -> Option<Vec<f64>> {
        let number = self.number(way)?;
        let mut own: Vec<_> = self.series.samples.iter().filter(|sample| sample.variant == number).collect();
        own.sort_by_key(|sample| sample.round);
        own.iter().map(|sample| Some(sample.cpu_nanoseconds? as f64 / 1e9)).collect()
    }

    /// Least, median and greatest ratio of the times of two ways, round by round.
    fn ratio(&self, way: &str, other: &str) -> Option<[f64; 3]> {
        let (own, other) = (self.seconds(way)?, self.seconds(other)?);
        Some(spread(own.iter().zip(&other).map(|(own, other)| own / other.max(1e-9)).collect()))
    }

    /// The fastest way that is not Pagelift's.
    fn best_peer(&self) -> &'static str {
        let median = |way: &str| self.ratio(way, BASELINE).map_or(1.0, |[_, median, _]| median);
        let best = PEERS.into_iter().min_by(|a, b| median(a).total_cmp(&median(b)));
        best.filter(|way| median(way) < 1.0).unwrap_or(BASELINE)
    }

    /// The time of a way beside glibc; marked if the interval and the control's show no difference.
    fn time(&self, way: &str) -> String {
        let Some([low, median, high]) = self.ratio(way, BASELINE) else { return absent() };
        let [control_low, _, control_high] = self.ratio(CONTROL, BASELINE).unwrap_or([1.0; 3]);
        let differs = high < control_low.min(1.0) || low > control_high.max(1.0);
        format!("{}{median:.2}", if differs { "" } else { "~" })
    }

    /// Least, median and greatest time of one of Pagelift's ways beside the best peer, with a decision.
    fn decision(&self, way: &str) -> String {
        let best = self.best_peer();
        let Some([low, median, high]) = self.ratio(way, best) else { return absent() };
        let decision = match median {
            _ if high < 1.0 => "ahead",
            median if median <= TIME_BESIDE_THE_BEST => "level",
            _ if low <= 1.0 => "unclear",
            _ => "behind",
        };
        format!("{median:.2} [{low:.2}, {high:.2}] of {}: {decision}", short(best))
    }

    /// The goals that one of Pagelift's ways misses.
    fn misses(&self, way: &str) -> Vec<String> {
        let mut misses = Vec::new();
        let best = self.best_peer();
        if let Some([low, median, _]) = self.ratio(way, best).filter(|ratio| ratio[1] > TIME_BESIDE_THE_BEST) {
            let unclear = if low <= 1.0 { " (within the spread)" } else { "" };
            misses.push(format!("time {median:.2} of {}{unclear}", short(best)));
        }
        let beside_glibc = self.ratio(way, BASELINE).filter(|ratio| ratio[1] > TIME_BESIDE_GLIBC);
        if let Some([low, median, _]) = beside_glibc.filter(|_| way == OURS[0]) {
            misses.push(format!("time {median:.2} of glibc{}", if low <= 1.0 { " (within the spread)" } else { "" }));
        }
        // A heap on the pool takes the size that the user has named.
        let compared = self.memory(BASELINE).filter(|_| self.is_notable() && way != OURS[2]);
        if let (Some(own), Some(glibc)) = (self.memory(way), compared) {
            let ratio = |own: u64, other: u64| own as f64 / other.max(1) as f64;
            let peak = ratio(own.peak_bytes, glibc.peak_bytes);
            if peak > PEAK {
                misses.push(format!("peak {peak:.2} of glibc"));
            }
            if let (Some(own), Some(glibc)) = (own.idle_bytes, glibc.idle_bytes)
                && own as f64 > IDLE * glibc as f64 + IDLE_SLACK
            {
                misses.push(format!("10 s after the end {} for glibc's {}", format_bytes(own), format_bytes(glibc)));
            }
        }
        misses
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = self.machine;
        let rounds = self.rows.iter().map(|row| row.series.samples.iter().map(|sample| sample.round + 1).max());
        writeln!(
            f,
            "{} CPUs ({}), kernel {}, {} memory, transparent huge pages: {}, {} rounds\n",
            machine.cpus,
            machine.cpu_model.as_deref().unwrap_or(&machine.architecture),
            machine.kernel,
            machine.memory_bytes.map_or_else(|| "unknown".to_owned(), format_bytes),
            machine.thp_enabled.as_deref().unwrap_or("not built in"),
            rounds.flatten().min().unwrap_or(0),
        )?;
        let headings = HEADINGS.join(" | ");
        writeln!(f, "| time | glibc, s | control | {headings} | auto beside the best other |\n{}", rule(12))?;
        for row in &self.rows {
            let glibc = spread(row.seconds(BASELINE).unwrap_or_default())[1];
            let control = row.ratio(CONTROL, BASELINE).unwrap_or([f64::NAN; 3]);
            let times: Vec<String> = columns().map(|way| row.time(way)).collect();
            let (low, high) = (control[0], control[2]);
            let decision = row.decision(OURS[0]);
            let times = times.join(" | ");
            writeln!(f, "| {} | {glibc:.2} | {low:.2}-{high:.2} | {times} | {decision} |", row.name)?;
        }
        self.memory(f, "most", |memory| Some(memory.peak_bytes))?;
        self.memory(f, "after", |memory| memory.idle_bytes)?;
        self.memory(f, "huge", |memory| Some(memory.huge_bytes))?;
        writeln!(f)?;
        for way in OURS {
            for row in &self.rows {
                let misses = row.misses(way);
                if !misses.is_empty() {
                    writeln!(f, "- `{way}`, {}: {}", row.name, misses.join("; "))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::report::{VariantFacts, WorkloadFacts};

    /// A series with these ways: name, milliseconds by round, most memory, memory after the end in MiB.
    fn series(ways: &[(&str, [u64; 4], u64, u64)]) -> Series {
        let facts = ways.iter().map(|(name, _, most, idle)| VariantFacts {
            name: (*name).to_owned(),
            memory: Some(MemoryFacts { peak_bytes: most << 20, huge_bytes: 0, idle_bytes: Some(idle << 20) }),
            ..Default::default()
        });
        let sample = |variant: usize, round: usize, milliseconds: u64| Sample {
            generation: 0,
            round: round as u32,
            position: variant as u32,
            variant,
            workload: 0,
            wall_nanoseconds: milliseconds * 1_000_000,
            cpu_nanoseconds: Some(milliseconds * 1_000_000),
            checksum: None,
            warm_up: false,
        };
        let all = ways.iter().enumerate();
        let samples = all.flat_map(|(way, (_, times, ..))| (0..4).map(move |round| sample(way, round, times[round])));
        let workloads = vec![WorkloadFacts { name: "cfrac".into(), steps: 1 }];
        Series::new("heap-programs: cfrac", 1, facts.collect(), workloads, None, samples.collect())
    }

    fn text(series: Series) -> String {
        Table::of(&MachineFacts::default(), &[series]).to_string()
    }

    #[test]
    fn differences_beyond_the_control_are_plain_and_others_marked() {
        let table = text(series(&[
            (BASELINE, [100; 4], 10, 1),
            (CONTROL, [97, 99, 101, 103], 10, 1),
            ("tcmalloc", [98, 99, 100, 102], 10, 1),
            ("--heap=auto", [80, 82, 82, 84], 10, 1),
        ]));
        let row = "| cfrac | 0.10 | 0.97-1.03 | - | - | - | - | ~0.99 | - | 0.82 | - | - | 0.82 [0.82, 0.83] of \
                   tc: ahead |";
        assert!(table.contains(row), "{table}");
        assert!(!table.contains("- `--heap"), "no goal is missed: {table}");
    }

    #[test]
    fn missed_goals_are_named() {
        let table = text(series(&[
            (BASELINE, [100; 4], 100, 10),
            (CONTROL, [100; 4], 100, 10),
            ("jemalloc", [90, 90, 91, 90], 90, 10),
            ("--heap=auto", [110, 110, 111, 110], 130, 30),
        ]));
        assert!(table.contains("1.22 [1.22, 1.22] of je: behind"), "{table}");
        let missed = "- `--heap=auto`, cfrac: time 1.22 of je; time 1.10 of glibc; peak 1.30 of glibc; 10 s after \
                      the end 30.0 MiB for glibc's 10.0 MiB";
        assert!(table.contains(missed), "{table}");
        assert!(table.contains("| cfrac | 100 | - | - | 90 | - | - | - | 130 | - | - |"), "{table}");
    }

    #[test]
    fn rounds_of_two_reports_are_taken_together() {
        let report = |milliseconds, most| {
            series(&[
                (BASELINE, [100; 4], 60, 1),
                (CONTROL, [100; 4], 60, 1),
                ("--heap=auto", [milliseconds; 4], most, 1),
            ])
        };
        let both = together(&report(90, 70), report(94, 60));
        assert_eq!(both.samples.len(), 24);
        let table = text(both);
        assert!(table.contains("0.92 [0.90, 0.94] of glibc: ahead") && table.contains("8 rounds"), "{table}");
        assert!(table.contains("| - | 70 | - | - |"), "{table}");
        let fewer = series(&[(BASELINE, [100; 4], 60, 1), ("--heap=auto", [95; 4], 60, 1)]);
        assert_eq!(together(&report(90, 70), fewer).samples.len(), 8);
    }

    #[test]
    fn a_small_program_s_memory_is_not_compared() {
        let table =
            text(series(&[(BASELINE, [100; 4], 49, 1), (CONTROL, [100; 4], 49, 1), ("--heap=auto", [100; 4], 90, 80)]));
        assert!(!table.contains("| 49 |") && !table.contains("peak"), "{table}");
        assert!(table.contains("1.00 [1.00, 1.00] of glibc: level"), "{table}");
    }
}
