//! The remaining work for a program that is about to be executed, if only its own file may show huge pages.

use crate::{Edges, Numa, Pages, Policy, cached_coverable, choose_cached_base};
use address_space::{ElfImage, ElfKind, PageSize};
use core::ops::Range;

/// The work that a start has with a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartWork {
    /// None: the kernel maps the possible huge pages itself, at the first touch of each.
    Nothing,
    /// Its base is moved before the first access to its memory; then the work is done.
    Base,
    /// It is planned and lifted at its entry.
    AtEntry,
}

/// A program before its exec.
#[derive(Clone, Copy, Debug)]
pub struct BeforeExec<'a> {
    /// Its file.
    pub image: &'a ElfImage,
    /// The parts of the file in huge folios of the page cache.
    pub huge: &'a [Range<u64>],
    /// The machine's usual huge page size.
    pub usual: PageSize,
    /// The base page size.
    pub base_page: PageSize,
    /// `e_machine` of this machine's programs.
    pub elf_machine: u16,
    /// Libraries whose pages are small may be collapsed in place once they are mapped.
    pub collapses_libraries: bool,
}

/// Returns the work of a start by a policy.
///
/// A new program has no page tables yet, so the kernel maps a huge folio by one entry at the first access, if address
/// and offset agree. A plan at the entry could only touch the memory earlier. There is more to do if another source is
/// available, if written memory may be lifted, and if memory must be moved or changed.
pub fn start_work(program: &BeforeExec<'_>, policy: &Policy) -> StartWork {
    let BeforeExec { image, huge, usual, base_page, elf_machine, collapses_libraries } = *program;
    let is_ordinary = image.machine == elf_machine && !image.is_dynamic_linker();
    if !(is_ordinary && shows_files_alone(policy, usual)) || collapses_libraries && !image.is_static() {
        return StartWork::AtEntry;
    }
    match image.kind {
        ElfKind::FixedAddress => StartWork::Nothing,
        // Before Linux 6.10 the kernel ignores the alignment of such a program, and its address is unknown beforehand.
        ElfKind::PositionIndependent if image.is_static() => StartWork::AtEntry,
        ElfKind::PositionIndependent => {
            let best = choose_cached_base(image, huge, usual, base_page, policy.kinds).covered;
            let is_best = |bias| cached_coverable(image, huge, bias, usual, base_page, policy.kinds) >= best;
            if best.read_only == 0 || lies_aligned(image, usual, base_page) && is_best(0) {
                StartWork::Nothing
            } else {
                StartWork::Base
            }
        }
    }
}

/// True if only the page cache may show huge pages of the chosen ranges, and the policy asks for no other work. With
/// any other policy [`start_work`] is at the entry for every program. `usual` is the machine's default huge page size.
pub fn shows_files_alone(policy: &Policy, usual: PageSize) -> bool {
    policy.pages == Pages::File
        && policy.may_use_files()
        && !policy.may_fill_memory()
        && policy.page_size.is_none_or(|wanted| wanted == usual)
        && policy.edges == Edges::Exact
        && policy.numa == Numa::Own
        && !policy.seal
}

/// True if the kernel's choice of a base is a multiple of the huge page size: it keeps the alignment of the segments
/// (Linux 5.10).
fn lies_aligned(image: &ElfImage, size: PageSize, base_page: PageSize) -> bool {
    let first = image.segments.first().map(|segment| segment.memory.start().align_down(base_page));
    image.largest_alignment(base_page) >= size && first.is_some_and(|first| first.is_aligned(size))
}
