//! Formats what `pagelift shootdowns` has seen; pure.

use super::number::grouped;
use super::table::{align_right, table};
use shootdowns::diagnosis::{Finding, Remedy};
use shootdowns::summary::{PathSummary, ProcessSummary};
use shootdowns::{Diagnosis, Evidence, Summary};
use std::fmt::Write;

/// Rows of processes.
const MOST_PROCESSES: usize = 10;
/// Call paths and threads of one process.
const MOST_PATHS: usize = 3;
/// Frames of a path.
const MOST_FRAMES: usize = 8;
/// Clears a terminal and goes to its beginning (ECMA-48: ED, CUP).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// One picture of the live view.
pub fn live(summary: &Summary) -> String {
    format!("{CLEAR}{}{}\nCtrl-C ends it and shows the diagnosis.\n", head(summary), processes(summary))
}

/// All that was seen, and what ends it.
pub fn text(summary: &Summary, diagnoses: &[Diagnosis]) -> String {
    let mut text = head(summary) + &processes(summary);
    for diagnosis in diagnoses {
        if let Some(process) = summary.processes.iter().find(|process| process.pid == diagnosis.pid) {
            text += &diagnosed(summary, process, diagnosis);
        }
    }
    text + &notes(summary)
}

fn head(summary: &Summary) -> String {
    let rate = |count: u64| per_second(count as f64, summary.seconds);
    let mut text = format!("TLB shootdowns in {:.1} s, by {}\n", summary.seconds, summary.evidence);
    let mut parts = Vec::new();
    let sent = if summary.evidence == Evidence::SystemCalls { "calls" } else { "sent" };
    parts.extend(summary.sent.map(|count| format!("{sent} {}/s", rate(count))));
    parts.extend(summary.received.map(|count| format!("received {}/s", rate(count))));
    parts.extend(summary.interrupts.map(|count| format!("interrupts by /proc/interrupts {}/s", rate(count))));
    if !parts.is_empty() {
        let _ = writeln!(text, "The whole machine: {}", parts.join(", "));
    }
    text
}

fn processes(summary: &Summary) -> String {
    let shown = summary.processes.iter().filter(|process| process.sent + process.received > 0.0);
    let shown: Vec<&ProcessSummary> = shown.take(MOST_PROCESSES).collect();
    if shown.is_empty() {
        return match summary.evidence {
            Evidence::TlbTracepoint | Evidence::SystemCalls => "No process sent or received any.\n".to_owned(),
            _ => String::new(),
        };
    }
    let calls = summary.evidence == Evidence::SystemCalls;
    let headings: &[&str] = match calls {
        true => &["process", "", "calls/s"],
        false => &["process", "", "sent/s", "received/s", "pages each", "of all", "waiting", "interrupted"],
    };
    let mut rows = table(headings);
    for process in shown {
        let mut cells = vec![process.pid.to_string(), process.name.clone(), per_second(process.sent, summary.seconds)];
        if !calls {
            let share = |seconds: Option<f64>| {
                seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{:.1} %", 100.0 * seconds / summary.seconds))
            };
            cells.push(per_second(process.received, summary.seconds));
            cells.push(process.pages_per_flush.map_or_else(|| "–".to_owned(), |pages| format!("{pages:.1}")));
            cells.push(process.whole_flushes.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", 100.0 * share)));
            cells.extend([share(process.waited_seconds), share(process.interrupted_seconds)]);
        }
        rows.add_row(cells);
    }
    [0].into_iter().chain(2..headings.len()).for_each(|column| align_right(&mut rows, column));
    let rows = rows.to_string();
    let mut text = format!("\n{}\n", rows.lines().map(str::trim_end).collect::<Vec<_>>().join("\n"));
    if !calls {
        text += "of all: flushes of a whole address space; waiting, interrupted: of one CPU's time\n";
    }
    text
}

fn diagnosed(summary: &Summary, process: &ProcessSummary, diagnosis: &Diagnosis) -> String {
    let mut text = format!("\n{} {}", process.pid, process.name);
    text += &match &diagnosis.allocator {
        Some(allocator) => format!(": {allocator}\n"),
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
    for path in process.paths.iter().take(MOST_PATHS) {
        text += &call_path(path);
    }
    text
}

fn found(finding: &Finding) -> String {
    let mut text = format!("  {:.0} %: {}\n", 100.0 * finding.share, finding.text);
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

fn call_path(path: &PathSummary) -> String {
    let mut frames: Vec<String> = path.frames.iter().take(MOST_FRAMES).map(ToString::to_string).collect();
    if path.frames.len() > MOST_FRAMES {
        frames.push("…".to_owned());
    }
    let frames = if frames.is_empty() { "(no stack of the program)".to_owned() } else { frames.join(" < ") };
    format!("  path {:.0} %, {}: {frames}\n", 100.0 * path.share, path.cause)
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
    if rate < 10.0 && rate > 0.0 { format!("{rate:.1}") } else { grouped(rate.round() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_readable() {
        assert_eq!(per_second(3.0, 2.0), "1.5");
        assert_eq!(per_second(0.0, 2.0), "0");
        assert_eq!(per_second(2_469_134.0, 2.0), "1,234,567");
        assert_eq!(grouped(999), "999");
    }
}
