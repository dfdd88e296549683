//! Formats the result of `pagelift shootdowns`; pure.

use super::doctor::wrapped;
use super::grid::fold;
use super::number::{counted, grouped};
use super::table::{align_right, table, trimmed};
use process_view::printable;
use process_view::symbols::without_arguments;
use shootdowns::diagnosis::{Behaviour, FEWEST_STACKS, Finding, Remedy, Returning};
use shootdowns::severity::Level;
use shootdowns::stacks::Frame;
use shootdowns::summary::{LeftOut, PathSummary, ProcessSummary};
use shootdowns::{Diagnosis, Evidence, Severity, Summary};
use std::collections::HashSet;
use std::fmt::Write;
use std::time::Duration;

/// Rows of processes.
const MOST_PROCESSES: usize = 10;
/// Call paths and threads of one process.
const MOST_PATHS: usize = 3;
/// Smallest share of a path that is shown: it is not 0 %.
const SMALLEST_PATH: f64 = 0.005;
/// Characters of a function's name with the arguments of its templates.
const LONGEST_NAME: usize = 60;
/// Frames of a path.
const MOST_FRAMES: usize = 8;
/// Clears a terminal and goes to its beginning (ECMA-48: ED, CUP).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Headings of the processes' columns: in full, and on two lines if the terminal is narrow.
const HEADINGS: [[&str; 2]; 10] = [
    ["process", "process"],
    ["", ""],
    ["sent/s", "sent/s"],
    ["received/s", "received\n/s"],
    ["in calls", "in calls"],
    ["faults/s", "faults\n/s"],
    ["waiting", "waiting"],
    ["interrupted", "inter-\nrupted"],
    ["pages each", "pages\neach"],
    ["of all", "of\nall"],
];
/// Headings of the columns if calls are counted instead of shootdowns.
const CALL_HEADINGS: [&str; 5] = ["process", "", "calls/s", "in calls", "faults/s"];
/// Explanation of the columns.
const LEGEND: &str =
    "in calls: time in munmap, madvise, mprotect and mremap; all times: of one CPU; of all: whole address spaces\n";
/// The commands that follow from a cure.
const NEXT: &str = "
Next
  start with the cure   pagelift run --calm -- CMD
  measure it            pagelift bench --arms plain,calm -- CMD
  measure a server      pagelift bench --server CMD --arms calm --load LOAD
";
/// A watch that is longer than the requested time by this factor and [`SHORT_DELAY`] is named.
const LATE: f64 = 1.1;
/// Seconds.
const SHORT_DELAY: f64 = 0.2;
/// Columns of a terminal that a name keeps at the least.
const SHORTEST_NAME: usize = 6;

/// One picture of the live view, in a terminal of this width.
pub fn live(summary: &Summary, width: usize) -> String {
    let picture = head(summary, Some(width)) + &processes(summary, Some(width));
    format!("{CLEAR}{picture}\nCtrl-C ends it and shows the diagnosis.\n")
}

/// The whole result, with the cures; the table within so many columns.
pub fn text(summary: &Summary, diagnoses: &[Diagnosis], width: Option<usize>) -> String {
    let (mut prose, mut given) = (String::new(), HashSet::new());
    for diagnosis in diagnoses {
        if let Some(process) = summary.processes.iter().find(|process| process.life == diagnosis.life) {
            prose += &diagnosed(summary, process, diagnosis, &mut given);
        }
    }
    prose += &sends_none(summary);
    // A variable that is set already is no cure to come.
    if diagnoses.iter().any(has_cure) {
        prose += NEXT;
    }
    prose += &notes(summary);
    head(summary, width) + &processes(summary, width) + &fitted(prose, width)
}

/// The note on a watch that was clearly longer than requested: this program did not get a CPU in time, or read the symbols of a
/// large program.
pub fn overrun(requested: Duration, watched: f64) -> Option<String> {
    let requested = requested.as_secs_f64();
    (watched > LATE * requested + SHORT_DELAY).then(|| {
        format!(
            "Note: watched for {watched:.1} s instead of {requested:.1} s, since reading samples took longer or the CPUs were busy; \
             rates are per second of the watched time.\n"
        )
    })
}

/// True if `--calm` sets a variable for this process: not those for calloc alone.
fn has_cure(diagnosis: &Diagnosis) -> bool {
    let is_calm = |finding: &&Finding| finding.behaviour != Behaviour::Allocator(Returning::CallocZeroing);
    let findings = diagnosis.findings.iter().filter(is_calm);
    diagnosis.severity.level != Level::Nothing
        && findings.flat_map(|finding| &finding.cures).any(|cure| cure.value.is_some())
}

