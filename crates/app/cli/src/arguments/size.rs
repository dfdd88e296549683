//! Sizes on the command line.

use address_space::parse_bytes;

/// The smallest size that a number alone can have. A smaller one is the number of a larger unit.
const LEAST_ALONE: u64 = 4096;

/// Reads a size; a number alone is in bytes, and refused if it is too small for bytes.
///
/// # Errors
/// The text is no size, or has no unit. The message has the right spelling.
pub fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    let is_alone = text.trim().bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_alone && (1..LEAST_ALONE).contains(&bytes) {
        let number = text.trim();
        return Err(format!(
            "found `{text}`, which is in bytes without a unit, needed a size such as {number}M or {number}G"
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_number_needs_its_unit() {
        assert_eq!(["0", "4096", "2M", "1.5G", "5b"].map(|text| size(text).unwrap()), [0, 4096, 2 << 20, 3 << 29, 5]);
        let error = size("5").unwrap_err();
        assert_eq!(error, "found `5`, which is in bytes without a unit, needed a size such as 5M or 5G");
        assert!(size("big").is_err());
    }
}
