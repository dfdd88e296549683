//! Memory that is lifted in place, in words.

use super::number::counted;
use super::table::{align_right, table as new_table, trimmed};
use crate::output::Output;
use address_space::format_bytes;
use foreign_text::printable;
use session::shared::{InPlace, InPlaceReport, SegmentReport};
use shared_memory::SegmentKind;
use std::collections::HashSet;

/// Maximum number of lines about segments that are left alone; a report has all.
const MOST_LINES: usize = 12;

/// The name of a kind of memory.
pub const fn noun(memory: InPlace) -> &'static str {
    match memory {
        InPlace::Shared => "shared memory",
        InPlace::Anonymous => "anonymous memory",
        InPlace::Jit => "generated code",
    }
}

/// The processes that were chosen, by the name of the first one.
pub fn family(first: &str, number: usize) -> String {
    match number {
        1 => first.to_owned(),
        _ => format!("{first} and {}", counted(number as u64 - 1, "other")),
    }
}

/// The result of a lift, as one line.
pub fn line(name: &str, report: &InPlaceReport) -> String {
    if report.segments.is_empty() {
        return nothing(name, report);
    }
    let sum = |of: fn(&SegmentReport) -> u64| report.segments.iter().map(of).sum::<u64>();
    // Memory of processes that did not answer after the lift is not counted.
    let of_read = |of: fn(&SegmentReport) -> u64| {
        report.segments.iter().filter(|segment| segment.huge_after.is_some()).map(of).sum::<u64>()
    };
    let outcome = match report.segments.iter().any(|segment| segment.huge_after.is_some()) {
        true => format!(
            "{} of {} on huge pages, {} before",
            format_bytes(of_read(|segment| segment.huge_after.unwrap_or(0))),
            format_bytes(of_read(|segment| segment.data + segment.filled.unwrap_or(0))),
            or_none(of_read(|segment| segment.huge_before))
        ),
        false => "not read after the lift".to_owned(),
    };
    let mut text = format!("{name}: {}: {outcome}", noun(report.memory));
    let filled = sum(|segment| segment.filled.unwrap_or(0));
    if filled > 0 {
        text += &format!("; {} of holes filled", format_bytes(filled));
    }
    let read_back = sum(|segment| segment.read_back.unwrap_or(0));
    if read_back > 0 {
        text += &format!("; {} read back from swap", format_bytes(read_back));
    }
    // A huge page of private memory keeps its page table, for the day that the kernel splits it.
    if let (Some(after), InPlace::Shared) = (report.page_tables_after, report.memory) {
        let (before, after) = (format_bytes(report.page_tables_before), format_bytes(after));
        text += &format!("; page tables of {} {before} before, {after} now", sharers(report));
        if let Some(predicted) = report.page_tables_predicted {
            text += &format!(" ({} predicted)", format_bytes(predicted));
        }
        if let Some(ended) = report.ended {
            text += &format!(", {} ended meanwhile", counted(ended as u64, "process"));
        }
    }
    let milliseconds = |time: Option<u64>| time.unwrap_or(0) as f64 / 1000.0;
    text += &format!(
        "; {:.0} ms, worst block {:.1} ms; ",
        milliseconds(report.microseconds),
        milliseconds(report.worst_block_microseconds)
    );
    text + &match report.suspended {
        None => "nothing paused".to_owned(),
        Some(1) => "its PR_SET_THP_DISABLE suspended meanwhile".to_owned(),
        Some(many) => format!("PR_SET_THP_DISABLE of {many} processes suspended meanwhile"),
    }
}

fn nothing(name: &str, report: &InPlaceReport) -> String {
    let read = if report.skipped.is_empty() { "" } else { " was read" };
    format!("{name}: no {} that could hold a huge page{read}", noun(report.memory))
}

/// Printed lines about one kind of memory of some processes.
#[derive(Default)]
pub struct Told {
    lines: HashSet<String>,
    huge: u64,
}

impl Told {
    /// Returns the lines about processes that were skipped and blocks that were left alone if one of their reasons is new.
    pub fn left_alone(&mut self, report: &InPlaceReport) -> Vec<String> {
        let left_alone = report.segments.iter().flat_map(|segment| &segment.left_alone).filter(|left| !left.is_fine);
        let reasons = left_alone.map(|left| &left.reason).chain(report.skipped.iter().map(|skipped| &skipped.reason));
        let known = self.lines.len();
        // The rest of a reason has figures, which change at each look.
        self.lines.extend(reasons.filter_map(|reason| reason.split(';').next()).map(str::to_owned));
        if self.lines.len() > known { left_alone_lines(report) } else { Vec::new() }
    }

