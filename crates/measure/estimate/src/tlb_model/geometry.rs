//! The TLBs of a CPU, as data.

use serde::Serialize;

/// Page sizes, as a set of the logarithms to base 2 of their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Sizes(u64);

impl Sizes {
    /// All sizes.
    pub const ALL: Self = Self(u64::MAX);

    /// The sizes with these shifts: 12 for 4 KiB.
    pub const fn of(shifts: &[u8]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < shifts.len() {
            bits |= 1 << shifts[index];
            index += 1;
        }
        Self(bits)
    }

    /// True if pages of `1 << shift` bytes are among them.
    pub const fn has(self, shift: u8) -> bool {
        self.0 >> shift & 1 == 1
    }

    /// The largest size that is no larger than `shift`, as a shift.
    pub const fn largest_within(self, shift: u8) -> Option<u8> {
        let within = self.0 & (u64::MAX >> (63 - shift));
        if within == 0 { None } else { Some(63 - within.leading_zeros() as u8) }
    }

    /// The sizes in either.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The choice of the entry of a set that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The one whose last use is longest ago.
    Lru,
    /// A tree of bits that point away from recently used entries; for powers of two.
    TreePlru,
}

/// The function from page numbers to sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Index {
    /// The remainder of the page number by the number of sets.
    Linear,
    /// The lowest bits of the page number, exclusive-or the next as many; for powers of two.
    FoldedXor,
}

/// One array of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ArrayShape {
    /// Page sizes that an entry can hold.
    pub sizes: Sizes,
    /// Number of entries.
    pub entries: usize,
    /// Entries in a set; all entries: fully associative.
    pub ways: usize,
    /// Index.
    pub index: Index,
    /// Replacement.
    pub replacement: Replacement,
}

impl ArrayShape {
    /// An array with linear index and LRU, the assumption without further facts.
    pub const fn new(sizes: Sizes, entries: usize, ways: usize) -> Self {
        Self { sizes, entries, ways, index: Index::Linear, replacement: Replacement::Lru }
    }

    /// A fully associative array.
    pub const fn full(sizes: Sizes, entries: usize) -> Self {
        Self::new(sizes, entries, entries)
    }

    /// Number of sets.
    pub const fn sets(&self) -> usize {
        self.entries / self.ways
    }

    /// True if the numbers are consistent.
    pub fn is_sound(&self) -> bool {
        let divides = self.ways > 0 && self.entries > 0 && self.entries.is_multiple_of(self.ways);
        let index = self.index == Index::Linear || divides && self.sets().is_power_of_two();
        let plru = self.replacement == Replacement::Lru || self.ways.is_power_of_two() && self.ways <= 64;
        divides && index && plru
    }
}

/// The second level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Second {
    /// For instructions and data.
    Shared(Vec<ArrayShape>),
    /// One for each.
    Split {
        /// For instructions.
        instruction: Vec<ArrayShape>,
        /// For data.
        data: Vec<ArrayShape>,
    },
}

/// The TLBs of one core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Name for the command line, or CPUID's name of the CPU.
    pub name: String,
    /// Source of the numbers.
    pub source: String,
    /// First level for instructions.
    pub instruction: Vec<ArrayShape>,
    /// First level for data. Of arrays for loads and for stores only the one for loads is modelled.
    pub data: Vec<ArrayShape>,
    /// Second level.
    pub second: Second,
    /// Entries that hold several neighbouring pages; absent if each holds one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined: Option<Joined>,
}

/// Entries of all levels that hold several neighbouring pages of one size: AMD's coalescing, Arm's contiguous bit. Each
/// aligned group counts as contiguous in physical memory, which is the most favourable case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Joined {
    /// Log2 of the size of the pages in bytes.
    pub shift: u8,
    /// Log2 of their number in an entry.
    pub log2: u8,
}

impl Geometry {
    /// The CPU with entries that hold `1 << log2` neighbouring pages of `1 << shift` bytes.
    pub fn with_joined(self, shift: u8, log2: u8) -> Self {
        Self { joined: (log2 > 0).then_some(Joined { shift, log2 }), ..self }
    }

    /// All arrays.
    pub fn arrays(&self) -> impl Iterator<Item = &ArrayShape> {
        let (first, second) = match &self.second {
            Second::Shared(arrays) => (arrays.as_slice(), [].as_slice()),
            Second::Split { instruction, data } => (instruction.as_slice(), data.as_slice()),
        };
        self.instruction.iter().chain(&self.data).chain(first).chain(second)
    }

    /// The CPU with another replacement in all arrays that can have it: shows the influence of the replacement on a
    /// result.
    pub fn with_replacement(mut self, replacement: Replacement) -> Self {
        let change = |arrays: &mut Vec<ArrayShape>| {
            for array in arrays {
                let changed = ArrayShape { replacement, ..*array };
                *array = if changed.is_sound() { changed } else { *array };
            }
        };
        change(&mut self.instruction);
        change(&mut self.data);
        match &mut self.second {
            Second::Shared(arrays) => change(arrays),
            Second::Split { instruction, data } => {
                change(instruction);
                change(data);
            }
        }
        self
    }
}
