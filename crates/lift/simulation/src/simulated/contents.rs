//! The contents of memory, by origin instead of by value.

use address_space::{Address, AddressRange};
use std::ops::Range;

/// The contents of a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeros.
    Zero,
    /// The bytes that lay at this address, and behind it, when the model was made.
    Original(Address),
    /// Bytes of a file that the process has never seen, from this offset on.
    Foreign(u64),
    /// Bytes written later: the number of the text, and the offset in it.
    Written(usize, usize),
    /// Bytes that another thread has written to its own memory, at this address and behind it.
    OtherThread(Address),
}

impl Content {
    /// The content `bytes` further on.
    fn advanced(self, bytes: u64) -> Self {
        match self {
            Self::Zero => Self::Zero,
            Self::Original(address) => Self::Original(address + bytes),
            Self::Foreign(offset) => Self::Foreign(offset + bytes),
            Self::Written(text, from) => Self::Written(text, from + bytes as usize),
            Self::OtherThread(address) => Self::OtherThread(address + bytes),
        }
    }
}

/// A range of memory and its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Addresses.
    pub range: AddressRange,
    /// The content of its first byte; the following bytes are derived from this.
    pub content: Content,
}

impl Stretch {
    fn cut(self, range: AddressRange) -> Self {
        let range = self.range.intersect(range);
        Self { range, content: self.content.advanced(range.start() - self.range.start()) }
    }

    fn continues_in(self, next: Self) -> bool {
        self.range.end() == next.range.start() && self.content.advanced(self.range.len()) == next.content
    }
}

/// The contents of a whole address space; ranges without an entry are zero.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    /// Sorted, without overlap; never [`Content::Zero`].
    stretches: Vec<Stretch>,
    texts: Vec<Vec<u8>>,
}

impl Contents {
    /// Returns the contents of `range`, in ranges as long as possible.
    pub fn of(&self, range: AddressRange) -> Vec<Stretch> {
        let mut found: Vec<Stretch> = Vec::new();
        let mut next = range.start();
        let first = self.stretches.partition_point(|s| s.range.end() <= range.start());
        for stretch in self.stretches[first..].iter().take_while(|s| s.range.start() < range.end()) {
            let stretch = stretch.cut(range);
            let gap = AddressRange::new(next, stretch.range.start());
            if !gap.is_empty() {
                found.push(Stretch { range: gap, content: Content::Zero });
            }
            next = stretch.range.end();
            match found.last_mut() {
                Some(last) if last.continues_in(stretch) => last.range = AddressRange::new(last.range.start(), next),
                _ => found.push(stretch),
            }
        }
        let rest = AddressRange::new(next, range.end());
        if !rest.is_empty() {
            found.push(Stretch { range: rest, content: Content::Zero });
        }
        found
    }

    /// Fills `range` with zeros.
    pub fn clear(&mut self, range: AddressRange) {
        self.replace(range, Vec::new());
    }

    /// Fills `range` with `content`.
    pub fn set(&mut self, range: AddressRange, content: Content) {
        self.replace(range, vec![Stretch { range, content }]);
    }

    /// Copies the contents of `from` to `to`.
    pub fn copy(&mut self, from: AddressRange, to: Address) {
        let delta = to - from.start();
        let copied = self.of(from).into_iter().map(|s| Stretch { range: s.range.shifted(delta), ..s }).collect();
        self.replace(AddressRange::sized(to, from.len()), copied);
    }

    /// Writes `bytes` at `at`.
    pub fn write(&mut self, at: Address, bytes: &[u8]) {
        self.set(AddressRange::sized(at, bytes.len() as u64), Content::Written(self.texts.len(), 0));
        self.texts.push(bytes.to_vec());
    }

    /// The bytes of `range`. Original ones are a function of their address that repeats at no power of two.
    pub fn read(&self, range: AddressRange) -> Vec<u8> {
        let bytes_of = |stretch: Stretch| {
            (0..stretch.range.len()).map(move |offset| match stretch.content.advanced(offset) {
                Content::Zero => 0,
                Content::Original(address) => (address.0 % 251) as u8 + 1,
                Content::Foreign(offset) => (offset % 241) as u8 + 1,
                Content::Written(text, from) => self.texts[text][from],
                Content::OtherThread(address) => (address.0 % 239) as u8 + 1,
            })
        };
        self.of(range).into_iter().flat_map(bytes_of).collect()
    }

    fn replace(&mut self, range: AddressRange, with: Vec<Stretch>) {
        if range.is_empty() {
            return;
        }
        let first = self.stretches.partition_point(|s| s.range.end() <= range.start());
        let last = self.stretches.partition_point(|s| s.range.start() < range.end()).max(first);
        let below =
            self.stretches[first..last].first().map(|s| s.cut(AddressRange::new(s.range.start(), range.start())));
        let above = self.stretches[first..last].last().map(|s| s.cut(AddressRange::new(range.end(), s.range.end())));
        let with = with.into_iter().filter(|s| s.content != Content::Zero);
        let kept: Vec<_> = below.into_iter().chain(with).chain(above).filter(|s| !s.range.is_empty()).collect();
        self.stretches.splice(first..last, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, length: u64) -> AddressRange {
        AddressRange::sized(Address(start), length)
    }

    proptest! {
        #[test]
        fn behave_as_bytes_do(steps in prop::collection::vec((0..4u8, 0..60usize, 0..60usize, 0..20usize), 0..40)) {
            let mut contents = Contents::default();
            let mut model = [0u8; 80];
            for (what, at, to, length) in steps {
                match what {
                    0 => {
                        contents.clear(range(at as u64, length as u64));
                        model[at..at + length].fill(0);
                    }
                    1 => {
                        contents.copy(range(at as u64, length as u64), Address(to as u64));
                        model.copy_within(at..at + length, to);
                    }
                    2 => {
                        contents.set(range(at as u64, length as u64), Content::Original(Address(at as u64)));
                        (at..at + length).for_each(|byte| model[byte] = byte as u8 + 1);
                    }
                    _ => {
                        let text: Vec<u8> = (0..length).map(|byte| byte as u8 ^ 0x5a).collect();
                        contents.write(Address(at as u64), &text);
                        model[at..at + length].copy_from_slice(&text);
                    }
                }
                prop_assert_eq!(contents.read(range(0, 80)), model.to_vec());
                prop_assert!(contents.stretches.windows(2).all(|w| w[0].range.end() <= w[1].range.start()));
            }
        }
    }
}

/// A file of the model's process in huge folios of the page cache.
#[derive(Clone, Debug)]
pub struct SimulatedFile {
    /// Its path, as maps shows it.
    pub path: String,
    /// Path by which the process opens it.
    pub own_path: Option<String>,
    /// The parts in huge folios: offsets in bytes.
    pub huge: Vec<Range<u64>>,
}
