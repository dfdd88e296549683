//! Plans and outcomes as tables.

pub use super::grid::{Table, align_right, table, trimmed};
use crate::output::Output;
use address_space::{AddressRange, format_bytes};
use foreign_text::printable;
use lift_plan::{EdgeCure, Kind, Method, Part, Plan, RangeLift};
use session::{Base, FarPages, LiftReport, NodeBytes, Postponed};

/// Kinds in one cell.
pub fn kinds(kinds: &[Kind]) -> String {
    kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
}

/// A plan: the planned ranges, edges, and the other ranges with reasons. The tables fit into `width` columns.
pub fn plan(program: &str, plan: &Plan, postponed: Option<&Postponed>, width: Option<usize>) -> String {
    let (planned, considered) = (format_bytes(plan.planned()), format_bytes(plan.considered));
    let later = postponed.map_or_else(String::new, |postponed| format!(", {}", later(postponed)));
    format!("{}: {planned} of {considered} would be on huge pages{later}\n{}", printable(program), ranges(plan, width))
}

/// The memory that a start lifts later, in words.
pub fn later(postponed: &Postponed) -> String {
    let due = postponed.due_microseconds as f64 / 1e6;
    format!("{} more when it has used {due:.1} s of CPU time", format_bytes(postponed.bytes))
}

/// The ranges of a plan: the planned ones, edges, and the others with reasons, in tables that fit into `width` columns.
pub fn ranges(plan: &Plan, width: Option<usize>) -> String {
    let mut text = String::new();
    if !plan.lifts.is_empty() {
        text += &format!("\nTo be lifted\n{}\n", lifts_table(plan).within(width));
    }
    if !plan.edges.is_empty() {
        text += &format!("\nEdges, which stay on ordinary pages\n{}\n", edges_table(plan).within(width));
    }
    if !plan.refusals.is_empty() {
        text += &format!("\nRefused\n{}\n", refusals_table(plan).within(width));
    }
    text
}

fn lifts_table(plan: &Plan) -> Table {
    let mut table = table(&["object", "what", "prot", "addresses", "size", "pages", "source, way"]);
    for lift in &plan.lifts {
        let attempt = &lift.attempts[0];
        table.add_row([
            lift.object.clone(),
            kinds(&lift.kinds),
            lift.protection.to_string(),
            lift.range.to_string(),
            format_bytes(lift.range.len()),
            format!("{} x {}", attempt.page_size.pages_for(lift.range.len()), attempt.page_size),
            sources(lift),
        ]);
    }
    align_right(&mut table, 4);
    align_right(&mut table, 5);
    table
}

fn sources(lift: &RangeLift) -> String {
    let mut names: Vec<_> = lift.attempts.iter().map(|attempt| attempt.source.to_string()).collect();
    // A file can be mapped in two ways.
    names.dedup();
    let mut methods: Vec<&str> = lift.attempts[0].parts.iter().map(method).collect();
    methods.dedup();
    format!("{}: {}", names.join(", else "), methods.join(", "))
}

fn method(part: &Part) -> &'static str {
    match &part.method {
        Method::Swap { .. } => "swap",
        Method::MoveAside { .. } => "move aside",
        Method::MapImage { .. } => "map",
        Method::Refault => "map anew",
        Method::MapAgain { .. } => "map again",
        Method::InPlace { collapse } if collapse.is_empty() => "advise",
        Method::InPlace { .. } => "collapse in place",
    }
}

fn edges_table(plan: &Plan) -> Table {
    let mut table = table(&["object", "what", "addresses", "size", "would be covered by"]);
    let size =
        plan.lifts.first().map_or_else(|| "SIZE".to_owned(), |lift| lift.attempts[0].page_size.bytes().to_string());
    let relink = format!("-Wl,-z,max-page-size={size}");
    for edge in &plan.edges {
        let cure = match edge.cure {
            EdgeCure::Relink => format!("relinking with {relink}"),
            EdgeCure::MergeReadOnly => "--edges merge-read-only".to_owned(),
        };
        let size = format_bytes(edge.range.len());
        table.add_row([edge.object.clone(), kinds(&edge.kinds), edge.range.to_string(), size, cure]);
    }
    align_right(&mut table, 3);
    table
}

