//! This process's auxiliary vector (getauxval(3)).

use crate::files;
use address_space::{Address, PageSize};
#[cfg(feature = "preload")]
use linux_raw::kernel::auxvec::AT_EXECFN;
use linux_raw::kernel::auxvec::{AT_BASE, AT_ENTRY, AT_PAGESZ, AT_PHDR};

/// The entries of the auxiliary vector that the library uses.
#[derive(Clone, Copy, Debug)]
pub struct Auxiliary {
    /// The ordinary page size.
    pub base_page: PageSize,
    /// Address of the program's program headers (`AT_PHDR`).
    pub headers: Option<Address>,
    /// Address of the dynamic linker (`AT_BASE`); `None` without one.
    pub linker: Option<Address>,
    /// Address of the program's entry (`AT_ENTRY`).
    pub entry: Option<Address>,
    /// Address of the path that was executed (`AT_EXECFN`).
    #[cfg(feature = "preload")]
    pub started_by: Option<Address>,
}

impl Auxiliary {
    /// Reads it from `/proc/self/auxv`; `None` without `/proc`.
    pub fn read() -> Option<Self> {
        let bytes = files::program::auxiliary_vector().ok()?;
        let value = |wanted: u32| {
            bytes.chunks_exact(16).find_map(|pair| {
                let word = |at: usize| u64::from_ne_bytes(pair[at..at + 8].try_into().unwrap_or_default());
                (word(0) == u64::from(wanted)).then(|| word(8))
            })
        };
        let address = |wanted| value(wanted).filter(|at| *at != 0).map(Address);
        Some(Self {
            base_page: PageSize::new(value(AT_PAGESZ)?).ok()?,
            headers: address(AT_PHDR),
            linker: address(AT_BASE),
            entry: address(AT_ENTRY),
            #[cfg(feature = "preload")]
            started_by: address(AT_EXECFN),
        })
    }
}
