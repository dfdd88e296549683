//! Formats the result of `pagelift probe`; pure.

use super::table::{align_right, table, trimmed};
use address_space::format_bytes;
use translation::tlb_probe::{
    Backing, Compared, LevelRanges, Load, MeasuredSizes, Probe, ProbeVerdict, Series, Simulated, Unmeasured,
};

/// Characters of the longest bar.
const WIDTH: f64 = 36.0;

/// Both measurements and the conclusions.
pub fn text(probe: &Probe) -> String {
    measured("Loads", &probe.data, compared_passes(probe))
        + &measured("Jumps in code", &probe.code, compared_passes(probe))
        + &verdicts(probe)
        + &passes(probe)
        + &lift_costs(probe)
}

/// The number of passes from which the curves are taken: those with huge pages, or all if none has.
fn compared_passes(probe: &Probe) -> usize {
    if probe.passes_with_huge > 0 { probe.passes_with_huge } else { probe.passes }
}

/// Least load by other programs or the host, in CPUs, that changes the times.
const LITTLE: f64 = 0.2;

/// The number of passes, and the other load during them.
fn passes(probe: &Probe) -> String {
    let plural = if probe.passes == 1 { "" } else { "es" };
    let huge = probe.verdict.as_ref().map(|_| probe.passes_with_huge).filter(|huge| *huge < probe.passes);
    let huge = huge.map_or_else(String::new, |huge| format!(", {huge} with huge pages"));
    let beside = probe.load.map_or_else(String::new, |load| {
        let advice = match is_loaded(&load) {
            true => ", which lengthens translations and changes them: measure again while little else runs",
            false => "",
        };
        format!("; meanwhile {}{advice}", load_of_others(&load))
    });
    format!("Measured in {} pass{plural}{huge}{beside}.\n", probe.passes)
}

/// True if other load may have changed the times.
pub fn is_loaded(load: &Load) -> bool {
    load.others.max(load.stolen) >= LITTLE
}

/// `other programs used 1.7 CPUs`.
pub fn load_of_others(load: &Load) -> String {
    let Load { others, stolen } = load;
    let host = if *stolen >= 0.05 { format!(", and the host took {stolen:.1}") } else { String::new() };
    format!("other programs used {others:.1} CPUs{host}")
}

/// Returns the cost of a lift on this machine, as a line; empty if it was not measured.
fn lift_costs(probe: &Probe) -> String {
    let Some(costs) = &probe.lift_costs else { return String::new() };
    let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let (low, high) = probe.lift_cost_range.unwrap_or((costs.fill + costs.copy, costs.fill + costs.copy));
    format!(
        "A lift costs {} ms for each MiB that it copies; medians: {:.2} to make huge pages present, {:.2} to copy.\n",
        between(ms(low), ms(high), 2),
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
        None if !probe.code.series.is_empty() => {
            "No huge pages could be measured for loads: there is nothing to compare base pages with.\n".to_owned()
        }
        None => "No huge pages could be measured: there is nothing to compare base pages with.\n".to_owned(),
    }
}

fn unmeasured(what: &str, measured: &MeasuredSizes) -> String {
    let line = |missing: &Unmeasured| format!("{what} on {}: not measured: {}\n", missing.backing, missing.reason);
    measured.unmeasured.iter().map(line).collect()
}

