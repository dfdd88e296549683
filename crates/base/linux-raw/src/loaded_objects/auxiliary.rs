//! The entries of the auxiliary vector (getauxval(3)) that lead to the dynamic linker and to the executable.

use crate::kernel::auxvec::{AT_BASE, AT_NULL, AT_PHDR, AT_PHNUM};
use core::ffi::CStr;

/// Highest number of entries that are read; Linux 6.16 has 24.
const MOST: usize = 64;

/// Entries of the auxiliary vector; 0 if the kernel gives none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entries {
    /// Address of the dynamic linker.
    pub linker: usize,
    /// Address of the executed file's program headers.
    pub headers: usize,
    /// Number of program headers at that address.
    pub count: usize,
}

impl Entries {
    /// Reads them from `/proc`; `None` without it. The files of a first thread that has ended are empty.
    pub fn read() -> Option<Self> {
        Self::read_from(c"/proc/self/auxv").or_else(|| Self::read_from(c"/proc/thread-self/auxv"))
    }

    /// Takes them from `value`, which gives 0 for what there is not.
    pub fn by(value: impl Fn(u32) -> usize) -> Self {
        Self { linker: value(AT_BASE), headers: value(AT_PHDR), count: value(AT_PHNUM) }
    }

    fn read_from(path: &CStr) -> Option<Self> {
        let file = crate::open(path, 0).ok()?;
        let mut bytes = [0u8; MOST * 2 * size_of::<usize>()];
        let length = crate::read_uninterrupted(file, &mut bytes);
        // SAFETY:
        // - opened above, and used no more.
        unsafe { crate::close(file) };
        Self::parse(&bytes[..length.ok().filter(|&length| length > 0)?])
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut entries = Self::default();
        for pair in bytes.chunks_exact(2 * size_of::<usize>()) {
            let (kind, value) = pair.split_at(size_of::<usize>());
            let value = usize::from_ne_bytes(value.try_into().ok()?);
            match usize::from_ne_bytes(kind.try_into().ok()?) as u32 {
                AT_NULL => break,
                AT_BASE => entries.linker = value,
                AT_PHDR => entries.headers = value,
                AT_PHNUM => entries.count = value,
                _ => {}
            }
        }
        Some(entries)
    }
}
