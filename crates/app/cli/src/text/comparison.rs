//! Formats a measurement plain and lifted, side by side; pure.

use super::number::grouped;
use super::page_sizes::sizes;
use super::sampled::{lines, share};
use super::stat::{missing, notes, of_cost, of_tlb, of_verdict, pages, rate, time, worth_saying};
use super::table::{align_right, table, trimmed};
use crate::commands::lift_switcher::Left;
use crate::commands::stat::report::{Comparison, CountedWalks, Lifted, Marks, Outcome, Report};
use crate::text::table::Table;
use address_space::format_bytes;
use translation::walk_counters::{Estimate, Measured, SideWalks, Walks};
use translation::working_set::PartMarks;

/// Everything, for a terminal.
pub fn text(comparison: &Comparison) -> String {
    let lifted = match &comparison.lifted {
        Outcome::Measured(lifted) => lifted,
        Outcome::NotMeasured(why) => {
            return format!("{}\nNot measured lifted: {why}\n", super::stat::text(&comparison.plain));
        }
    };
    let plain = &comparison.plain;
    let mut text = format!("{}\n", heading(plain, lifted, comparison));
    let mut rows = Rows::new();
    of_activity(&mut rows, plain, &lifted.report, comparison.left.is_none());
    of_coverage(&mut rows, plain, &lifted.report);
    let walks = of_counters(&mut rows, &plain.page_walks, &lifted.report.page_walks);
    of_marks(&mut rows, plain, &lifted.report);
    text += &format!("{}\n\n{walks}", rows.text());
    text += &verdict(plain, &lifted.report);
    text + "One window of each state: windows differ by the program's activity. To measure whether a lift pays, use `pagelift bench`.\n"
}

fn heading(plain: &Report, lifted: &Lifted, comparison: &Comparison) -> String {
    let early = |report: &Report| report.ended_early.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let pid = comparison.left.and(plain.pid).map(|pid| format!("[{pid}]")).unwrap_or_default();
    let lifted_seconds = lifted.report.seconds;
    let mut text = format!(
        "{}{pid}: {:.1} s plain, {lifted_seconds:.1} s lifted{}\n",
        plain.what,
        plain.seconds,
        early(&lifted.report)
    );
    text +=
        &lifted.lift.as_ref().map(|line| format!("{}\n", line.trim_start_matches("pagelift: "))).unwrap_or_default();
    text + match comparison.left {
        Some(Left::Plain) => "It is plain again.\n",
        Some(Left::Lifted) => "It remains lifted; `pagelift detach` restores it.\n",
        Some(Left::Unknown) => "It could not be restored, or has ended.\n",
        None => "",
    }
}

/// Lines of a name, two values and the change between them.
struct Rows(Table);

impl Rows {
    fn new() -> Self {
        Self(table(&["", "plain", "lifted", "change"]))
    }

    fn add(&mut self, name: &str, plain: String, lifted: String, change: Option<f64>) {
        let change = change.map(|change| format!("{:+.0} %", 100.0 * change)).unwrap_or_default();
        self.0.add_row([name.to_owned(), plain, lifted, change]);
    }

    /// A line of two numbers; a change only if one is at least `least`, since smaller ones mean nothing.
    fn number(&mut self, name: &str, (plain, lifted): (f64, f64), least: f64, shown: impl Fn(f64) -> String) {
        let change = (plain > 0.0 && plain.max(lifted) >= least).then(|| lifted / plain - 1.0);
        self.add(name, shown(plain), shown(lifted), change);
    }

    fn text(mut self) -> String {
        (1..4).for_each(|column| align_right(&mut self.0, column));
        trimmed(&self.0)
    }
}

/// Adds the rows of activity: for a command the sums, which are about the same work; for a process that runs on, the
/// rates per second.
fn of_activity(rows: &mut Rows, plain: &Report, lifted: &Report, whole: bool) {
    let seconds = (plain.seconds.max(1e-3), lifted.seconds.max(1e-3));
    if whole {
        rows.number("seconds", (plain.seconds, lifted.seconds), 0.1, |value| format!("{value:.2}"));
    }
    let (Outcome::Measured(before), Outcome::Measured(after)) = (&plain.activity, &lifted.activity) else {
        return;
    };
    let over = if whole { (1.0, 1.0) } else { seconds };
    let of = |plain: f64, lifted: f64| (plain / over.0, lifted / over.1);
    let named = |name: &str| if whole { name.to_owned() } else { format!("{name} a second") };
    let count = |value: f64| grouped(value.round() as u64);
    let cpu = of(before.cpu_seconds(), after.cpu_seconds());
    rows.number(if whole { "CPU seconds" } else { "CPUs busy" }, cpu, 0.1, |value| format!("{value:.2}"));
    let faults = of(before.minor_faults as f64, after.minor_faults as f64);
    rows.number(&named("page faults"), faults, 100.0, count);
    let switches = of(before.voluntary_switches as f64, after.voluntary_switches as f64);
    rows.number(&named("voluntary switches"), switches, 100.0, count);
}

