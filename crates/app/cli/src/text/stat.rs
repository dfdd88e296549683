//! Formats the result of `pagelift stat`; pure.

use super::number::grouped;
use super::page_sizes::sizes;
use super::probe::{between, is_loaded, load_of_others};
use super::sampled;
use super::table::{align_right, table, trimmed};
use crate::commands::stat::report::{CountedWalks, Estimated, Marks, Outcome, Report, is_stable};
use address_space::{agreeing, counted, format_bytes};
use process_view::Activity;
use process_view::coverage::Usage;
use translation::walk_counters::{Counts, Measured, SideWalks};
use translation::working_set::{
    Entries, Holds, PageClass, Part, PartVerdict, Reach, ReachVerdict, Reading, WorkingSet,
};

/// Everything, for a terminal.
pub fn text(report: &Report) -> String {
    let pid = report.pid.map(|pid| format!("[{pid}]")).unwrap_or_default();
    let early = report.ended_early.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let mut text = format!("{}{pid}: {:.1} s{early}\n\n", report.what, report.seconds);
    if let Some(process) = &report.memory_of {
        text += &format!("memory of {process}; time and page walks of all processes of the command\n\n");
    }
    match &report.activity {
        Outcome::Measured(activity) => text += &of_activity(activity, report.seconds, report.pid.is_some()),
        Outcome::NotMeasured(why) => text += &format!("CPU time, page faults: not counted: {why}\n"),
    }
    match &report.coverage {
        Some(Outcome::Measured(usage)) => text += &of_coverage(usage),
        Some(Outcome::NotMeasured(why)) => text += &format!("on huge pages      not known: {why}\n"),
        None => {}
    }
    text += "\n";
    match &report.page_walks {
        Outcome::Measured(cores) => cores.iter().for_each(|core| text += &of_walks(core)),
        Outcome::NotMeasured(why) => text += &format!("Page walks: not counted: {why}\n"),
    }
    text += &report.estimated.as_ref().map(of_estimate).unwrap_or_default();
    text + &report.marks.as_ref().map(|marks| of_use(marks, &report.tlb)).unwrap_or_default()
}

/// The time of page walks, from the cost of one.
fn of_estimate(estimated: &Outcome<Estimated>) -> String {
    let Estimated { nanoseconds, least_nanoseconds, share, load } = match estimated {
        Outcome::Measured(estimated) => estimated,
        Outcome::NotMeasured(why) => return format!("time of page walks: not estimated: {why}\n"),
    };
    let side = |what: &str, share: Option<f64>, least: Option<f64>, most: Option<f64>| match (share, least.zip(most)) {
        (Some(share), Some((least, most))) => {
            let cost = between(least, most, 1);
            format!(
                "page walks of {what} take up to {:.1} % of the CPU time (estimate: {cost} ns each)\n",
                100.0 * share
            )
        }
        (None, Some((least, most))) if !is_stable(least, most) => format!(
            "time of page walks of {what}: not estimated: the cost of a walk is unstable here, {} ns each; fix: again while \
             little else runs\n",
            between(least, most, 1)
        ),
        (None, Some(_)) => format!("time of page walks of {what}: not estimated: they were not counted\n"),
        (_, None) => {
            format!("time of page walks of {what}: not estimated: `pagelift probe` shows no walk's cost here\n")
        }
    };
    side("code", share.code, least_nanoseconds.code, nanoseconds.code)
        + &side("data", share.data, least_nanoseconds.data, nanoseconds.data)
        + &load
            .filter(is_loaded)
            .map_or_else(String::new, |load| format!("note: while that was measured, {}\n", load_of_others(&load)))
}

/// The pages in use and the size of the TLB, with the verdicts.
pub fn of_use(marks: &Outcome<Marks>, reach: &Reach) -> String {
    match marks {
        Outcome::Measured(marks) => of_marks(marks, reach),
        Outcome::NotMeasured(why) => format!("\nPages that are walked to: not counted: {why}\n"),
    }
}

