//! Reads the `format` files of tracepoints: the position of each field in a record, and the names of a field's values.
//!
//! Numbers and layouts of events are no interface and change between kernel versions, so this file contains none. The
//! text comes from the kernel; damaged text is refused, never guessed.

use std::fmt;

/// Maximum length of a format file that is read, in bytes; the longest of Linux 6.18 has about 20 kB.
pub const LONGEST: usize = 64 << 10;
/// Maximum number of fields; the event with the most in Linux 6.18 has 40.
const MOST_FIELDS: usize = 256;
/// Maximum number of names of a field's values.
const MOST_NAMES: usize = 4096;

/// The format of one tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The event's name.
    pub name: String,
    /// The number by which perf_event_open(2) knows it, on this boot.
    pub id: u64,
    /// Its fields, the common ones too.
    pub fields: Vec<Field>,
    /// The text behind `print fmt:`.
    print: String,
}

/// One field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Position in the record, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub size: usize,
    /// Its highest bit is a sign.
    pub signed: bool,
}

/// Why a format file is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FormatError {
    /// The wrong or missing part.
    what: &'static str,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the tracepoint's format is not understood: {}", self.what)
    }
}

fn wrong<T>(what: &'static str) -> Result<T, FormatError> {
    Err(FormatError { what })
}

impl Format {
    /// Parses the text of `events/GROUP/NAME/format` below tracefs.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        if text.len() > LONGEST {
            return wrong("it is too long");
        }
        let line_of = |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).map(str::trim);
        let Some(name) = line_of("name:") else { return wrong("no name") };
        let Some(id) = line_of("ID:").and_then(|id| id.parse().ok()) else { return wrong("no ID") };
        let fields = text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("field:"))
            .take(MOST_FIELDS)
            .map(Field::parse)
            .collect::<Result<Vec<_>, _>>()?;
        if fields.is_empty() {
            return wrong("no field");
        }
        let print = line_of("print fmt:").unwrap_or_default().to_owned();
        Ok(Self { name: name.to_owned(), id, fields, print })
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The names of a field's values: the pairs of the first `__print_symbolic` of the event's print text whose first
    /// argument is that field.
    pub fn names_of(&self, field: &str) -> Vec<(i64, String)> {
        const CALL: &str = "__print_symbolic(";
        let argument = format!("REC->{field}");
        self.print
            .match_indices(CALL)
            .map(|(at, call)| &self.print[at + call.len()..])
            .find_map(|rest| rest.trim_start().strip_prefix(argument.as_str())?.trim_start().strip_prefix(','))
            .map(pairs)
            .unwrap_or_default()
    }
}

/// Reads `{ NUMBER, "NAME" }, …` up to the closing parenthesis.
fn pairs(mut text: &str) -> Vec<(i64, String)> {
    let mut found = Vec::new();
    while found.len() < MOST_NAMES {
        let Some(inside) = text.trim_start_matches([' ', ',', '\t']).strip_prefix('{') else { break };
        let Some((number, rest)) = inside.split_once(',') else { break };
        let Some((name, rest)) = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split_once('"')) else {
            break;
        };
        let Some((_, rest)) = rest.split_once('}') else { break };
        // A constant that the kernel did not resolve to a number is left out.
        found.extend(number_of(number.trim()).map(|number| (number, name.to_owned())));
        text = rest;
    }
    found
}

fn number_of(text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(|number| number as i64),
        None => text.parse().ok(),
    }
}

impl Field {
    /// Parses the text after `field:`: `int reason;`, and `offset:8;`, `size:4;`, `signed:1;` after tabs.
    fn parse(text: &str) -> Result<Self, FormatError> {
        let mut parts = text.split(';').map(str::trim);
        let Some(declaration) = parts.next() else { return wrong("a field without a declaration") };
        let (mut offset, mut size, mut signed) = (None, None, false);
        for part in parts {
            match part.split_once(':') {
                Some(("offset", value)) => offset = value.parse().ok(),
                Some(("size", value)) => size = value.parse().ok(),
                Some(("signed", value)) => signed = value == "1",
                _ => {}
            }
        }
        let (Some(offset), Some(size)) = (offset, size) else { return wrong("a field without its place") };
        let word = declaration.rsplit([' ', '\t', '*']).next().unwrap_or_default();
        let name = word.split('[').next().unwrap_or_default();
        if name.is_empty() {
            return wrong("a field without a name");
        }
        Ok(Self { name: name.to_owned(), offset, size, signed })
    }

    /// The field's number in a record, an unsigned one of eight bytes reinterpreted as signed. `None` if the record is
    /// too short or the field is no number.
    pub fn number(&self, record: &[u8]) -> Option<i64> {
        let bytes = record.get(self.offset..self.offset.checked_add(self.size)?)?;
        Some(match (bytes, self.signed) {
            ([a], false) => (*a).into(),
            ([a], true) => (*a as i8).into(),
            ([a, b], false) => u16::from_ne_bytes([*a, *b]).into(),
            ([a, b], true) => i16::from_ne_bytes([*a, *b]).into(),
            ([a, b, c, d], false) => u32::from_ne_bytes([*a, *b, *c, *d]).into(),
            ([a, b, c, d], true) => i32::from_ne_bytes([*a, *b, *c, *d]).into(),
            _ => i64::from_ne_bytes(bytes.try_into().ok()?),
        })
    }
}