fn of_coverage(rows: &mut Rows, plain: &Report, lifted: &Report) {
    let bytes = |report: &Report, of: fn(&process_view::coverage::Usage) -> u64| match &report.coverage {
        Some(Outcome::Measured(usage)) => format_bytes(of(usage)),
        _ => "?".to_owned(),
    };
    rows.add("resident", bytes(plain, |usage| usage.resident), bytes(lifted, |usage| usage.resident), None);
    rows.add(
        "on huge pages",
        bytes(plain, |usage| usage.huge_bytes()),
        bytes(lifted, |usage| usage.huge_bytes()),
        None,
    );
}

/// The counts of the PMU, on each kind of core. Returns the reason for gaps.
fn of_counters(rows: &mut Rows, plain: &Outcome<Vec<CountedWalks>>, lifted: &Outcome<Vec<CountedWalks>>) -> String {
    let (plain, lifted) = match (plain, lifted) {
        (Outcome::Measured(plain), Outcome::Measured(lifted)) => (plain, lifted),
        (Outcome::NotMeasured(why), _) | (_, Outcome::NotMeasured(why)) => {
            return format!("Page walks: not counted: {why}\n");
        }
    };
    let mut gaps = String::new();
    for (before, after) in plain.iter().zip(lifted) {
        if plain.len() > 1 {
            rows.add(&before.counts.family, String::new(), String::new(), None);
        }
        of_core(rows, &before.walks, &after.walks);
        of_samples(rows, before, after);
        gaps += &missing(before);
        gaps += &before.sampled.as_ref().map(lines).unwrap_or_default();
        // Notes that are the same for both are printed once.
        let (of_plain, of_lifted) = (notes(&before.counts), notes(&after.counts));
        gaps += &of_plain;
        for line in of_lifted.lines().filter(|line| !of_plain.lines().any(|said| said == *line)) {
            gaps += &format!("{line} (lifted)\n");
        }
    }
    gaps
}

fn of_core(rows: &mut Rows, plain: &Walks, lifted: &Walks) {
    let mut row = |name: &str, plain: &Measured, lifted: &Measured, shown: fn(f64) -> String| {
        if let (Some(plain), Some(lifted)) = (plain.value(), lifted.value()) {
            rows.number(name, (plain, lifted), 0.0, shown);
        }
    };
    let percent = |value: f64| format!("{:.2} %", 100.0 * value);
    let number = |value: f64| format!("{value:.3}");
    for (what, plain, lifted) in [("code", &plain.code, &lifted.code), ("data", &plain.data, &lifted.data)] {
        row(&format!("{what}: cycles in walks"), &plain.cycles, &lifted.cycles, percent);
        row(&format!("{what}: walks in progress"), &plain.in_progress, &lifted.in_progress, number);
        row(&format!("{what}: walks per 1,000 instructions"), &plain.walks, &lifted.walks, number);
        row(&format!("{what}: L2 TLB hits per 1,000"), &plain.l2_hits, &lifted.l2_hits, number);
        row(&format!("{what}: cycles that wait"), &plain.stalls, &lifted.stalls, percent);
    }
    row("page walkers busy", &plain.utilisation, &lifted.utilisation, percent);
    row("walks of the hypervisor's tables in progress", &plain.nested, &lifted.nested, number);
    row("L2 TLB misses per 1,000 instructions", &plain.l2_refills, &lifted.l2_refills, number);
    for (what, plain, lifted) in [("code", &plain.code, &lifted.code), ("data", &plain.data, &lifted.data)] {
        let shown = |side: &SideWalks| sizes(&side.sizes);
        if !plain.sizes.is_empty() || !lifted.sizes.is_empty() {
            rows.add(&format!("{what}: walks by page size"), shown(plain), shown(lifted), None);
        }
    }
}

/// The time of walks, if both measurements have it from samples.
fn of_samples(rows: &mut Rows, before: &CountedWalks, after: &CountedWalks) {
    let (Some(before), Some(after)) = (&before.sampled, &after.sampled) else { return };
    for (what, before, after) in [("code", &before.code, &after.code), ("data", &before.data, &after.data)] {
        if let (Estimate::FromSamples(one), Estimate::FromSamples(other)) = (before, after) {
            let change = (one.share > 0.0).then(|| other.share / one.share - 1.0);
            rows.add(&format!("{what}: cycles in walks, estimated"), share(before), share(after), change);
        }
    }
}

