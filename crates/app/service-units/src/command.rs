//! Commands of `ExecStart=` (systemd.service(5), "COMMAND LINES"; systemd 252, `config_parse_exec()`).

use crate::words::{BLANKS, WordError, between_quotes, first_word, quoted};
use thiserror::Error;

/// Why a command cannot be given again with another one before it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// systemd ignores the line.
    #[error("systemd ignores the command `{line}`: {why}")]
    Ignored {
        /// The line's value.
        line: String,
        /// The problem.
        why: String,
    },
    /// systemd would read it, but it cannot be given again.
    #[error("the command `{line}` cannot be started by another one: {why}")]
    NotPossible {
        /// The line's value.
        line: String,
        /// The obstacle.
        why: String,
    },
}

/// One command: the prefixes, the program and everything behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecCommand {
    /// `-`: a failure counts as success.
    pub ignores_failure: bool,
    /// `:`: variables are not replaced by their values.
    pub keeps_variables: bool,
    /// `+`, `!` or `!!`, otherwise empty.
    pub privileges: &'static str,
    /// The program's path or name without quotes; specifiers are not expanded.
    pub path: String,
    /// With `@`: the word for the program's `argv[0]`, as it was written.
    pub name: Option<String>,
    /// The other words, as they were written.
    pub arguments: String,
}

/// The words that are put before a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// The absolute path of `pagelift`.
    pub program: String,
    /// The words between the program and `--`; `run` is the first.
    pub options: Vec<String>,
}

impl ExecCommand {
    /// Reads the value of one line, which may hold several commands with `;` between them.
    ///
    /// # Errors
    /// systemd would not accept the line, or it has a prefix that is not known here.
    pub fn parse_line(line: &str) -> Result<Vec<Self>, CommandError> {
        let mut commands = Vec::new();
        let mut rest = line;
        while let Some((first, behind)) = first_word(rest).map_err(|error| ignored(line, error))? {
            let first = String::from_utf8(first).map_err(|_| ignored(line, "its path is no UTF-8"))?;
            let mut command = Self::default();
            let named = command.take_prefixes(&first);
            command.check_path(line)?;
            let (arguments, next) = split_at_separator(behind).map_err(|error| ignored(line, error))?;
            if ends_in_escape(arguments) {
                return Err(not_possible(line, "its last word ends in a backslash, which would continue the line"));
            }
            command.arguments = arguments.to_owned();
            if named {
                command.take_name(line)?;
            }
            commands.push(command);
            match next {
                Some(next) => rest = next,
                None => break,
            }
        }
        Ok(commands)
    }

    /// Removes the prefixes from the first word; true if one is `@`. Each counts once, and `+`, `!` and `!!` exclude
    /// each other; a repeated prefix belongs to the path.
    fn take_prefixes(&mut self, first: &str) -> bool {
        let (mut named, mut rest) = (false, first);
        while let Some(prefix) = rest.chars().next() {
            match prefix {
                '-' if !self.ignores_failure => self.ignores_failure = true,
                '@' if !named => named = true,
                ':' if !self.keeps_variables => self.keeps_variables = true,
                '+' if self.privileges.is_empty() => self.privileges = "+",
                '!' if self.privileges.is_empty() => self.privileges = "!",
                '!' if self.privileges == "!" => self.privileges = "!!",
                _ => break,
            }
            rest = &rest[1..];
        }
        self.path = rest.to_owned();
        named
    }

    fn check_path(&self, line: &str) -> Result<(), CommandError> {
        let unsafe_sign = |c: char| c.is_ascii_control() || "\"'\\".contains(c);
        match self.path.as_str() {
            "" => Err(ignored(line, "it has no path")),
            path if path.ends_with('/') => Err(ignored(line, "its path is a folder's")),
            path if path.contains(unsafe_sign) => Err(ignored(line, "a quote, backslash or control sign in its path")),
            path if path.starts_with('|') => Err(not_possible(line, "its prefix | has a shell run it (systemd 258)")),
            // systemd takes a path literally, but `argv[0]`, which is equal to it, not.
            path if path.starts_with('$') || path.contains("${") || path.contains("$$") => {
                Err(not_possible(line, "its path looks like a variable"))
            }
            _ => Ok(()),
        }
    }

    /// Takes the first argument for `argv[0]`.
    fn take_name(&mut self, line: &str) -> Result<(), CommandError> {
        let arguments = std::mem::take(&mut self.arguments);
        let read = first_word(&arguments).map_err(|error| ignored(line, error))?;
        let (name, rest) = read.ok_or_else(|| ignored(line, "`@` needs a name"))?;
        let alone = name.first() == Some(&b'$') && name.get(1).is_none_or(|next| !b"{$".contains(next));
        if alone && !self.keeps_variables {
            return Err(not_possible(line, "its argv[0] is a variable, which may expand to several words"));
        }
        let raw = arguments[..arguments.len() - rest.len()].trim_end_matches(BLANKS);
        if ends_in_escape(raw) {
            return Err(not_possible(line, "its argv[0] ends in an escaped blank"));
        }
        self.name = Some(raw.to_owned());
        self.arguments = rest.to_owned();
        Ok(())
    }

