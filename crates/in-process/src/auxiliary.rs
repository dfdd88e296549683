//! What the kernel told this process at its start (getauxval(3)).

use crate::files;
use address_space::{Address, PageSize};
#[cfg(feature = "preload")]
use linux_raw_sys::auxvec::AT_EXECFN;
use linux_raw_sys::auxvec::{AT_BASE, AT_ENTRY, AT_PAGESZ, AT_PHDR};

/// The parts of the auxiliary vector that matter here.
#[derive(Clone, Copy, Debug)]
pub struct Auxiliary {
    /// The ordinary page size.
    pub base_page: PageSize,
    /// Where the program headers of the program lie.
    pub headers: Option<Address>,
    /// Where the dynamic linker lies; none without one.
    pub linker: Option<Address>,
    /// Where the program is entered.
    pub entry: Option<Address>,
    /// Where the path stands that was executed.
    #[cfg(feature = "preload")]
    pub started_by: Option<Address>,
}

impl Auxiliary {
    /// Reads it; none without `/proc`.
    pub fn read() -> Option<Self> {
        let bytes = files::bytes(c"/proc/self/auxv").ok()?;
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
