//! The record of a file's former layout, as text.

use super::headers::FILE_HEADER;
use super::layout::Piece;
use super::numbers::Numbers;
use super::refusal::RelayoutError;
use super::{Field, MOST_SHORTENED, Relayout};
use object::ReadRef;
use std::fmt;

/// The first word of a record.
const FORMAT: &str = "relayout1";
/// Most pieces and fields in a record.
const MOST: usize = 4096;

/// The former layout of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    /// Length of the file as it is now, in bytes.
    now: u64,
    /// Length of the former file, in bytes.
    pub length: u64,
    /// The present (`from`) and former (`to`) offsets of its parts. Bytes that no piece covers were zeros.
    pub pieces: Vec<Piece>,
    /// The numbers that change: `from` and `old` as they are now, `to` and `new` as they were.
    pub fields: Vec<Field>,
}

impl Former {
    pub(super) fn of(relayout: &Relayout) -> Self {
        let back = |piece: &Piece| Piece { from: piece.to, to: piece.from, length: piece.length };
        let undo = |field: &Field| Field { from: field.to, to: field.from, old: field.new, new: field.old };
        Self {
            now: relayout.length,
            length: relayout.old_length,
            pieces: relayout.parts.iter().map(back).collect(),
            fields: relayout.fields.iter().map(undo).collect(),
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`RelayoutError::NoRecord`] if it is damaged, or if the file's headers are not those that it was written for.
    pub fn parse<'data, R: ReadRef<'data>>(text: &str, data: R) -> Result<Self, RelayoutError> {
        let former = Self::words(text).ok_or(RelayoutError::NoRecord)?;
        if former.fits(data) { Ok(former) } else { Err(RelayoutError::NoRecord) }
    }

    /// True if a text is a record of this kind, sound or not.
    pub fn is_record(text: &str) -> bool {
        text.split(' ').next() == Some(FORMAT)
    }

    fn words(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let format = words.next()?;
        let lengths = numbers::<2>(words.next()?)?;
        let (mut pieces, mut fields) = (Vec::new(), Vec::new());
        for word in words.by_ref().take_while(|word| *word != "|") {
            let [from, to, length] = numbers(word)?;
            pieces.push(Piece { from, to, length });
        }
        for word in words {
            let [from, to, old, new] = numbers(word)?;
            fields.push(Field { from, to, old, new });
        }
        let is_short = pieces.len() + fields.len() <= MOST;
        (format == FORMAT && is_short && !pieces.is_empty() && !fields.is_empty()).then_some(Self {
            now: lengths[0],
            length: lengths[1],
            pieces,
            fields,
        })
    }

    /// True if the file has the length and the numbers of the record, all pieces are inside of the files, and all fields are
    /// numbers that a new layout changes.
    fn fits<'data, R: ReadRef<'data>>(&self, data: R) -> bool {
        let ends_within = |at: u64, length: u64, file: u64| at.checked_add(length).is_some_and(|end| end <= file);
        let is_piece = |piece: &Piece| {
            ends_within(piece.from, piece.length, self.now) && ends_within(piece.to, piece.length, self.length)
        };
        let moved = |at, length| self.pieces.iter().find_map(|piece| piece.moved(at, length));
        let Some(numbers) = Numbers::read(data, moved) else { return false };
        let is_field = |field: &Field| {
            let bytes = data.read_bytes_at(field.from, 8);
            numbers.contain(field)
                && ends_within(field.to, 8, self.length)
                && bytes.is_ok_and(|bytes| bytes == field.old.to_le_bytes())
        };
        let end = self.pieces.iter().map(|piece| piece.to.saturating_add(piece.length)).max();
        data.len() == Ok(self.now)
            && end == Some(self.length)
            && self.length / MOST_SHORTENED <= self.now
            && self.pieces.iter().map(|piece| piece.length).fold(0, u64::saturating_add) <= self.now
            && self.pieces.iter().all(is_piece)
            && moved(0, FILE_HEADER) == Some(0)
            && self.fields.iter().all(is_field)
    }
}

impl fmt::Display for Former {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FORMAT} {:x}:{:x}", self.now, self.length)?;
        for Piece { from, to, length } in &self.pieces {
            write!(f, " {from:x}:{to:x}:{length:x}")?;
        }
        f.write_str(" |")?;
        for Field { from, to, old, new } in &self.fields {
            write!(f, " {from:x}:{to:x}:{old:x}:{new:x}")?;
        }
        Ok(())
    }
}

/// Reads `N` hexadecimal numbers with colons between them.
fn numbers<const N: usize>(word: &str) -> Option<[u64; N]> {
    let numbers: Option<Vec<u64>> = word.split(':').map(|digits| u64::from_str_radix(digits, 16).ok()).collect();
    numbers?.try_into().ok()
}
