//! Formats the findings of `pagelift doctor`; pure.

use crate::output::painted;
use health::{Area, Estimate, Finding, Fix, HealthReport, Severity, Verdict};
use process_view::printable;

/// Columns of prose if there is room. Commands are never broken.
pub const WIDTH: usize = 100;
/// Width of the labels before the values.
const INDENT: usize = 10;

/// Options of the text.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// With colours.
    pub is_coloured: bool,
    /// Including met requirements.
    pub all: bool,
    /// Columns of prose.
    pub width: usize,
}

impl Style {
    /// A text in a colour of ECMA-48.
    fn paint(self, colour: &str, text: &str) -> String {
        if self.is_coloured { painted(colour, text) } else { text.to_owned() }
    }

    fn of(self, severity: Severity, text: &str) -> String {
        let colour = match severity {
            Severity::Problem => "1;31",
            Severity::Advice => "1;33",
            Severity::Note => "36",
        };
        self.paint(colour, text)
    }
}

/// The whole report.
pub fn text(report: &HealthReport, is_root: bool, style: Style) -> String {
    let mut text = format!("{}\n", headline(report));
    for severity in [Severity::Problem, Severity::Advice] {
        for finding in report.findings.iter().filter(|finding| finding.severity == severity) {
            text += &format!("\n{}", detailed(finding, is_root, style));
        }
    }
    let notes: Vec<&Finding> = report.findings.iter().filter(|finding| finding.severity == Severity::Note).collect();
    if !notes.is_empty() {
        text += &format!("\n{}\n", style.of(Severity::Note, "Notes"));
        notes.iter().for_each(|finding| text += &note(finding, is_root, style));
    }
    text += &not_seen(report, is_root, style);
    if style.all {
        text += &fine(report, style);
    }
    text += &verdict(&report.verdict, style);
    if let Some(heap) = &report.heap {
        text += &format!("\n{}", wrapped(&format!("With run --heap=auto: {heap}"), style.width).join("\n"));
        text.push('\n');
    }
    text
}

fn headline(report: &HealthReport) -> String {
    let count = |severity| report.findings.iter().filter(|finding| finding.severity == severity).count();
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let (problems, advice, notes) = (count(Severity::Problem), count(Severity::Advice), count(Severity::Note));
    let mut parts = Vec::new();
    parts.extend((problems > 0).then(|| plural(problems, "problem")));
    parts.extend((advice > 0).then(|| format!("{advice} to improve")));
    parts.extend((notes > 0).then(|| plural(notes, "note")));
    let found = if parts.is_empty() { "nothing is wrong".to_owned() } else { parts.join(", ") };
    format!("{}: {found}; {} fine", printable(&report.subject), plural(report.fine.len(), "check"))
}

fn detailed(finding: &Finding, is_root: bool, style: Style) -> String {
    let word = match finding.severity {
        Severity::Problem => "PROBLEM",
        _ => "ADVICE",
    };
    let word = style.of(finding.severity, &format!("{word:8}"));
    let mut text = format!("{word}{}: {}\n", finding.area, printable(&finding.title));
    for (name, words) in [("found", &finding.found), ("wanted", &finding.wanted), ("why", &finding.why)] {
        text += &field(name, words, style);
    }
    if let Some(fix) = &finding.fix {
        text += &fixed(fix, is_root, style);
    }
    text
}

/// A name and prose behind it.
fn field(name: &str, words: &str, style: Style) -> String {
    let lines = wrapped(words, style.width.saturating_sub(INDENT)).join(&format!("\n{:INDENT$}", ""));
    format!("  {name:<width$}{lines}\n", width = INDENT - 2)
}

/// Each command in a separate line, which can be pasted.
fn fixed(fix: &Fix, is_root: bool, style: Style) -> String {
    let mut text = String::new();
    for (index, command) in fix.typed(is_root).iter().enumerate() {
        let name = if index == 0 { "fix" } else { "" };
        text += &format!("  {name:<width$}{}\n", style.paint("1", &printable(command)), width = INDENT - 2);
    }
    match &fix.note {
        Some(note) if text.is_empty() => field("fix", note, style),
        Some(note) => text + &field("", note, style),
        None => text,
    }
}

fn note(finding: &Finding, is_root: bool, style: Style) -> String {
    let mut text = item(&format!("{}: {} ({}): {}", finding.area, finding.title, finding.found, finding.why), style);
    if let Some(fix) = &finding.fix {
        let commands = fix.typed(is_root).join("; ");
        let note = wrapped(fix.note.as_deref().unwrap_or_default(), style.width.saturating_sub(9)).join("\n         ");
        text += &match (commands.is_empty(), fix.note.is_some()) {
            (true, _) => format!("    fix: {note}\n"),
            (false, false) => format!("    fix: {}\n", printable(&commands)),
            (false, true) => format!("    fix: {}\n         {note}\n", printable(&commands)),
        };
    }
    text
}

fn item(words: &str, style: Style) -> String {
    format!("  - {}\n", wrapped(words, style.width.saturating_sub(4)).join("\n    "))
}

fn not_seen(report: &HealthReport, is_root: bool, style: Style) -> String {
    if report.not_seen.is_empty() {
        return String::new();
    }
    let mut text = "\nNot seen\n".to_owned();
    for missing in &report.not_seen {
        let who = if missing.root_sees && !is_root { " [root]" } else { "" };
        text += &item(&format!("{}{who}", missing.what), style);
    }
    if !is_root && report.not_seen.iter().any(|missing| missing.root_sees) {
        text += "  What is marked [root] is seen, or works, by `sudo pagelift doctor`.\n";
    }
    text
}

