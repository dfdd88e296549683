//! Formats the output of the demo; pure.

use super::{LIFTED, PLAIN, PLAIN_AGAIN};
use crate::text::table::{align_right, table, trimmed};
use address_space::{Address, ObjectRole, PageSize, Protection, format_bytes};
use measure::machine::MachineFacts;
use measure::report::Series;
use measure::statistics::Estimate;
use process_view::coverage::{Coverage, MemoryKind, PartCoverage, Usage};
use std::collections::BTreeSet;

/// The plan of the demo, and the conditions on this machine that may spoil it.
pub(super) fn opening(machine: &MachineFacts, seconds: f64) -> String {
    let mut text = format!(
        "The demo program runs three times side by side: plain, plain again, lifted.\n\
         They run in turn in bursts of 10 ms for {seconds:.0} s, so that drift affects all equally.\n"
    );
    for warning in machine.warnings() {
        text += &format!("note: {warning}\n");
    }
    text
}

/// The address maps of the plain and of the lifted program, and the output of `pagelift run`.
pub(super) fn maps(plain: &Coverage, lifted: &Coverage, line: &str) -> String {
    format!("\nPlain\n{}\n\nLifted\n{}\n{line}\n", map(plain), map(lifted))
}

fn map(coverage: &Coverage) -> String {
    let executable = coverage.objects.iter().find(|object| object.role == ObjectRole::Executable);
    let mut parts: Vec<&PartCoverage> = executable.map(|object| object.parts.iter().collect()).unwrap_or_default();
    parts.retain(|part| part.protection != Protection::NONE);
    parts.sort_by_key(|part| part.ranges.iter().next().map_or(Address::default(), |range| range.start()));
    let sizes: BTreeSet<_> = coverage.total.huge.iter().map(|huge| huge.page_size).collect();
    let one_size = sizes.first().copied().flatten().filter(|_| sizes.len() == 1);
    let heading = one_size.map_or_else(|| "on huge pages".to_owned(), |size| format!("on {size} pages"));
    let mut rows = table(&["addresses", "prot", "what", "size", &heading]);
    for part in parts {
        let names: Vec<_> = part.parts.iter().map(ToString::to_string).collect();
        let addresses: Vec<_> = part.ranges.iter().map(|range| range.to_string()).collect();
        let huge = huge_bytes(&part.usage, one_size);
        let size = format_bytes(part.usage.mapped);
        rows.add_row([addresses.join("\n"), part.protection.to_string(), names.join("+"), size, huge]);
    }
    for heap in coverage.memory.iter().filter(|memory| memory.kind == MemoryKind::Heap) {
        let (size, huge) = (format_bytes(heap.usage.mapped), huge_bytes(&heap.usage, one_size));
        rows.add_row(["[heap]", "rw-", "heap", &size, &huge]);
    }
    align_right(&mut rows, 3);
    trimmed(&rows)
}

