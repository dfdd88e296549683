//! An answer in words, for the terminal and for pages.

use address_space::{counted, format_bytes};
use measure::record::{
    Compared, CostRanges, Design, Ended, Figure, MOST_BLOCKS, Record, TimedBlock, WalkFigures, compared,
};
use measure::statistics::{Estimate, GENERATIONS_FOR_T};
use measure::toggle::{Answer, ArmAnswer, Finding, Measured, Per, Window};

/// `+0.4`: a share of a ratio, in percent. Values far beyond any measurement are written with an exponent.
pub fn percent(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    if percent.abs() < 1e5 { format!("{percent:+.1}") } else { format!("{percent:+.1e}") }
}

/// `+0.4 % [-0.3, +1.1]`.
pub fn interval(arm: &ArmAnswer) -> String {
    match &arm.ratio {
        Some(Estimate { centre, low, high, .. }) => {
            format!("{} % [{}, {}]", percent(*centre), percent(*low), percent(*high))
        }
        None => format!("{}, too few for an interval", count(arm.blocks)),
    }
}

/// `1 block`, `2 blocks`.
pub fn count(blocks: usize) -> String {
    counted(blocks as u64, "block")
}

/// The divisor of work, in the singular.
pub fn per(per: Per) -> &'static str {
    match per {
        Per::CpuSecond => "CPU second",
        Per::Second => "second",
        Per::Cycle => "cycle",
    }
}

/// `±0.8 %`: the largest difference that may be there unseen.
pub fn hidden(answer: &Answer, arm: usize) -> Option<String> {
    answer.hidden(arm).map(|share| format!("±{} %", percent(1.0 + share).trim_start_matches('+')))
}

/// `= 0.31`: a probability.
fn chance(probability: f64) -> String {
    if probability < 0.005 { "< 0.01".to_owned() } else { format!("= {probability:.2}") }
}

/// The conclusion about an arm.
pub fn finding(answer: &Answer, arm: usize) -> String {
    let hidden = hidden(answer, arm).map_or_else(String::new, |text| format!(" ({text})"));
    let probability =
        answer.arms[arm].signed_rank.map_or_else(String::new, |p| format!(", signed-rank p {}", chance(p)));
    match answer.finding(arm) {
        Finding::Better => format!("it pays{probability}"),
        Finding::Worse => format!("it costs{probability}"),
        Finding::NoDifference => format!("no difference that this machine can show{hidden}{probability}"),
        Finding::Disturbed => "disturbed, no answer: plain differs from itself".to_owned(),
        Finding::TooFew => match answer.starts_if_too_few(arm) {
            None => "too few blocks; fix: a longer --for".to_owned(),
            Some(starts) => format!(
                "too few starts: found {starts}, needed {GENERATIONS_FOR_T}, for two processes of one program differ; fix: a \
                 longer --for, with --starts {GENERATIONS_FOR_T} or more"
            ),
        },
    }
}

/// The conclusion about an arm, or that it has lifted no memory.
pub fn said(record: &Record, answer: &Answer, arm: usize) -> String {
    let found = match record.ended() {
        Some(Ended::Failed(_)) if answer.arms[arm].blocks == 0 => "no block was measured".to_owned(),
        _ => finding(answer, arm),
    };
    match record.lifted_nothing(arm) {
        None => found,
        Some(why) if answer.arms[arm].blocks == 0 => format!("nothing was lifted: {why}"),
        // Only some runs are observed.
        Some(why) if is_untried(record, answer, arm) => {
            format!("nothing was lifted in the observed run: {why}")
        }
        Some(why) if record.header.design == Design::Runs => {
            format!("{found}; nothing was lifted in the observed run: {why}")
        }
        Some(why) => format!("{found}; then nothing was lifted any more: {why}"),
    }
}

/// True if no lift is known and no difference was seen: an answer would compare plain with itself.
pub fn is_untried(record: &Record, answer: &Answer, arm: usize) -> bool {
    let claims = matches!(answer.finding(arm), Finding::Better | Finding::Worse);
    let is_tried = record.header.design != Design::Runs && answer.arms[arm].blocks > 0;
    !claims && !is_tried && record.lifted_nothing(arm).is_some()
}

