//! Tables: lifted and other memory, counters, costs, the machine.

use crate::Detail;
use crate::switch_cost::cpu_cost;
use crate::view::{LiftView, Rates, Section, page};
use crate::words::can_be_typed;
use address_space::{agreeing, counted, format_bytes};
use maud::{Markup, html};
use measure::record::{Design, MemoryUse};

/// Objects that are named beside a reason.
const PLACES: usize = 4;

/// One of the counters.
type Value = fn(&Rates) -> f64;

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { String::new() } else { format!("{:.0} %", part as f64 / whole as f64 * 100.0) }
}

pub(super) fn lifts(section: &Section, detail: Detail) -> Markup {
    html! {
        @if section.arms.iter().all(|arm| arm.lift.is_none()) {
            p.none { "Not in the record: it was made by other commands than a lift, by an earlier version, or a run was not lifted." }
        }
        @for arm in &section.arms {
            @if let Some(lift) = &arm.lift { (lift_of(&arm.name, lift, detail)) }
        }
    }
}

fn lift_of(name: &str, lift: &LiftView, detail: Detail) -> Markup {
    html! {
        h4 { (name) }
        @let [covered, of] = lift.covered();
        p { strong { (covered) } " " (of) ", read back from the kernel"
            @if lift.advised > 0 { "; " (format_bytes(lift.advised)) " more become huge when they are touched" } "." }
        @if let Some(note) = lift.note_on_heap() { p.note { (note) "." } }
        @if let Some(why) = &lift.unlifted { p.note { "Not lifted: " (why) } }
        @if !lift.ranges.is_empty() {
            p.caption { "Lifted" }
            div.scroll { table {
                thead { tr { th scope="col" { "Object" } th scope="col" { "What" } th.number scope="col" { "Size" }
                    th scope="col" { "Source" } th.number scope="col" { "On huge pages" } } }
                tbody { @for range in lift.ranges.iter().take(detail.rows) { tr {
                    th scope="row" { (range.object) } td { (range.kinds) } td.number { (format_bytes(range.bytes)) }
                    td { @match &range.source { Some(source) => (source), None => "none" } " " span.faint { (page(range.page_size)) }
                        @for failed in &range.failed { br; span.faint { "not " (failed) } } }
                    td.number { (format_bytes(range.covered)) " " span.faint { (share(range.covered, range.bytes)) }
                        @if range.advised > 0 { br; span.faint { (format_bytes(range.advised)) " advised" } } }
                } } }
            } }
            (more(lift.ranges.len(), detail.rows, "range"))
        }
        @if lift.reasons.is_empty() {
            p.faint { "No memory chosen by the options remains on base pages." }
        } @else {
            p.caption { "Not lifted, and why" }
            div.scroll { table {
                thead { tr { th.number scope="col" { "Size" } th scope="col" { "Why" } th scope="col" { "Fix" }
                    th scope="col" { "Where" } } }
                tbody { @for reason in lift.reasons.iter().take(detail.rows) { tr {
                    td.number { (format_bytes(reason.bytes)) } td { (reason.reason) }
                    td { @match &reason.fix {
                        Some(fix) if can_be_typed(fix) => code { (fix) },
                        Some(fix) => (fix),
                        None => "–",
                    } }
                    td { (reason.places.iter().take(PLACES).map(String::as_str).collect::<Vec<_>>().join(", "))
                        @if reason.places.len() > PLACES { " and " (reason.places.len() - PLACES) " more" } }
                } } }
            } }
            (more(lift.reasons.len(), detail.rows, "reason"))
        }
        @if lift.left_out > 0 { p.faint { (counted(lift.left_out as u64, "smaller range")) " " (verb(lift.left_out)) " not in the record." } }
    }
}

/// `1 more row is in the record.`
pub(super) fn more(all: usize, shown: usize, what: &str) -> Markup {
    let left = all.saturating_sub(shown);
    html! { @if left > 0 { p.faint { (left) " more " (agreeing(left as u64, what)) " " (verb(left)) " in the record." } } }
}

/// The form of "to be" for a number.
pub(super) fn verb(number: usize) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

/// `12.0 MiB thp 2 MiB`, for each kind.
fn huge(memory: &MemoryUse) -> Markup {
    html! {
        @if memory.huge.is_empty() { "none" }
        @for (number, huge) in memory.huge.iter().take(8).enumerate() {
            @if number > 0 { br; }
            (format_bytes(huge.bytes)) " " span.faint { (huge.kind) @if let Some(size) = huge.page_size { " " (page(size)) } }
        }
    }
}

