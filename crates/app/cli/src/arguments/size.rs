//! Sizes on the command line.

use address_space::parse_size;

/// Reads a size; a number alone is in bytes, and refused if it is too small for bytes.
///
/// # Errors
/// The text is no size, or has no unit. The message has the right spelling.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}
