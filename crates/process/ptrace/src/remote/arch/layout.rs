//! The layout of the page by which a running program makes calls (`attach::call_page`): one for all architectures.
//!
//! The code of each architecture gets its offsets from here. That no two fields overlap and all fit into the smallest page
//! is checked when this is compiled.

use super::RETURN_BYTES;

/// Size of the page's contents in bytes: the smallest base page.
pub const BYTES: usize = 0x1000;

/// One field: its offset and its length in bytes.
#[derive(Clone, Copy)]
struct Field(usize, usize);

const WORD: usize = size_of::<u64>();

/// Two words by which the page is recognized.
pub const MARK: usize = 0x00;
/// 1 while a thread is in the code, which sets and clears the word.
pub const INSIDE: usize = 0x10;
/// The thread's own signal mask.
pub const OLD_MASK: usize = 0x18;
/// Number of the next system call; -1: none.
pub const NUMBER: usize = 0x20;
/// Its six arguments.
pub const ARGUMENTS: usize = 0x28;
/// The page's own address.
pub const OWN_ADDRESS: usize = 0x58;
/// The number of the process for which the page was written.
pub const OWNER: usize = 0x60;
/// A word by which the memory is distinguished from another one.
pub const PROBE: usize = 0x68;
/// The program's own PR_SET_THP_DISABLE while that is suspended.
pub const SUSPENDED: usize = 0x70;
/// The list of staging copies: start and length of each.
pub const STAGING_LIST: usize = 0x80;
/// Maximum number of staging copies in the list.
pub const MOST_STAGING: usize = 32;
/// The result of `return_state`, by which the thread continues.
pub const RETURN: usize = 0x280;
/// Memory for arguments of calls.
pub const SCRATCH: usize = 0x700;
/// Its length in bytes.
pub const SCRATCH_BYTES: usize = 0x400;
/// The swap that was begun last: start and length of the staging copy, and its new address.
pub const SWAP: usize = 0xb00;
// From 0xb18 on the page is unused: there is room for a list of calls.

const FIELDS: [Field; 13] = [
    Field(MARK, 2 * WORD),
    Field(INSIDE, WORD),
    Field(OLD_MASK, WORD),
    Field(NUMBER, WORD),
    Field(ARGUMENTS, 6 * WORD),
    Field(OWN_ADDRESS, WORD),
    Field(OWNER, WORD),
    Field(PROBE, WORD),
    Field(SUSPENDED, WORD),
    Field(STAGING_LIST, MOST_STAGING * 2 * WORD),
    Field(RETURN, RETURN_BYTES),
    Field(SCRATCH, SCRATCH_BYTES),
    Field(SWAP, 3 * WORD),
];

const fn are_apart(fields: &[Field]) -> bool {
    let mut at = 0;
    while at < fields.len() {
        let Field(start, length) = fields[at];
        if start % WORD != 0 || start + length > BYTES {
            return false;
        }
        let mut other = 0;
        while other < at {
            if start < fields[other].0 + fields[other].1 && fields[other].0 < start + length {
                return false;
            }
            other += 1;
        }
        at += 1;
    }
    true
}

const _: () = assert!(are_apart(&FIELDS), "fields of the call page overlap");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_overlap_or_leave_the_page_are_found() {
        let apart = |fields: &[(usize, usize)]| are_apart(&fields.iter().map(|f| Field(f.0, f.1)).collect::<Vec<_>>());
        assert!(apart(&[(0, 8), (16, 16), (8, 8), (BYTES - 8, 8)]));
        // The fields of AArch64 as they were: the suspended setting and the end of the list lay in the return state.
        assert!(!apart(&[(0x9f0, 0x480), (0xa00, 8)]) && !apart(&[(0x800, 0x200), (0x9f0, 0x480)]));
        assert!(!apart(&[(0, 16), (0, 8)]) && !apart(&[(8, 8), (0, 32)]));
        assert!(!apart(&[(BYTES - 8, 16)]) && !apart(&[(4, 8)]));
    }
}
