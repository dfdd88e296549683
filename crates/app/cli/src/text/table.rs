//! Plans and outcomes as tables.

use address_space::{AddressRange, format_bytes};
use comfy_table::LineStyle;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement};
use foreign_text::{printable, printable_lines};
use lift_plan::{EdgeCure, Kind, Method, Part, Plan, RangeLift};
use session::{Base, FarPages, LiftReport, NodeBytes};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A table in which no name begins a line: the first cell of a row is one line, whatever it holds. Other cells may have
/// several lines, which stay in their column.
pub struct Table(comfy_table::Table);

impl Table {
    /// Adds a row.
    pub fn add_row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let clean = |(column, cell): (usize, T)| match column {
            0 => printable(cell.as_ref()),
            _ => printable_lines(cell.as_ref()),
        };
        self.0.add_row(cells.into_iter().enumerate().map(clean).collect::<Vec<_>>());
    }
}

impl Deref for Table {
    type Target = comfy_table::Table;

    fn deref(&self) -> &comfy_table::Table {
        &self.0
    }
}

impl DerefMut for Table {
    fn deref_mut(&mut self) -> &mut comfy_table::Table {
        &mut self.0
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A table without borders on the sides, with these headings.
pub fn table(headings: &[&str]) -> Table {
    let mut table = comfy_table::Table::new();
    table
        .load_style(NOTHING.header_separator(LineStyle::new('─', '─', '─', '─')))
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(headings);
    Table(table)
}

/// Right-aligns a column of numbers.
pub fn align_right(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Returns the table without trailing blanks, which wrap in narrow terminals.
pub fn trimmed(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Kinds in one cell.
pub fn kinds(kinds: &[Kind]) -> String {
    kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
}

/// A plan: what would be lifted, edges, and what would not and why.
pub fn plan(program: &str, plan: &Plan) -> String {
    let mut text = format!(
        "{}: {} of {} would lie on huge pages\n",
        printable(program),
        format_bytes(plan.planned()),
        format_bytes(plan.considered)
    );
    if !plan.lifts.is_empty() {
        text += &format!("\nTo be lifted\n{}\n", lifts_table(plan));
    }
    if !plan.edges.is_empty() {
        text += &format!("\nEdges, which stay on ordinary pages\n{}\n", edges_table(plan));
    }
    if !plan.refusals.is_empty() {
        text += &format!("\nRefused\n{}\n", refusals_table(plan));
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
    let mut table = table(&["object", "what", "prot", "size", "huge", "source", "not huge, and why"]);
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

/// Lines about pages of files and images that lie on other nodes than the process.
pub fn far_pages(far: &[FarPages]) -> String {
    far.iter().map(|pages| format!("on another node: {pages}\n")).collect()
}

fn summary(report: &LiftReport) -> String {
    let edges: u64 = report.lift.edges.iter().map(|edge| AddressRange::len(edge.range)).sum();
    let mut text = format!(
        "edges {}; made resident {}; stood still {:.1} ms with {} other threads\n",
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
                "base moved to that of an image: huge pages"
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
