//! The auxiliary vector (getauxval(3)), which the kernel passes to a program at its start.

use address_space::{Address, PageSize};
use std::collections::BTreeMap;

/// The entries of `/proc/PID/auxv` of a 64-bit process of this machine's byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuxiliaryVector {
    entries: BTreeMap<u64, u64>,
}

impl AuxiliaryVector {
    /// Reads the bytes of `/proc/PID/auxv`: pairs of words up to `AT_NULL`.
    pub fn parse(bytes: &[u8]) -> Self {
        let word = |chunk: &[u8]| chunk.try_into().map(u64::from_ne_bytes).ok();
        let entries = bytes
            .chunks_exact(16)
            .filter_map(|pair| Some((word(&pair[..8])?, word(&pair[8..])?)))
            .take_while(|&(kind, _)| kind != libc::AT_NULL)
            .collect();
        Self { entries }
    }

    /// `AT_PAGESZ`: the base page.
    pub fn page_size(&self) -> Option<PageSize> {
        PageSize::new(self.get(libc::AT_PAGESZ)?).ok()
    }

    /// `AT_PHDR`: where the executable's program headers lie.
    pub fn program_headers(&self) -> Option<Address> {
        self.get(libc::AT_PHDR).map(Address)
    }

    /// `AT_EXECFN`: where the path lies that was executed.
    pub fn executed_path(&self) -> Option<Address> {
        self.get(libc::AT_EXECFN).map(Address)
    }

    /// `AT_ENTRY`: where the executable begins to run.
    pub fn entry(&self) -> Option<Address> {
        self.get(libc::AT_ENTRY).map(Address)
    }

    /// `AT_BASE`: where the dynamic linker lies; `None` for a program that the kernel started without one.
    pub fn dynamic_linker(&self) -> Option<Address> {
        self.get(libc::AT_BASE).filter(|&base| base != 0).map(Address)
    }

    /// `AT_CLKTCK`: the clock ticks per second in which the kernel counts times under `/proc`.
    pub fn clock_ticks(&self) -> Option<u64> {
        self.get(libc::AT_CLKTCK).filter(|&ticks| ticks > 0)
    }

    fn get(&self, kind: u64) -> Option<u64> {
        self.entries.get(&kind).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_behind_the_end_and_half_entries_do_not_count() {
        let words = [libc::AT_PAGESZ, 65536, libc::AT_BASE, 0, libc::AT_NULL, 0, libc::AT_PHDR, 64];
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        bytes.push(1);
        let vector = AuxiliaryVector::parse(&bytes);
        assert_eq!(vector.page_size().unwrap().bytes(), 65536);
        assert_eq!((vector.dynamic_linker(), vector.program_headers()), (None, None));
    }
}
