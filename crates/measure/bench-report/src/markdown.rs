//! Markdown for a pull request: tables of GitHub, and no HTML.

use crate::decision::Next;
use crate::view::Section;
use crate::words;
use address_space::format_bytes;
use std::fmt::Write;

/// The last line, by which a page is recognised.
pub(crate) const MADE_BY: &str = "Made by `pagelift report` from records of `pagelift bench -o`.";
/// Reasons of an arm that are shown.
const REASONS: usize = 6;

pub(crate) fn text(sections: &[Section]) -> String {
    let mut text = String::new();
    if sections.len() > 1 {
        text += &summary(sections);
    }
    for section in sections {
        if !text.is_empty() {
            text.push('\n');
        }
        text += &of_section(section);
    }
    text + "\n" + MADE_BY + "\n"
}

/// Text of a record that GitHub shows as it is: no link, no mention, no HTML, no cell's end.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut last = ' ';
    for c in text.chars() {
        // GitHub searches for names, numbers and addresses in the text without the marks.
        let joins = matches!((last, c), ('@' | '#', c) if c.is_alphanumeric())
            || (last == ':' && c == '/')
            || (last == '.' && plain.to_lowercase().ends_with("www."));
        if joins {
            plain.push('\u{200b}');
        }
        // At the beginning also the characters that make lists and headings: `-`, `1.`.
        let begins = plain.chars().all(|c| c.is_ascii_digit());
        let acts = matches!(
            c,
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '<' | '>' | '#' | '|' | '~' | '!' | '&' | '$' | '@'
        );
        if acts || begins && c.is_ascii_punctuation() {
            plain.push('\\');
        }
        plain.push(c);
        last = c;
    }
    plain
}

/// Text of a record as code, whatever is in it.
fn code(text: &str) -> String {
    if text.is_empty() {
        return "–".to_owned();
    }
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    // In a table a bar ends the cell even within code.
    let text = text.replace('|', "\\|");
    let blank = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{blank}{text}{blank}{fence}")
}

/// A command or an option as code, and an instruction as text.
fn fix(text: &str) -> String {
    if words::can_be_typed(text) { code(text) } else { plain(text) }
}

fn rows<const N: usize>(text: &mut String, headings: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    *text += &line(&headings.map(str::to_owned));
    *text += &line(&headings.map(|heading| if heading.ends_with('s') { "---:" } else { "---" }.to_owned()));
    rows.into_iter().for_each(|row| *text += &line(&row));
}

fn summary(sections: &[Section]) -> String {
    let mut text = format!("## Does it pay? {} measurements\n\n", sections.len());
    let all = sections.iter().flat_map(|section| section.arms.iter().map(move |arm| (section, arm)));
    rows(
        &mut text,
        ["Program", "Arm", "Difference", "May be hidden", "Finding"],
        all.map(|(section, arm)| {
            let hidden = arm.hidden.clone().unwrap_or_else(|| "–".to_owned());
            let difference = words::interval(&arm.answer);
            [code(&section.program), code(&arm.name), plain(&difference), hidden, plain(&arm.said)]
        }),
    );
    text
}

