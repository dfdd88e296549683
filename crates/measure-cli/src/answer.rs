//! Formats the answer of `pagelift bench`; pure.

use bench_report::latency;
use bench_report::words::{self, SwitchCost, interval, said, switch_cost};
use experiment::record::{Design, Record};
use experiment::{Ended, Progress};
use measure::toggle::{Answer, ArmAnswer};
use serde_json::json;

/// The message beside the bar.
pub fn progress(progress: &Progress<'_>) -> String {
    let arms = progress.answer.arms.iter().map(|arm| arm.ratio.map_or_else(|| "…".to_owned(), |_| interval(arm)));
    format!("{} blocks: {}", progress.blocks, arms.collect::<Vec<_>>().join("; "))
}

/// The answer in a line for each arm, the control, what a switch costs, and how it ended.
pub fn answer(record: &Record) -> String {
    let answer = record.answer();
    let header = &record.header;
    let per = words::cost(record);
    let mut text = format!("{}, {} blocks of four {}\n", header.program, record.blocks().len(), windows(header.design));
    for warning in header.machine.warnings() {
        text += &format!("note: {warning}\n");
    }
    for (number, (name, arm)) in header.arms.iter().zip(&answer.arms).enumerate() {
        let said = said(record, &answer, number);
        text += &match arm {
            ArmAnswer { ratio: Some(_), .. } => {
                format!("{name}: {} {} per {per}; {said}\n", interval(arm), header.unit)
            }
            ArmAnswer { blocks: 0, .. } => format!("{name}: {said}\n"),
            ArmAnswer { blocks, .. } => format!("{name}: {blocks} blocks of {} per {per}: {said}\n", header.unit),
        };
    }
    text += &format!("plain against itself: {}\n", interval(&answer.control));
    text += &words::steady(record)
        .into_iter()
        .chain(words::cycles_per_instruction(record))
        .map(|line| line + "\n")
        .collect::<String>();
    text += &words::unusable(record, &answer).map_or_else(String::new, |line| line + "\n");
    text += &switches(record, &answer);
    text += &latency(record).into_iter().map(|line| line + "\n").collect::<String>();
    text += &words::translation(record).into_iter().map(|line| line + "\n").collect::<String>();
    text += &words::walks(record).into_iter().map(|line| line + "\n").collect::<String>();
    text + &words::end(record).map_or_else(String::new, |line| line + "\n")
}

fn windows(design: Design) -> &'static str {
    match design {
        Design::Toggle => "windows",
        Design::Runs => "runs",
        Design::Servers => "bursts",
    }
}

/// What a lift costs, and after how long a gain has paid for it.
fn switches(record: &Record, answer: &Answer) -> String {
    let mut text = String::new();
    for (number, name) in record.header.arms.iter().enumerate() {
        let Some(SwitchCost { cpu, pause, switches, paid_back }) = switch_cost(record, answer, number) else {
            continue;
        };
        let paid_back = paid_back.map_or_else(String::new, |time| format!("; paid back after {time:.1} s of CPU time"));
        text += &format!(
            "a switch to {name}: {:.1} ms of its CPU time, {:.1} ms at a standstill (medians of {switches}){paid_back}\n",
            cpu * 1e3,
            pause * 1e3
        );
    }
    text
}

/// Why the experiment could not go on.
pub fn failure(record: &Record) -> Option<String> {
    match record.ended() {
        Some(Ended::Failed(why)) => Some(why.clone()),
        _ => None,
    }
}

/// The answer with its header.
pub fn json(record: &Record) -> anyhow::Result<String> {
    let answer = record.answer();
    let findings = |answer: &Answer| (0..answer.arms.len()).map(|arm| answer.finding(arm)).collect::<Vec<_>>();
    let nothing: Vec<_> = (0..answer.arms.len()).map(|arm| record.lifted_nothing(arm)).collect();
    let steady = record.steady_answer().map(|answer| json!({ "findings": findings(&answer), "answer": answer }));
    let value = json!({
        "header": record.header,
        "findings": findings(&answer),
        "answer": answer,
        "nothing_lifted": nothing,
        "steady": steady,
        "latency": record.latencies(),
        "blocks": record.blocks().len(),
        "ended": record.ended(),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}
