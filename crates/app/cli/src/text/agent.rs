//! Texts of `pagelift agent`.

use super::number::counted;
use address_space::format_bytes;
use agent::decision::{Course, Order, Reason, Refusal, State, Unsettled};
use agent::explanation::{Explanation, LiftVerdict};
use agent::rules::{Configuration, Listen, Pattern, Rule, Settings, Share, Size, Time};
use agent::supervisor::{Entry, Ledger, Status, Switch};
use foreign_text::printable;
use options::{Choice, Kind, Kinds};
use std::path::Path;
use std::time::Duration;

/// The meaning of a configuration.
pub fn configuration(configuration: &Configuration, folder: &Path) -> String {
    let Configuration { settings, rules } = configuration;
    let mut text = settings_text(settings);
    for rule in rules {
        text += &format!("\nrule \"{}\" ({})\n", rule.name, rule.place);
        text += &format!("  processes with {}\n", conditions(rule).join(", and "));
        text += &format!("  {}\n", effect(rule).join("; "));
    }
    text += &match rules.len() {
        0 => format!("\nno rules in {}: nothing is lifted\n", folder.display()),
        1 => "\n1 rule, no error\n".to_owned(),
        number => format!("\n{number} rules, no error; the first one that a process meets counts\n"),
    };
    text
}

fn settings_text(settings: &Settings) -> String {
    let size = |bytes: Option<u64>| bytes.map_or("no limit".to_owned(), format_bytes);
    let quiet = settings.quiet.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let rows = [
        ("mode", settings.mode.to_string()),
        ("scan", Time(settings.scan).to_string()),
        ("settle", Time(settings.settle).to_string()),
        ("overhead", format!("{} of the CPU time that a program has used", settings.overhead)),
        ("cpu", format!("{} of one core", settings.cpu)),
        ("max_pause", Time(settings.max_pause).to_string()),
        ("max_memory", size(settings.max_memory)),
        ("max_memory_per_cgroup", size(settings.max_memory_per_cgroup)),
        ("max_cpu_pressure", settings.max_cpu_pressure.to_string()),
        ("max_memory_pressure", settings.max_memory_pressure.to_string()),
        ("min_free_memory", settings.min_free_memory.to_string()),
        ("quiet", if quiet.is_empty() { "none".to_owned() } else { quiet }),
        ("metrics", settings.metrics.as_ref().map_or("none".to_owned(), Listen::to_string)),
        ("textfile", settings.textfile.as_ref().map_or("none".to_owned(), |path| path.display().to_string())),
    ];
    rows.iter().map(|(name, value)| format!("{name:<22} {value}\n")).collect()
}

fn conditions(rule: &Rule) -> Vec<String> {
    let met = &rule.conditions;
    let list = |name: &str, patterns: &[Pattern]| {
        let shown = patterns.iter().map(|pattern| format!("\"{pattern}\"")).collect::<Vec<_>>().join(" or ");
        (!patterns.is_empty()).then(|| format!("{name} {shown}"))
    };
    let lists = [
        list("exe", &met.exe),
        list("name", &met.name),
        list("unit", &met.unit),
        list("cgroup", &met.cgroup),
        list("user", &met.user),
        met.env.as_ref().map(|env| match &env.value {
            Some(value) => format!("variable {}={value}", env.name),
            None => format!("variable {}", env.name),
        }),
        met.min_text.map(|bytes| format!("at least {} of code", Size(bytes))),
        met.min_cpu.map(|time| format!("at least {} of CPU time used", Time(time))),
    ];
    lists.into_iter().flatten().collect()
}

fn kinds(kinds: Kinds) -> String {
    let words: Vec<_> = Kind::ALL.iter().filter(|kind| kinds.contains(kind.value)).map(|kind| kind.word).collect();
    words.join(", ")
}

fn effect(rule: &Rule) -> Vec<String> {
    if rule.kinds.is_empty() {
        return vec!["are never lifted".to_owned()];
    }
    let mut parts = vec![
        format!("lift {}", kinds(rule.kinds)),
        format!("pages {}", rule.pages.word()),
        format!("keep {}", rule.keep),
    ];
    parts.extend(rule.max_memory.map(|bytes| format!("at most {} made resident by each", Size(bytes))));
    parts.extend((rule.rollout != Share::ALL).then(|| format!("on {} of machines", rule.rollout)));
    parts.extend((rule.holdout != Share::NONE).then(|| format!("{} of processes stay plain", rule.holdout)));
    if let Some(allow) = &rule.allow {
        let pages: Vec<_> = allow.pages.iter().map(|pages| pages.word()).collect();
        let most = allow.max_memory.map_or(String::new(), |bytes| format!(", at most {}", Size(bytes)));
        parts.push(format!("PAGELIFT_AGENT may ask for {} from {}{most}", kinds(allow.kinds), pages.join(" or ")));
    }
    parts
}