    /// Returns a line if it is new.
    pub fn once(&mut self, line: String) -> Option<String> {
        self.lines.insert(line.clone()).then_some(line)
    }

    /// True if at least twice as much is huge as at the last call that returned true.
    pub fn has_doubled(&mut self, report: &InPlaceReport) -> bool {
        let huge = report.segments.iter().map(|segment| segment.huge_after.unwrap_or(0)).sum::<u64>();
        let has_doubled = huge > 0 && huge >= self.huge.saturating_mul(2);
        if has_doubled {
            self.huge = huge;
        }
        has_doubled
    }
}

/// The processes that were skipped, and the blocks that were left alone, with a line for each segment and reason.
fn left_alone_lines(report: &InPlaceReport) -> Vec<String> {
    let of = |segment: &SegmentReport| {
        let left = segment.left_alone.iter().filter(|left| !left.is_fine);
        left.map(|left| {
            let fix = left.fix.as_ref().map_or_else(String::new, |fix| format!("; fix: {fix}"));
            let blocks = counted(left.blocks, "block");
            let left_alone = if left.blocks > 0 { format!("{blocks} left alone: ") } else { String::new() };
            printable(&format!("{}: {left_alone}{}{fix}", name(segment), left.reason))
        })
        .collect::<Vec<_>>()
    };
    let skipped = report.skipped.iter().map(|skipped| printable(&format!("{}: {}", skipped.name, skipped.reason)));
    let mut lines: Vec<String> = skipped.chain(report.segments.iter().flat_map(of)).collect();
    if lines.len() > MOST_LINES {
        let more = lines.len() - MOST_LINES;
        lines.truncate(MOST_LINES);
        lines.push(format!("and {more} more; --report FILE has all"));
    }
    lines
}

fn or_none(bytes: u64) -> String {
    if bytes == 0 { "none".to_owned() } else { format_bytes(bytes) }
}

/// The plan of a lift and its cost.
pub fn plan(name: &str, report: &InPlaceReport) -> String {
    if report.segments.is_empty() {
        let skipped: String = left_alone_lines(report).iter().map(|line| format!("{line}\n")).collect();
        return format!("{}\n{skipped}", nothing(&printable(name), report));
    }
    let sum = |of: fn(&SegmentReport) -> u64| or_none(report.segments.iter().map(of).sum::<u64>());
    let mut text = format!(
        "{}: {}: {} would be put on huge pages in place, {}; added memory: {}\nPage tables of {}: {}{}\n\n{}",
        printable(name),
        noun(report.memory),
        sum(|segment| segment.planned),
        match report.segments.iter().map(|segment| segment.huge_before).sum() {
            0 => "none is yet".to_owned(),
            huge => format!("{} is already", format_bytes(huge)),
        },
        sum(|segment| segment.adds),
        sharers(report),
        format_bytes(report.page_tables_before),
        report
            .page_tables_predicted
            .map_or_else(String::new, |bytes| format!(" now, {} after the lift", format_bytes(bytes))),
        table(report, Output::Standard)
    );
    for line in left_alone_lines(report) {
        text += &format!("{line}\n");
    }
    text
}

/// The segments, for a stream.
pub fn table(report: &InPlaceReport, stream: Output) -> String {
    let is_done = report.worst_block_microseconds.is_some();
    let huge = if is_done { ["Huge before", "Huge now"] } else { ["Huge", "To be lifted"] };
    let mut table =
        new_table(&["Segment", "Length", "Data", "Resident", huge[0], huge[1], "Adds", "Sharers"]).for_stream(stream);
    (1..8).for_each(|column| align_right(&mut table, column));
    for segment in &report.segments {
        let huge = if is_done { segment.huge_after } else { Some(segment.planned) };
        let adds = segment.filled.map_or(segment.adds, |filled| filled + segment.read_back.unwrap_or(0));
        let place = match segment.mappings {
            mappings if segment.kind.is_private() => counted(mappings as u64, "mapping"),
            _ => format!("at {}", segment.address),
        };
        let mut cells = vec![printable(&format!("{} {place}", name(segment)))];
        cells.extend([segment.length, segment.data, segment.resident, segment.huge_before].map(format_bytes));
        cells.push(huge.map_or_else(|| "not read".to_owned(), format_bytes));
        cells.extend([format_bytes(adds), segment.sharers.to_string()]);
        table.add_row(cells);
    }
    trimmed(&table) + "\n"
}

