//! The parts of a record that pages show: numbers, and texts made safe.

use crate::Source;
use crate::clean::shown;
use crate::decision::{Advice, Next, advice};
use crate::latency::latency;
use crate::switch_cost::{SwitchCost, switch_cost};
use crate::words;
use address_space::{PageSize, counted, format_bytes};
use measure::machine::MachineFacts;
use measure::record::{AddressMap, Counters, Design, Header, Lift, MemoryUse, Observation, PageCosts, Record};
use measure::toggle::{Answer, ArmAnswer, Finding, Per, Treatment};

/// Beyond this the logarithm of a ratio is no measurement; it is drawn as if it were this.
const FARTHEST: f64 = 5.0;

/// One record.
pub(crate) struct Section {
    pub file: String,
    pub program: String,
    pub design: Design,
    pub unit: String,
    pub per: &'static str,
    pub arms: Vec<Arm>,
    pub control: ArmAnswer,
    /// The decision.
    pub advice: Advice,
    pub resolution: Option<f64>,
    pub blocks: usize,
    /// Series of the arms in their order, then the control's.
    pub series: Vec<Series>,
    pub states: Vec<State>,
    pub machine: Vec<(&'static str, String)>,
    pub warnings: Vec<String>,
    /// The method of the measurement, in sentences.
    pub method: Vec<String>,
    /// Notes on the answer: blocks that do not count, an early end.
    pub notes: Vec<String>,
    /// The counts of the CPU, in lines.
    pub walks: Vec<String>,
    /// The waiting times of requests, in lines; none if they were not measured.
    pub latency: Vec<String>,
    /// The cost of translation on the machine, in lines; none if it was not measured.
    pub translation: Vec<String>,
    /// Its curves, of loads and of code.
    pub curves: Vec<Curves>,
}

/// The cost of translation with pages of each size.
pub(crate) struct Curves {
    pub what: &'static str,
    pub names: Vec<String>,
    /// Bytes and ns.
    pub points: Vec<Vec<(u64, f64)>>,
}

/// An arm.
pub(crate) struct Arm {
    pub name: String,
    pub options: Option<String>,
    pub answer: ArmAnswer,
    pub finding: Finding,
    /// Nothing was lifted, so that there is no answer.
    pub is_untried: bool,
    pub said: String,
    /// The largest difference that may be there unseen.
    pub hidden: Option<String>,
    pub switch: Option<SwitchCost>,
    pub lift: Option<LiftView>,
}

/// The values of the blocks of an arm or of the control.
pub(crate) struct Series {
    pub name: String,
    /// Minutes since the start, and the difference in percent.
    pub points: Vec<(f64, f64)>,
    pub ratio: Option<(f64, f64, f64)>,
    pub plain: Rates,
    pub treated: Rates,
}

/// Counters of the kernel, for each second or run.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rates {
    pub minor_faults: f64,
    pub major_faults: f64,
    pub user: f64,
    pub system: f64,
    /// Seconds or runs.
    pub base: f64,
}

/// The observation in one state.
pub(crate) struct State {
    pub name: String,
    pub process: String,
    pub is_last: bool,
    pub memory: Option<MemoryUse>,
    pub map: Option<AddressMap>,
}

/// The effect of a lift.
pub(crate) struct LiftView {
    pub unlifted: Option<String>,
    /// The heap is on huge pages by `--heap`, which is no part of the lift.
    pub has_heap: bool,
    pub considered: u64,
    pub covered: u64,
    pub advised: u64,
    pub ranges: Vec<RangeView>,
    pub reasons: Vec<ReasonView>,
    pub left_out: usize,
}

/// A range that was to be lifted.
pub(crate) struct RangeView {
    pub object: String,
    pub kinds: String,
    pub bytes: u64,
    pub source: Option<String>,
    pub page_size: u64,
    pub covered: u64,
    pub advised: u64,
    pub failed: Vec<String>,
}

/// A reason, and all memory that it keeps on base pages.
pub(crate) struct ReasonView {
    pub reason: String,
    /// The fix, if one is known.
    pub fix: Option<String>,
    pub bytes: u64,
    /// Objects with their parts, the largest first.
    pub places: Vec<String>,
}

