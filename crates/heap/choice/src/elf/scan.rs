//! Searches parts of a file for texts, piece by piece, so that data without the texts costs neither memory nor much
//! time.

use aho_corasick::packed::Searcher;
use linux::bounded::SYMBOL_TABLES;
use memchr::memmem::Finder;
use process_view::is_refusal;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are read at once: they stay in the processor's cache.
const PIECE: usize = 64 << 10;
/// Maximum length of a text that is searched, in bytes.
const LONGEST_TEXT: usize = 16 << 10;

/// A file that is being read.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub file: &'a File,
    /// Set once a read fails.
    pub failed: &'a Cell<bool>,
}

impl Source<'_> {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(into, offset).inspect_err(|error| self.failed.set(self.failed.get() || is_refusal(error)))
    }
}

/// Calls `take` with each text of a part of the file that holds one of `needles`, until it returns something. A text ends with
/// NUL, which a needle may hold; a text without is not taken. Texts come in the order of the file, but perhaps
/// for each needle apart.
pub(super) fn find_text<T>(
    source: Source<'_>,
    (offset, size): (u64, u64),
    needles: &[&[u8]],
    mut take: impl FnMut(&str) -> Option<T>,
) -> Option<T> {
    if size > SYMBOL_TABLES.bytes() {
        return None;
    }
    let needles = Needles::of(needles);
    let mut piece = vec![0; LONGEST_TEXT + PIECE.min(size as usize)];
    let (mut at, mut kept, mut in_long_text) = (0, 0, false);
    while at < size {
        let room = (piece.len() - kept).min((size - at) as usize);
        let read = source.read_at(&mut piece[kept..kept + room], offset.checked_add(at)?).ok()?;
        if read == 0 {
            return None;
        }
        at += read as u64;
        let filled = kept + read;
        let end = memchr::memrchr(0, &piece[..filled]).map_or(0, |nul| nul + 1);
        let start = if in_long_text { memchr::memchr(0, &piece[..end]).map_or(end, |nul| nul + 1) } else { 0 };
        let texts = &piece[start..end];
        let found = needles.find(texts, &mut take);
        if found.is_some() {
            return found;
        }
        // The beginning of a text whose end comes with the next piece.
        in_long_text = filled - end > LONGEST_TEXT || in_long_text && end == 0;
        kept = if in_long_text { 0 } else { filled - end };
        piece.copy_within(filled - kept..filled, 0);
    }
    None
}

/// Texts to search for.
enum Needles<'n> {
    /// Several at once.
    Together(Searcher),
    /// One after the other, if there is one only or the processor lacks the instructions for several.
    Each(Vec<Finder<'n>>),
}

impl<'n> Needles<'n> {
    fn of(needles: &[&'n [u8]]) -> Self {
        let together = || Searcher::new(needles);
        match (needles.len() > 1).then(together).flatten() {
            Some(searcher) => Self::Together(searcher),
            None => Self::Each(needles.iter().map(|needle| Finder::new(*needle)).collect()),
        }
    }

    /// Calls `take` with the texts of `bytes` that hold a needle, until it returns something.
    fn find<T>(&self, bytes: &[u8], take: &mut impl FnMut(&str) -> Option<T>) -> Option<T> {
        match self {
            Self::Together(searcher) => first_taken(bytes, searcher.find_iter(bytes).map(|found| found.start()), take),
            Self::Each(finders) => finders.iter().find_map(|finder| first_taken(bytes, finder.find_iter(bytes), take)),
        }
    }
}

/// Calls `take` with the texts at these ascending places, each once, until it returns something. No byte is searched twice for the
/// ends of texts, so that a file of one text that holds a needle everywhere does not take long.
fn first_taken<T>(
    bytes: &[u8],
    places: impl Iterator<Item = usize>,
    take: &mut impl FnMut(&str) -> Option<T>,
) -> Option<T> {
    let mut passed = 0;
    for found in places {
        let Some(before) = bytes.get(passed..found) else { continue };
        let start = memchr::memrchr(0, before).map_or(passed, |nul| passed + nul + 1);
        let end = found + memchr::memchr(0, &bytes[found..])?;
        passed = end + 1;
        let text = bytes.get(start..end).filter(|text| text.len() <= LONGEST_TEXT);
        let taken = text.and_then(|text| std::str::from_utf8(text).ok()).and_then(&mut *take);
        if taken.is_some() {
            return taken;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn source(file: &File) -> Source<'_> {
        Source { file, failed: Box::leak(Box::default()) }
    }

    fn all(bytes: &[u8], needles: &[&[u8]]) -> Vec<String> {
        let mut found = Vec::new();
        let nothing = find_text(source(&file(bytes)), (0, bytes.len() as u64), needles, |text| {
            found.push(text.to_owned());
            None::<()>
        });
        assert_eq!(nothing, None);
        found
    }

    #[test]
    fn texts_are_found_wherever_pieces_end() {
        // Every position of the text relative to the end of the first piece.
        for before in PIECE + LONGEST_TEXT - 12..PIECE + LONGEST_TEXT + 3 {
            let mut bytes = vec![0; before];
            bytes.extend(b"je_mallctl\0more\0");
            assert_eq!(all(&bytes, &[b"mallctl\0"]), ["je_mallctl"], "{before}");
        }
    }

    #[test]
    fn only_whole_texts_count() {
        assert_eq!(all(b"a_malloc\0x\0a_malloc_b\0b_malloc", &[b"_malloc\0"]), ["a_malloc"]);
        assert_eq!(all(b"v -node.1 x\0", &[b"-node."]), ["v -node.1 x"]);
        let long = [&vec![b'x'; 2 * (PIECE + LONGEST_TEXT)][..], b"mallctl\0tc_malloc\0"].concat();
        assert_eq!(all(&long, &[b"mallctl\0", b"_malloc\0"]), ["tc_malloc"]);
        assert_eq!(all(b"\xffmallctl\0", &[b"mallctl\0"]), [""; 0]);
        assert_eq!(all(b"a-g-g\0-g\0x\0b-g\0", &[b"-g"]), ["a-g-g", "-g", "b-g"]);
    }

    #[test]
    fn a_part_beyond_the_file_is_not_waited_for() {
        let found =
            find_text(source(&file(b"x\0mallctl\0")), (2, 1 << 20), &[b"mallctl\0"], |text| Some(text.to_owned()));
        assert_eq!(found.as_deref(), Some("mallctl"));
        assert_eq!(find_text(source(&file(b"mallctl\0")), (u64::MAX, 8), &[b"mallctl\0"], |_| Some(())), None);
        assert_eq!(find_text(source(&file(b"mallctl\0")), (0, u64::MAX), &[b"mallctl\0"], |_| Some(())), None);
    }

    #[test]
    fn a_read_error_is_reported() {
        let bytes = file(b"x\0mallctl\0");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&bytes));
        let unreadable = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        for (file, failed) in [(&bytes, false), (&unreadable, true)] {
            let source = source(file);
            find_text(source, (0, 10), &[b"absent\0"], |_| Some(()));
            assert_eq!(source.failed.get(), failed);
        }
    }
}