/// The divisor of work, and whether switches count.
pub fn cost(record: &Record) -> &'static str {
    match (record.header.per, record.counts_switches()) {
        (Per::CpuSecond, true) => "CPU second, switches counted",
        (Per::Second, true) => "second, switches counted",
        (Per::Cycle, true) => "cycle, switches counted",
        (per_what, false) => per(per_what),
    }
}

/// The gain of each arm while it is not switched, a line for each; none if switches do not count anyway.
pub fn steady(record: &Record) -> Vec<String> {
    let Some(answer) = record.steady_answer() else { return Vec::new() };
    let line = |(number, name): (usize, &String)| {
        let arm = answer.arms.get(number).filter(|arm| arm.blocks > 0)?;
        let every = time_between_switches(record, number)
            .map_or_else(String::new, |time| format!(" that are made here every {time:.1} s"));
        Some(format!("{name} without the switches{every}: {}; {}", interval(arm), finding(&answer, number)))
    };
    record.header.arms.iter().enumerate().filter_map(line).collect()
}

/// Seconds in an arm for each switch into it.
fn time_between_switches(record: &Record, arm: usize) -> Option<f64> {
    let blocks = || record.timed_blocks().filter(|block| block.measured.block.treatment.arm() == Some(arm));
    let time: f64 = blocks()
        .flat_map(|block| block.measured.windows.iter().zip(block.measured.block.treated()))
        .filter_map(|(window, treated)| treated.then_some(window.wall))
        .sum();
    let switches = blocks().flat_map(|block| block.switches.iter().flatten()).filter(|switch| switch.wall > 0.0);
    Some(time / switches.count() as f64).filter(|time| time.is_finite())
}

/// The blocks that do not count, and the reason; absent if all do.
pub fn unusable(record: &Record, answer: &Answer) -> Option<String> {
    let count: usize = answer.arms.iter().chain([&answer.control]).map(|arm| arm.unusable).sum();
    if count == 0 {
        return None;
    }
    let blocks = if count == 1 { "1 block does".to_owned() } else { format!("{count} blocks do") };
    let works = record.timed_blocks().flat_map(|block| block.measured.windows).map(|window| window.work);
    let least = works.fold(0.0, f64::min);
    Some(if least < 0.0 {
        format!(
            "{blocks} not count: the counter of {} went backwards, by {} in one window, or no work was done",
            record.header.unit,
            number(-least)
        )
    } else {
        format!("{blocks} not count: no {} were counted there", record.header.unit)
    })
}

/// First words of fixes that are commands.
const COMMANDS: [&str; 6] = ["pagelift", "sudo", "echo", "sysctl", "mount", "systemctl"];

/// True for a fix that can be typed as it is: a command, or an option. Any other fix is an instruction.
pub(crate) fn can_be_typed(fix: &str) -> bool {
    let first = fix.split(' ').next().unwrap_or_default();
    (COMMANDS.contains(&first) || first.starts_with("--")) && !fix.contains(", ") && !fix.contains(" or ")
}

/// The lifts that were made again, with the reason of the first failure; absent if there are none.
pub fn retries(record: &Record) -> Option<String> {
    let mut reasons = record.timed_blocks().filter_map(|block| block.retried.as_ref());
    let first = reasons.next()?;
    let blocks = count(1 + reasons.count());
    Some(format!("in {blocks} a lift was made again, since the first try lifted nothing: {first}"))
}

/// The blocks with lifted runs that count although they lifted nothing, with the first reason; absent if there are none, or
/// if the decision is that nothing was lifted.
pub fn unlifted(record: &Record) -> Option<String> {
    let is_known = |block: &TimedBlock| {
        block.measured.block.treatment.arm().is_some_and(|arm| record.lifted_nothing(arm).is_some())
    };
    let blocks = record.timed_blocks().filter(|block| !is_known(block));
    let mut reasons = blocks.filter_map(|block| block.unlifted.as_ref());
    let first = reasons.next()?;
    let blocks = count(1 + reasons.count());
    Some(format!("in {blocks} a lifted run counts although its lift failed in several tries: {first}"))
}

