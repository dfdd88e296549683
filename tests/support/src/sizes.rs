//! Sizes as pagelift prints them.

use anyhow::{Context as _, Result};

/// Returns the MiB of the size at the beginning of a text, as pagelift prints sizes: `18.0 MiB`.
pub fn mebibytes(text: &str) -> Result<f64> {
    let mut words = text.split([' ', ',', ';']);
    let number: f64 = words.next().unwrap_or_default().parse().with_context(|| format!("no number: {text}"))?;
    Ok(match words.next() {
        Some("B") => number / f64::from(1 << 20),
        Some("KiB") => number / 1024.0,
        Some("GiB") => number * 1024.0,
        _ => number,
    })
}
