//! Options that concern the heap.

use super::size::size;
use clap::{Args, ValueEnum};
use options::HeapPages;
use session::heap::{Forced, HeapOptions};

/// `--heap-allocator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HeapAllocatorArg {
    /// The program's own, by its settings.
    Own,
    /// A preloaded mimalloc on pages that Pagelift provides.
    Mimalloc,
    /// The program's own, collapsed from outside.
    Collapse,
}

impl From<HeapAllocatorArg> for Forced {
    fn from(arg: HeapAllocatorArg) -> Self {
        match arg {
            HeapAllocatorArg::Own => Self::Own,
            HeapAllocatorArg::Mimalloc => Self::Mimalloc,
            HeapAllocatorArg::Collapse => Self::Collapse,
        }
    }
}

/// The heap of a program that is started.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct HeapArgs {
    /// Put all memory that the program allocates on huge pages: auto, off, thp, or a size of pool pages such as 2M.
    #[arg(long, value_name = "HOW", default_value = "off")]
    pub heap: HeapPages,
    /// Pool memory that the heap takes at the start [default: half of the pool's free pages].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub heap_reserve: Option<u64>,
    /// Override the method that --heap chooses for the program's allocator.
    #[arg(long, value_enum, value_name = "WHICH")]
    pub heap_allocator: Option<HeapAllocatorArg>,
}

impl HeapArgs {
    /// The options that the arguments request.
    pub fn options(&self) -> HeapOptions {
        HeapOptions {
            pages: self.heap,
            reserve: self.heap_reserve,
            forced: self.heap_allocator.map(Forced::from),
            ..HeapOptions::default()
        }
    }

    /// The arguments that differ from the defaults, as words.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        match self.heap {
            HeapPages::Off => {}
            HeapPages::Auto => words.push("--heap=auto".to_owned()),
            HeapPages::Thp => words.push("--heap=thp".to_owned()),
            HeapPages::Pool(size) => words.push(format!("--heap={}", size.word())),
        }
        words.extend(self.heap_reserve.map(|bytes| format!("--heap-reserve={}", size_word(bytes))));
        let allocator = self.heap_allocator.and_then(|which| which.to_possible_value());
        words.extend(allocator.map(|value| format!("--heap-allocator={}", value.get_name())));
        words
    }
}

/// A number of bytes in the largest unit that divides it, as [`size`] reads it: `8G`.
pub fn size_word(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K"), (0, "b")];
    let unit = units.into_iter().find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// `--heap` of `attach`. Pages of the pool cannot be put below memory that others may be writing to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AttachHeapArg {
    /// The heap is left as it is.
    #[default]
    Off,
    /// Transparent huge pages, in place.
    Thp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_as_users_write_them() {
        let sizes = [0, 1000, 4096, 3 << 29, 8 << 30].map(size_word);
        assert_eq!(sizes, ["0", "1000b", "4K", "1536M", "8G"]);
        assert_eq!(size("1000b"), Ok(1000));
    }
}
