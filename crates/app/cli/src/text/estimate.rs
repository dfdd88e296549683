//! Formats an estimate; pure.

use super::number::{counted, grouped};
use super::table::{align_right, table, trimmed};
use address_space::format_bytes;
use estimate::{Estimate, PagesOf, Side, Variant};

/// Fewer saved page walks per 1,000 instructions gain little: at 100 cycles each, about 1 % of 1,000 cycles.
const LITTLE: f64 = 0.1;

/// The simulation, the figures, and their meaning.
pub fn text(estimate: &Estimate) -> String {
    let mut text = format!(
        "Estimate for {}: simulated, not measured.\n\n{}\n",
        estimate.command.first().map_or("", String::as_str),
        figures(estimate)
    );
    text += &format!("\n{}\n\n", kinds(estimate));
    let [plain, lifted, with_heap] = estimate.variants.as_slice() else { return text };
    text += &saved("The lift", lifted, plain);
    if with_heap != lifted {
        text += &saved("The lift with its heap on huge pages", with_heap, plain);
    }
    let fewest = [lifted, with_heap].map(all_walks).into_iter().min().unwrap_or_default();
    text += &verdict(estimate.per_thousand(all_walks(plain).saturating_sub(fewest)));
    text + &basis(estimate)
}

fn name(pages: PagesOf) -> &'static str {
    match pages {
        PagesOf::Plain => "plain",
        PagesOf::Lifted => "lifted",
        PagesOf::LiftedWithHeap => "lifted, heap too",
    }
}

fn figures(estimate: &Estimate) -> String {
    let mut rows = table(&["per 1,000 instructions", "code misses", "code walks", "data misses", "data walks"]);
    for variant in &estimate.variants {
        let number = |count| format!("{:.3}", estimate.per_thousand(count));
        let Variant { code, data, .. } = variant;
        let cells = [code.misses, code.walks, data.misses, data.walks].map(number);
        rows.add_row([vec![name(variant.pages).to_owned()], cells.to_vec()].concat());
    }
    (1..=4).for_each(|column| align_right(&mut rows, column));
    trimmed(&rows)
}

fn kinds(estimate: &Estimate) -> String {
    let mut headings = vec!["walks per 1,000 for"];
    headings.extend(estimate.variants.iter().map(|variant| name(variant.pages)));
    let mut rows = table(&headings);
    for kind in estimate::Kind::ALL {
        let walks = |variant: &Variant| {
            let found = variant.walks.iter().find(|walks| walks.kind == kind);
            found.map_or(0, |walks| walks.code + walks.data)
        };
        if estimate.variants.iter().any(|variant| walks(variant) > 0) {
            let cells = estimate.variants.iter().map(|variant| format!("{:.3}", estimate.per_thousand(walks(variant))));
            rows.add_row(std::iter::once(kind.to_string()).chain(cells));
        }
    }
    (1..=estimate.variants.len()).for_each(|column| align_right(&mut rows, column));
    trimmed(&rows)
}

fn saved(what: &str, after: &Variant, before: &Variant) -> String {
    let both = |variant: &Variant| Side {
        misses: variant.code.misses + variant.data.misses,
        walks: variant.code.walks + variant.data.walks,
    };
    let share = |after: Side, before: Side| {
        after
            .walks_saved_of(&before)
            .map_or_else(|| "none to save".to_owned(), |share| format!("{:.1} %", share * 100.0))
    };
    format!(
        "{what} saves {} of all page walks: {} of the walks for code, {} of the walks for data.\n",
        share(both(after), both(before)),
        share(after.code, before.code),
        share(after.data, before.data)
    )
}

fn all_walks(variant: &Variant) -> u64 {
    variant.code.walks + variant.data.walks
}

/// The meaning of the page walks that a lift saves per 1,000 instructions.
fn verdict(saved: f64) -> String {
    let found = format!("{saved:.3} page walks per 1,000 instructions saved");
    match saved < LITTLE {
        true => format!("Verdict: little to gain: {found}.\n"),
        false => format!("Verdict: {found}; next: `pagelift bench` measures the gain in time.\n"),
    }
}

fn basis(estimate: &Estimate) -> String {
    let Estimate { cpu, trace, .. } = estimate;
    let threads = counted(trace.threads as u64, "thread");
    let cores = match trace.cores {
        None => "a core for each thread".to_owned(),
        Some(1) => "one core for all threads".to_owned(),
        Some(cores) => format!("{cores} cores for all threads"),
    };
    let mut text = format!(
        "\nTLBs: {}, {cores} ({})\nTrace: {} instructions of {threads} after {} skipped, {} s and {} to fill \
         the TLBs, by {}\nPlan: {} on huge pages\n",
        cpu.name,
        cpu.source,
        grouped(trace.instructions),
        grouped(trace.slice.skip),
        trace.slice.after_seconds,
        grouped(trace.slice.warm_up),
        trace.tool,
        format_bytes(estimate.planned_bytes)
    );
    if let Some(joined) = cpu.joined {
        text +=
            &format!("Each entry holds {} neighbouring base pages, as if all lay side by side.\n", 1u32 << joined.log2);
    }
    if trace.ended_early {
        text += &format!(
            "The trace ended before {} instructions: with the program, or by an interruption.\n",
            grouped(trace.slice.instructions)
        );
    }
    text + "Not simulated: the kernel, speculation, prefetching, other threads of a core, invalidations.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_walks_can_gain_little() {
        assert_eq!(verdict(0.057), "Verdict: little to gain: 0.057 page walks per 1,000 instructions saved.\n");
        assert_eq!(
            verdict(2.5),
            "Verdict: 2.500 page walks per 1,000 instructions saved; next: `pagelift bench` measures the gain in time.\n"
        );
    }
}