/// A line for each kind of page; the page's size is omitted if the heading contains it.
fn huge_bytes(usage: &Usage, in_heading: Option<PageSize>) -> String {
    let lines = usage.huge.iter().map(|huge| match huge.page_size.filter(|_| in_heading.is_none()) {
        Some(size) => format!("{} {} {size}", format_bytes(huge.bytes), huge.kind),
        None => format!("{} {}", format_bytes(huge.bytes), huge.kind),
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    if lines.is_empty() { "-".to_owned() } else { lines }
}

/// The ratios with their intervals, and how they were found.
pub(super) fn results(series: &Series, generations: u32) -> String {
    let mut rows = table(&["", "plain ns", "lifted ns", "lifted/plain [95 %]", ""]);
    let mut nulls = Vec::new();
    let mut rounds = 0;
    for (workload, facts) in series.workloads.iter().enumerate() {
        let null = series.compare(workload, PLAIN, PLAIN_AGAIN);
        let Some(lifted) = series.compare(workload, PLAIN, LIFTED) else {
            return "\nToo few rounds for a ratio; give more --seconds.\n".to_owned();
        };
        rounds = rounds.max(lifted.rounds);
        let a_step = |nanoseconds: f64| format!("{:.2}", nanoseconds / facts.steps as f64);
        rows.add_row([
            facts.name.clone(),
            a_step(lifted.baseline_nanoseconds),
            a_step(lifted.variant_nanoseconds),
            with_interval(&lifted.ratio),
            lifted.in_words(null.as_ref()),
        ]);
        nulls.extend(null.map(|null| format!("{} {}", facts.name, interval(&null.ratio))));
    }
    (1..4).for_each(|column| align_right(&mut rows, column));
    let compared = series.samples.iter().filter(|sample| sample.variant == LIFTED).count();
    format!(
        "\n{}\n{}\nPlain/plain: {}\n\
         The lifted program computed the same as the plain one in all {compared} bursts.\n",
        how(rounds, generations, series),
        trimmed(&rows),
        nulls.join(", ")
    )
}

fn how(rounds: usize, generations: u32, series: &Series) -> String {
    let place = series.cpu.map_or_else(String::new, |cpu| format!(" on CPU {cpu}"));
    let starts = match generations {
        1 => "one start of each: the intervals do not include differences between starts".to_owned(),
        several => format!("{several} starts of each, warm-up rounds dropped"),
    };
    let clock = series.clock_in_words();
    format!("Measured: time of a step in {rounds} interleaved rounds{place},\n{clock},\n{starts}")
}

fn with_interval(estimate: &Estimate) -> String {
    format!("{:.3} {}", estimate.centre, interval(estimate))
}

fn interval(estimate: &Estimate) -> String {
    format!("[{:.3}, {:.3}]", estimate.low, estimate.high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{AddressRange, RangeSet};
    use measure::report::{VariantFacts, WorkloadFacts};
    use measure::sample::Sample;
    use process_view::coverage::{HugeBytes, HugeKind, MemoryCoverage, ObjectCoverage, Part};

    fn usage(mapped: u64, huge: &[(HugeKind, u64)]) -> Usage {
        let page_size = PageSize::new(2 << 20).ok();
        let huge = huge.iter().map(|&(kind, bytes)| HugeBytes { kind, page_size, bytes }).collect();
        Usage { mapped, resident: mapped, huge }
    }

    fn part(start: u64, parts: &[Part], protection: Protection, usage: Usage) -> PartCoverage {
        let mut ranges = RangeSet::new();
        ranges.insert(AddressRange::sized(Address(start), usage.mapped));
        PartCoverage { parts: parts.to_vec(), protection, ranges, usage }
    }

    fn coverage() -> Coverage {
        let data = usage(1008 << 20, &[(HugeKind::Hugetlb, 504 << 20), (HugeKind::Thp, 504 << 20)]);
        let parts = vec![
            part(0x7f5d_94dc_9000, &[Part::Data, Part::Bss], Protection::READ_WRITE, data),
            part(0x7f5d_8000_0000, &[Part::Text], Protection::READ_EXECUTE, usage(20 << 20, &[])),
        ];
        let object = ObjectCoverage {
            name: "pagelift-demo-program".into(),
            path: "/usr/libexec/pagelift/pagelift-demo-program".into(),
            role: ObjectRole::Executable,
            total: Usage::default(),
            parts,
        };
        let heap = MemoryCoverage { kind: MemoryKind::Heap, path: None, usage: usage(132 << 10, &[]) };
        Coverage {
            version: 1,
            pid: 1,
            name: "demo".into(),
            total: usage(1029 << 20, &[(HugeKind::Hugetlb, 504 << 20), (HugeKind::Thp, 504 << 20)]),
            objects: vec![object],
            memory: vec![heap],
            not_understood: Vec::new(),
        }
    }

    fn series(rounds: u32, lifted_nanoseconds: u64) -> Series {
        let sample = |round: u32, variant: usize| Sample {
            generation: 0,
            round,
            position: if round.is_multiple_of(2) { variant as u32 } else { 2 - variant as u32 },
            variant,
            workload: 0,
            wall_nanoseconds: if variant == LIFTED { lifted_nanoseconds } else { 10_000_000 },
            cpu_nanoseconds: None,
            checksum: Some(1),
            warm_up: false,
        };
        let samples = (0..rounds).flat_map(|round| (0..3).map(move |variant| sample(round, variant)));
        let variants = super::super::NAMES.map(|name| VariantFacts { name: name.into(), ..Default::default() });
        let workloads = vec![WorkloadFacts { name: "both".into(), steps: 1000 }];
        Series::new("demo", 1, variants.into(), workloads, Some(127), samples.collect())
    }

    fn assert_narrow(text: &str) {
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
        assert!(widest <= 80, "{widest} columns:\n{text}");
    }

    #[test]
    fn the_map_is_in_order_of_addresses_and_fits_into_80_columns() {
        let text = maps(&coverage(), &coverage(), "pagelift: 504.0 MiB");
        assert_narrow(&text);
        assert!(text.find("r-x").unwrap() < text.find("data+bss").unwrap(), "{text}");
        for kind in ["504.0 MiB hugetlb", "504.0 MiB thp", "[heap]", "on 2 MiB pages"] {
            assert!(text.contains(kind), "{kind} in {text}");
        }
    }

    #[test]
    fn the_results_name_the_winner_and_how_it_was_found() {
        let text = results(&series(20, 8_000_000), 6);
        assert_narrow(&text);
        for part in
            ["25.0 % faster", "0.800 [0.800, 0.800]", "Plain/plain: both [1.000, 1.000]", "20 interleaved", "6 starts"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(results(&series(20, 12_500_000), 1).contains("20.0 % slower"));
        assert!(results(&series(20, 10_000_000), 1).contains("no difference seen"));
        assert!(results(&series(4, 8_000_000), 1).contains("Too few rounds"));
    }
}
