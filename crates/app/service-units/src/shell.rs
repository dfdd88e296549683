//! Programs that a shell executes by its own words: `sh -c "…; exec /usr/sbin/mariadbd …"`.
//!
//! The words are read by the rules of POSIX ("Shell Command Language") that matter for paths: quotes, substitutions,
//! redirections, and the places at which a command begins. Here-documents, functions and patterns of `case` are not
//! recognised: a text with them may give a path too many or too few, so the caller checks each file.

use crate::command::{ExecCommand, literal_parts};
use crate::words::first_word;
use std::iter::Peekable;
use std::str::Chars;

const SHELLS: [&str; 5] = ["sh", "dash", "bash", "ksh", "zsh"];
/// Words behind which a command begins.
const LEADING_WORDS: [&str; 10] = ["!", "{", "if", "then", "elif", "else", "while", "until", "do", "time"];
/// Long options of bash that take a value.
const LONG_OPTIONS_WITH_VALUE: [&str; 2] = ["-rcfile", "-init-file"];
/// Stands for the text of a specifier.
const UNKNOWN: &str = "\u{fffd}";
/// Maximum number of paths that are kept; the caller opens each file.
const MOST_PATHS: usize = 32;

/// True for the path of a shell.
pub fn is_shell(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| SHELLS.contains(&name))
}

/// The programs that the words of a shell execute, by absolute paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutedPaths {
    /// The paths, each once: after `exec` or, without `exec`, of all commands.
    pub paths: Vec<String>,
    /// The shell becomes the program (`exec`), so that its process is the program's.
    pub replaces_shell: bool,
    /// Paths of other commands than `exec`, if there is one.
    pub others: Vec<String>,
    /// The shell becomes a program whose path is not known.
    pub has_unknown: bool,
}

impl ExecCommand {
    /// The text after `-c`, as a shell gets it except for the variables that systemd replaces; specifiers become
    /// U+FFFD.
    pub fn shell_text(&self) -> Option<String> {
        let (mut rest, mut values) = (self.arguments.as_str(), 0);
        let (mut has_text, mut takes_options) = (false, true);
        while let Ok(Some((word, next))) = first_word(rest) {
            rest = next;
            if values > 0 {
                values -= 1;
                continue;
            }
            let word = self.passed(&word);
            match word.strip_prefix(['-', '+']).filter(|_| takes_options) {
                None => return has_text.then_some(word),
                Some("" | "-") => takes_options = false,
                Some(long) if long.starts_with('-') => values = usize::from(LONG_OPTIONS_WITH_VALUE.contains(&long)),
                Some(short) => {
                    has_text |= short.contains('c');
                    values = short.matches(['o', 'O']).count();
                }
            }
        }
        None
    }

    /// A word as the program gets it, but for the variables that systemd replaces and for specifiers.
    fn passed(&self, word: &[u8]) -> String {
        let text = literal_parts(&String::from_utf8_lossy(word)).join(UNKNOWN);
        if self.keeps_variables { text } else { text.replace("$$", "$") }
    }
}

/// Finds the absolute paths that a shell executes which is given this text; takes time in proportion to the text.
pub fn executed_paths(text: &str) -> ExecutedPaths {
    let mut scanner = Scanner {
        signs: text.chars().peekable(),
        frame: Frame::new(Opened::Text),
        outer: Vec::new(),
        replacing: Vec::new(),
        called: Vec::new(),
        execs: 0,
        unknown: 0,
        exec_of_command: None,
        is_behind_pipe: false,
    };
    scanner.scan();
    let Scanner { replacing, called, execs, unknown, .. } = scanner;
    match execs {
        0 => ExecutedPaths { paths: called, ..ExecutedPaths::default() },
        _ => ExecutedPaths { paths: replacing, replaces_shell: true, others: called, has_unknown: unknown > 0 },
    }
}

/// The character that opened a part of the text, which determines its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opened {
    Text,
    Group,
    Substitution,
    Backtick,
}

/// The kind of the next word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expects {
    Command,
    ExecOption,
    ExecName,
    Argument,
}

#[derive(Default)]
struct Word {
    text: String,
    /// The shell puts another text in its place: it holds a variable, a substitution or a pattern.
    is_changed: bool,
}

/// A part of the text that is read by itself.
struct Frame {
    opened: Opened,
    expects: Expects,
    /// The word that has begun.
    word: Option<Word>,
    /// Within double quotes, or behind a quote that is never closed.
    is_quoted: bool,
    /// The next word is the file of a redirection.
    is_target: bool,
}