fn name(segment: &SegmentReport) -> String {
    match segment.kind {
        SegmentKind::Anonymous => "shared anonymous memory".to_owned(),
        SegmentKind::SystemV => format!("System V segment {}", segment.inode),
        SegmentKind::Memfd => segment.name.trim_start_matches('/').to_owned(),
        SegmentKind::File => segment.name.clone(),
        SegmentKind::Private => format!("anonymous memory of {}", segment.name),
        SegmentKind::Jit => format!("generated code of {}", segment.name),
    }
}

fn sharers(report: &InPlaceReport) -> String {
    let at_least = if report.more_sharers { "at least " } else { "" };
    format!("{at_least}{}", counted(report.sharers as u64, "process"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use session::shared::{LeftAlone, SkippedProcess};

    fn segment(name: &str, kind: SegmentKind) -> SegmentReport {
        SegmentReport {
            name: name.to_owned(),
            kind,
            device: (0, 1),
            inode: 32_801,
            pid: 7,
            address: "0x7f0000000000".to_owned(),
            mappings: 3,
            length: 40 << 20,
            data: 32 << 20,
            resident: 8 << 20,
            sharers: 3,
            huge_before: 0,
            planned: 32 << 20,
            adds: 0,
            huge_after: Some(30 << 20),
            filled: Some(0),
            read_back: Some(0),
            left_alone: Vec::new(),
        }
    }

    fn report(segments: Vec<SegmentReport>) -> InPlaceReport {
        InPlaceReport {
            memory: InPlace::Shared,
            segments,
            skipped: Vec::new(),
            sharers: 3,
            more_sharers: false,
            page_tables_before: 3 << 20,
            page_tables_predicted: None,
            page_tables_after: Some(1 << 20),
            ended: None,
            suspended: None,
            microseconds: Some(45_600),
            worst_block_microseconds: Some(7_540),
        }
    }

    fn left(reason: &str, is_fine: bool) -> LeftAlone {
        LeftAlone { reason: reason.to_owned(), fix: Some("wait".to_owned()), blocks: 1, bytes: 1, is_fine, cause: None }
    }

    #[test]
    fn a_lift_is_told_in_one_line() {
        let both = report(vec![segment("/memfd:a", SegmentKind::Memfd), segment("", SegmentKind::SystemV)]);
        assert_eq!(
            line(&family("postgres[7]", 3), &both),
            "postgres[7] and 2 others: shared memory: 60.0 MiB of 64.0 MiB on huge pages, none before; page tables of \
             3 processes 3.0 MiB before, 1.0 MiB now; 46 ms, worst block 7.5 ms; nothing paused"
        );
        assert_eq!(line("x[1]", &report(Vec::new())), "x[1]: no shared memory that could hold a huge page");
        let predicted = InPlaceReport { page_tables_predicted: Some(1 << 19), ..both };
        assert!(line("x[1]", &predicted).contains("3.0 MiB before, 1.0 MiB now (512.0 KiB predicted); "));
        assert!(
            plan("x[1]", &predicted).contains("Page tables of 3 processes: 3.0 MiB now, 512.0 KiB after the lift\n")
        );
        let ended = InPlaceReport { ended: Some(2), ..predicted };
        assert!(line("x[1]", &ended).contains("(512.0 KiB predicted), 2 processes ended meanwhile; 46 ms"));
        let unsure = InPlaceReport { more_sharers: true, ..report(vec![segment("", SegmentKind::Anonymous)]) };
        assert!(line("x[1]", &unsure).contains("page tables of at least 3 processes"));
    }

    #[test]
    fn private_memory_is_that_of_a_process() {
        let segments = vec![segment("mariadbd[7]", SegmentKind::Private)];
        let mut private = InPlaceReport { memory: InPlace::Anonymous, suspended: Some(1), ..report(segments) };
        assert_eq!(
            line("mariadbd[7]", &private),
            "mariadbd[7]: anonymous memory: 30.0 MiB of 32.0 MiB on huge pages, none before; 46 ms, worst block 7.5 ms; its \
             PR_SET_THP_DISABLE suspended meanwhile"
        );
        let table = table(&private, Output::Error);
        assert!(table.contains("anonymous memory of mariadbd[7] 3 mappings"), "{table}");
        private.suspended = Some(2);
        assert!(line("x", &private).ends_with("; PR_SET_THP_DISABLE of 2 processes suspended meanwhile"));
        let none = InPlaceReport { memory: InPlace::Jit, ..report(Vec::new()) };
        assert_eq!(line("x[1]", &none), "x[1]: no generated code that could hold a huge page");
        let jit = segment("java[7]", SegmentKind::Jit);
        assert_eq!(name(&jit), "generated code of java[7]");
    }

    #[test]
    fn what_is_left_alone_is_named_with_its_fix_and_bounded() {
        let mut one = segment("/memfd:\u{1b}[31m", SegmentKind::Memfd);
        one.left_alone = vec![left("an end", true), left("in use", false)];
        assert_eq!(
            left_alone_lines(&report(vec![one.clone()])),
            ["memfd:?[31m: 1 block left alone: in use; fix: wait"]
        );
        let many = left_alone_lines(&report(vec![one; 40]));
        assert_eq!((many.len(), many[12].as_str()), (13, "and 28 more; --report FILE has all"));
    }

    #[test]
    fn processes_that_were_not_looked_at_are_named() {
        let skipped = SkippedProcess { pid: 8, name: "y[8]".to_owned(), reason: "no".to_owned() };
        let one = InPlaceReport { skipped: vec![skipped], ..report(Vec::new()) };
        assert!(!one.is_complete());
        assert_eq!(left_alone_lines(&one), ["y[8]: no"]);
        assert_eq!(plan("x[7]", &one), "x[7]: no shared memory that could hold a huge page was read\ny[8]: no\n");
        let mut part = segment("", SegmentKind::Anonymous);
        part.left_alone = vec![LeftAlone { blocks: 0, fix: None, ..left("counted in part", false) }];
        assert_eq!(left_alone_lines(&report(vec![part])), ["shared anonymous memory: counted in part"]);
    }

    #[test]
    fn a_plan_shows_the_price_and_a_segment_by_what_its_owner_calls_it() {
        let mut segments = vec![
            segment("/dev/zero", SegmentKind::Anonymous),
            segment("/SYSV00000000", SegmentKind::SystemV),
            segment("/dev/shm/x", SegmentKind::File),
        ];
        segments.iter_mut().for_each(|segment| (segment.huge_after, segment.adds) = (None, 1 << 20));
        let text = plan("x[7]", &InPlaceReport { worst_block_microseconds: None, ..report(segments) });
        assert!(text.starts_with(
            "x[7]: shared memory: 96.0 MiB would be put on huge pages in place, none is yet; added memory: 3.0 MiB\n"
        ));
        assert!(text.contains("Page tables of 3 processes: 3.0 MiB"), "{text}");
        let names = ["shared anonymous memory at 0x7f0000000000", "System V segment 32801 at ", "/dev/shm/x at "];
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
        assert!(plan("x[7]", &report(Vec::new())).starts_with("x[7]: no shared memory"));
    }

    #[test]
    fn memory_that_was_not_read_after_the_lift_is_not_counted() {
        let silent = SegmentReport { huge_after: None, ..segment("silent[8]", SegmentKind::Private) };
        let alone = line("silent[8]", &report(vec![silent.clone()]));
        assert!(alone.starts_with("silent[8]: shared memory: not read after the lift; "), "{alone}");
        let both = report(vec![segment("x[7]", SegmentKind::Private), silent]);
        assert!(line("x[7]", &both).contains(": 30.0 MiB of 32.0 MiB on huge pages, none before; "));
        let table = table(&both, Output::Error);
        let row = table.lines().find(|line| line.contains("silent[8]")).unwrap();
        assert!(table.contains("Huge now") && row.contains("not read"), "{table}");
    }

    #[test]
    fn what_was_told_is_not_told_again() {
        let mut told = Told::default();
        let mut one = segment("/memfd:x", SegmentKind::Memfd);
        one.left_alone = vec![left("in use; 3 tries", false)];
        let mut report = report(vec![one]);
        assert_eq!(told.left_alone(&report).len(), 1);
        report.segments[0].left_alone[0].reason = "in use; 4 tries".to_owned();
        assert!(told.left_alone(&report).is_empty(), "the same reason with another figure");
        report.segments[0].left_alone[0].reason = "askew".to_owned();
        assert_eq!(told.left_alone(&report).len(), 1);
        assert!(told.once("x".to_owned()).is_some() && told.once("x".to_owned()).is_none());
        assert!(told.has_doubled(&report) && !told.has_doubled(&report));
        report.segments[0].huge_after = Some(60 << 20);
        assert!(told.has_doubled(&report));
        report.segments[0].huge_after = None;
        assert!(!told.has_doubled(&report));
    }
}
