//! The relation between an image's file offsets and addresses.

use address_space::{ElfImage, ElfKind, PageSize};
use lift_plan::{Edges, Kinds, choose_base};
use serde::Serialize;

/// The bases at which an image can be mapped by huge pages: `base_offset` above a multiple of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Layout {
    page_size: PageSize,
    base_offset: u64,
}

impl Layout {
    /// The layout for an object with this bias (the difference between its addresses in memory and in the file; 0 for a
    /// program linked to a fixed address).
    pub fn at(page_size: PageSize, bias: u64) -> Self {
        Self { page_size, base_offset: bias % page_size.bytes() }
    }

    /// The layout for the base that the object will most likely have: the one fixed by the linker; for a
    /// position-independent executable the one that covers most, which `pagelift run` gives it; for a shared object a
    /// whole multiple of the huge page size, to which kernels align large files that are mapped.
    pub fn most_likely(image: &ElfImage, page_size: PageSize, base_page: PageSize) -> Self {
        match image.kind {
            ElfKind::PositionIndependent if !is_shared_object(image) => {
                let best = choose_base(image, page_size, base_page, Kinds::USUAL, Edges::Exact);
                Self::at(page_size, best.offset)
            }
            _ => Self::at(page_size, 0),
        }
    }

    /// The huge page size, in bytes.
    pub fn page_size(self) -> PageSize {
        self.page_size
    }

    /// The base modulo the huge page size, in bytes.
    pub fn base_offset(self) -> u64 {
        self.base_offset
    }

    /// True if an object at this bias can map huge pages of an image in this layout.
    pub fn fits(self, bias: u64) -> bool {
        Self::at(self.page_size, bias) == self
    }
}

/// The form of an image; a file may have several: for different bases, and copies for single NUMA nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Form {
    /// The bases.
    pub layout: Layout,
    /// The node that holds all its pages; `None` for the image that all nodes share.
    pub node: Option<u32>,
}

impl Form {
    /// The copy for one node.
    pub fn on(layout: Layout, node: u32) -> Self {
        Self { layout, node: Some(node) }
    }
}

impl From<Layout> for Form {
    /// The image that all nodes share.
    fn from(layout: Layout) -> Self {
        Self { layout, node: None }
    }
}

/// Executables have neither a soname nor, without an interpreter, an entry of zero.
fn is_shared_object(image: &ElfImage) -> bool {
    image.soname.is_some() || (image.interpreter.is_none() && image.entry.0 == 0)
}