fn measured(what: &str, measured: &MeasuredSizes, passes: usize) -> String {
    let mut text = String::new();
    if !measured.series.is_empty() {
        let pass = if passes > 1 { format!(", the middle one of {passes} passes") } else { String::new() };
        let curves = curves(&measured.series);
        text += &format!("{what}, one in each base page: ns of translation an access{pass}\n{curves}\n");
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
    for Series { backing, ranges: LevelRanges { first_reach, second_hit, second_reach, walk }, .. } in series {
        let none = || "–".to_owned();
        let bytes = |range: &Option<(u64, u64)>| range.map_or_else(none, |(low, high)| between_bytes(low, high));
        let time = |range: &Option<(f64, f64)>| range.map_or_else(none, |(low, high)| between(low, high, 1) + " ns");
        rows.add_row([backing.to_string(), bytes(first_reach), time(second_hit), bytes(second_reach), time(walk)]);
    }
    (1..=4).for_each(|column| align_right(&mut rows, column));
    trimmed(&rows)
}

/// Compares the measured reach on base pages with the model that `estimate` uses.
fn simulated(simulated: &Simulated) -> String {
    let Simulated { source, by_cpuid, measured, joined, nearest } = simulated;
    let [by_cpuid, measured, nearest] = [by_cpuid, measured, nearest].map(|bytes| format_bytes(*bytes));
    let head = format!(
        "Base pages are held up to {by_cpuid} by the TLBs that `pagelift estimate` simulates ({source}), measured up to \
         {measured}"
    );
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
        (None, None) if compared.passes < 2 => "; one pass shows no share".to_owned(),
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
pub fn between(low: f64, high: f64, digits: usize) -> String {
    let [low, high] = [low, high].map(|number| format!("{number:.digits$}"));
    if low == high { low } else { format!("{low} to {high}") }
}

/// A range of bytes; one number if both ends are the same.
fn between_bytes(low: u64, high: u64) -> String {
    if low == high { format_bytes(low) } else { format!("{} to {}", format_bytes(low), format_bytes(high)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::PageSize;
    use translation::tlb_probe::{Curve, Levels};

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
    fn the_simulated_tlbs_and_their_source_are_named() {
        let simulated = |source: &str| {
            let source = source.to_owned();
            super::simulated(&Simulated { source, by_cpuid: 8 << 20, measured: 8 << 20, joined: 1, nearest: 8 << 20 })
        };
        assert_eq!(
            simulated("known for GenuineIntel family 6, model 207: SDM"),
            "Base pages are held up to 8.0 MiB by the TLBs that `pagelift estimate` simulates (known for GenuineIntel \
             family 6, model 207: SDM), measured up to 8.0 MiB.\n\n"
        );
    }

    #[test]
    fn levels_are_ranges() {
        let ranges = LevelRanges {
            first_reach: Some((1 << 18, 1 << 18)),
            second_hit: Some((1.9, 2.2)),
            second_reach: Some((8 << 20, 12 << 20)),
            walk: Some((117.8, 610.8)),
        };
        let series = Series { backing: Backing::Base, curve: Curve::default(), levels: Levels::default(), ranges };
        let text = levels(&[series]);
        for wanted in [" 256.0 KiB ", "1.9 to 2.2 ns", "8.0 MiB to 12.0 MiB", "117.8 to 610.8 ns"] {
            assert!(text.contains(wanted), "no {wanted:?} in:\n{text}");
        }
    }

    #[test]
    fn other_load_and_passes_without_huge_pages_are_reported() {
        let verdict = |passes| ProbeVerdict {
            backing: Backing::Transparent(PageSize::new(2 << 20).unwrap()),
            data: Compared { passes, ..Compared::new(256 << 20, 40.0, 4.0) },
            code: None,
            splintered: None,
            needed: None,
            virtual_machine: None,
        };
        let of = |with_huge, others| {
            passes(&Probe {
                base_page: 4096,
                virtual_machine: None,
                data: MeasuredSizes::default(),
                code: MeasuredSizes::default(),
                lift_costs: None,
                lift_cost_range: None,
                verdict: Some(verdict(with_huge)),
                passes: 3,
                passes_with_huge: with_huge,
                load: Some(Load { others, stolen: 0.0 }),
            })
        };
        assert_eq!(of(3, 0.0), "Measured in 3 passes; meanwhile other programs used 0.0 CPUs.\n");
        let loaded = of(1, 1.7);
        assert!(
            loaded.starts_with("Measured in 3 passes, 1 with huge pages; meanwhile other programs used 1.7 CPUs, ")
        );
        assert!(loaded.ends_with("measure again while little else runs.\n"), "{loaded}");
    }

    #[test]
    fn a_share_needs_passes_that_agree() {
        let backing = Backing::Transparent(PageSize::new(2 << 20).unwrap());
        let of = |shares| {
            let one = Compared::new(256 << 20, 40.0, 4.0);
            saving("data", backing, &Compared { bases: (39.0, 42.0), shares, passes: 3, ..one })
        };
        let times = "256.0 MiB of data, visited at random: 39.0 to 42.0 ns of translation an access on base pages, 4.0 on 2 MiB THP";
        assert_eq!(of(Some((0.898, 0.904))), format!("{times}: 90 % less.\n"));
        assert_eq!(of(Some((0.87, 0.9))), format!("{times}: 87 to 90 % less.\n"));
        assert_eq!(of(Some((0.56, 0.95))), format!("{times}; the passes differ too much for a share.\n"));
        let alone = saving("data", backing, &Compared::new(256 << 20, 40.0, 4.0));
        assert!(
            alone.ends_with(
                "40.0 ns of translation an access on base pages, 4.0 on 2 MiB THP; one pass shows no share.\n"
            ),
            "{alone}"
        );
    }
}
