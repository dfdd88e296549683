//! Formats the answer of `pagelift bench`; pure.

use bench::{Ended, Progress};
use bench_report::decision::{advice, decision};
use bench_report::switch_cost::{SwitchCost, cpu_cost, switch_cost};
use bench_report::words::{self, count, interval, said};
use bench_report::{latency, visible};
use measure::record::{Design, Record};
use measure::toggle::{Answer, ArmAnswer};
use serde_json::json;
use std::iter;

/// The message beside the bar.
pub fn progress(progress: &Progress<'_>) -> String {
    let arms = progress.answer.arms.iter().map(|arm| arm.ratio.map_or_else(|| "…".to_owned(), |_| interval(arm)));
    format!("{}: {}", count(progress.blocks), arms.collect::<Vec<_>>().join("; "))
}

/// The answer in a line for each arm, the control, the cost of a switch, and the end. Its text cannot act on a
/// terminal: a record may come from anybody.
///
/// If no arm lifted any memory, [`failure`] has the reason and the next command.
pub fn answer(record: &Record) -> String {
    let mut lines = head(record);
    if !has_lifted_nothing(record) {
        lines.extend(result(record));
    }
    lines.iter().map(|line| visible(line) + "\n").collect()
}

fn head(record: &Record) -> Vec<String> {
    let header = &record.header;
    let blocks = format!("{}, {} of four {}", header.program, count(record.blocks().len()), windows(header.design));
    let warnings = header.machine.warnings().into_iter().map(|warning| format!("note: {warning}"));
    iter::once(blocks).chain(warnings).collect()
}

/// The lines about the arms, the end, and the decision.
fn result(record: &Record) -> Vec<String> {
    let answer = record.answer();
    let header = &record.header;
    let per = words::cost(record);
    let mut lines = Vec::new();
    for (number, (name, arm)) in header.arms.iter().zip(&answer.arms).enumerate() {
        let said = said(record, &answer, number);
        lines.push(match arm {
            ArmAnswer { ratio: Some(_), .. } => format!("{name}: {} {} per {per}; {said}", interval(arm), header.unit),
            ArmAnswer { blocks: 0, .. } => format!("{name}: {said}"),
            ArmAnswer { blocks, .. } => format!("{name}: {} of {} per {per}: {said}", count(*blocks), header.unit),
        });
    }
    lines.push(format!("plain against itself: {}", interval(&answer.control)));
    lines.extend(words::steady(record));
    lines.extend(words::cycles_per_instruction(record));
    lines.extend(words::unusable(record, &answer));
    lines.extend(words::retries(record));
    lines.extend(words::unlifted(record));
    lines.extend(words::unchecked(record));
    lines.extend(switches(record, &answer));
    lines.extend(latency(record));
    lines.extend(words::translation(record));
    lines.extend(words::walks(record));
    lines.extend(words::end_beside_decision(record));
    let advice = advice(record);
    lines.push(format!("{}: {}", advice.headline, advice.reason));
    lines.extend(advice.next.map(|next| format!("next: {next}")));
    lines
}

/// True if the experiment ended because no arm lifted any memory.
fn has_lifted_nothing(record: &Record) -> bool {
    matches!(record.ended(), Some(Ended::Failed(why)) if *why == record.nothing_in_any_arm())
}

fn windows(design: Design) -> &'static str {
    match design {
        Design::Toggle => "windows",
        Design::Runs => "runs",
        Design::Servers => "bursts",
    }
}

/// The cost of a lift, and the time after which a gain has paid for it: a line for each arm.
fn switches(record: &Record, answer: &Answer) -> Vec<String> {
    let line = |(number, name): (usize, &String)| {
        let SwitchCost { cpu, pause, switches, paid_back } = switch_cost(record, answer, number)?;
        let plural = if switches == 1 { "" } else { "es" };
        let paid_back = paid_back.map_or_else(String::new, |time| format!("; paid back after {time:.1} s of CPU time"));
        Some(format!(
            "a switch to {name}: {}, {:.1} ms at a standstill ({switches} switch{plural}){paid_back}",
            cpu_cost(cpu),
            pause * 1e3
        ))
    };
    record.header.arms.iter().enumerate().filter_map(line).collect()
}

/// The reason why the experiment could not continue. If no arm lifted any memory, the next command follows.
pub fn failure(record: &Record) -> Option<String> {
    let Some(Ended::Failed(why)) = record.ended() else { return None };
    let next = has_lifted_nothing(record).then(|| advice(record).next).flatten();
    Some(visible(&next.map_or_else(|| why.clone(), |next| format!("{why}; next: {next}"))))
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
        "decision": decision(record).map(|(_, decision)| decision),
        "answer": answer,
        "nothing_lifted": nothing,
        "steady": steady,
        "latency": record.latencies(),
        "blocks": record.blocks().len(),
        "ended": record.ended(),
    });
    Ok(cli::output::json(&value)?)
}