fn of_activity(activity: &Activity, seconds: f64, of_process: bool) -> String {
    let cpu = activity.cpu_seconds();
    let per_second = |count: u64| grouped((count as f64 / seconds.max(1e-3)).round() as u64);
    let mut text = format!(
        "CPU time           {cpu:.2} s: user {:.2}, kernel {:.2}; {:.2} CPUs busy\n",
        activity.user_seconds,
        activity.system_seconds,
        cpu / seconds.max(1e-3)
    );
    text += &format!(
        "page faults        {} minor ({}/s), {} major\n",
        grouped(activity.minor_faults),
        per_second(activity.minor_faults),
        grouped(activity.major_faults)
    );
    let switches = activity.voluntary_switches + activity.involuntary_switches;
    text += &match of_process {
        true => format!(
            "context switches   {} voluntary, {} involuntary\n",
            grouped(activity.voluntary_switches),
            grouped(activity.involuntary_switches)
        ),
        false => format!("context switches   {} ({}/s)\n", grouped(switches), per_second(switches)),
    };
    text
}

fn of_coverage(usage: &Usage) -> String {
    let share = 100.0 * usage.huge_bytes() as f64 / usage.resident.max(1) as f64;
    format!(
        "on huge pages      {} of {} resident ({share:.0} %)\n",
        format_bytes(usage.huge_bytes()),
        format_bytes(usage.resident)
    )
}

/// Code and data side by side.
fn of_walks(core: &CountedWalks) -> String {
    let (walks, counts) = (&core.walks, &core.counts);
    let mut rows = table(&["page walks", "code", "data"]);
    let percent =
        |measured: &Measured| measured.value().map_or_else(|| "–".to_owned(), |v| format!("{:.2} %", 100.0 * v));
    let number = |measured: &Measured| measured.value().map_or_else(|| "–".to_owned(), |v| format!("{v:.3}"));
    rows.add_row(["share of cycles".to_owned(), percent(&walks.code.cycles), percent(&walks.data.cycles)]);
    if let Some(times) = core.sampled.as_ref().filter(|times| sampled::is_estimated(times)) {
        rows.add_row([
            "share of cycles, estimated".to_owned(),
            sampled::share(&times.code),
            sampled::share(&times.data),
        ]);
    }
    let mut row = |name: &str, of: &dyn Fn(&SideWalks) -> String| {
        rows.add_row([name.to_owned(), of(&walks.code), of(&walks.data)]);
    };
    row("in progress, on average", &|side| number(&side.in_progress));
    row("per 1,000 instructions", &|side| number(&side.walks));
    row("by page size", &|side| sizes(&side.sizes));
    row("L2 TLB hits per 1,000 instructions", &|side| number(&side.l2_hits));
    row("cycles that wait for translation", &|side| percent(&side.stalls));
    (1..3).for_each(|column| align_right(&mut rows, column));
    let mut text = format!("{}, counted by the PMU\n{}\n", counts.family, trimmed(&rows));
    let others = [
        ("page walkers busy", percent(&walks.utilisation)),
        ("walks of the hypervisor's tables in progress, on average", number(&walks.nested)),
        ("L2 TLB misses per 1,000 instructions, code and data together", number(&walks.l2_refills)),
    ];
    for (name, shown) in others.iter().filter(|(_, shown)| shown != "–") {
        text += &format!("{name}: {shown}\n");
    }
    text += &missing(core);
    text += &core.sampled.as_ref().map(sampled::lines).unwrap_or_default();
    text + &notes(counts)
}

/// The counts that do not cover the whole time.
pub(super) fn notes(counts: &Counts) -> String {
    let mut text = String::new();
    if !counts.with_kernel {
        text += "note: the kernel's part is not counted; needed: kernel.perf_event_paranoid 1 or less, or root\n";
    }
    if counts.with_children {
        text += "note: the processes that it started are counted with it, which Linux cannot leave out before 5.13\n";
    }
    let share = counts.least_share();
    if share < 0.995 {
        text += &format!(
            "note: events took turns on the counters; counted {:.0} % of the time at least, and scaled\n",
            100.0 * share
        );
    }
    text
}

