//! Pool pages that programs request by their own settings.
//!
//! The numbers come from settings and from the length of mappings, never from resident memory: a server that has just
//! started has touched only a small part of its buffers, but takes pool pages for every buffer.

use address_space::{PageSize, format_bytes};
use serde::Serialize;

/// The source of a setting that nobody has set.
pub(crate) const USUAL: &str = "its default";

/// The way in which a program requests pool pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// No.
    #[default]
    Off,
    /// Yes; it uses base pages if the pool is too small.
    IfPossible,
    /// Yes, and it does not start without.
    Required,
}

/// Memory that a program takes from the pool in one allocation, or in several of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Buffer {
    /// The setting that names its size, or its description.
    pub name: String,
    /// Bytes of all allocations together.
    pub bytes: u64,
    /// Number of allocations. Each is rounded up to whole pages.
    pub allocations: u64,
}

impl Buffer {
    /// A buffer of one allocation.
    pub fn one(name: &str, bytes: u64) -> Self {
        Self { name: name.to_owned(), bytes, allocations: 1 }
    }

    /// Pages of this size that it takes.
    pub fn pages(&self, size: PageSize) -> u64 {
        let allocations = self.allocations.max(1);
        size.pages_for(self.bytes.div_ceil(allocations)).saturating_mul(allocations)
    }
}

/// Pool pages that a program requests, or can request, by its own settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnPages {
    /// The way in which the program requests them.
    pub request: Request,
    /// The setting and the value that requests them, for example `large_pages=ON`.
    pub setting: String,
    /// Place of the setting: a file, the command line, or the program's default.
    pub source: String,
    /// Buffers that it takes from the pool, the largest first; empty if unknown.
    pub buffers: Vec<Buffer>,
    /// The program's command that prints the number of pages, if it has one and `buffers` is empty.
    pub command: Option<String>,
    /// Lower bound of the bytes that it takes, if `buffers` is empty; 0 if unknown.
    pub least: u64,
    /// The directory, quoted for a shell, whose owner alone may run `command`: PostgreSQL refuses root and other users.
    pub owned: Option<String>,
    /// Files with its settings that could not be read.
    pub unread: Vec<String>,
    /// Settings that are assumed, because nothing that was read sets them; empty if all files were read.
    pub assumed: Vec<String>,
}

impl OwnPages {
    /// Pages of this size for all buffers.
    pub fn pages(&self, size: PageSize) -> u64 {
        self.buffers.iter().map(|buffer| buffer.pages(size)).fold(0, u64::saturating_add)
    }

    /// The place of the setting, or why it is not known.
    pub fn source_in_words(&self) -> String {
        match self.unread.as_slice() {
            [first, ..] if self.source == USUAL => format!("assumed: {first} cannot be read"),
            _ => self.source.clone(),
        }
    }

    /// The buffers with their sizes.
    pub fn in_words(&self) -> String {
        let bytes = |buffer: &Buffer| match buffer.name.starts_with(|first: char| first.is_ascii_digit()) {
            // The name has the number of allocations.
            true => buffer.bytes / buffer.allocations.max(1),
            false => buffer.bytes,
        };
        let buffers = self.buffers.iter().map(|buffer| format!("{} {}", buffer.name, format_bytes(bytes(buffer))));
        buffers.collect::<Vec<_>>().join(", ")
    }

    /// True if the program requests pool pages, but its largest buffer is not on the pool. `on_pool` has the lengths of the
    /// pool mappings of its process. Smaller buffers, which a server may allocate first, do not count.
    pub fn fell_back(&self, on_pool: &[u64]) -> bool {
        let lacks = |largest: &Buffer| {
            let allocations = largest.allocations.max(1);
            // Sizes of buffers are upper bounds.
            let least = largest.bytes / allocations / 16 * 15;
            (on_pool.iter().filter(|length| **length >= least).count() as u64) < allocations
        };
        self.request != Request::Off && self.buffers.first().is_some_and(lacks)
    }
}

/// A page size as the words of `pool reserve` have it: `2M`.
pub(crate) fn short(size: PageSize) -> String {
    size.word().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_allocation_is_rounded_up_to_whole_pages() {
        let size = PageSize::new(2 << 20).unwrap();
        let chunks = Buffer { name: "pool".into(), bytes: 64 * ((8 << 20) + 1), allocations: 64 };
        assert_eq!((chunks.pages(size), Buffer::one("log", 3 << 20).pages(size)), (320, 2));
        let own = OwnPages { buffers: vec![chunks, Buffer::one("log", 3 << 20)], ..OwnPages::default() };
        assert_eq!(own.pages(size), 322);
        assert_eq!((short(size), short(PageSize::new(1 << 30).unwrap())), ("2M".to_owned(), "1G".to_owned()));
    }

    #[test]
    fn sizes_in_words_agree_with_the_number_of_buffers() {
        let log = Buffer { name: "2 x innodb_log_buffer_size".into(), bytes: 32 << 20, allocations: 2 };
        let pool = Buffer { name: "innodb_buffer_pool_size".into(), bytes: 128 << 20, allocations: 64 };
        let own = OwnPages { buffers: vec![pool, log], ..OwnPages::default() };
        assert_eq!(own.in_words(), "innodb_buffer_pool_size 128.0 MiB, 2 x innodb_log_buffer_size 16.0 MiB");
    }

    #[test]
    fn a_program_without_its_largest_buffer_on_the_pool_fell_back() {
        let own = |request| OwnPages { request, buffers: vec![Buffer::one("pool", 512 << 20)], ..OwnPages::default() };
        let smaller = [400 << 20, 300 << 20];
        assert!(own(Request::IfPossible).fell_back(&smaller), "smaller buffers have taken the pages");
        assert!(!own(Request::IfPossible).fell_back(&[512 << 20]) && !own(Request::Off).fell_back(&[]));
        assert!(!OwnPages { request: Request::IfPossible, ..OwnPages::default() }.fell_back(&[]), "nothing is known");
        let parts = Buffer { name: "pool".into(), bytes: 16 << 20, allocations: 2 };
        let parts = OwnPages { request: Request::IfPossible, buffers: vec![parts], ..OwnPages::default() };
        assert!(parts.fell_back(&[16 << 20]) && !parts.fell_back(&[8 << 20, 8 << 20]));
    }
}