/// The verdict about the watched process if it only receives.
fn sends_none(summary: &Summary) -> String {
    let watched = || summary.processes.iter().filter(|process| summary.watched == Some(process.pid));
    let sends = watched().any(|process| process.sent > 0.0);
    match watched().find(|process| !sends && process.received > 0.0) {
        Some(process) => format!("\n{} {} sends none: do nothing\n", process.pid, process.name),
        None => String::new(),
    }
}

/// Prose in lines that fit; continuation lines are indented. Symbols of paths that are wider than a line are broken; links are
/// not. Text to be typed stays on one line.
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
        let room = width.saturating_sub(indent + FURTHER);
        let parts = if bare.starts_with("path ") { fold(&printable(bare), room, 0) } else { wrapped(bare, room) };
        for (number, part) in parts.iter().enumerate() {
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

/// Parts with commas between them, on another line if one does not fit.
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
        text += &fitted(LEGEND.to_owned(), width);
    }
    text + &others
}

/// The shootdowns sent and received by the processes without a row.
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

/// The message if no process is shown.
fn nobody(summary: &Summary) -> String {
    let who = match (summary.evidence, summary.watched) {
        (Evidence::TlbTracepoint | Evidence::SystemCalls, Some(pid)) => format!("Process {pid} sent and received none"),
        (Evidence::TlbTracepoint | Evidence::SystemCalls, None) => "No process sent or received any".to_owned(),
        (Evidence::Interrupts, Some(pid)) => {
            return format!("Not available for process {pid} alone; the counts are for all processes together.");
        }
        _ => return String::new(),
    };
    let is_all =
        summary.evidence == Evidence::SystemCalls || !summary.unseen.iter().any(|unseen| unseen.hides_senders());
    let rest = if is_all { "." } else { " that is visible: this machine does not report all, see the notes." };
    who + rest
}