/// Why a process is lifted or not.
pub fn explanation(explanation: &Explanation<'_>) -> String {
    let Explanation { identity, program, usage, judgement, .. } = explanation;
    let mut text = format!("{}[{}]\n", printable(program.file_name()), identity.pid);
    let user = program.user_name.clone().unwrap_or_else(|| program.user.to_string());
    let or_none = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    let rows = [
        ("exe", or_none(&program.exe)),
        ("unit", or_none(program.unit.as_deref().unwrap_or_default())),
        ("cgroup", or_none(&program.cgroup)),
        ("user", user),
        ("build", or_none(&program.build)),
        ("code", format_bytes(program.text)),
        ("age", Time(usage.age).to_string()),
        ("CPU time used", Time(usage.cpu).to_string()),
        ("resident", format_bytes(usage.resident)),
    ];
    rows.iter().for_each(|(name, value)| text += &format!("  {name:<14} {}\n", printable(value)));
    text += "\nrules\n";
    for (rule, unmet) in &judgement.selection.tried {
        let unmet = printable(&unmet.to_string());
        text += &format!("  no   \"{}\" ({}): {unmet}\n", rule.name, rule.place);
    }
    match judgement.selection.rule {
        Some(rule) => text += &format!("  yes  \"{}\" ({})\n", rule.name, rule.place),
        None if judgement.selection.tried.is_empty() => text += "  there are none\n",
        None => {}
    }
    text += &order_text(explanation);
    text += &format!("\n{}\n", printable(&verdict(explanation)));
    text
}

/// The lift that is ordered, and the conditions that delay it.
fn order_text(explanation: &Explanation<'_>) -> String {
    let Explanation { judgement, waits, .. } = explanation;
    let mut text = "\n".to_owned();
    if let Some(order) = &judgement.order {
        text += &lift_text(explanation, order);
    }
    if let Some(verdict) = &explanation.verdict {
        text += &verdict_text(verdict);
    }
    if let Some(error) = &explanation.verdicts_error {
        text += &format!("  no   the verdicts cannot be read: {}\n", printable(error));
    }
    let all: Vec<&Refusal> =
        judgement.excluded.iter().chain(&explanation.block).chain(&judgement.waits).chain(waits).collect();
    let mut told = Vec::new();
    for refusal in all {
        if !told.contains(&refusal.reason) {
            told.push(refusal.reason);
            text += &format!("  no   {}: {}\n", refusal.reason.word(), printable(&refusal.to_string()));
        }
    }
    if told.is_empty() {
        text += "  ok   no interlock\n";
    }
    text
}

/// The lift, its cost, and whether the process is settled.
fn lift_text(explanation: &Explanation<'_>, order: &Order) -> String {
    let Explanation { judgement, least_cpu, usage, .. } = explanation;
    let most =
        order.max_memory.map_or(String::new(), |bytes| format!(", at most {} made resident", format_bytes(bytes)));
    let mut text = format!(
        "lift {} from {} pages{most}, keep {}\n",
        order.kind_words().join(", "),
        order.pages.word(),
        order.keep
    );
    let cost = judgement.cost.as_millis();
    let is_paid = usage.cpu >= *least_cpu;
    let mark = |good: bool| if good { "ok  " } else { "no  " };
    text += &format!(
        "  {} costs about {cost} ms of CPU time: needs {} used, found {}\n",
        mark(is_paid),
        Time(round(*least_cpu)),
        Time(usage.cpu)
    );
    if let Some(unsettled) =
        judgement.unsettled.as_ref().filter(|unsettled| !matches!(unsettled, Unsettled::Cpu { .. }))
    {
        text += &format!("  no   {unsettled}\n");
    }
    text
}

/// The result of measurements of the lift, and whether it is measured first.
fn verdict_text(verdict: &LiftVerdict) -> String {
    let known = printable(&verdict.known.to_string());
    match &verdict.course {
        Course::Leave(refusal) => format!("  no   {}: {known}\n", refusal.reason.word()),
        Course::Lift => format!("  ok   lifted without a measurement; {known}\n"),
        Course::Measure => format!(
            "  ok   measured first, which takes about {} of CPU time and needs {} used by all processes of its build; {known}\n",
            Time(round(verdict.estimate)),
            Time(round(verdict.least_cpu))
        ),
    }
}

