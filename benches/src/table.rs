//! Tables for people.

use comfy_table::{CellAlignment, Table, presets};
use measure::report::{Series, VariantFacts};
use measure::statistics::Estimate;

/// An empty table with these headings; all columns but the first are aligned to the right.
pub(crate) fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(headings.to_vec());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A ratio with its interval: `0.842 [0.839, 0.846]`.
pub(crate) fn with_interval(estimate: &Estimate, factor: f64, digits: usize) -> String {
    let value = |v: f64| format!("{:.digits$}", v * factor);
    format!("{} [{}, {}]", value(estimate.centre), value(estimate.low), value(estimate.high))
}

/// The main ratio of a series in one line.
pub(crate) fn ratio_line(series: &Series, workload: usize, baseline: usize, variant: usize) -> String {
    match series.compare(workload, baseline, variant) {
        Some(c) => format!(
            "time of `{}` over time of `{}`: {}",
            series.variants[variant].name,
            series.variants[baseline].name,
            with_interval(&c.ratio, 1.0, 4)
        ),
        None => "too few rounds for a ratio: give more --seconds".to_owned(),
    }
}

/// Prints a series of bursts: each variant beside the first. `null` is the number of the variant that repeats the first
/// one.
pub(crate) fn print_bursts(series: &Series, null: Option<usize>) {
    for (workload, facts) in series.workloads.iter().enumerate() {
        let compare = |variant| series.compare(workload, 0, variant);
        let null = null.and_then(compare);
        let headings = ["", "on huge pages", "ns a step", "time beside the first [95 %]", "", "fastest 5 %"];
        let mut table = table(&headings);
        let first_fast = series.fast(workload, 0);
        for (number, variant) in series.variants.iter().enumerate() {
            let comparison = if number == 0 { None } else { compare(number) };
            let median = match &comparison {
                Some(c) => Some(c.variant_nanoseconds),
                None => compare(1).map(|c| c.baseline_nanoseconds),
            };
            table.add_row([
                variant.name.clone(),
                huge_pages(variant),
                median.map_or_else(|| "-".to_owned(), |n| format!("{:.2}", n / facts.steps as f64)),
                comparison.as_ref().map_or_else(String::new, |c| with_interval(&c.ratio, 1.0, 3)),
                comparison.as_ref().map_or_else(String::new, |c| c.in_words(null.as_ref())),
                fast(series.fast(workload, number), first_fast, facts.steps),
            ]);
        }
        let rounds = compare(1).map_or(0, |c| c.rounds);
        println!(
            "{}: {rounds} rounds of bursts of {} steps, {}\n{table}",
            facts.name,
            facts.steps,
            series.clock_in_words()
        );
    }
    for variant in series.variants.iter().filter(|c| !c.notes.is_empty()) {
        println!("{}: {}", variant.name, variant.notes.join("; "));
    }
}

/// Time for a step in a variant's fastest bursts, and its ratio to the first variant's.
fn fast(own: Option<f64>, first: Option<f64>, steps: u64) -> String {
    let (Some(own), Some(first)) = (own, first) else { return String::new() };
    format!("{:.2} ns, {:.3}", own / steps as f64, own / first)
}

fn huge_pages(variant: &VariantFacts) -> String {
    match variant.huge_bytes {
        None => "not read".to_owned(),
        Some(0) => "-".to_owned(),
        Some(_) => variant.huge_sources.clone(),
    }
}

/// Prints a series of timed variants: times in milliseconds and the difference to the first.
pub(crate) fn print_times(series: &Series) {
    let mut table = table(&["", "median ms", "over the first, ms [95 %]", "times the first [95 %]"]);
    for (number, variant) in series.variants.iter().enumerate() {
        let comparison = if number == 0 { None } else { series.compare(0, 0, number) };
        let median = match &comparison {
            Some(c) => Some(c.variant_nanoseconds),
            None => series.compare(0, 0, 1).map(|c| c.baseline_nanoseconds),
        };
        table.add_row([
            variant.name.clone(),
            median.map_or_else(|| "-".to_owned(), |n| format!("{:.3}", n / 1e6)),
            comparison.as_ref().map_or_else(String::new, |c| with_interval(&c.difference, 1e-6, 3)),
            comparison.as_ref().map_or_else(String::new, |c| with_interval(&c.ratio, 1.0, 3)),
        ]);
    }
    let rounds = series.compare(0, 0, 1).map_or(0, |c| c.rounds);
    println!("{rounds} interleaved rounds\n{table}");
}
