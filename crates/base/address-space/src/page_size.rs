//! Page sizes and byte counts, as types with units.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;
use serde::{Serialize, Serializer};

/// The size of a page, a power of two, in bytes. Always read from the machine, never assumed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize(u64);

/// Why a text or number is not a page size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PageSizeError {
    /// Not a power of two of at least one byte.
    #[error("{0} bytes is no page size: it is not a power of two")]
    NotAPowerOfTwo(u64),
    /// Not a number with an optional unit.
    #[error("`{0}` is no size: write a number with K, M or G behind it, for example 2M")]
    NotASize(String),
    /// A number without a unit that is too small for bytes.
    #[error("found `{0}`, which is in bytes without a unit, needed a size such as {number}M or {number}G", number = .0.trim())]
    WithoutUnit(String),
    /// Less than any page.
    #[error("found `{0}`, less than any page ({LEAST_PAGE} bytes), needed a page size such as 2M or 1G")]
    LessThanAPage(String),
}

/// The smallest page of all processors that Linux supports, in bytes.
const LEAST_PAGE: u64 = 4096;

impl PageSize {
    /// Returns the page size of `bytes` bytes.
    ///
    /// # Errors
    /// [`PageSizeError::NotAPowerOfTwo`].
    pub fn new(bytes: u64) -> Result<Self, PageSizeError> {
        if bytes.is_power_of_two() { Ok(Self(bytes)) } else { Err(PageSizeError::NotAPowerOfTwo(bytes)) }
    }

    /// Returns the page size that a text such as `2M` names; `None` if it names none, or less than any page. Without
    /// allocation.
    pub fn named(text: &str) -> Option<Self> {
        byte_count(text).filter(|bytes| *bytes >= LEAST_PAGE).and_then(|bytes| Self::new(bytes).ok())
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Base-2 logarithm of the size, as `MAP_HUGE_SHIFT` wants it.
    pub const fn log2(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// How many pages of this size hold `bytes`, the last one perhaps in part.
    pub const fn pages_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.0)
    }

    /// The size in KiB.
    pub const fn kib(self) -> u64 {
        self.0 / 1024
    }

    /// The name of the kernel's directories about pages of this size: `hugepages-2048kB`.
    pub const fn directory(self) -> SizeDirectory {
        SizeDirectory(self)
    }

    /// The size as options and requests of pages have it: `2M`.
    pub const fn word(self) -> SizeWord {
        SizeWord(self)
    }

    /// The size that a directory is about, by its name; `None` for other names.
    pub fn of_directory(name: &str) -> Option<Self> {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        Self::new(kib.checked_mul(1024)?).ok()
    }
}

/// The name of the kernel's directories about pages of one size, in `/sys/kernel/mm/hugepages`,
/// `/sys/kernel/mm/transparent_hugepage` and `/sys/devices/system/node/nodeN/hugepages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeDirectory(PageSize);

impl fmt::Display for SizeDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hugepages-{}kB", self.0.kib())
    }
}

/// A page size in the shortest form that [`parse_bytes`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeWord(PageSize);

impl fmt::Display for SizeWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.bytes();
        match [(30, "G"), (20, "M"), (10, "K")].into_iter().find(|(shift, _)| bytes >= 1 << shift) {
            Some((shift, unit)) => write!(f, "{}{unit}", bytes >> shift),
            None => write!(f, "{bytes}"),
        }
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >= 1 << shift {
                return write!(f, "{} {unit}", self.0 >> shift);
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl fmt::Debug for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PageSize {
    /// In bytes.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl FromStr for PageSize {
    type Err = PageSizeError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match parse_bytes(text)? {
            1..LEAST_PAGE => Err(PageSizeError::LessThanAPage(text.to_owned())),
            bytes => Self::new(bytes),
        }
    }
}

/// Reads a size of memory like [`parse_bytes`]. A number alone is in bytes, and refused if it is too small for bytes: it is
/// the number of a larger unit.
///
/// # Errors
/// [`PageSizeError::NotASize`], [`PageSizeError::WithoutUnit`].
pub fn parse_size(text: &str) -> Result<u64, PageSizeError> {
    size_count(text).ok_or_else(|| match byte_count(text) {
        Some(_) => PageSizeError::WithoutUnit(text.to_owned()),
        None => PageSizeError::NotASize(text.to_owned()),
    })
}

/// Like [`parse_size`], without an error value and without allocation.
pub fn size_count(text: &str) -> Option<u64> {
    let is_alone = text.trim().bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    byte_count(text).filter(|bytes| !is_alone || !(1..LEAST_PAGE).contains(bytes))
}