fn fine(report: &HealthReport, style: Style) -> String {
    let mut text = format!("\n{}\n", style.paint("32", "Fine"));
    let mut last: Option<Area> = None;
    for check in &report.fine {
        if last != Some(check.area) {
            text += &format!("  {}\n", check.area);
            last = Some(check.area);
        }
        text += &format!("    {}\n", printable(&check.seen));
    }
    text
}

fn verdict(verdict: &Verdict, style: Style) -> String {
    let head = wrapped(&format!("Verdict: {}", verdict.summary), style.width).join("\n");
    let mut text = format!("\n{}\n", style.paint("1", &head));
    if let Some(run) = &verdict.run {
        text += &format!("  {:<width$}{}\n", "run", style.paint("1", &printable(run)), width = INDENT - 2);
    }
    for Estimate { what, likely, based_on, .. } in &verdict.estimates {
        text += &field("likely", &format!("{what}: {likely} (an estimate, not measured)"), style);
        text += &field("", &format!("from {based_on}"), style);
    }
    if let Some(measure) = &verdict.measure {
        text += &format!("  {:<width$}{}\n", "measure", printable(measure), width = INDENT - 2);
    }
    if let Some(note) = &verdict.measure_note {
        let name = if verdict.measure.is_some() { "" } else { "measure" };
        text += &field(name, note, style);
    }
    text
}

/// Prose in lines of at most `width` columns.
pub(super) fn wrapped(words: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in printable(words).split_whitespace() {
        let line = lines.last_mut().unwrap_or_else(|| unreachable!("there is always a line"));
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use health::{FineCheck, NotSeen};

    fn finding(severity: Severity, title: &str) -> Finding {
        Finding {
            check: "check",
            area: Area::Pool,
            severity,
            title: title.to_owned(),
            found: "little \u{1b}[31m".to_owned(),
            wanted: "much".to_owned(),
            why: "word ".repeat(40),
            fix: Some(Fix::write(1, "/sys/x").with_note("and more")),
        }
    }

    fn report() -> HealthReport {
        let verdict = Verdict {
            summary: "it can be lifted".to_owned(),
            run: Some("pagelift attach 7".to_owned()),
            measure: Some("pagelift bench --toggle 7".to_owned()),
            measure_note: Some("of its code only".to_owned()),
            estimates: vec![Estimate {
                what: "code",
                likely: "0 to 2 %".to_owned(),
                based_on: "9 MiB".to_owned(),
                is_worthwhile: true,
            }],
        };
        HealthReport {
            format: "pagelift-doctor",
            version: 1,
            subject: "program[7]".to_owned(),
            severity: Some(Severity::Problem),
            findings: vec![finding(Severity::Problem, "worst"), finding(Severity::Note, "least")],
            fine: vec![FineCheck { check: "a", area: Area::Thp, seen: "on".to_owned() }],
            not_seen: vec![NotSeen { check: "b", what: "tracepoints".to_owned(), root_sees: true }],
            verdict,
            heap: Some("glibc 2.36: it asks for huge pages".to_owned()),
        }
    }

    const PLAIN: Style = Style { is_coloured: false, all: false, width: WIDTH };

    #[test]
    fn the_worst_comes_first_and_commands_stand_alone() {
        let text = text(&report(), false, PLAIN);
        assert!(text.starts_with("program[7]: 1 problem, 1 note; 1 check fine\n\nPROBLEM pool: worst\n"), "{text}");
        assert!(text.contains("\n  fix     sudo sh -c 'echo 1 > /sys/x'\n          and more\n"), "{text}");
        assert!(text.contains("- tracepoints [root]") && text.contains("sudo pagelift doctor"), "{text}");
        assert!(text.ends_with("\nWith run --heap=auto: glibc 2.36: it asks for huge pages\n"), "{text}");
        assert!(text.contains("run     pagelift attach 7") && text.contains("an estimate, not measured"), "{text}");
        assert!(text.contains("  measure pagelift bench --toggle 7\n          of its code only\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains("Fine"), "{text}");
    }

    #[test]
    fn prose_fits_into_a_narrow_terminal() {
        let mut report = report();
        report.findings[1].fix = Some(Fix::by_hand("word ".repeat(30)));
        let text = text(&report, false, Style { width: 40, ..PLAIN });
        let prose = text.lines().filter(|line| line.contains("word"));
        assert!(prose.clone().count() > 12 && prose.clone().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains("    fix: word ") && text.contains("\n         word "), "{text}");
        let written = super::text(&super::tests::report(), true, Style { width: 40, ..PLAIN });
        assert!(written.contains("    fix: echo 1 > /sys/x\n         and more\n"), "{written}");
    }

    #[test]
    fn colours_and_what_is_fine_are_shown_where_wanted() {
        let text = text(&report(), true, Style { is_coloured: true, all: true, width: WIDTH });
        assert!(text.contains("\u{1b}[1;31mPROBLEM \u{1b}[0m") && text.contains("little ?[31m"), "{text:?}");
        assert!(text.contains("  transparent huge pages\n    on\n") && !text.contains("[root]"), "{text}");
    }
}