fn refusals_table(plan: &Plan) -> Table {
    let mut table = table(&["object", "what", "addresses", "size", "reason"]);
    for refusal in &plan.refusals {
        table.add_row([
            refusal.object.clone(),
            kinds(&refusal.kinds),
            refusal.range.to_string(),
            format_bytes(refusal.range.len()),
            refusal.reason.with_fix(),
        ]);
    }
    align_right(&mut table, 3);
    table
}

/// Formats the outcome of each range, for `-v`.
pub fn outcome(report: &LiftReport) -> String {
    let mut table =
        table(&["object", "what", "prot", "size", "huge", "source", "not huge, and why"]).for_stream(Output::Error);
    for range in &report.lift.ranges {
        let source = range.source.map_or_else(|| "-".to_owned(), |source| format!("{source} {}", range.page_size));
        let mut notes: Vec<String> = Vec::new();
        if range.advised > 0 {
            notes.push(format!("{} advised, huge when touched", format_bytes(range.advised)));
        }
        notes.extend(range.failed.iter().map(|failed| format!("{}: {}", failed.source, failed.reason.with_fix())));
        let uncovered = range.uncovered.iter().filter(|_| range.source.is_some());
        notes.extend(uncovered.map(|u| format!("{}: {}", format_bytes(u.range.len()), u.reason.with_fix())));
        table.add_row([
            range.object.clone(),
            kinds(&range.kinds),
            range.protection.to_string(),
            format_bytes(range.range.len()),
            format_bytes(range.covered.bytes()),
            source,
            notes.join("\n"),
        ]);
    }
    for refusal in &report.lift.refusals {
        let size = format_bytes(refusal.range.len());
        let reason = refusal.reason.with_fix();
        let what = kinds(&refusal.kinds);
        table.add_row([refusal.object.clone(), what, "-".into(), size, "0 B".into(), "-".into(), reason]);
    }
    align_right(&mut table, 3);
    align_right(&mut table, 4);
    format!("{table}\n{}", summary(report))
}

/// Lines about pages of files and images on other nodes than the process.
pub fn far_pages(far: &[FarPages]) -> String {
    far.iter().map(|pages| format!("on another node: {pages}\n")).collect()
}

fn summary(report: &LiftReport) -> String {
    let edges: u64 = report.lift.edges.iter().map(|edge| AddressRange::len(edge.range)).sum();
    let mut text = format!(
        "edges {}; made resident {}; stopped for {:.1} ms with {} other threads\n",
        format_bytes(edges),
        format_bytes(report.lift.made_resident_bytes),
        report.stopped_microseconds as f64 / 1000.0,
        report.other_threads
    );
    if !report.nodes.is_empty() {
        let on = |node: &NodeBytes| format!("{} on node {}", format_bytes(node.bytes), node.node);
        text += &format!("lifted memory: {}\n", report.nodes.iter().map(on).collect::<Vec<_>>().join(", "));
    }
    text += &far_pages(&report.far_pages);
    for why in &report.not_on_node {
        text += &format!("not from the copy for its node: {why}\n");
    }
    for why in &report.without_image {
        text += &format!("no image: {why}\n");
    }
    match &report.base {
        Some(Base::Moved { before, after, congruent, why }) => {
            let covered = |c: &lift_plan::Coverable| {
                format!("{} of code, {} in all", format_bytes(c.text), format_bytes(c.total))
            };
            let what = if *congruent {
                "base moved to agree with the file: its huge folios"
            } else if before == after {
                "base moved to an image's base: huge pages"
            } else {
                "base moved: huge pages"
            };
            text += &format!("{what} can cover {} (before {})\n", covered(after), covered(before));
            text += &why.as_ref().map(|why| format!("not from the file: {why}\n")).unwrap_or_default();
        }
        Some(Base::Kept { why }) => text += &format!("base kept: {why}\n"),
        None => {}
    }
    if let Some(warning) = super::message::fork_warning(report) {
        text += &format!("note: {warning}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::Address;
    use lift_plan::{Reason, Refusal};

    #[test]
    fn tables_of_a_plan_fit_the_given_width() {
        let refusal = Refusal {
            range: AddressRange::sized(Address(0x5555_5555_0000), 4096),
            object: "libc.so.6".to_owned(),
            kinds: vec![Kind::Text],
            reason: Reason::ThpOff,
        };
        let plan = Plan { refusals: vec![refusal], ..Plan::default() };
        let widest = |width| ranges(&plan, width).lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(widest(None) > 80 && widest(Some(80)) <= 80);
    }
}