impl Section {
    pub fn of(source: &Source) -> Self {
        let Source { name, record } = source;
        let (answer, header) = (record.answer(), &record.header);
        let mut names: Vec<String> = header.arms.iter().map(|arm| shown(arm)).collect();
        let arms = (0..names.len()).map(|number| arm(record, &answer, number)).collect();
        let treatments = (0..names.len()).map(Treatment::Arm).chain([Treatment::Control]);
        names.push("plain against itself".to_owned());
        let answers = answer.arms.iter().chain([&answer.control]);
        let series = treatments.zip(&names).zip(answers);
        Self {
            file: shown(name),
            program: shown(&header.program),
            design: header.design,
            unit: shown(&header.unit),
            per: words::cost(record),
            arms,
            advice: shown_advice(record),
            resolution: answer.resolution,
            blocks: record.timed_blocks().count(),
            series: series.map(|((treatment, name), answer)| Series::of(record, treatment, name, answer)).collect(),
            states: states(record),
            machine: machine(&header.machine),
            warnings: header.machine.warnings().iter().map(|warning| shown(warning)).collect(),
            method: method(record),
            notes: notes(record, &answer),
            walks: words::walks(record).iter().map(|line| shown(line)).collect(),
            latency: latency(record).iter().map(|line| shown(line)).collect(),
            translation: words::translation(record).iter().map(|line| shown(line)).collect(),
            curves: curves(header),
            control: answer.control,
        }
    }

    /// The answer in a sentence.
    pub fn sentence(&self) -> String {
        let work = format!("{} per {}", self.unit, self.per);
        let of_arm = |arm: &Arm| match arm.finding {
            _ if arm.is_untried => format!("{}: {}", arm.name, arm.said),
            Finding::Better => format!("{} pays: {} {work}", arm.name, words::interval(&arm.answer)),
            Finding::Worse => format!("{} costs: {} {work}", arm.name, words::interval(&arm.answer)),
            Finding::NoDifference => format!(
                "{}: no difference that this machine can show{}: {} {work}",
                arm.name,
                arm.hidden.as_ref().map_or_else(String::new, |text| format!(" ({text})")),
                words::interval(&arm.answer)
            ),
            Finding::TooFew | Finding::Disturbed => format!("{}: {}", arm.name, arm.said),
        };
        self.arms.iter().map(of_arm).collect::<Vec<_>>().join("; ") + "."
    }

    /// The states that are drawn in the address map.
    pub fn mapped_states(&self) -> Vec<(&str, &AddressMap)> {
        let states = self.states.iter().filter(|state| !state.is_last);
        states.filter_map(|state| Some((state.name.as_str(), state.map.as_ref()?))).collect()
    }

    pub fn has_counters(&self) -> bool {
        self.series.iter().any(|series| series.plain.base > 0.0 && series.treated.base > 0.0)
    }
}

fn shown_advice(record: &Record) -> Advice {
    let Advice { headline, reason, next, class } = advice(record);
    let next = next.map(|next| match next {
        Next::Command { command, purpose } => Next::Command { command: shown(&command), purpose },
        Next::Words(words) => Next::Words(shown(&words)),
    });
    Advice { headline: shown(&headline), reason: shown(&reason), next, class }
}

fn notes(record: &Record, answer: &Answer) -> Vec<String> {
    let lines = words::steady(record).into_iter().chain(words::cycles_per_instruction(record));
    let notes = lines
        .chain(words::unusable(record, answer))
        .chain(words::retries(record))
        .chain(words::unlifted(record))
        .chain(words::unchecked(record))
        .chain(words::end_beside_decision(record));
    notes.map(|note| shown(&note)).collect()
}

fn arm(record: &Record, answer: &Answer, number: usize) -> Arm {
    let seen = record.observations().find(|seen| seen.arm == Some(number) && seen.lift.is_some());
    Arm {
        name: shown(&record.header.arms[number]),
        options: record.header.options.get(number).map(|words| shown(&words.join(" "))),
        answer: answer.arms[number].clone(),
        finding: answer.finding(number),
        is_untried: words::is_untried(record, answer, number),
        said: shown(&words::said(record, answer, number)),
        hidden: words::hidden(answer, number),
        switch: switch_cost(record, answer, number),
        lift: seen.and_then(|seen| seen.lift.as_ref()).map(|lift| LiftView::of(lift, record.has_heap(number))),
    }
}