/// The blocks with lifted runs whose lifts were not checked; absent if there are none.
pub fn unchecked(record: &Record) -> Option<String> {
    let is_lifted = |arm: usize| record.observations().any(|seen| seen.arm == Some(arm) && seen.lift.is_some());
    let blocks = record.timed_blocks().filter(|block| block.unchecked);
    let blocks = blocks.filter(|block| block.measured.block.treatment.arm().is_some_and(is_lifted)).count();
    (blocks > 0).then(|| {
        let blocks = count(blocks);
        format!("in {blocks} it was not checked whether the lift failed: a report would lengthen the runs noticeably")
    })
}

/// A number without a unit, whole if it is large.
fn number(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{value:.2e}"),
        value if value >= 10.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
}

/// Cycles per instruction, plain and in each arm; absent if neither was counted.
pub fn cycles_per_instruction(record: &Record) -> Option<String> {
    if record.header.per != Per::Cycle {
        return None;
    }
    let of = |arm: Option<usize>| {
        let blocks = record.timed_blocks().map(|block| record.counted(block));
        let of_block = |block: Measured| {
            let arm_of = move |treated: bool| block.block.treatment.arm().filter(|_| treated);
            block.windows.into_iter().zip(block.block.treated()).filter(move |(_, treated)| arm_of(*treated) == arm)
        };
        let sum = |sum: (f64, f64), (window, _): (Window, bool)| (sum.0 + window.cycles, sum.1 + window.work);
        let (cycles, instructions) = blocks.flat_map(of_block).fold((0.0, 0.0), sum);
        format!("{:.3}", cycles / instructions)
    };
    let arms = record.header.arms.iter().enumerate().map(|(arm, name)| format!("{name} {}", of(Some(arm))));
    let all: Vec<String> = [format!("plain {}", of(None))].into_iter().chain(arms).collect();
    Some(format!("cycles per instruction: {}", all.join(", ")))
}

/// The counts of the CPU, plain and in each arm: a line for each figure, or the reason why there is none.
pub fn walks(record: &Record) -> Vec<String> {
    let states: Vec<_> = record.walks().collect();
    if let Some(why) = states.iter().find_map(|state| state.not_counted.as_ref()) {
        return vec![format!("page walks were not counted: {why}")];
    }
    let name = |arm: Option<usize>| arm.and_then(|arm| record.header.arms.get(arm)).map_or("plain", String::as_str);
    let mut names: Vec<&str> = Vec::new();
    for figure in states.iter().flat_map(|state| &state.figures) {
        if !names.contains(&figure.name.as_str()) {
            names.push(&figure.name);
        }
    }
    let of = |state: &WalkFigures, name: &str| state.figures.iter().find(|figure| figure.name == name).cloned();
    let (mut lines, mut gaps) = (Vec::new(), Vec::<(String, Vec<&str>)>::new());
    for figure in names {
        let values: Vec<_> = states.iter().map(|state| (state.arm, of(state, figure))).collect();
        let why = values.iter().find_map(|(_, figure)| figure.as_ref()?.not_counted.clone());
        if values.iter().all(|(_, figure)| figure.as_ref().is_none_or(|figure| figure.value.is_none())) {
            let why = why.unwrap_or_default();
            match gaps.iter_mut().find(|(reason, _)| *reason == why) {
                Some((_, figures)) => figures.push(figure),
                None => gaps.push((why, vec![figure])),
            }
            continue;
        }
        let value = |(arm, figure): &(Option<usize>, Option<Figure>)| {
            let value = figure.as_ref().and_then(|figure| figure.value);
            format!("{} {}", name(*arm), value.map_or_else(|| "not counted".to_owned(), |value| format!("{value:.3}")))
        };
        let reason = why.map_or_else(String::new, |why| format!(" ({why})"));
        lines.push(format!("{figure}: {}{reason}", values.iter().map(value).collect::<Vec<_>>().join(", ")));
    }
    lines.extend(gaps.into_iter().map(|(why, figures)| format!("not counted: {} ({why})", figures.join("; "))));
    lines.extend(notes_on_walks(&states));
    lines
}

/// The counts that do not cover the whole time.
fn notes_on_walks(states: &[&WalkFigures]) -> Vec<String> {
    let mut notes = Vec::new();
    if states.iter().any(|state| state.user_only) {
        notes.push(
            "note: the kernel's part is not counted; needed: kernel.perf_event_paranoid 1 or less, or root".to_owned(),
        );
    }
    if states.iter().any(|state| state.with_children) {
        notes.push(
            "note: the processes that it started are counted with it, which Linux cannot leave out before 5.13"
                .to_owned(),
        );
    }
    let share = states.iter().filter_map(|state| state.counted_share).fold(1.0, f64::min);
    if share < 0.995 {
        let percent = 100.0 * share.max(0.0);
        notes.push(format!(
            "note: events took turns on the counters; counted {percent:.0} % of the time at least, and scaled"
        ));
    }
    notes
}

