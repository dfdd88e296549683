//! Formats the result of `pagelift probe`; pure.

use super::table::{align_right, table, trimmed};
use address_space::format_bytes;
use translation::tlb_probe::{
    Backing, Compared, Levels, Load, MeasuredSizes, Probe, ProbeVerdict, Series, Simulated, Unmeasured,
};

/// Characters of the longest bar.
const WIDTH: f64 = 36.0;

/// Both measurements and the conclusions.
pub fn text(probe: &Probe) -> String {
    measured("Loads", &probe.data)
        + &measured("Jumps in code", &probe.code)
        + &verdicts(probe)
        + &passes(probe)
        + &lift_costs(probe)
}

/// The number of passes, and the other load during them.
fn passes(probe: &Probe) -> String {
    let plural = if probe.passes == 1 { "" } else { "es" };
    let beside = probe.load.map_or_else(String::new, |Load { others, stolen }| {
        let host = if stolen >= 0.05 { format!(", and the host took {stolen:.1}") } else { String::new() };
        format!("; meanwhile other programs used {others:.1} CPUs{host}")
    });
    format!("Measured in {} pass{plural}{beside}.\n", probe.passes)
}

/// Returns the cost of a lift on this machine, as a line; empty if it was not measured.
fn lift_costs(probe: &Probe) -> String {
    let Some(costs) = &probe.lift_costs else { return String::new() };
    let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    format!(
        "A lift costs {:.2} ms for each MiB that it copies: {:.2} to make huge pages present, {:.2} to copy.\n",
        ms(costs.fill + costs.copy),
        ms(costs.fill),
        ms(costs.copy)
    )
}

/// The conclusion, without the curves.
pub fn short(probe: &Probe) -> String {
    let mut text = String::new();
    for (what, measured) in [("Loads", &probe.data), ("Jumps in code", &probe.code)] {
        if !measured.series.is_empty() {
            text += &format!("{what}, translation an access\n{}\n\n", levels(&measured.series));
        }
        text += &unmeasured(what, measured);
    }
    text + &verdicts(probe) + &passes(probe)
}

fn verdicts(probe: &Probe) -> String {
    match &probe.verdict {
        Some(verdict) => verdict_text(verdict),
        None => "No huge pages could be measured: there is nothing to compare base pages with.\n".to_owned(),
    }
}

fn unmeasured(what: &str, measured: &MeasuredSizes) -> String {
    let line = |missing: &Unmeasured| format!("{what} on {}: not measured: {}\n", missing.backing, missing.reason);
    measured.unmeasured.iter().map(line).collect()
}

fn measured(what: &str, measured: &MeasuredSizes) -> String {
    let mut text = String::new();
    if !measured.series.is_empty() {
        text += &format!("{what}, one in each base page: ns of translation an access\n{}\n", curves(&measured.series));
        text += &format!("\n{}\n\n", levels(&measured.series));
        text += &measured.simulated.as_ref().map_or_else(String::new, simulated);
    }
    text + &unmeasured(what, measured)
}

/// A row for each power of two, with a bar for each page size.
fn curves(series: &[Series]) -> String {
    let times = |series: &Series| series.curve.points.iter().map(|point| point.translation).fold(0.0, f64::max);
    let most = series.iter().map(times).fold(1.0, f64::max);
    let names: Vec<String> = series.iter().map(|series| series.backing.to_string()).collect();
    let mut headings = vec!["footprint"];
    headings.extend(names.iter().map(String::as_str));
    headings.push("");
    let mut rows = table(&headings);
    for (index, point) in series[0].curve.points.iter().enumerate().filter(|(_, point)| point.slots.is_power_of_two()) {
        let at: Vec<f64> =
            series.iter().filter_map(|series| Some(series.curve.points.get(index)?.translation)).collect();
        let mut cells = vec![format_bytes(point.footprint)];
        cells.extend(at.iter().map(|time| format!("{:.1}", time.max(0.0))));
        cells.push(at.iter().map(|time| bar(*time, most)).collect::<Vec<_>>().join("\n"));
        rows.add_row(cells);
    }
    (0..=series.len()).for_each(|column| align_right(&mut rows, column));
    trimmed(&rows)
}

fn bar(time: f64, most: f64) -> String {
    let length = (time.max(0.0) / most * WIDTH).round() as usize;
    if length == 0 { "▏".to_owned() } else { "█".repeat(length) }
}

fn levels(series: &[Series]) -> String {
    let mut rows = table(&["pages", "free up to", "then", "up to", "page walk"]);
    for Series { backing, levels: Levels { first_reach, second_hit, second_reach, walk }, .. } in series {
        let bytes = |bytes: &Option<u64>| bytes.map_or_else(|| "–".to_owned(), format_bytes);
        let time = |time: &Option<f64>| time.map_or_else(|| "–".to_owned(), |time| format!("{time:.1} ns"));
        rows.add_row([backing.to_string(), bytes(first_reach), time(second_hit), bytes(second_reach), time(walk)]);
    }
    (1..=4).for_each(|column| align_right(&mut rows, column));
    trimmed(&rows)
}

