//! Formats what `pagelift shootdowns` has seen; pure.

use super::doctor::wrapped;
use super::number::grouped;
use super::table::{align_right, table, trimmed};
use shootdowns::diagnosis::{FEWEST_STACKS, Finding, Remedy};
use shootdowns::summary::{PathSummary, ProcessSummary};
use shootdowns::{Diagnosis, Evidence, Summary};
use std::fmt::Write;

/// Rows of processes.
const MOST_PROCESSES: usize = 10;
/// Call paths and threads of one process.
const MOST_PATHS: usize = 3;
/// Smallest share of a path that is shown: it is not 0 %.
const SMALLEST_PATH: f64 = 0.005;
/// Frames of a path.
const MOST_FRAMES: usize = 8;
/// Clears a terminal and goes to its beginning (ECMA-48: ED, CUP).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Headings of the processes' columns: in full, and on two lines where the terminal is narrow.
const HEADINGS: [[&str; 2]; 8] = [
    ["process", "process"],
    ["", ""],
    ["sent/s", "sent/s"],
    ["received/s", "received\n/s"],
    ["pages each", "pages\neach"],
    ["of all", "of\nall"],
    ["waiting", "waiting"],
    ["interrupted", "inter-\nrupted"],
];
/// Columns of a terminal that a name keeps at the least.
const SHORTEST_NAME: usize = 6;

/// One picture of the live view, in a terminal of so many columns.
pub fn live(summary: &Summary, width: usize) -> String {
    let picture = head(summary, Some(width)) + &processes(summary, Some(width));
    format!("{CLEAR}{picture}\nCtrl-C ends it and shows the diagnosis.\n")
}

/// All that was seen, and what ends it; the table within so many columns.
pub fn text(summary: &Summary, diagnoses: &[Diagnosis], width: Option<usize>) -> String {
    let mut prose = String::new();
    for diagnosis in diagnoses {
        if let Some(process) = summary.processes.iter().find(|process| process.pid == diagnosis.pid) {
            prose += &diagnosed(summary, process, diagnosis);
        }
    }
    prose += &notes(summary);
    head(summary, width) + &processes(summary, width) + &fitted(prose, width)
}

/// Prose in lines that fit; what goes on stands further in. What is to be typed stays on one line.
fn fitted(prose: String, width: Option<usize>) -> String {
    const FURTHER: usize = 2;
    let Some(width) = width else { return prose };
    let mut text = String::new();
    for line in prose.lines() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        if line.chars().count() <= width || bare.starts_with("cure: ") {
            text += &format!("{line}\n");
            continue;
        }
        for (number, part) in wrapped(bare, width.saturating_sub(indent + FURTHER)).iter().enumerate() {
            let indent = indent + if number > 0 { FURTHER } else { 0 };
            text += &format!("{:indent$}{part}\n", "");
        }
    }
    text
}

fn head(summary: &Summary, width: Option<usize>) -> String {
    let rate = |count: u64| per_second(count as f64, summary.seconds);
    let mut text = format!("TLB shootdowns in {:.1} s, by {}\n", summary.seconds, summary.evidence);
    let mut parts = Vec::new();
    let sent = if summary.evidence == Evidence::SystemCalls { "calls" } else { "sent" };
    parts.extend(summary.sent.map(|count| format!("{sent} {}/s", rate(count))));
    parts.extend(summary.received.map(|count| format!("received {}/s", rate(count))));
    parts.extend(summary.interrupts.map(|count| format!("interrupts by /proc/interrupts {}/s", rate(count))));
    if !parts.is_empty() {
        text += &in_lines("The whole machine: ", &parts, width);
    }
    text
}

/// Parts with commas between them, on another line where one does not fit.
fn in_lines(begin: &str, parts: &[String], width: Option<usize>) -> String {
    let mut lines = vec![begin.to_owned()];
    for (number, part) in parts.iter().enumerate() {
        let part = if number + 1 < parts.len() { format!("{part},") } else { part.clone() };
        let last = lines.last_mut().unwrap_or_else(|| unreachable!("there is always a line"));
        let is_first = last.ends_with(' ');
        let fits = width.is_none_or(|width| last.chars().count() + 1 + part.chars().count() <= width);
        match (is_first, fits) {
            (true, _) => last.push_str(&part),
            (false, true) => last.extend([" ", &part]),
            (false, false) => lines.push(format!("  {part}")),
        }
    }
    lines.join("\n") + "\n"
}

