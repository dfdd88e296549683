//! The auxiliary vector (getauxval(3)), which the kernel passes to a program at its start.

use crate::{Address, PageSize};
use alloc::vec::Vec;

/// Kinds of entries (linux/auxvec.h).
const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_PAGESZ: u64 = 6;
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
const AT_CLKTCK: u64 = 17;
const AT_SECURE: u64 = 23;
const AT_EXECFN: u64 = 31;

/// The entries of `/proc/PID/auxv` of a 64-bit process of this machine's byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuxiliaryVector {
    entries: Vec<(u64, u64)>,
}

impl AuxiliaryVector {
    /// Reads the bytes of `/proc/PID/auxv`: pairs of words up to `AT_NULL`.
    pub fn parse(bytes: &[u8]) -> Self {
        let word = |chunk: &[u8]| chunk.try_into().map(u64::from_ne_bytes).ok();
        let entries = bytes
            .chunks_exact(16)
            .filter_map(|pair| Some((word(&pair[..8])?, word(&pair[8..])?)))
            .take_while(|&(kind, _)| kind != AT_NULL)
            .collect();
        Self { entries }
    }

    /// `AT_PAGESZ`: the base page.
    pub fn page_size(&self) -> Option<PageSize> {
        PageSize::new(self.get(AT_PAGESZ)?).ok()
    }

    /// `AT_PHDR`: the address of the executable's program headers.
    pub fn program_headers(&self) -> Option<Address> {
        self.address(AT_PHDR)
    }

    /// `AT_EXECFN`: the address of the path that was executed.
    pub fn executed_path(&self) -> Option<Address> {
        self.address(AT_EXECFN)
    }

    /// `AT_ENTRY`: where the executable begins to run.
    pub fn entry(&self) -> Option<Address> {
        self.address(AT_ENTRY)
    }

    /// `AT_BASE`: the address of the dynamic linker; `None` for a program that the kernel started without one.
    pub fn dynamic_linker(&self) -> Option<Address> {
        self.address(AT_BASE)
    }

    /// `AT_CLKTCK`: the clock ticks per second in which the kernel counts times under `/proc`.
    pub fn clock_ticks(&self) -> Option<u64> {
        self.get(AT_CLKTCK).filter(|&ticks| ticks > 0)
    }

    /// `AT_SECURE`: true if the program has more rights than the user who has started it: set-user-ID and set-group-ID
    /// programs, file capabilities, changes of a security domain. `None` if the kernel does not report it.
    pub fn is_privileged(&self) -> Option<bool> {
        self.get(AT_SECURE).map(|secure| secure != 0)
    }

    fn get(&self, kind: u64) -> Option<u64> {
        self.entries.iter().find(|entry| entry.0 == kind).map(|entry| entry.1)
    }

    fn address(&self, kind: u64) -> Option<Address> {
        self.get(kind).filter(|&address| address != 0).map(Address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_behind_the_end_and_half_entries_do_not_count() {
        let words = [AT_PAGESZ, 65536, AT_BASE, 0, AT_ENTRY, 0x1000, AT_NULL, 0, AT_PHDR, 64];
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        bytes.push(1);
        let vector = AuxiliaryVector::parse(&bytes);
        assert_eq!(vector.page_size().unwrap().bytes(), 65536);
        assert_eq!((vector.dynamic_linker(), vector.program_headers()), (None, None));
        assert_eq!(vector.entry(), Some(Address(0x1000)));
    }

    #[test]
    fn each_entry_is_found_by_its_kind() {
        let read = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            AuxiliaryVector::parse(&bytes)
        };
        let (places, path) = ([AT_PHDR, 0x40, AT_BASE, 0x7000, AT_ENTRY, 0x1000], [AT_EXECFN, 0x7ff0]);
        let vector = read(&[&places[..], &path, &[AT_CLKTCK, 100]].concat());
        assert_eq!((vector.program_headers(), vector.dynamic_linker()), (Some(Address(0x40)), Some(Address(0x7000))));
        assert_eq!((vector.entry(), vector.executed_path()), (Some(Address(0x1000)), Some(Address(0x7ff0))));
        assert_eq!(vector.clock_ticks(), Some(100));
        assert_eq!(read(&[AT_CLKTCK, 0]).clock_ticks(), None);
        assert_eq!([0, 1].map(|secure| read(&[AT_SECURE, secure]).is_privileged()), [Some(false), Some(true)]);
        assert_eq!(vector.is_privileged(), None);
    }

    #[test]
    fn a_vector_of_nothing_tells_nothing() {
        for bytes in [&[][..], &[0; 15], &[0; 16]] {
            let vector = AuxiliaryVector::parse(bytes);
            assert_eq!((vector.page_size(), vector.entry(), vector.clock_ticks()), (None, None, None));
        }
    }
}