fn round(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

fn verdict(explanation: &Explanation<'_>) -> String {
    let Explanation { judgement, entry, block, waits, switch, state_error, .. } = explanation;
    if let Some(error) = state_error {
        return format!("the agent's actions are unknown: {error}");
    }
    if let Some(entry) = entry {
        return format!("state: {}", state(entry));
    }
    if let Some(refusal) = judgement.excluded.as_ref().or(block.as_ref()) {
        return format!("never lifted: {refusal}");
    }
    if let Some(LiftVerdict { course: Course::Leave(refusal), .. }) = &explanation.verdict {
        return format!("not lifted: {refusal}");
    }
    if judgement.order.is_none() {
        return "not lifted: no rule is met".to_owned();
    }
    if let Some(unsettled) = &judgement.unsettled {
        return format!("not lifted yet: {unsettled}");
    }
    if *switch != Switch::Off {
        return format!("not lifted now: the kill switch says {}", switch.words());
    }
    match judgement.waits.iter().chain(waits).next() {
        Some(refusal) => format!("not lifted now: {refusal}"),
        None => {
            let is_measured = explanation.verdict.as_ref().is_some_and(|verdict| verdict.course == Course::Measure);
            let what = if is_measured { "measured, and lifted if that pays," } else { "lifted" };
            format!("{what} as soon as two scans find it so, the CPU budget permits, and mode is act")
        }
    }
}

fn state(entry: &Entry) -> String {
    let refusal = entry.refusal.as_ref().map_or(String::new(), |refusal| format!(": {refusal}"));
    match entry.progress.state {
        State::Kept => format!(
            "lifted by rule \"{}\", {} of {} on huge pages, stopped for {:.1} ms{}",
            entry.rule,
            format_bytes(entry.covered),
            entry.kinds.join(", "),
            entry.pause_microseconds as f64 / 1e3,
            if entry.lost == 0 { String::new() } else { format!(", {} lost since", format_bytes(entry.lost)) }
        ),
        // Nothing else is done with it until the agent is started again.
        State::Lifting if entry.refusal.is_some() => {
            format!("perhaps lifted{refusal}; fix: `pagelift detach {}`", entry.identity.pid)
        }
        State::Restored if entry.refusal.as_ref().is_some_and(|refusal| refusal.reason == Reason::NoGain) => {
            format!("left plain{refusal}")
        }
        State::Restored if entry.forks > 0 => {
            let forks = match entry.forks {
                1 => "1 process that was forked from it stays lifted".to_owned(),
                number => format!("{number} processes that were forked from it stay lifted"),
            };
            format!("restored{refusal}; {forks}")
        }
        State::Restored => format!("restored{refusal}; not lifted again"),
        State::Refused => {
            format!("refused {} of {} times{refusal}", entry.progress.refusals, agent::decision::MOST_REFUSALS)
        }
        other => other.word().to_owned(),
    }
}

/// Lifts, refusals and state of an agent.
pub fn status(status: Option<&Status>, running: bool, ledger: &Ledger) -> String {
    let mut text = match status {
        Some(status) if running => {
            let rules = if status.rules == 1 { "1 rule".to_owned() } else { format!("{} rules", status.rules) };
            let read = if status.configuration_is_read { "" } else { ", the last reload failed" };
            format!(
                "agent[{}] runs: mode {}, {rules}{read}, kill switch {}\n",
                status.agent.pid, status.mode, status.switch
            )
        }
        _ => "no agent runs\n".to_owned(),
    };
    if let Some(status) = status {
        let states: Vec<_> =
            status.processes.iter().map(|(state, number)| format!("{number} {}", state.word())).collect();
        text += &format!(
            "processes at the last scan: {}\n",
            if states.is_empty() { "none".to_owned() } else { states.join(", ") }
        );
        text += &format!(
            "a scan takes {:.1} ms; CPU time used {:.1} s, {} ms left in the budget\n",
            status.scan_microseconds as f64 / 1e3,
            status.cpu_milliseconds as f64 / 1e3,
            status.budget_milliseconds
        );
    }
    if let Some(now) = status.filter(|_| running).and_then(|status| status.measuring.as_ref()) {
        let blocks = counted(now.blocks, "block");
        text +=
            &format!("  measuring {}: {blocks} so far\n", printable(&format!("{}[{}]", now.program, now.process.pid)));
    }
    for stuck in status.filter(|_| running).iter().flat_map(|status| &status.stuck) {
        let (worker, pid) = (stuck.worker, stuck.process.pid);
        text +=
            &format!("  worker {worker} for process {pid} does not end: uninterruptible sleep; nothing is lifted\n");
    }
    for left in status.filter(|_| running).iter().flat_map(|status| &status.left_alone) {
        text +=
            &format!("  {}\n", printable(&format!("{}[{}] left plain: {}", left.program, left.process.pid, left.why)));
    }
    for entry in &ledger.lifts {
        text += &format!("  {}\n", printable(&format!("{}[{}] {}", entry.program, entry.identity.pid, state(entry))));
    }
    for block in &ledger.blocked {
        let blocked = format!("{}, build {}: {}", block.program, block.build, block.why);
        text += &format!("  blocked: {}\n", printable(&blocked));
    }
    // The ledger is written at changes only.
    let counts = status.filter(|_| running).map_or(&ledger.counts, |status| &status.counts);
    text += &format!("since the boot: {} lifted, {} restored", counts.lifts, counts.restored);
    if counts.measurements > 0 {
        text += &format!(", {} measured", counts.measurements);
    }
    for (reason, number) in &counts.refusals {
        text += &format!(", {number} {}", reason.word());
    }
    text + "\n"
}