fn of_section(section: &Section) -> String {
    let mut text = format!("## {}: {}\n\n", plain(&section.advice.headline), code(&section.program));
    let _ = writeln!(text, "{}.\n", plain(&section.advice.reason));
    if let Some(next) = &section.advice.next {
        let next = match next {
            Next::Command { command, purpose: None } => code(command),
            Next::Command { command, purpose: Some(purpose) } => format!("{} ({})", code(command), plain(purpose)),
            Next::Words(words) => plain(words),
        };
        let _ = writeln!(text, "Next: {next}\n");
    }
    if section.arms.len() > 1 {
        let _ = writeln!(text, "{}\n", plain(&section.sentence()));
    }
    for note in &section.notes {
        let _ = writeln!(text, "> {}\n", plain(note));
    }
    let per = format!("{} per {}", plain(&section.unit), section.per);
    let arms = section.arms.iter().map(|arm| {
        let name = format!("{} against plain", code(&arm.name));
        [name, plain(&words::interval(&arm.answer)), arm.answer.blocks.to_string(), plain(&arm.said)]
    });
    let control = [
        "plain against itself".to_owned(),
        plain(&words::interval(&section.control)),
        section.control.blocks.to_string(),
        "noise, if it holds no difference".to_owned(),
    ];
    rows(&mut text, ["Compared", &per, "Pairs", "Finding"], arms.chain([control]));
    text += &lifts(section);
    text += &memory(section);
    for line in section.latency.iter().chain(&section.walks) {
        let _ = writeln!(text, "\n- {}", plain(line));
    }
    for line in &section.translation {
        let _ = writeln!(text, "\n- {}", plain(line));
    }
    text += "\nMachine: ";
    let machine: Vec<String> = section.machine.iter().map(|(name, value)| format!("{name} {}", plain(value))).collect();
    let _ = writeln!(text, "{}.", machine.join("; "));
    for warning in &section.warnings {
        let _ = writeln!(text, "- {}", plain(warning));
    }
    let _ = writeln!(text, "\n{}", section.method.iter().map(|sentence| plain(sentence)).collect::<Vec<_>>().join(" "));
    for arm in &section.arms {
        if let Some(options) = &arm.options {
            let _ = writeln!(text, "\n{}: {}", code(&arm.name), code(options));
        }
    }
    text
}

fn lifts(section: &Section) -> String {
    let mut text = String::new();
    for arm in &section.arms {
        let Some(lift) = &arm.lift else { continue };
        let note = lift.note_on_heap().map_or_else(String::new, |note| format!(" {note}."));
        let covered = lift.covered().join(" ");
        let _ = writeln!(text, "\n{}: {}.{note} Not lifted:\n", code(&arm.name), plain(&covered));
        if lift.reasons.is_empty() {
            text += "none of the memory chosen by the options.\n";
            continue;
        }
        let reasons = lift.reasons.iter().take(REASONS).map(|reason| {
            [
                format_bytes(reason.bytes),
                plain(&reason.reason),
                reason.fix.as_deref().map_or_else(|| "–".to_owned(), fix),
                reason.places.first().map_or_else(String::new, |p| code(p)),
            ]
        });
        rows(&mut text, ["Bytes", "Why", "Fix", "Where"], reasons);
    }
    text
}

fn memory(section: &Section) -> String {
    let seen: Vec<_> = section.states.iter().filter_map(|state| Some((state, state.memory.as_ref()?))).collect();
    if seen.is_empty() {
        return String::new();
    }
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "–".to_owned(), format_bytes);
    let mut text = "\n".to_owned();
    rows(
        &mut text,
        ["Memory", "Resident bytes", "Pss", "On huge pages", "Page tables"],
        seen.iter().map(|(state, memory)| {
            let (resident, huge) = (format_bytes(memory.resident), format_bytes(memory.huge_bytes()));
            [code(&state.name), resident, bytes(memory.proportional), huge, bytes(memory.page_tables)]
        }),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_record_acts_in_a_pull_request() {
        assert_eq!(plain("a|b <i>*x*</i>"), "a\\|b \\<i\\>\\*x\\*\\</i\\>");
        assert_eq!(
            plain("@root #12 http://x www.y.z"),
            "\\@\u{200b}root \\#\u{200b}12 http:\u{200b}//x www.\u{200b}y.z"
        );
        assert_eq!(plain("- 1. x"), "\\- 1. x");
        assert_eq!(plain("1. x"), "1\\. x");
        assert_eq!(code("a`b"), "``a`b``");
        assert_eq!(code("a|b"), "`a\\|b`");
        assert_eq!(code("``"), "``` `` ```");
        assert_eq!(code(""), "–");
    }
}