/// Pages in use at the last point that both have.
fn of_marks(rows: &mut Rows, plain: &Report, lifted: &Report) {
    let (Some(before), Some(after)) = (marks(plain), marks(lifted)) else { return };
    let (before, after) = (&before.working_set, &after.working_set);
    let Some(at) = before.curve.len().min(after.curve.len()).checked_sub(1) else { return };
    let (first, second) = (&before.curve[at], &after.curve[at]);
    rows.add(
        &format!("pages walked to within {}", time(first.longest.max(second.longest))),
        String::new(),
        String::new(),
        None,
    );
    for part in before.parts() {
        let (one, other) = (first.parts.get(&part), second.parts.get(&part));
        let (Some(one), Some(other)) = (one, other) else { continue };
        if one.resident + one.pool + other.resident + other.pool == 0 {
            continue;
        }
        let known = one.pool + other.pool == 0 && one.pages.most >= 32;
        let change = known.then(|| other.pages.most as f64 / one.pages.most as f64 - 1.0);
        rows.add(&format!("  {part}"), marked(one), marked(other), change);
    }
    if let (Some(one), Some(other)) = (&before.walks, &after.walks)
        && one.walks + other.walks > 0
    {
        let shown = |value: f64| format!("≥{}", rate(value));
        rows.number("walks a second in heap and stacks", (one.per_second(), other.per_second()), f64::INFINITY, shown);
    }
}

/// Pages of the pool are neither marked nor counted.
fn marked(marks: &PartMarks) -> String {
    match (marks.pool, marks.resident) {
        (0, _) => pages(marks.pages),
        (_, 0) => "?".to_owned(),
        _ => format!("{} and ?", pages(marks.pages)),
    }
}

fn marks(report: &Report) -> Option<&Marks> {
    match &report.marks {
        Some(Outcome::Measured(marks)) => Some(marks),
        _ => None,
    }
}

/// The conclusion from the plain program, and the cost of the observation.
fn verdict(plain: &Report, lifted: &Report) -> String {
    let mut text = String::new();
    for (name, report) in [("plain", plain), ("lifted", lifted)] {
        if let Some(Outcome::NotMeasured(why)) = &report.marks {
            text += &format!("Pages that are walked to, {name}: not counted: {why}\n");
        }
    }
    if let Some(marks) = marks(plain) {
        text += &of_tlb(&plain.tlb);
        worth_saying(marks).for_each(|verdict| text += &format!("{}\n", of_verdict(verdict)));
        text += &of_cost(&marks.working_set);
    }
    if [plain, lifted]
        .iter()
        .filter_map(|report| marks(report))
        .any(|marks| marks.working_set.curve.iter().any(|reading| reading.parts.values().any(|part| part.pool > 0)))
    {
        text += "?: the kernel does not mark pages of the pool\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use translation::walk_counters::{Counted, Counts, EventCount, families};

    fn counted(running: u64, with_kernel: bool) -> CountedWalks {
        let family = families().iter().find(|family| family.name == "Neoverse V3").unwrap();
        let event = |side, counts, name: &str, raw| EventCount {
            side,
            counts,
            name: name.to_owned(),
            counted: Some(Counted { raw, enabled: 1_000, running }),
            not_counted: None,
        };
        let whole = |raw| EventCount {
            counted: Some(Counted { raw, enabled: 1_000, running: 1_000 }),
            ..event(family.events[0].side, family.events[0].counts, "cycles", raw)
        };
        let counts = Counts {
            family: family.name.clone(),
            source: family.source.clone(),
            walkers: family.walkers,
            with_kernel,
            with_children: false,
            on_some_cores: false,
            cycles: whole(1_000_000),
            instructions: whole(500_000),
            events: family.events.iter().map(|code| event(code.side, code.counts, &code.name, 1_000)).collect(),
        };
        CountedWalks { walks: Walks::of(&counts), sampled: None, counts }
    }

    #[test]
    fn time_of_walks_and_what_was_scaled_are_said_of_both() {
        let both = |plain, lifted| {
            let mut rows = Rows::new();
            let gaps = of_counters(&mut rows, &Outcome::Measured(vec![plain]), &Outcome::Measured(vec![lifted]));
            (rows.text(), gaps)
        };
        let (table, gaps) = both(counted(500, false), counted(250, false));
        for wanted in ["data: walks in progress", "code: cycles that wait", "L2 TLB misses per 1,000 instructions"] {
            assert!(table.contains(wanted), "no {wanted:?} in:\n{table}");
        }
        assert_eq!(gaps.matches("the kernel's part is not counted").count(), 1, "{gaps}");
        assert!(gaps.contains("counted 50 % of the time at least, and scaled\n"), "{gaps}");
        assert!(gaps.contains("counted 25 % of the time at least, and scaled (lifted)\n"), "{gaps}");
        assert!(!both(counted(1_000, true), counted(1_000, true)).1.contains("note:"));
    }
}
