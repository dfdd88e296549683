//! This process's auxiliary vector (getauxval(3)).

use crate::files;
use address_space::{AuxiliaryVector, PageSize};

/// The auxiliary vector with its page size.
#[derive(Clone, Debug)]
pub struct Auxiliary {
    /// The ordinary page size.
    pub base_page: PageSize,
    /// All entries.
    pub vector: AuxiliaryVector,
}

impl Auxiliary {
    /// Reads it from `/proc/self/auxv`; `None` without `/proc`.
    pub fn read() -> Option<Self> {
        let vector = AuxiliaryVector::parse(&files::program::auxiliary_vector().ok()?);
        Some(Self { base_page: vector.page_size()?, vector })
    }
}