fn processes(summary: &Summary, width: Option<usize>) -> String {
    let shown = summary.processes.iter().filter(|process| process.sent + process.received > 0.0);
    let shown: Vec<&ProcessSummary> = shown.take(MOST_PROCESSES).collect();
    let others = others(summary, width);
    if shown.is_empty() && !others.is_empty() {
        return format!("\n{others}");
    }
    if shown.is_empty() {
        let says = nobody(summary);
        return if says.is_empty() { says } else { says + "\n" };
    }
    let calls = summary.evidence == Evidence::SystemCalls;
    let rows: Vec<Vec<String>> = shown.iter().map(|process| cells(process, summary)).collect();
    let mut text = format!("\n{}\n", fitting(&rows, calls, width));
    if !calls {
        text += "of all: whole address spaces; waiting, interrupted: of one CPU's time\n";
    }
    text + &others
}

/// What those sent and received together that there was no room for.
fn others(summary: &Summary, width: Option<usize>) -> String {
    if !summary.others.had_any() {
        return String::new();
    }
    let rate = |count: f64| per_second(count, summary.seconds);
    let parts = match summary.evidence {
        Evidence::SystemCalls => vec![format!("calls {}/s", rate(summary.others.sent))],
        _ => vec![
            format!("sent {}/s", rate(summary.others.sent)),
            format!("received {}/s", rate(summary.others.received)),
        ],
    };
    in_lines("Others, too many to keep apart: ", &parts, width)
}

/// What is said where no process is shown.
fn nobody(summary: &Summary) -> String {
    let who = match (summary.evidence, summary.watched) {
        (Evidence::TlbTracepoint | Evidence::SystemCalls, Some(pid)) => format!("Process {pid} sent and received none"),
        (Evidence::TlbTracepoint | Evidence::SystemCalls, None) => "No process sent or received any".to_owned(),
        (Evidence::Interrupts, Some(pid)) => {
            return format!("Not shown: process {pid} by itself; these are those of all processes together.");
        }
        _ => return String::new(),
    };
    let is_all =
        summary.evidence == Evidence::SystemCalls || !summary.unseen.iter().any(|unseen| unseen.hides_senders());
    let rest = if is_all { "." } else { " that can be seen: this machine does not show all of them, see the notes." };
    who + rest
}