impl Series {
    fn of(record: &Record, treatment: Treatment, name: &str, answer: &ArmAnswer) -> Self {
        let per = record.header.per;
        let (mut points, mut plain, mut treated) = (Vec::new(), Rates::default(), Rates::default());
        let (mut measured, mut last) = (0.0, 0.0);
        for block in record.timed_blocks() {
            measured += block.measured.windows.iter().map(|window| window.wall.clamp(0.0, 1e6)).sum::<f64>();
            // Old records have no times: then the measured time is used.
            let at = block.at.unwrap_or(measured).clamp(last, 1e9);
            last = at;
            if block.measured.block.treatment != treatment {
                continue;
            }
            if let Some(value) = record.counted(block).value(per).filter(|value| value.is_finite()) {
                points.push((at / 60.0, value.clamp(-FARTHEST, FARTHEST).exp_m1() * 100.0));
            }
            for ((window, counters), is_treated) in
                block.measured.windows.iter().zip(block.counters.iter().flatten()).zip(block.measured.block.treated())
            {
                let base = if record.header.design == Design::Runs { window.work } else { window.wall };
                if is_treated { &mut treated } else { &mut plain }.add(counters, base);
            }
        }
        let of = |ratio: f64| ratio.max(f64::MIN_POSITIVE).ln().clamp(-FARTHEST, FARTHEST).exp_m1() * 100.0;
        let ratio = answer.ratio.map(|ratio| (of(ratio.low), of(ratio.centre), of(ratio.high)));
        Self { name: name.to_owned(), points, ratio, plain, treated }
    }
}

impl Rates {
    fn add(&mut self, counters: &Counters, base: f64) {
        if !(base > 0.0 && base < 1e12) {
            return;
        }
        self.minor_faults += counters.minor_faults as f64;
        self.major_faults += counters.major_faults as f64;
        // More than a window can have is no measurement, and sums stay finite.
        self.user += counters.user.clamp(0.0, 1e12);
        self.system += counters.system.clamp(0.0, 1e12);
        self.base += base;
    }
}

fn states(record: &Record) -> Vec<State> {
    let (mut has_plain, mut states) = (false, Vec::new());
    for seen in record.observations().take(2 + 2 * measure::record::MOST_ARMS) {
        let is_last = seen.arm.is_none() && has_plain;
        has_plain |= seen.arm.is_none();
        let name = match seen.arm.and_then(|arm| record.header.arms.get(arm)) {
            Some(arm) => shown(arm),
            None if is_last => "plain, at the end".to_owned(),
            None => "plain".to_owned(),
        };
        states.push(state(name, seen, is_last));
    }
    // Plain first, arms, and plain again.
    states.sort_by_key(|state| (state.is_last, state.name != "plain"));
    states
}

fn state(name: String, seen: &Observation, is_last: bool) -> State {
    let mut map = seen.map.clone();
    for range in map.iter_mut().flat_map(|map| &mut map.ranges) {
        range.object = shown(&range.object);
        range.kind = shown(&range.kind);
        range.protection = shown(&range.protection);
        range.huge.iter_mut().for_each(|huge| huge.kind = shown(&huge.kind));
    }
    let mut memory = seen.memory.clone();
    memory.iter_mut().flat_map(|memory| &mut memory.huge).for_each(|huge| huge.kind = shown(&huge.kind));
    State { name, process: shown(&seen.process), is_last, memory, map }
}

