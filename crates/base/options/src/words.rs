//! The words of `PAGELIFT`.

/// All words of the variable.
pub const WORDS: &str = "pages, page-size, lift, objects, writable-pages, edges, max-memory, numa, heap, heap-reserve, \
                         only, pid, require, quiet, verbose";

/// Short forms of words.
const SHORT: [&str; 2] = ["q", "v"];

/// The words with their names and values. Dashes before a word are allowed, as on a command line.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    text.split_whitespace().map(|word| {
        let word = word.trim_start_matches('-');
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        (word, name, value)
    })
}

/// True if the variable has a word of this name.
pub(crate) fn is_word(name: &str) -> bool {
    SHORT.contains(&name) || WORDS.split(", ").any(|known| known == name)
}