/// Why there are gaps, each reason once.
pub(super) fn missing(core: &CountedWalks) -> String {
    let walks = &core.walks;
    let named = [
        ("share of cycles", &walks.code.cycles),
        ("walks in progress", &walks.code.in_progress),
        ("walks of code", &walks.code.walks),
        ("walks of data", &walks.data.walks),
        ("L2 TLB hits", &walks.data.l2_hits),
        ("page walkers busy", &walks.utilisation),
    ];
    let line = |(name, measured): &(&str, &Measured)| match measured {
        Measured::Value(_) => None,
        Measured::NotCounted(why) => Some(format!("{name}: not counted: {why}\n")),
    };
    named.iter().filter_map(line).collect()
}

fn of_marks(marks: &Marks, reach: &Reach) -> String {
    let set = &marks.working_set;
    let mut text =
        format!("\nPages that CPUs walked to, by the time since the accessed marks were cleared\n{}\n", marked(set));
    if marks.of_command
        && let Some(last) = set.curve.last()
    {
        let (from, to) = (set.begun, set.begun + last.longest);
        text += &format!(
            "seen from {} to {} after the start, in one of {}\n",
            time(from),
            time(to),
            counted(set.rounds.len() as u64, "round")
        );
    }
    text += &of_tlb(reach);
    if let Some(walks) = &set.walks {
        let per_cpu = walks.cpu_seconds.filter(|&cpu| cpu > 0.0);
        let of_cpu =
            per_cpu.map(|cpu| format!(", {} a CPU second", rate(walks.walks as f64 / cpu))).unwrap_or_default();
        text += &format!(
            "at least {} page walks a second in heap and stacks{of_cpu} ({} in {:.1} ms)\n",
            rate(walks.per_second()),
            grouped(walks.walks),
            1e3 * walks.seconds
        );
    }
    text += "\n";
    for verdict in worth_saying(marks) {
        text += &format!("{}\n", of_verdict(verdict));
    }
    text + &of_cost(set)
}

/// The verdicts on memory of which enough is in use for a sentence.
pub(super) fn worth_saying(marks: &Marks) -> impl Iterator<Item = &PartVerdict> {
    let all: u64 = marks.verdicts.iter().map(|verdict| verdict.last).sum();
    marks.verdicts.iter().filter(move |verdict| {
        verdict.last >= LEAST && (verdict.part == Part::Code || verdict.last as f64 >= WORTH * all as f64)
    })
}

/// Kinds of memory with fewer marked pages are not worth a sentence.
const LEAST: u64 = 32;
/// Nor are those with a smaller share of all marked pages.
const WORTH: f64 = 0.05;

fn marked(set: &WorkingSet) -> String {
    let times: Vec<String> = set.curve.iter().map(|reading| time(reading.after)).collect();
    let mut headings = vec!["memory", "resident", "huge"];
    headings.extend(times.iter().map(String::as_str));
    let mut rows = table(&headings);
    let longest = set.curve.iter().map(|reading| time(reading.longest));
    let cpu = |reading: &Reading| reading.cpu.map_or_else(|| "?".to_owned(), time);
    rows.add_row(["(at most within)", "", ""].map(str::to_owned).into_iter().chain(longest));
    rows.add_row(["(of CPU time)", "", ""].map(str::to_owned).into_iter().chain(set.curve.iter().map(cpu)));
    for part in set.parts() {
        let marks = set.of(part);
        let Some(last) = marks.last().filter(|last| last.resident > 0 || last.pool > 0) else { continue };
        let mut cells = vec![part.to_string(), format_bytes(last.resident), huge(last.huge)];
        cells.extend(marks.iter().map(|marks| pages(marks.pages)));
        rows.add_row(cells);
        if last.pool > 0 {
            let blank = set.curve.iter().map(|_| "?".to_owned());
            rows.add_row(
                [format!("{part}, pool pages"), format_bytes(last.pool), format_bytes(last.pool)]
                    .into_iter()
                    .chain(blank),
            );
        }
    }
    (1..headings.len()).for_each(|column| align_right(&mut rows, column));
    trimmed(&rows)
}

fn huge(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { format_bytes(bytes) }
}

/// A number of pages, or its bounds.
pub(super) fn pages(entries: Entries) -> String {
    match entries {
        Entries { least, most } if least == most => grouped(least),
        Entries { least, most } => format!("{}–{}", grouped(least), grouped(most)),
    }
}