    /// The value of an `ExecStart=` line by which `launcher` starts this command: the same prefixes, and for the program the
    /// same `argv`.
    pub fn started_by(&self, launcher: &Launcher) -> String {
        let expands = !self.keeps_variables;
        let mut line = self.prefixes();
        line += &between_quotes(&launcher.program.replace('%', "%%"));
        for option in &launcher.options {
            line += " ";
            line += &quoted(option, expands);
        }
        if let Some(name) = &self.name {
            line += &format!(" --argv0 {name}");
        }
        // A path is used literally as the first word, and its variables are replaced in other words.
        let path = if expands { self.path.replace('$', "$$") } else { self.path.clone() };
        line += &format!(" -- {}", between_quotes(&path));
        if !self.arguments.is_empty() {
            line += " ";
            line += &self.arguments;
        }
        line
    }

    /// This command with a program of no path found in `file`; its `argv[0]` stays.
    #[must_use]
    pub fn found_at(mut self, file: &str) -> Self {
        let name = std::mem::replace(&mut self.path, file.replace('%', "%%"));
        self.name.get_or_insert_with(|| between_quotes(&name));
        self
    }

    /// The prefixes without `@`.
    fn prefixes(&self) -> String {
        let failure = if self.ignores_failure { "-" } else { "" };
        let variables = if self.keeps_variables { ":" } else { "" };
        format!("{failure}{variables}{}", self.privileges)
    }

    /// True if systemd applies no sandbox to the command.
    pub fn is_unconfined(&self) -> bool {
        self.privileges == "+"
    }
}

impl ExecCommand {
    /// True if the path differs for each instance of a template (systemd.unit(5), "SPECIFIERS").
    pub fn names_instance(&self) -> bool {
        specifiers(&self.path).any(|(_, specifier)| "iIjJnNf".contains(specifier))
    }

    /// True if the path may be this one: its specifiers match any text.
    pub fn may_be(&self, path: &str) -> bool {
        is_made_of(&literal_parts(&self.path), path)
    }
}

/// True if `systemctl show` prints these words (`argv[]=`) for the value of an `ExecStart=` line with one command.
/// Specifiers may match any text; quotes, backslashes and the limits of words are ignored on both sides.
pub fn shows(line: &str, shown: &str) -> bool {
    let (mut words, mut rest) = (Vec::new(), line);
    while let Ok(Some((word, next))) = first_word(rest) {
        words.push(String::from_utf8_lossy(&word).into_owned());
        rest = next;
    }
    if let Some(first) = words.first_mut() {
        let mut command = ExecCommand::default();
        command.take_prefixes(first);
        *first = command.path;
    }
    let plain = |text: &str| text.replace(['"', '\'', '\\'], "");
    // Only the first printed line certainly belongs to this property.
    let line = words.join(" ");
    let (line, is_whole) = line.split_once('\n').map_or((line.as_str(), true), |(first, _)| (first, false));
    let mut parts: Vec<String> = literal_parts(line).iter().map(|part| plain(part)).collect();
    if !is_whole {
        parts.push(String::new());
    }
    is_made_of(&parts, &plain(shown))
}

/// The specifiers of a text, but for `%%`, each with its place.
fn specifiers(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut skipped = 0;
    text.match_indices('%').filter_map(move |(at, _)| {
        let next = text[at + 1..].chars().next().filter(|_| at >= skipped)?;
        skipped = at + 1 + next.len_utf8();
        (next != '%').then_some((at, next))
    })
}

/// The text before, between and after the specifiers of a text.
pub(crate) fn literal_parts(text: &str) -> Vec<String> {
    let (mut parts, mut from) = (Vec::new(), 0);
    for (at, specifier) in specifiers(text) {
        parts.push(text[from..at].replace("%%", "%"));
        from = at + 1 + specifier.len_utf8();
    }
    parts.push(text[from..].replace("%%", "%"));
    parts
}

/// True if a text has these parts in their order, from its start to its end, with any text between them.
fn is_made_of(parts: &[String], text: &str) -> bool {
    let Some((first, others)) = parts.split_first() else { return text.is_empty() };
    let Some(mut rest) = text.strip_prefix(first.as_str()) else { return false };
    let Some((last, between)) = others.split_last() else { return rest.is_empty() };
    for part in between {
        let Some(at) = rest.find(part.as_str()) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last.as_str())
}

/// True if a backslash at the end escapes the next character.
fn ends_in_escape(text: &str) -> bool {
    text.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1
}

fn ignored(line: &str, why: impl ToString) -> CommandError {
    CommandError::Ignored { line: line.to_owned(), why: why.to_string() }
}

fn not_possible(line: &str, why: &str) -> CommandError {
    CommandError::NotPossible { line: line.to_owned(), why: why.to_owned() }
}

/// Splits a text at a `;` that is a separate word, unquoted; returns the text before and after it.
fn split_at_separator(text: &str) -> Result<(&str, Option<&str>), WordError> {
    let mut rest = text;
    loop {
        let is_alone = |sign: &str| {
            let behind = rest.strip_prefix(sign)?;
            (behind.is_empty() || behind.starts_with(BLANKS)).then(|| behind.trim_start_matches(BLANKS))
        };
        if let Some(next) = is_alone(";") {
            return Ok((text[..text.len() - rest.len()].trim_end_matches(BLANKS), Some(next)));
        }
        if let Some(next) = is_alone("\\;") {
            rest = next;
            continue;
        }
        match first_word(rest)? {
            Some((_, next)) => rest = next,
            None => return Ok((text.trim_end_matches(BLANKS), None)),
        }
    }
}

#[cfg(test)]
mod tests;