/// Compares the measured reach on base pages with the model that `estimate` uses.
fn simulated(simulated: &Simulated) -> String {
    let Simulated { source, by_cpuid, measured, joined, nearest } = simulated;
    let [by_cpuid, measured, nearest] = [by_cpuid, measured, nearest].map(|bytes| format_bytes(*bytes));
    let head = format!("Simulated by {source}, base pages are held up to {by_cpuid}, measured up to {measured}");
    match (simulated.agrees(), joined) {
        (true, 1) => format!("{head}.\n\n"),
        (true, _) => format!(
            "{head}: an entry seems to hold {joined} neighbouring pages ({nearest}; `pagelift estimate --joined {joined}`).\n\n"
        ),
        (false, _) => {
            format!(
                "{head}: they do not agree, so that the results of `pagelift estimate` for this CPU are uncertain.\n\n"
            )
        }
    }
}

fn verdict_text(verdict: &ProbeVerdict) -> String {
    let mut text = saving("data", verdict.backing, &verdict.data);
    if let Some(code) = &verdict.code {
        text += &saving("code", verdict.backing, code);
    }
    let page = verdict.backing.page();
    text += &match (verdict.splintered, verdict.virtual_machine) {
        (Some(true), Some(false)) => format!(
            "Few {page} pages cost page walks although any TLB holds them: something below this kernel splits them.\n"
        ),
        (Some(true), _) => format!(
            "The host backs this virtual machine by smaller pages than {page}: walks get shorter, the TLB's reach hardly \
             longer.\nExpect more on a host that gives the guest huge pages, or on bare metal.\n"
        ),
        (Some(false), Some(true)) => format!("The host backs this virtual machine by pages of {page} or larger.\n"),
        (None, Some(true)) if verdict.needed.is_none() => {
            "The passes disagree on how the host backs this virtual machine's memory; fix: measure again while little else \
             runs.\n"
                .to_owned()
        }
        (None, Some(true)) => not_seen(verdict.needed),
        (Some(false) | None, _) => String::new(),
    };
    text
}

/// `needed` is the footprint in bytes that is likely to show it.
fn not_seen(needed: Option<u64>) -> String {
    let fix = needed.map_or_else(String::new, |bytes| format!("; fix: --memory {}M", bytes.div_ceil(1 << 20)));
    format!(
        "How the host backs this virtual machine's memory is not seen at this footprint, at which base pages cost no page \
         walks yet{fix}.\n"
    )
}

fn saving(what: &str, backing: Backing, compared: &Compared) -> String {
    let Compared { footprint, bases, huges, shares, .. } = compared;
    let share = match (compared.saved(), shares) {
        (Some((low, high)), _) => format!(": {} % less", between(low * 100.0, high * 100.0, 0)),
        (None, Some(_)) => "; the passes differ too much for a share".to_owned(),
        (None, None) => String::new(),
    };
    format!(
        "{} of {what}, visited at random: {} ns of translation an access on base pages, {} on {backing}{share}.\n",
        format_bytes(*footprint),
        between(bases.0, bases.1, 1),
        between(huges.0, huges.1, 1)
    )
}

/// A range with so many digits; one number if both ends are the same.
fn between(low: f64, high: f64, digits: usize) -> String {
    let [low, high] = [low, high].map(|number| format!("{number:.digits$}"));
    if low == high { low } else { format!("{low} to {high}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::PageSize;

    #[test]
    fn of_a_host_that_was_not_seen_nothing_is_claimed() {
        let verdict = |splintered, needed, virtual_machine| ProbeVerdict {
            backing: Backing::Transparent(PageSize::new(2 << 20).unwrap()),
            data: Compared::new(16 << 20, 3.0, 3.0),
            code: None,
            splintered,
            needed,
            virtual_machine,
        };
        let text = verdict_text(&verdict(None, Some(256 << 20), Some(true)));
        assert!(text.contains("is not seen at this footprint") && text.contains("fix: --memory 256M"), "{text}");
        assert!(!text.contains("or larger"), "{text}");
        assert_eq!(verdict_text(&verdict(None, Some(256 << 20), Some(false))).lines().count(), 1);
        let text = verdict_text(&verdict(Some(false), None, Some(true)));
        assert!(text.contains("by pages of 2 MiB or larger"), "{text}");
        assert!(verdict_text(&verdict(Some(true), None, Some(true))).contains("by smaller pages than 2 MiB"));
        assert!(verdict_text(&verdict(None, None, Some(true))).contains("The passes disagree"));
    }

    #[test]
    fn a_share_needs_passes_that_agree() {
        let backing = Backing::Transparent(PageSize::new(2 << 20).unwrap());
        let of = |shares| {
            let one = Compared::new(256 << 20, 40.0, 4.0);
            saving("data", backing, &Compared { bases: (39.0, 42.0), shares, ..one })
        };
        let times = "256.0 MiB of data, visited at random: 39.0 to 42.0 ns of translation an access on base pages, 4.0 on 2 MiB THP";
        assert_eq!(of(Some((0.898, 0.904))), format!("{times}: 90 % less.\n"));
        assert_eq!(of(Some((0.87, 0.9))), format!("{times}: 87 to 90 % less.\n"));
        assert_eq!(of(Some((0.56, 0.95))), format!("{times}; the passes differ too much for a share.\n"));
    }
}