pub(super) fn time(seconds: f64) -> String {
    match 1e3 * seconds {
        time if time < 9.95 && time.fract() > 0.05 => format!("{time:.1} ms"),
        time if time < 999.5 => format!("{time:.0} ms"),
        _ => format!("{seconds:.1} s"),
    }
}

pub(super) fn of_tlb(reach: &Reach) -> String {
    let entries = |holds| reach.entries(holds, PageClass::Base).map(grouped);
    let told = match (entries(Holds::Code), entries(Holds::Data)) {
        (Some(both), Some(_)) if reach.shared() => {
            format!("L2 TLB: {both} entries, shared by code and data\n  source: {}\n", reach.source)
        }
        (Some(code), Some(data)) => {
            format!("L2 TLB: {code} entries for code, {data} for data\n  source: {}\n", reach.source)
        }
        _ => format!("L2 TLB: number of entries unknown: {}\n", reach.source),
    };
    told + &measured_tlb(reach)
}

fn measured_tlb(reach: &Reach) -> String {
    let pages = |holds, what: &str| {
        let pages = reach.measured_pages(holds)?;
        Some(format!("{} {} of {what}", grouped(pages), agreeing(pages, "page")))
    };
    let both: Vec<String> = [pages(Holds::Code, "code"), pages(Holds::Data, "data")].into_iter().flatten().collect();
    if both.is_empty() { String::new() } else { format!("L2 TLB, measured: it holds {}\n", both.join(", ")) }
}

pub(super) fn of_verdict(verdict: &PartVerdict) -> String {
    let PartVerdict { part, first, last, .. } = verdict;
    let entries = grouped(verdict.entries.unwrap_or(0));
    let pages = agreeing(*last, "page");
    let mut used = format!("{part}: {} {pages} within {}", grouped(*last), time(verdict.last_within));
    if verdict.first_within < verdict.last_within {
        used += &format!(", {} within {}", grouped(*first), time(verdict.first_within));
    }
    let fitting = if *part == Part::Code { "for code" } else { "for it" };
    let (hold, would_hold, more) = match verdict.is_measured {
        true => (
            format!("the L2 TLB holds them ({entries} pages, measured)"),
            format!("the L2 TLB would hold them alone ({entries} pages, measured)"),
            format!("more than the {entries} pages that the L2 TLB was measured to hold"),
        ),
        false => (
            format!("the {entries} entries of the L2 TLB hold them"),
            format!("the {entries} entries of the L2 TLB would hold them alone"),
            format!("more than the {entries} entries of the L2 TLB"),
        ),
    };
    match verdict.verdict {
        ReachVerdict::Fits => {
            format!("{used}: {hold}; huge pages {fitting} gain little here")
        }
        ReachVerdict::FitsAlone => {
            format!("{used}: {would_hold}, but other memory competes for it; huge pages for that gain more")
        }
        ReachVerdict::SeldomWalked => {
            format!("{used}: {more}, but walked to seldom; huge pages {fitting} gain little here")
        }
        ReachVerdict::Exceeds => {
            format!("{used}: {more}; huge pages {fitting} may gain")
        }
        ReachVerdict::Huge => format!("{used}: on huge pages already"),
        ReachVerdict::Unknown => used,
    }
}

/// `once`, or `2 times`.
fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        many => counted(many, "time"),
    }
}

pub(super) fn of_cost(set: &WorkingSet) -> String {
    let cost = &set.cost;
    let mut text = format!(
        "cost: its memory map was held {}, for {:.1} ms at most, and read {}, {:.1} ms at most\n",
        times(cost.clears),
        1e3 * cost.longest_clear,
        times(cost.reads),
        1e3 * cost.longest_read
    );
    if let Some(left_out) = &set.left_out {
        let rest = left_out.from.map(|from| format!(" and everything from {from:x} on")).unwrap_or_default();
        text += &format!(
            "left out: {} of anonymous memory{rest}; needed: a stall of about {} ms; fix: --stall {}ms (found: {})\n",
            format_bytes(left_out.anonymous),
            left_out.needed_milliseconds,
            left_out.needed_milliseconds,
            left_out.permitted_milliseconds
        );
    }
    text
}