pub(super) fn memory(section: &Section) -> Markup {
    let seen: Vec<_> = section.states.iter().filter_map(|state| Some((state, state.memory.as_ref()?))).collect();
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "–".to_owned(), format_bytes);
    html! {
        @if seen.is_empty() {
            p.none { "Not in the record: it was made by an earlier version, or runs were too short to be observed." }
        } @else {
            div.scroll { table {
                thead { tr { th scope="col" { "State" } th.number scope="col" { "Resident" } th.number scope="col" { "Its share (Pss)" }
                    th.number scope="col" { "On huge pages" } th.number scope="col" { "Page tables" } } }
                tbody { @for (state, memory) in &seen { tr {
                    th scope="row" { (state.name) } td.number { (format_bytes(memory.resident)) }
                    td.number { (bytes(memory.proportional)) } td.number { (huge(memory)) } td.number { (bytes(memory.page_tables)) }
                } } }
            } }
            p.faint { "Process " (seen[0].0.process)
                @match section.design {
                    Design::Toggle => ", observed outside of the windows.",
                    Design::Servers => ", as it answered for the first time; its children are not counted.",
                    Design::Runs => ", as last seen in the first run of each kind; its children are not counted.",
                } }
        }
    }
}

pub(super) fn counters(section: &Section) -> Markup {
    let per = match section.design {
        Design::Toggle | Design::Servers => "second",
        Design::Runs => "run",
    };
    let rows: [(&str, Value, bool); 4] = [
        ("Page faults", |rates| rates.minor_faults, false),
        ("Page faults that read", |rates| rates.major_faults, false),
        ("CPU time in the program", |rates| rates.user, true),
        ("CPU time in the kernel", |rates| rates.system, true),
    ];
    let value = |rates: &Rates, of: Value, is_time: bool| {
        let value = of(rates) / rates.base;
        if is_time { format!("{:.1} ms", (value * 1e3).min(1e9)) } else { format!("{:.1}", value.min(1e12)) }
    };
    let counted: Vec<_> =
        section.series.iter().filter(|series| series.plain.base > 0.0 && series.treated.base > 0.0).collect();
    html! {
        @if !section.has_counters() {
            p.none { "The record has no counters." }
        } @else {
            p.caption { "For each " (per) ", in plain windows, and in treated windows of the same blocks" }
            div.scroll { table {
                thead { tr { th scope="col" { "Counter" }
                    @for series in &counted { th.number scope="col" { (series.name) ": plain" } th.number scope="col" { "treated" } } } }
                tbody { @for (name, of, is_time) in rows { tr {
                    th scope="row" { (name) }
                    @for series in &counted {
                        td.number { (value(&series.plain, of, is_time)) } td.number { (value(&series.treated, of, is_time)) }
                    }
                } } }
            } }
        }
        @if section.walks.is_empty() {
            p.faint { "Counters of the CPU itself are not in the record: bench --counters." }
        } @else {
            p.caption { "Counted by the CPU (PMU) in all windows of each state" }
            ul { @for line in &section.walks { li { (line) } } }
        }
    }
}

pub(super) fn switches(section: &Section) -> Markup {
    let milliseconds = |seconds: f64| format!("{:.1} ms", (seconds * 1e3).clamp(0.0, 1e9));
    html! {
        div.scroll { table {
            thead { tr { th scope="col" { "To" } th.number scope="col" { "CPU time" } th.number scope="col" { "Standstill" }
                th.number scope="col" { "Switches" } th.number scope="col" { "Paid back after" } } }
            tbody { @for arm in &section.arms { @if let Some(cost) = arm.switch { tr {
                th scope="row" { (arm.name) } td.number.wraps { (cpu_cost(cost.cpu)) } td.number { (milliseconds(cost.pause)) }
                td.number { (cost.switches) }
                td.number { @match cost.paid_back { Some(time) => { (format!("{:.1} s", time.min(1e9))) " of CPU time" }, None => "–" } }
            } } } }
        } }
        p.faint { "Standstill: median. Interval at 95 %." }
    }
}

pub(super) fn machine(section: &Section) -> Markup {
    html! {
        @if !section.warnings.is_empty() { ul.warnings { @for warning in &section.warnings { li { (warning) } } } }
        dl { @for (name, value) in &section.machine { dt { (name) } dd { (value) } } }
    }
}
