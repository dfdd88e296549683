//! This process's auxiliary vector (getauxval(3)).

use crate::files;
use address_space::{Address, AuxiliaryVector, PageSize};

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
    /// False only if the program certainly has no more rights than its user (`AT_SECURE`).
    #[cfg(feature = "preload")]
    pub may_be_privileged: bool,
}

impl Auxiliary {
    /// Reads it from `/proc/self/auxv`; `None` without `/proc`.
    pub fn read() -> Option<Self> {
        let vector = AuxiliaryVector::parse(&files::program::auxiliary_vector().ok()?);
        Some(Self {
            base_page: vector.page_size()?,
            headers: vector.program_headers(),
            linker: vector.dynamic_linker(),
            entry: vector.entry(),
            #[cfg(feature = "preload")]
            started_by: vector.executed_path(),
            #[cfg(feature = "preload")]
            may_be_privileged: vector.is_privileged() != Some(false),
        })
    }
}
