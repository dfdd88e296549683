//! The main reason why a program's memory is not on huge pages.

use crate::Reason;
use alloc::vec::Vec;
use core::mem::discriminant;

/// The reason that keeps most memory off huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall<'a> {
    /// Bytes of all ranges that are refused for a reason of this kind.
    pub bytes: u64,
    /// The reason for the largest range.
    pub reason: &'a Reason,
    /// No range is refused for another reason than those that are left after a complete lift ([`Reason::is_expected`]).
    pub is_expected: bool,
}

impl<'a> Shortfall<'a> {
    /// Returns the weightiest kind of reason, by the bytes of all ranges that are refused for it. Takes each range's bytes
    /// with its reason.
    pub fn weightiest(refused: impl IntoIterator<Item = (u64, &'a Reason)>) -> Option<Self> {
        // For each kind: the bytes of all, the bytes of the largest range and its reason.
        let mut kinds: Vec<(u64, u64, &'a Reason)> = Vec::new();
        for (bytes, reason) in refused {
            match kinds.iter_mut().find(|(.., other)| discriminant(*other) == discriminant(reason)) {
                Some((all, largest, representative)) => {
                    *all += bytes;
                    if bytes > *largest {
                        (*largest, *representative) = (bytes, reason);
                    }
                }
                None => kinds.push((bytes, bytes, reason)),
            }
        }
        let is_expected = kinds.iter().all(|(.., reason)| reason.is_expected());
        // Memory that is left for tools is named only if nothing else is left.
        let &(bytes, _, reason) = kinds.iter().max_by_key(|(bytes, _, reason)| (!reason.is_for_tools(), *bytes))?;
        Some(Self { bytes, reason, is_expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::PageSize;

    #[test]
    fn the_kind_with_most_bytes_is_named_whichever_it_is() {
        let size = PageSize::new(2 << 20).unwrap();
        let no_page = |bytes| Reason::NoWholePage { bytes, size };
        let (small, large, other) = (no_page(100), no_page(300), Reason::Probed);
        // Two ranges weigh more than each by itself.
        let found = Shortfall::weightiest([(100, &small), (350, &other), (300, &large)]).unwrap();
        assert_eq!(found, Shortfall { bytes: 400, reason: &large, is_expected: false });
        let found = Shortfall::weightiest([(100, &small), (401, &other), (300, &large)]).unwrap();
        assert_eq!((found.bytes, found.reason), (401, &other));
        let edges = Shortfall::weightiest([(100, &small), (300, &large)]).unwrap();
        assert!(edges.is_expected && edges.bytes == 400);
        assert_eq!(Shortfall::weightiest([]), None);
        let for_tools = [(900, &Reason::FileHeader), (800, &Reason::Semaphores)];
        let found = Shortfall::weightiest(for_tools.into_iter().chain([(100, &small)])).unwrap();
        assert!(found.is_expected && found.reason == &small);
        assert_eq!(Shortfall::weightiest(for_tools).unwrap().reason, &Reason::FileHeader);
    }

    #[test]
    fn of_ranges_that_are_as_large_the_first_gives_its_reason() {
        let size = PageSize::new(2 << 20).unwrap();
        let [first, second] = [100, 101].map(|bytes| Reason::NoWholePage { bytes, size });
        let found = Shortfall::weightiest([(100, &first), (100, &second)]).unwrap();
        assert_eq!((found.bytes, found.reason), (200, &first));
    }
}