/// Reads a byte count such as `4096`, `64K`, `2M`, `2MiB`, `1g` or `1.5G` (units are powers of 1024).
///
/// # Errors
/// [`PageSizeError::NotASize`].
pub fn parse_bytes(text: &str) -> Result<u64, PageSizeError> {
    byte_count(text).ok_or_else(|| PageSizeError::NotASize(text.to_owned()))
}

/// Like [`parse_bytes`], without an error value and without allocation, for code that runs beneath the allocator.
pub fn byte_count(text: &str) -> Option<u64> {
    const UNITS: [(&str, u32); 4] = [("k", 10), ("m", 20), ("g", 30), ("t", 40)];
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim();
    let is = |letter: &str| {
        let rest = unit.get(1..).unwrap_or_default();
        let known = ["", "b", "ib"].iter().any(|end| rest.eq_ignore_ascii_case(end));
        known && unit.get(..1).is_some_and(|first| first.eq_ignore_ascii_case(letter))
    };
    let factor: u64 = match UNITS.iter().find(|(letter, _)| is(letter)) {
        Some((_, shift)) => 1 << shift,
        None if unit.is_empty() || unit.eq_ignore_ascii_case("b") => 1,
        None => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let bytes = number.parse::<f64>().ok()? * factor as f64;
    (0.0..u64::MAX as f64).contains(&bytes).then_some(bytes as u64)
}

/// Formats a byte count for people, with one decimal if it is not a whole number: `512 B`, `4.0 KiB`, `33.9 MiB`.
pub fn format_bytes(bytes: u64) -> String {
    ByteCount(bytes).to_string()
}

/// Displays a byte count like [`format_bytes`], without allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >= 1 << shift {
                return write!(f, "{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64);
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_named_as_by_the_kernel() {
        for (size, name) in
            [(64 << 10, "hugepages-64kB"), (2 << 20, "hugepages-2048kB"), (1 << 30, "hugepages-1048576kB")]
        {
            let size = PageSize::new(size).unwrap();
            assert_eq!(size.directory().to_string(), name);
            assert_eq!(PageSize::of_directory(name), Some(size));
        }
        for name in ["", "hugepages-", "hugepages-2048", "hugepages-3kB", "2048kB", "hugepages-18446744073709551615kB"]
        {
            assert_eq!(PageSize::of_directory(name), None, "{name}");
        }
    }

    #[test]
    fn sizes_are_read_with_any_usual_unit() {
        for (text, bytes) in [("2M", 2 << 20), ("2MiB", 2 << 20), ("1G", 1 << 30), ("4096", 4096), ("64 kB", 65536)] {
            assert_eq!(text.parse::<PageSize>().unwrap().bytes(), bytes, "{text}");
        }
        assert_eq!(parse_bytes("1.5G").unwrap(), 3 << 29);
    }

    #[test]
    fn a_small_number_needs_its_unit() {
        let sizes = ["0", "4096", "2M", "1.5G", "5b", " 64K "].map(|text| parse_size(text).unwrap());
        assert_eq!(sizes, [0, 4096, 2 << 20, 3 << 29, 5, 64 << 10]);
        let error = parse_size("5").unwrap_err().to_string();
        assert_eq!(error, "found `5`, which is in bytes without a unit, needed a size such as 5M or 5G");
        assert!(["big", "1.5", "4095"].iter().all(|text| parse_size(text).is_err() && size_count(text).is_none()));
    }

    #[test]
    fn no_page_is_smaller_than_4_kib() {
        for text in ["1", "2", "2048", "2K", "2b"] {
            let error = text.parse::<PageSize>().unwrap_err().to_string();
            let expected =
                format!("found `{text}`, less than any page (4096 bytes), needed a page size such as 2M or 1G");
            assert_eq!((error, PageSize::named(text)), (expected, None));
        }
        assert!("0".parse::<PageSize>().is_err() && PageSize::named("3M").is_none());
        assert_eq!(PageSize::named("4K"), PageSize::new(4096).ok());
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "3M", "2X", "2XB", "-1", "99999999999G", "99999999999.5G", "1.2.3M"] {
            assert!(text.parse::<PageSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_with_their_unit() {
        assert_eq!(PageSize::new(2 << 20).unwrap().to_string(), "2 MiB");
        assert_eq!(PageSize::new(1 << 30).unwrap().to_string(), "1 GiB");
        assert_eq!(format!("{:?}", PageSize::new(64 << 10).unwrap()), "64 KiB");
        assert_eq!(format_bytes(20342374), "19.4 MiB");
    }

    #[test]
    fn a_size_counts_in_the_kernels_units() {
        let size = PageSize::new(2 << 20).unwrap();
        assert_eq!((size.bytes(), size.log2(), size.kib()), (2 << 20, 21, 2048));
        assert_eq!([0, 1, 2 << 20, (2 << 20) + 1].map(|bytes| size.pages_for(bytes)), [0, 1, 1, 2]);
    }
}