fn cells(process: &ProcessSummary, summary: &Summary) -> Vec<String> {
    let mut cells = vec![process.pid.to_string(), process.name.clone(), per_second(process.sent, summary.seconds)];
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    let share = |seconds: Option<f64>| or_dash(seconds.map(|seconds| percent(seconds / summary.seconds)));
    let faults = or_dash(process.page_faults.map(|faults| per_second(faults as f64, summary.seconds)));
    if summary.evidence == Evidence::SystemCalls {
        cells.extend([share(process.call_seconds), faults]);
        return cells;
    }
    cells.extend([per_second(process.received, summary.seconds), share(process.call_seconds), faults]);
    cells.extend([share(process.waited_seconds), share(process.interrupted_seconds)]);
    cells.push(or_dash(process.pages_per_flush.map(|pages| format!("{pages:.1}"))));
    cells.push(or_dash(process.whole_flushes.map(|share| format!("{:.0} %", 100.0 * share))));
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

/// The table with so many columns; narrow if names have a maximum length.
fn laid_out(rows: &[Vec<String>], calls: bool, longest_name: Option<usize>, columns: usize) -> String {
    let narrow = longest_name.is_some();
    let mut headings: Vec<&str> = HEADINGS.iter().map(|heading| heading[usize::from(narrow)]).take(columns).collect();
    if calls {
        headings = CALL_HEADINGS.into_iter().take(columns).collect();
    }
    let mut made = table(&headings);
    for cells in rows {
        let mut cells: Vec<String> = cells.iter().take(headings.len()).cloned().collect();
        cells[1] = shortened(&cells[1], longest_name);
        made.add_row(cells);
    }
    [0].into_iter().chain(2..headings.len()).for_each(|column| align_right(&mut made, column));
    if narrow {
        made.make_narrow();
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

/// The cost, and whether an action is recommended.
fn severity(severity: &Severity, evidence: Evidence) -> String {
    let mut text = format!("  {}/s", per_second(severity.rate, 1.0));
    match severity.share {
        Some(share) if severity.is_waiting => {
            text += &format!(", {} of one CPU waiting for answers and in interrupts", percent(share));
        }
        Some(share) => text += &format!(", {} of one CPU in the calls and interrupts", percent(share)),
        None if evidence != Evidence::SystemCalls => text += ", their time is not measured",
        None => {}
    }
    if let Some(faults) = severity.faults {
        text += &format!(", {} page faults/s", per_second(faults, 1.0));
    }
    text + match severity.level {
        Level::Nothing => ": do nothing\n",
        Level::Little => ": little to gain, except for latency\n",
        Level::Cure => ": worth a cure\n",
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// `given`: the cures and pieces of advice that the text has already.
fn diagnosed(
    summary: &Summary,
    process: &ProcessSummary,
    diagnosis: &Diagnosis,
    given: &mut HashSet<String>,
) -> String {
    let mut text = format!("\n{} {}", process.pid, process.name);
    text += &match &diagnosis.allocator {
        Some(allocator) => format!(": {allocator}\n"),
        None if process.kernel_thread => ": a thread of the kernel\n".to_owned(),
        None => ": it has ended, or its files cannot be read\n".to_owned(),
    };
    text += &severity(&diagnosis.severity, summary.evidence);
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
        if diagnosis.severity.level != Level::Nothing {
            text += &remedies(finding, given);
        }
    }
    if process.stacks == 0 {
        text += "  no stack was sampled, so the cause is unknown; fix: watch for longer (--for 30s)";
        text += if summary.watched.is_none() { ", and only this process (-p PID)\n" } else { "\n" };
    } else if process.effective_stacks < FEWEST_STACKS {
        let stacks = counted(process.effective_stacks.round() as u64, "stack");
        let _ = writeln!(text, "  from {stacks}, too few for a cause; fix: watch for longer (--for 30s)");
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
    format!("  {doubt}{:.0} %: {}\n", 100.0 * finding.share, finding.text)
}

/// The cures, each cure and each advice in full once.
fn remedies(finding: &Finding, given: &mut HashSet<String>) -> String {
    let mut text = String::new();
    for cure in &finding.cures {
        let full = remedy(cure);
        match given.contains(&full) {
            true => text += &format!("    cure: as above, {}\n", cure.variable),
            false => text += &full,
        }
        given.insert(full);
    }
    if let Some(advice) = &finding.advice {
        let full = format!("    advice: {}\n    source: {}\n", advice.says, advice.source);
        text += if given.contains(&full) { "    advice: as above\n" } else { &full };
        given.insert(full);
    }
    text
}

fn remedy(cure: &Remedy) -> String {
    let effect = match cure.effect {
        shootdowns::diagnosis::Effect::Ends => "ends it",
        shootdowns::diagnosis::Effect::Reduces => "reduces it",
    };
    let mut text = match &cure.value {
        // The added part alone would have little or no effect.
        _ if !cure.against.is_empty() => {
            let (own, all) = (cure.against.join(", "), &cure.whole);
            format!("    cure: {}={all} in place of its present {own}, which prevents it\n", cure.variable)
        }
        Some(value) if cure.beside_others => {
            format!("    cure: {}={value}, before its present value\n", cure.variable)
        }
        Some(value) => format!("    cure: {}={value}\n", cure.variable),
        None => format!("    {} is set so already\n", cure.variable),
    };
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

/// A frame in a few words: the template arguments of a longer name are left out.
fn brief(frame: &Frame) -> String {
    let name = frame.to_string();
    if name.chars().count() > LONGEST_NAME { without_arguments(&name) } else { name }
}

fn call_path(path: &PathSummary) -> String {
    let mut frames: Vec<String> = path.frames.iter().take(MOST_FRAMES).map(brief).collect();
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
            "Totals are counted; shares and paths are from {}. Watching took {:.1} % of one CPU.",
            counted(watching.stacks, "stack"),
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
    if summary.processes.iter().any(|process| process.call_seconds.is_some()) {
        text += "Calls that began before the watch and ended after it are not in the time in calls.\n";
    }
    let lost = [
        (watching.lost_sent, "of senders"),
        (watching.lost_received, "of receivers"),
        (watching.lost_stacks, "stacks"),
        (watching.lost_times, "of times"),
        (watching.lost_begins, "of new processes and programs"),
    ];
    let lost: Vec<String> =
        lost.iter().filter(|(lost, _)| *lost > 0).map(|(lost, what)| format!("{lost} {what}")).collect();
    if !lost.is_empty() {
        let _ = writeln!(text, "Samples lost, since they came faster than they were read: {}.", lost.join(", "));
    }
    text += &left_out(&watching.left_out);
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

/// The results that are not kept.
fn left_out(left_out: &LeftOut) -> String {
    let parts = [
        (left_out.processes, "processes"),
        (left_out.threads, "shootdowns of threads"),
        (left_out.paths, "shootdowns with call paths"),
        (left_out.times, "times of processes"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{} {what}", grouped(*count)))
        .collect();
    if parts.is_empty() { String::new() } else { format!("Left out, to bound memory: {}.\n", parts.join(", ")) }
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
mod tests;
