//! Reads the kernel's files, such as those of `/proc` and `/sys`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Nearly all of them are shorter. In bytes.
const USUAL_LENGTH: usize = 8 << 10;

/// A file of the kernel's as text. They tell no length, so that a buffer that grows from nothing would read most of them
/// in ten pieces.
///
/// # Errors
/// Those of opening and reading, and of what is no UTF-8.
pub fn text_of(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::with_capacity(USUAL_LENGTH);
    File::open(path)?.take(u64::MAX).read_to_string(&mut text)?;
    Ok(text)
}