/// The cost of address translation on the machine; empty if it was not measured.
pub fn translation(record: &Record) -> Vec<String> {
    let Some(probe) = &record.header.probe else { return Vec::new() };
    if let Some(why) = &probe.not_measured {
        return vec![format!("the cost of address translation was not measured: {why}")];
    }
    let mut lines = Vec::new();
    for (what, sizes, ranges) in [("data", &probe.data, &probe.data_ranges), ("code", &probe.code, &probe.code_ranges)]
    {
        lines.extend(compared(sizes).iter().map(|compared| compared_costs(what, compared, ranges.as_ref())));
    }
    if let Some(others) = probe.others.filter(|others| *others >= 0.2 && !lines.is_empty()) {
        lines.push(format!(
            "meanwhile other programs used {:.1} CPUs, which lengthens translations and changes them",
            others.clamp(0.0, 1e6)
        ));
    }
    if probe.splintered == Some(true) {
        lines.push("the host backs huge pages by smaller ones: expect more on bare metal".to_owned());
    }
    if lines.is_empty() {
        lines.push("only base pages could be measured, no huge pages".to_owned());
    }
    lines
}

/// Two page sizes at one footprint: ranges over the passes, and the share that huge pages save if the passes agree.
fn compared_costs(what: &str, compared: &Compared<'_>, ranges: Option<&CostRanges>) -> String {
    let Compared { footprint, base: (base_pages, base), huge: (huge_pages, huge) } = *compared;
    let ranges = ranges.filter(|ranges| ranges.pages == huge_pages);
    let (base, huge) = ranges.map_or(((base, base), (huge, huge)), |ranges| (ranges.base, ranges.huge));
    let share = match ranges {
        Some(CostRanges { saved: Some((low, high)), .. }) => {
            format!(": {} % less", between(100.0 * low.clamp(0.0, 1.0), 100.0 * high.clamp(0.0, 1.0), 0))
        }
        Some(CostRanges { passes: 2.., .. }) => "; the passes differ too much for a share".to_owned(),
        _ => String::new(),
    };
    let time = |(low, high): (f64, f64)| between(low.clamp(0.0, 1e6), high.clamp(0.0, 1e6), 1);
    format!(
        "{} of {what}, visited at random: {} ns of translation an access on {base_pages} pages, {} on {huge_pages}{share}",
        format_bytes(footprint),
        time(base),
        time(huge)
    )
}

/// A range with so many digits; one number if both ends are the same.
fn between(low: f64, high: f64, digits: usize) -> String {
    let [low, high] = [low, high].map(|number| format!("{number:.digits$}"));
    if low == high { low } else { format!("{low} to {high}") }
}

/// Why an experiment failed before its first block; absent if it did not.
pub fn failure_before_blocks(record: &Record) -> Option<&str> {
    match record.ended() {
        Some(Ended::Failed(why)) if record.timed_blocks().next().is_none() => Some(why),
        _ => None,
    }
}

/// The end of the experiment beside its decision, which names a failure before the first block itself.
pub fn end_beside_decision(record: &Record) -> Option<String> {
    if failure_before_blocks(record).is_some() { None } else { end(record) }
}

/// The end of the experiment; absent if its time was up.
pub fn end(record: &Record) -> Option<String> {
    match record.ended() {
        Some(Ended::Resolved) => Some("ended: the interval is as narrow as requested".to_owned()),
        Some(Ended::TimeIsUp) if record.timed_blocks().count() >= MOST_BLOCKS => {
            Some(format!("ended early: {MOST_BLOCKS} blocks are the most of one record"))
        }
        Some(Ended::TimeIsUp) => None,
        Some(Ended::Interrupted) => Some("interrupted: the answer so far".to_owned()),
        Some(Ended::Failed(why)) => Some(format!("ended early: {why}")),
        None => Some("the file was cut off: the answer is from its readable part".to_owned()),
    }
}