fn cells(process: &ProcessSummary, summary: &Summary) -> Vec<String> {
    let mut cells = vec![process.pid.to_string(), process.name.clone(), per_second(process.sent, summary.seconds)];
    if summary.evidence != Evidence::SystemCalls {
        let share = |seconds: Option<f64>| {
            seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{:.1} %", 100.0 * seconds / summary.seconds))
        };
        cells.push(per_second(process.received, summary.seconds));
        cells.push(process.pages_per_flush.map_or_else(|| "–".to_owned(), |pages| format!("{pages:.1}")));
        cells.push(process.whole_flushes.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", 100.0 * share)));
        cells.extend([share(process.waited_seconds), share(process.interrupted_seconds)]);
    }
    cells
}

/// The table in the first form that fits: with all headings in full, on two lines, with shorter names, without its last
/// columns.
fn fitting(rows: &[Vec<String>], calls: bool, width: Option<usize>) -> String {
    let all = laid_out(rows, calls, None, HEADINGS.len());
    let Some(width) = width.filter(|&width| widest(&all) > width) else { return all };
    let names = rows.iter().map(|cells| cells[1].chars().count()).max().unwrap_or(0);
    let mut narrow = String::new();
    for columns in (3..=HEADINGS.len()).rev() {
        narrow = laid_out(rows, calls, Some(names), columns);
        let excess = widest(&narrow).saturating_sub(width);
        if excess > 0 {
            narrow = laid_out(rows, calls, Some(names.saturating_sub(excess).max(SHORTEST_NAME)), columns);
        }
        if widest(&narrow) <= width {
            break;
        }
    }
    narrow
}

/// The table with so many columns; narrow, where names may have so many characters only.
fn laid_out(rows: &[Vec<String>], calls: bool, longest_name: Option<usize>, columns: usize) -> String {
    let narrow = longest_name.is_some();
    let mut headings: Vec<&str> = HEADINGS.iter().map(|heading| heading[usize::from(narrow)]).take(columns).collect();
    if calls {
        headings.truncate(2);
        headings.push("calls/s");
    }
    let mut made = table(&headings);
    for cells in rows {
        let mut cells: Vec<String> = cells.iter().take(headings.len()).cloned().collect();
        cells[1] = shortened(&cells[1], longest_name);
        made.add_row(cells);
    }
    [0].into_iter().chain(2..headings.len()).for_each(|column| align_right(&mut made, column));
    if narrow {
        made.column_iter_mut().for_each(|column| {
            column.set_padding((0, 1));
        });
    }
    trimmed(&made)
}

fn shortened(name: &str, longest: Option<usize>) -> String {
    match longest.filter(|&longest| name.chars().count() > longest) {
        Some(longest) => name.chars().take(longest.saturating_sub(1)).chain(['…']).collect(),
        None => name.to_owned(),
    }
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

fn diagnosed(summary: &Summary, process: &ProcessSummary, diagnosis: &Diagnosis) -> String {
    let mut text = format!("\n{} {}", process.pid, process.name);
    text += &match &diagnosis.allocator {
        Some(allocator) => format!(": {allocator}\n"),
        None if process.kernel_thread => ": a thread of the kernel\n".to_owned(),
        None => ": it has ended, or its files cannot be read\n".to_owned(),
    };
    for setting in &diagnosis.environment {
        let _ = writeln!(text, "  set: {setting}");
    }
    let threads: Vec<String> = process
        .threads
        .iter()
        .filter(|thread| thread.sent > 0.0)
        .take(MOST_PATHS)
        .map(|thread| format!("{} {} {}/s", thread.tid, thread.name, per_second(thread.sent, summary.seconds)))
        .collect();
    if process.threads.len() > 1 && !threads.is_empty() {
        let _ = writeln!(text, "  threads: {}", threads.join(", "));
    }
    for finding in &diagnosis.findings {
        text += &found(finding);
    }
    if process.stacks == 0 {
        text += "  no stack of it was sampled, so that its cause is not known; fix: watch for longer (--for SECONDS)";
        text += if summary.watched.is_none() { ", and it alone (-p PID)\n" } else { "\n" };
    } else if process.effective_stacks < FEWEST_STACKS {
        let stacks = process.effective_stacks.round();
        let _ = writeln!(text, "  from {stacks} stacks, too few to tell; fix: watch for longer (--for SECONDS)");
    }
    for (share, path) in paths(process).iter().filter(|(share, _)| *share >= SMALLEST_PATH).take(MOST_PATHS) {
        let _ = writeln!(text, "  path {:.0} %, {path}", 100.0 * share);
    }
    if process.other_paths >= SMALLEST_PATH {
        let _ = writeln!(text, "  {:.0} %: on paths for which there was no room", 100.0 * process.other_paths);
    }
    text
}

fn found(finding: &Finding) -> String {
    let doubt = if finding.uncertain { "perhaps " } else { "" };
    let mut text = format!("  {doubt}{:.0} %: {}\n", 100.0 * finding.share, finding.text);
    for cure in &finding.cures {
        text += &remedy(cure);
    }
    if let Some(advice) = &finding.advice {
        let _ = writeln!(text, "    advice: {}\n    source: {}", advice.says, advice.source);
    }
    text
}

fn remedy(cure: &Remedy) -> String {
    let effect = match cure.effect {
        shootdowns::diagnosis::Effect::Ends => "ends it",
        shootdowns::diagnosis::Effect::Reduces => "reduces it",
    };
    let mut text = match &cure.value {
        Some(value) if cure.beside_others => {
            format!("    cure: {}={value}, before what it has there\n", cure.variable)
        }
        Some(value) => format!("    cure: {}={value}\n", cure.variable),
        None => format!("    {} is set so already\n", cure.variable),
    };
    if !cure.stays.is_empty() {
        let _ = writeln!(text, "    set otherwise by you, and kept: {}", cure.stays.join(", "));
    }
    let _ =
        writeln!(text, "      {effect} ({}); it costs: {}\n      source: {}", cure.versions, cure.costs, cure.source);
    text
}

/// The paths as they are shown, those that read alike together, and their shares; the most frequent first.
fn paths(process: &ProcessSummary) -> Vec<(f64, String)> {
    let mut shown: Vec<(f64, String)> = Vec::new();
    for path in &process.paths {
        let text = call_path(path);
        match shown.iter_mut().find(|(_, other)| *other == text) {
            Some((share, _)) => *share += path.share,
            None => shown.push((path.share, text)),
        }
    }
    shown.sort_by(|a, b| b.0.total_cmp(&a.0));
    shown
}

fn call_path(path: &PathSummary) -> String {
    let mut frames: Vec<String> = path.frames.iter().take(MOST_FRAMES).map(ToString::to_string).collect();
    if path.frames.len() > MOST_FRAMES {
        frames.push("…".to_owned());
    }
    let frames = if frames.is_empty() { "(no stack of the program)".to_owned() } else { frames.join(" < ") };
    format!("{}: {frames}", path.cause)
}

fn notes(summary: &Summary) -> String {
    let mut text = String::from("\n");
    let watching = &summary.watching;
    if summary.sent.is_some() {
        let _ = writeln!(
            text,
            "Totals are counted; shares and paths are from {} stacks. Watching took {:.1} % of one CPU.",
            watching.stacks,
            100.0 * watching.cpu_seconds / summary.seconds.max(f64::MIN_POSITIVE)
        );
    }
    if let (Some(record), Some(stack)) = (watching.nanoseconds_per_record, watching.nanoseconds_per_stack) {
        let (record, stack) = (record / 1e3, stack / 1e3);
        let _ = writeln!(
            text,
            "Each one that was counted held its thread up for about {record:.1} µs, each stack for {stack:.1} µs."
        );
    }
    let lost = [
        (watching.lost_sent, "of senders"),
        (watching.lost_received, "of receivers"),
        (watching.lost_stacks, "stacks"),
        (watching.lost_times, "of times"),
    ];
    let lost: Vec<String> =
        lost.iter().filter(|(lost, _)| *lost > 0).map(|(lost, what)| format!("{lost} {what}")).collect();
    if !lost.is_empty() {
        let _ = writeln!(text, "Samples lost, since they came faster than they were read: {}.", lost.join(", "));
    }
    for refused in &summary.refused {
        let _ = writeln!(text, "Not used: {refused}");
    }
    for unseen in &summary.unseen {
        let _ = writeln!(text, "Note: {unseen}");
    }
    if summary.evidence == Evidence::Nothing {
        text += "Shootdowns are not observable here; that does not mean that there are none.\n";
    }
    if text == "\n" { String::new() } else { text }
}

fn per_second(count: f64, seconds: f64) -> String {
    let rate = count / seconds.max(f64::MIN_POSITIVE);
    match rate {
        0.05..9.95 => format!("{rate:.1}"),
        _ if rate > 0.0 && rate < 0.05 => "<0.1".to_owned(),
        _ => grouped(rate.round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdowns::summary::Others;

    fn process(pid: i32, name: &str, sent: f64) -> ProcessSummary {
        ProcessSummary {
            pid,
            name: name.to_owned(),
            sent,
            received: sent,
            pages_per_flush: Some(1234.5),
            whole_flushes: Some(1.0),
            waited_seconds: Some(1.5),
            interrupted_seconds: Some(0.5),
            ..ProcessSummary::default()
        }
    }

    fn summary(evidence: Evidence) -> Summary {
        Summary {
            evidence,
            refused: Vec::new(),
            unseen: Vec::new(),
            watched: None,
            seconds: 1.0,
            sent: Some(1_234_567),
            received: Some(1_234_567),
            interrupts: Some(1_234_567),
            processes: vec![process(4_194_303, "a-name-of-15-ch", 1_234_567.0), process(1, "init", 2.0)],
            others: Others::default(),
            watching: shootdowns::summary::Watching::default(),
        }
    }

    #[test]
    fn the_live_view_fits_into_its_terminal() {
        let summary = summary(Evidence::TlbTracepoint);
        for width in [60, 72, 80, 90, 100, 120, 200] {
            let picture = live(&summary, width);
            let widest = widest(picture.trim_start_matches(CLEAR));
            assert!(widest <= width.max(70), "{widest} columns in {width}:\n{picture}");
            let table: Vec<&str> = picture.lines().skip_while(|line| !line.is_empty()).take(6).collect();
            assert!(table.iter().all(|line| line.chars().count() <= width), "{width}:\n{picture}");
            assert!(picture.contains("4194303") && picture.contains("1,234,567"), "{picture}");
            assert_eq!(picture.contains("a-name-of-15-ch"), width > 80, "{width}:\n{picture}");
            assert_eq!(picture.contains("received/s"), width >= 100, "{width}:\n{picture}");
            assert_eq!(picture.contains("150.0 %"), width >= 72, "{width}:\n{picture}");
        }
    }

    #[test]
    fn prose_fits_into_its_terminal_and_what_is_to_be_typed_stays_whole() {
        let cure = format!("    cure: GLIBC_TUNABLES={}", "glibc.malloc.trim_threshold=1:".repeat(4));
        let prose = format!("{cure}\n      ends it; it costs: {}\n\nNote: short\n", "resident memory ".repeat(9));
        let lines = fitted(prose.clone(), Some(80));
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!((lines[0], lines.last()), (cure.as_str(), Some(&"Note: short")));
        assert!(lines[1..].iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        assert!(lines[1].starts_with("      ends it;") && lines[2].starts_with("        resident"), "{lines:#?}");
        assert_eq!(fitted(prose.clone(), None), prose);
    }

    #[test]
    fn what_is_no_terminal_has_any_width() {
        let summary = summary(Evidence::TlbTracepoint);
        let printed = text(&summary, &[], None);
        assert!(printed.contains("received/s   pages each   of all   waiting   interrupted"), "{printed}");
        assert!(
            printed.lines().any(|line| line.starts_with("The whole") && line.ends_with("1,234,567/s")),
            "{printed}"
        );
    }

    #[test]
    fn paths_that_read_alike_are_shown_as_one() {
        let path = |share, function: &str, address| {
            let function = Some(function.to_owned());
            let frame = shootdowns::stacks::Frame { object: "a".to_owned(), function, address, index: None };
            PathSummary { share, cause: shootdowns::Cause::Munmap, frames: vec![frame] }
        };
        let mut process = process(1, "a", 1.0);
        process.paths =
            vec![path(0.375, "one", 1), path(0.25, "other", 2), path(0.25, "other", 3), path(0.125, "other", 4)];
        let shown = paths(&process);
        assert_eq!(shown.len(), 2);
        assert_eq!((shown[0].0, shown[0].1.as_str()), (0.625, "munmap: other"));
    }

    #[test]
    fn calls_have_a_table_of_their_own() {
        let summary = summary(Evidence::SystemCalls);
        for width in [24, 80] {
            let picture = live(&summary, width);
            assert!(picture.contains("calls/s") && !picture.contains("waiting"), "{picture}");
        }
    }

    fn diagnosis(pid: i32, findings: Vec<Finding>) -> Diagnosis {
        Diagnosis { pid, allocator: None, environment: Vec::new(), findings }
    }

    #[test]
    fn few_stacks_are_a_guess_and_said_to_be() {
        let finding = Finding {
            share: 0.67,
            uncertain: true,
            behaviour: shootdowns::diagnosis::Behaviour::Program(shootdowns::Cause::Madvise),
            text: "its own calls".to_owned(),
            cures: Vec::new(),
            advice: None,
        };
        let mut summary = summary(Evidence::TlbTracepoint);
        (summary.processes[1].stacks, summary.processes[1].effective_stacks) = (3, 2.6);
        let printed = text(&summary, &[diagnosis(1, vec![finding.clone()])], None);
        assert!(printed.contains("from 3 stacks, too few to tell; fix: watch for longer (--for SECONDS)"), "{printed}");
        assert!(printed.contains("  perhaps 67 %: its own calls"), "{printed}");
        (summary.processes[1].stacks, summary.processes[1].effective_stacks) = (30, 25.0);
        let printed = text(&summary, &[diagnosis(1, vec![Finding { uncertain: false, ..finding }])], None);
        assert!(printed.contains("\n  67 %: its own calls") && !printed.contains("too few"), "{printed}");
        let printed = text(&summary, &[diagnosis(4_194_303, Vec::new())], None);
        assert!(printed.contains("no stack of it was sampled"), "{printed}");
    }

    #[test]
    fn a_thread_of_the_kernel_has_not_ended() {
        let mut summary = summary(Evidence::TlbTracepoint);
        let printed = text(&summary, &[diagnosis(1, Vec::new())], None);
        assert!(printed.contains("1 init: it has ended, or its files cannot be read"), "{printed}");
        summary.processes[1].kernel_thread = true;
        let printed = text(&summary, &[diagnosis(1, Vec::new())], None);
        assert!(printed.contains("1 init: a thread of the kernel\n"), "{printed}");
    }

    #[test]
    fn a_machine_that_does_not_show_all_never_says_that_there_are_none() {
        let mut summary = summary(Evidence::TlbTracepoint);
        summary.processes.clear();
        assert!(text(&summary, &[], None).contains("No process sent or received any.\n"));
        summary.unseen = vec![shootdowns::machine::Unseen::KvmParavirtual];
        assert!(text(&summary, &[], None).contains("No process sent or received any.\n"), "senders are all counted");
        summary.unseen.push(shootdowns::machine::Unseen::AmdBroadcast);
        let printed = text(&summary, &[], None);
        assert!(
            printed.contains("does not show all of them, see the notes") && printed.contains("INVLPGB"),
            "{printed}"
        );
    }

    #[test]
    fn others_are_told_and_are_somebody() {
        let mut summary = summary(Evidence::TlbTracepoint);
        assert!(!text(&summary, &[], None).contains("Others"));
        summary.others = Others { sent: 1_000.0, received: 2_000_000.0 };
        let others = "Others, too many to keep apart: sent 1,000/s, received 2,000,000/s\n";
        assert!(text(&summary, &[], None).contains(others), "{}", text(&summary, &[], None));
        let narrow = live(&summary, 60);
        assert!(narrow.contains("Others, too many to keep apart: sent 1,000/s,\n"), "{narrow}");
        summary.processes.clear();
        let printed = live(&summary, 80);
        assert!(printed.contains(others) && !printed.contains("No process"), "{printed}");
        summary.evidence = Evidence::SystemCalls;
        assert!(text(&summary, &[], None).contains("Others, too many to keep apart: calls 1,000/s\n"));
    }

    #[test]
    fn a_process_that_is_watched_alone_is_named_where_nothing_of_it_was_seen() {
        let mut summary = summary(Evidence::TlbTracepoint);
        (summary.processes, summary.watched) = (Vec::new(), Some(17));
        assert!(text(&summary, &[], None).contains("\nProcess 17 sent and received none.\n"));
        summary.evidence = Evidence::Interrupts;
        let printed = text(&summary, &[], None);
        assert!(printed.contains("Not shown: process 17 by itself"), "{printed}");
        summary.watched = None;
        assert!(!text(&summary, &[], None).contains("by itself"));
    }

    #[test]
    fn paths_for_which_there_was_no_room_are_told() {
        let mut summary = summary(Evidence::TlbTracepoint);
        summary.processes[1].other_paths = 0.25;
        let printed = text(&summary, &[diagnosis(1, Vec::new())], None);
        assert!(printed.contains("  25 %: on paths for which there was no room\n"), "{printed}");
    }

    #[test]
    fn rates_are_readable() {
        assert_eq!(per_second(3.0, 2.0), "1.5");
        assert_eq!(per_second(0.0, 2.0), "0");
        assert_eq!(per_second(1.0, 60.0), "<0.1");
        assert_eq!(per_second(9.96, 1.0), "10");
        assert_eq!(per_second(2_469_134.0, 2.0), "1,234,567");
        assert_eq!(grouped(999), "999");
    }
}