impl Frame {
    fn new(opened: Opened) -> Self {
        Self { opened, expects: Expects::Command, word: None, is_quoted: false, is_target: false }
    }
}

struct Scanner<'a> {
    signs: Peekable<Chars<'a>>,
    frame: Frame,
    /// The frames around it.
    outer: Vec<Frame>,
    /// Paths behind an `exec` of the shell itself.
    replacing: Vec<String>,
    /// Paths of other commands.
    called: Vec<String>,
    /// Number of programs that the shell itself becomes, and how many have an unknown path.
    execs: usize,
    unknown: usize,
    /// The word of an `exec` in the present command, if the shell itself executes it.
    exec_of_command: Option<Executed>,
    /// The command being read is after a `|`: a copy of the shell executes it.
    is_behind_pipe: bool,
}

/// The programs that an `exec` of the shell itself has added.
enum Executed {
    Unknown,
    New(String),
    Again,
}

impl Scanner<'_> {
    fn scan(&mut self) {
        while let Some(sign) = self.signs.next() {
            match sign {
                '\\' => self.escape(),
                '$' => self.variable(),
                '`' => self.backtick(),
                '"' => {
                    self.word();
                    self.frame.is_quoted = !self.frame.is_quoted;
                }
                _ if self.frame.is_quoted => self.word().text.push(sign),
                '\'' => self.single_quotes(),
                ' ' | '\t' | '\r' => self.end_word(),
                '&' if self.signs.peek() == Some(&'>') => self.redirect(),
                '<' | '>' => self.redirect(),
                '\n' | ';' => self.end_list(),
                '|' | '&' if self.signs.next_if_eq(&sign).is_some() => self.end_list(),
                '|' | '&' => self.end_copy(sign),
                '(' => {
                    self.end_command();
                    self.open(Opened::Group);
                }
                ')' => self.close_parenthesis(),
                '#' if self.frame.word.is_none() => self.comment(),
                '*' | '?' | '[' | '{' => self.push_changed(sign),
                _ => self.word().text.push(sign),
            }
        }
        // If a quote is not closed, the shell reports an error and executes no part.
        if self.outer.is_empty() && !self.frame.is_quoted {
            self.end_word();
        }
    }

    fn word(&mut self) -> &mut Word {
        self.frame.word.get_or_insert_default()
    }

    fn push_changed(&mut self, sign: char) {
        let word = self.word();
        word.text.push(sign);
        word.is_changed = true;
    }

    fn escape(&mut self) {
        let next = self.signs.next();
        // The line is continued.
        if next == Some('\n') {
            return;
        }
        let keeps = self.frame.is_quoted && !next.is_some_and(|next| "$`\"\\".contains(next));
        let word = self.word();
        if keeps {
            word.text.push('\\');
        }
        word.text.extend(next);
    }

    fn variable(&mut self) {
        self.push_changed('$');
        match self.signs.peek() {
            Some('(') => {
                self.signs.next();
                self.open(Opened::Substitution);
            }
            Some('{') => self.skip_braces(),
            _ => {}
        }
    }

    fn skip_braces(&mut self) {
        let mut depth = 0_usize;
        while let Some(sign) = self.signs.next() {
            match sign {
                '\\' => {
                    self.signs.next();
                }
                '{' => depth += 1,
                '}' if depth == 1 => return,
                '}' => depth -= 1,
                _ => {}
            }
        }
    }

    fn single_quotes(&mut self) {
        let (mut text, mut is_closed) = (String::new(), false);
        for sign in self.signs.by_ref() {
            is_closed = sign == '\'';
            if is_closed {
                break;
            }
            text.push(sign);
        }
        self.word().text += &text;
        self.frame.is_quoted = !is_closed;
    }

    fn comment(&mut self) {
        while self.signs.next_if(|sign| *sign != '\n').is_some() {}
    }

    fn backtick(&mut self) {
        if self.frame.opened == Opened::Backtick {
            self.end_word();
            self.close();
        } else {
            self.push_changed('`');
            self.open(Opened::Backtick);
        }
    }

    fn open(&mut self, opened: Opened) {
        self.outer.push(std::mem::replace(&mut self.frame, Frame::new(opened)));
    }

    fn close(&mut self) {
        if let Some(outer) = self.outer.pop() {
            self.frame = outer;
        }
    }

    fn close_parenthesis(&mut self) {
        self.end_word();
        match self.frame.opened {
            Opened::Substitution => self.close(),
            Opened::Group => {
                self.close();
                self.frame.expects = Expects::Command;
            }
            // It ends a pattern of `case`.
            Opened::Text | Opened::Backtick => self.frame.expects = Expects::Command,
        }
    }

    fn redirect(&mut self) {
        // A number before the sign is a descriptor.
        let is_number = |word: &Word| word.text.bytes().all(|byte| byte.is_ascii_digit());
        if self.frame.word.as_ref().is_some_and(is_number) {
            self.frame.word = None;
        }
        self.end_word();
        while self.signs.next_if(|sign| "<>&|".contains(*sign)).is_some() {}
        self.frame.is_target = true;
    }

    fn end_list(&mut self) {
        self.end_command();
        self.end_exec(false);
    }

    /// Ends a command which a copy of the shell executes, in the background or with its output in a pipe.
    fn end_copy(&mut self, sign: char) {
        self.end_command();
        self.end_exec(true);
        self.is_behind_pipe = self.outer.is_empty() && sign == '|';
    }

    /// Forgets the `exec` of a command that has ended, which did not concern the shell itself if a copy made it.
    fn end_exec(&mut self, is_copy: bool) {
        if !self.outer.is_empty() {
            return;
        }
        self.is_behind_pipe = false;
        let Some(executed) = self.exec_of_command.take().filter(|_| is_copy) else { return };
        self.execs -= 1;
        match executed {
            Executed::Unknown => self.unknown -= 1,
            Executed::New(path) => {
                self.replacing.retain(|other| *other != path);
                if !self.called.contains(&path) {
                    self.called.push(path);
                }
            }
            Executed::Again => {}
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.frame.expects = Expects::Command;
        self.frame.is_target = false;
    }

    fn end_word(&mut self) {
        let Some(word) = self.frame.word.take() else { return };
        if std::mem::take(&mut self.frame.is_target) {
            return;
        }
        let expects = self.frame.expects;
        self.frame.expects = match (expects, word.text.as_str()) {
            (Expects::Command, text) if is_assignment(text) || LEADING_WORDS.contains(&text) => Expects::Command,
            (Expects::Command, "exec") => Expects::ExecOption,
            (Expects::ExecOption, text) if text.starts_with('-') && text.ends_with('a') => Expects::ExecName,
            (Expects::ExecOption, text) if text.starts_with('-') => Expects::ExecOption,
            (Expects::ExecName, _) => Expects::ExecOption,
            (Expects::Command | Expects::ExecOption, _) => {
                self.note(&word, expects == Expects::ExecOption);
                Expects::Argument
            }
            (Expects::Argument, _) => Expects::Argument,
        };
    }

    /// Notes a word that is executed.
    fn note(&mut self, word: &Word, by_exec: bool) {
        // In a substitution, in parentheses and behind a pipe a copy of the shell becomes the program.
        let replaces_shell = by_exec && self.outer.is_empty() && !self.is_behind_pipe;
        let is_path = is_path(word);
        let paths = if replaces_shell { &mut self.replacing } else { &mut self.called };
        let is_new = is_path && paths.len() < MOST_PATHS && !paths.contains(&word.text);
        if is_new {
            paths.push(word.text.clone());
        }
        if replaces_shell {
            self.execs += 1;
            self.unknown += usize::from(!is_path);
            self.exec_of_command = Some(match (is_path, is_new) {
                (false, _) => Executed::Unknown,
                (true, true) => Executed::New(word.text.clone()),
                (true, false) => Executed::Again,
            });
        }
    }
}

/// True for `NAME=VALUE` and `NAME+=VALUE`.
fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    let is_part = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
    name.starts_with(|first: char| !first.is_ascii_digit()) && name.chars().all(is_part)
}

/// True for an absolute path, all of which is known. systemd puts values for `${NAME}` between single quotes, too; and
/// `--only` separates names by commas.
fn is_path(word: &Word) -> bool {
    let path = word.text.as_str();
    let is_known = !word.is_changed && !path.contains(['$', ',']) && !path.contains(UNKNOWN);
    is_known && path.starts_with('/') && !path.ends_with('/') && !path.contains(char::is_control)
}

#[cfg(test)]
mod tests;