impl LiftView {
    fn of(lift: &Lift, has_heap: bool) -> Self {
        let failed = |attempt: &measure::record::Attempt| {
            let fix = attempt.fix.as_deref().map_or_else(String::new, |fix| format!("; fix: {}", shown(fix)));
            format!("{}: {}{fix}", shown(&attempt.source), shown(&attempt.reason))
        };
        let range = |range: &measure::record::LiftedRange| RangeView {
            object: shown(&range.object),
            kinds: shown(&range.kinds.join("+")),
            bytes: range.bytes,
            source: range.source.as_deref().map(shown),
            page_size: range.page_size,
            covered: range.covered,
            advised: range.advised,
            failed: range.failed.iter().take(4).map(failed).collect(),
        };
        let mut reasons: Vec<ReasonView> = Vec::new();
        let mut all: Vec<_> = lift.not_lifted.iter().collect();
        all.sort_by_key(|not| std::cmp::Reverse(not.bytes));
        for not in all {
            let place = shown(&format!("{} {}", not.object, not.kinds.join("+")));
            let reason = shown(&without_sizes(&not.reason));
            let fix = not.fix.as_deref().map(shown);
            match reasons.iter_mut().find(|other| other.reason == reason && other.fix == fix) {
                Some(other) => {
                    other.bytes = other.bytes.saturating_add(not.bytes);
                    if !other.places.contains(&place) {
                        other.places.push(place);
                    }
                }
                None => reasons.push(ReasonView { reason, fix, bytes: not.bytes, places: vec![place] }),
            }
        }
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.bytes));
        Self {
            unlifted: lift.unlifted.as_deref().map(shown),
            has_heap,
            considered: lift.considered,
            covered: lift.covered,
            advised: lift.advised,
            ranges: lift.ranges.iter().map(range).collect(),
            reasons,
            left_out: lift.left_out,
        }
    }
}

impl LiftView {
    /// `4.0 MiB` and `of 7.0 MiB on huge pages`: what the lift covers. The heap of `--heap` is not counted there.
    pub fn covered(&self) -> [String; 2] {
        let of = if self.has_heap { " besides the heap" } else { "" };
        [format_bytes(self.covered), format!("of {}{of} on huge pages", format_bytes(self.considered))]
    }

    /// Where the heap of `--heap` is counted.
    pub fn note_on_heap(&self) -> Option<&'static str> {
        self.has_heap.then_some("The heap is no part of the lift: see its memory on huge pages under Memory")
    }
}

/// `holds no whole 2 MiB page (124.0 KiB)` is one reason for ranges of all sizes, which are printed next to it.
fn without_sizes(reason: &str) -> String {
    match reason.strip_suffix(')').and_then(|text| text.rsplit_once(" (")) {
        Some((words, size)) if reason.starts_with("holds no ") && size.ends_with('B') => words.to_owned(),
        _ => reason.to_owned(),
    }
}

/// The size of a page, which is whole: `2 MiB`, not `2.0 MiB`.
pub(crate) fn page(bytes: u64) -> String {
    PageSize::new(bytes).map_or_else(|_| format_bytes(bytes), |size| size.to_string())
}

fn machine(machine: &MachineFacts) -> Vec<(&'static str, String)> {
    let bytes = format_bytes;
    let mut rows = vec![("Kernel", shown(&format!("{} ({})", machine.kernel, machine.architecture)))];
    rows.extend(
        machine.cpu_model.as_deref().map(|model| ("CPU", format!("{}, {} usable", shown(model), machine.cpus))),
    );
    rows.extend(machine.virtual_machine.map(|is| ("Virtual machine", if is { "yes" } else { "no" }.to_owned())));
    let available = machine.available_bytes.map_or_else(String::new, |free| format!(", {} available", bytes(free)));
    rows.extend(machine.memory_bytes.map(|memory| ("Memory", format!("{}{available}", bytes(memory)))));
    rows.push(("Base page", page(machine.base_page_bytes)));
    let thp = machine.thp_enabled.as_deref().map(|mode| {
        let defrag = machine.thp_defrag.as_deref().map_or_else(String::new, |defrag| format!(", defrag {defrag}"));
        ("Transparent huge pages", shown(&format!("{mode}{defrag}")))
    });
    rows.extend(thp);
    for pool in machine.pools.iter().take(8) {
        rows.push((
            "Pool",
            format!("{} of {}, {} free", counted(pool.total, "page"), page(pool.page_bytes), pool.free),
        ));
    }
    let share = |share: f64| format!("{:.1} %", (share * 100.0).clamp(0.0, 100.0));
    rows.extend(machine.other_load.map(|load| ("Used by others", share(load))));
    rows.extend(machine.stolen.map(|stolen| ("Given to others by the host", share(stolen))));
    rows
}