/// A rate in two or three digits.
pub(super) fn rate(number: f64) -> String {
    match number {
        number if number >= 1e6 => format!("{:.1} million", number / 1e6),
        number => grouped((number / 100.0).round() as u64 * 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::stat::report::Walked;
    use std::collections::BTreeMap;
    use translation::tlb_probe::Load;
    use translation::walk_counters::Walks;
    use translation::working_set::{Cleared, Cost, HeldPages, LeftOut, Level, PartMarks, WalkBound, verdicts};

    fn marks(pages: u64) -> PartMarks {
        let pages = Entries { least: pages, most: pages };
        PartMarks { resident: 1023 << 20, marked: pages.most << 12, pages, ..PartMarks::default() }
    }

    fn working_set() -> WorkingSet {
        let reading = |after: f64, code: u64, heap: u64| Reading {
            after,
            shortest: after,
            longest: after + 0.0009,
            cpu: Some(after),
            faults: 3,
            pages_per_fault: 16,
            parts: BTreeMap::from([(Part::Code, marks(code)), (Part::Anonymous, marks(heap))]),
        };
        WorkingSet {
            version: 1,
            cleared: Cleared::All,
            left_out: None,
            begun: 0.2,
            curve: vec![
                reading(0.001, 400, 1_300),
                reading(0.01, 402, 2_200),
                reading(0.1, 410, 4_300),
                reading(0.5, 420, 11_800),
            ],
            walks: Some(WalkBound { walks: 1_300, seconds: 0.001, cpu_seconds: Some(0.0005) }),
            cost: Cost { longest_clear: 0.0091, longest_read: 0.013, clears: 1, reads: 4, total: 0.05 },
            rounds: Vec::new(),
        }
    }

    fn report(set: WorkingSet) -> Report {
        let level = |holds, entries| Level { level: 2, holds, pages: vec![PageClass::Base], entries };
        let tlb = Reach {
            levels: vec![level(Holds::Code, 512), level(Holds::Data, 2048)],
            source: "CPUID leaf 2".to_owned(),
            measured: None,
        };
        let verdicts = verdicts(&set, &tlb);
        Report {
            version: 1,
            what: "server".to_owned(),
            pid: Some(7),
            memory_of: None,
            seconds: 5.0,
            ended_early: None,
            activity: Outcome::Measured(Activity { minor_faults: 12_345, user_seconds: 4.0, ..Activity::default() }),
            coverage: Some(Outcome::NotMeasured("it has ended".to_owned())),
            page_walks: Outcome::NotMeasured("no PMU".to_owned()),
            estimated: None,
            marks: Some(Outcome::Measured(Marks { working_set: set, verdicts, of_command: true })),
            tlb,
        }
    }

    #[test]
    fn a_server_s_answer_is_said_in_words() {
        let text = text(&report(working_set()));
        for wanted in [
            "server[7]: 5.0 s\n",
            "page faults        12,345 minor (2,469/s), 0 major",
            "on huge pages      not known: it has ended",
            "Page walks: not counted: no PMU",
            "seen from 200 ms to 701 ms after the start, in one of 0 rounds\n",
            "L2 TLB: 512 entries for code, 2,048 for data\n  source: CPUID leaf 2\n",
            "at least 1.3 million page walks a second in heap and stacks, 2.6 million a CPU second (1,300 in 1.0 ms)",
            "code: 420 pages within 501 ms, 400 within 1.9 ms: the 512 entries of the L2 TLB hold them; huge pages for code gain little",
            "11,800 pages within 501 ms, 1,300 within 1.9 ms: more than the 2,048 entries of the L2 TLB; huge pages for it may gain",
            "held once, for 9.1 ms at most, and read 4 times, 13.0 ms at most",
        ] {
            assert!(text.contains(wanted), "no {wanted:?} in:\n{text}");
        }
        let table = marked(&working_set());
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    #[test]
    fn a_measured_reach_is_said_beside_what_cpuid_tells() {
        let mut report = report(working_set());
        report.tlb = report.tlb.with_measured(HeldPages { code: Some(384), data: Some(6_144) });
        let Some(Outcome::Measured(marks)) = &mut report.marks else { panic!("no marks") };
        marks.verdicts = verdicts(&marks.working_set, &report.tlb);
        let said = text(&report);
        for wanted in [
            "L2 TLB: 512 entries for code, 2,048 for data\n  source: CPUID leaf 2\nL2 TLB, measured: it holds 384 pages of code, 6,144 pages of data\n",
            "code: 420 pages within 501 ms, 400 within 1.9 ms: more than the 384 pages that the L2 TLB was measured to hold",
        ] {
            assert!(said.contains(wanted), "no {wanted:?} in:\n{said}");
        }
    }

    #[test]
    fn the_time_of_walks_is_marked_as_an_estimate() {
        let walked = |code, data| Walked { code, data };
        let mut report = report(working_set());
        report.estimated = Some(Outcome::Measured(Estimated {
            nanoseconds: walked(None, Some(41.25)),
            least_nanoseconds: walked(None, Some(40.0)),
            share: walked(None, Some(0.123)),
            load: Some(Load { others: 0.1, stolen: 0.0 }),
        }));
        let said = text(&report);
        assert!(
            said.contains("page walks of data take up to 12.3 % of the CPU time (estimate: 40.0 to 41.2 ns each)"),
            "{said}"
        );
        assert!(said.contains("time of page walks of code: not estimated: `pagelift probe` shows"), "{said}");
        assert!(!said.contains("while that was measured"), "{said}");
        report.estimated = Some(Outcome::Measured(Estimated {
            nanoseconds: walked(None, Some(628.0)),
            least_nanoseconds: walked(None, Some(39.0)),
            share: walked(None, None),
            load: Some(Load { others: 1.8, stolen: 0.0 }),
        }));
        let unstable = text(&report);
        assert!(unstable.contains("the cost of a walk is unstable here, 39.0 to 628.0 ns each; fix: "), "{unstable}");
        assert!(unstable.contains("while that was measured, other programs used 1.8 CPUs"), "{unstable}");
        report.estimated = Some(Outcome::NotMeasured("no page walks were counted".to_owned()));
        assert!(text(&report).contains("time of page walks: not estimated: no page walks were counted"));
    }

    #[test]
    fn what_was_left_out_has_its_command_and_pool_pages_are_not_counted() {
        let left_out =
            LeftOut { anonymous: 64 << 30, from: Some(0x7f00), needed_milliseconds: 1678, permitted_milliseconds: 50 };
        let mut set = WorkingSet { left_out: Some(left_out), walks: None, ..working_set() };
        for reading in &mut set.curve {
            reading.parts.insert(Part::Code, PartMarks { pool: 8 << 20, ..PartMarks::default() });
        }
        let text = text(&report(set));
        assert!(text.contains("left out: 64.0 GiB of anonymous memory and everything from 7f00 on; needed: a stall of about 1678 ms; fix: --stall 1678ms (found: 50)"), "{text}");
        assert!(text.contains("code, pool pages") && text.contains("?") && !text.contains("at least"), "{text}");
    }

    #[test]
    fn a_table_of_counters_says_what_is_missing_and_what_was_scaled() {
        let family = &translation::walk_counters::families()[0];
        let counted = |raw, running| Some(translation::walk_counters::Counted { raw, enabled: 1_000, running });
        let event = |event: &translation::walk_counters::EventCode| translation::walk_counters::EventCount {
            side: event.side,
            counts: event.counts,
            name: event.name.clone(),
            counted: counted(5_000, 500),
            not_counted: None,
        };
        let whole =
            |raw| translation::walk_counters::EventCount { counted: counted(raw, 1_000), ..event(&family.events[0]) };
        let counts = translation::walk_counters::Counts {
            family: family.name.clone(),
            source: family.source.clone(),
            walkers: family.walkers,
            with_kernel: false,
            with_children: true,
            on_some_cores: false,
            cycles: whole(2_000_000),
            instructions: whole(1_000_000),
            events: family.events.iter().map(event).collect(),
        };
        let text = of_walks(&CountedWalks { walks: Walks::of(&counts), sampled: None, counts });
        for wanted in [
            "per 1,000 instructions",
            "10.000",
            "share of cycles: not counted: Zen 1, Zen+ has no event for it",
            "the kernel's part is not counted",
            "the processes that it started are counted with it",
            "counted 50 % of the time at least, and scaled",
        ] {
            assert!(text.contains(wanted), "no {wanted:?} in:\n{text}");
        }
    }
}