fn curves(header: &Header) -> Vec<Curves> {
    let Some(probe) = &header.probe else { return Vec::new() };
    let both = [("Loads, one in each base page", &probe.data), ("Jumps in code, one in each base page", &probe.code)];
    let measured = both.into_iter().filter(|(_, sizes)| sizes.iter().any(|size| !size.points.is_empty()));
    let curves = |(what, sizes): (&'static str, &Vec<PageCosts>)| Curves {
        what,
        names: sizes.iter().map(|size| shown(&size.pages)).collect(),
        points: sizes.iter().map(|size| size.points.clone()).collect(),
    };
    measured.map(curves).collect()
}

fn method(record: &Record) -> Vec<String> {
    let header = &record.header;
    let blocks = words::count(record.timed_blocks().count());
    let mut sentences = vec![match header.design {
        Design::Toggle => format!(
            "One live program, switched in place under its own load: {blocks} of four windows in random mirrored \
             order. A control block lifts the program and puts it back before windows that are all plain."
        ),
        Design::Servers => servers(header, &blocks),
        Design::Runs => format!(
            "Whole runs of the command: {blocks} of four runs in random mirrored order. A control block has four \
             plain runs."
        ),
    }];
    let cost = match header.per {
        Per::CpuSecond if header.design == Design::Servers => "the CPU time of the server's processes",
        Per::CpuSecond => "the CPU time of the process",
        Per::Second => "time",
        Per::Cycle => "the CPU cycles of the process",
    };
    sentences.push(format!(
        "A pair is the two treated windows of a block against its two plain ones, work divided by {cost}. Intervals hold \
         the truth in 95 of 100 experiments; a difference is claimed only beyond what plain shows against itself, and \
         where the exact signed-rank test agrees."
    ));
    if let Some(windows) = header.windows.filter(|_| header.design == Design::Toggle) {
        let milliseconds = |seconds: f64| format!("{:.0} ms", (seconds * 1e3).clamp(0.0, 1e9));
        let counted = if windows.with_switches { "count" } else { "do not count" };
        sentences.push(format!(
            "Windows of {}, {} dropped after each switch; switches {counted} in the windows behind them.",
            milliseconds(windows.length),
            milliseconds(windows.settle)
        ));
    }
    let version =
        header.pagelift.as_deref().map_or_else(String::new, |version| format!("Pagelift {}, ", shown(version)));
    let date = header.started.map_or_else(String::new, |seconds| format!("{}, ", date(seconds)));
    sentences.push(format!("{version}{date}seed {}.", header.seed));
    sentences
}

fn servers(header: &Header, blocks: &str) -> String {
    let mut text = format!(
        "Servers side by side, a plain one, one of each arm and a second plain one as the control; the load goes to one at a \
         time, {blocks} of four bursts in random mirrored order."
    );
    let Some(load) = &header.load else { return text };
    if let Some((windows, clients)) = header.windows.zip(load.clients) {
        let milliseconds = |seconds: f64| (seconds * 1e3).clamp(0.0, 1e9);
        let (length, settle) = (milliseconds(windows.length), milliseconds(windows.settle));
        text += &format!(
            " Bursts of {length:.0} ms from {}, behind {settle:.0} ms that do not count.",
            counted(clients.into(), "connection")
        );
    }
    let metric = load.metric.as_deref().map_or_else(String::new, |metric| format!(" (metric {})", shown(metric)));
    text + &format!(" Load: {}{metric}. Starts asked for: {}.", shown(&load.command), load.starts)
}

/// `2026-11-23 07:30 UTC`, from seconds since 1970 (days to civil date after Howard Hinnant, `chrono`-compatible).
fn date(seconds: u64) -> String {
    let seconds = seconds.min(253_402_300_799);
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3_600, rest % 3_600 / 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_418_999), "2026-11-23 07:29 UTC");
        assert_eq!(date(u64::MAX), "9999-12-31 23:59 UTC");
    }

    #[test]
    fn a_reason_is_one_for_all_sizes() {
        assert_eq!(without_sizes("holds no whole 2 MiB page (4.0 KiB)"), "holds no whole 2 MiB page");
        assert_eq!(without_sizes("no pool (found none)"), "no pool (found none)");
    }
}
