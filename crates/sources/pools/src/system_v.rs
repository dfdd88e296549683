//! System V segments that no process has attached: the kernel counts their pages, and no process shows them.

use address_space::PageSize;
use serde::Serialize;

/// The kernel's list of segments of this IPC namespace (sysvipc(7), proc_sysvipc(5)).
pub(crate) const SEGMENTS: &str = "/proc/sysvipc/shm";

/// A segment that no process has attached. The kernel does not report its page size (`SHM_HUGETLB` is not among the
/// bits that it shows).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unattached {
    /// Identifier, as `ipcrm -m` takes it.
    pub id: i32,
    /// Key; 0 for `IPC_PRIVATE`.
    pub key: i32,
    /// Number of the user who owns it.
    pub uid: u32,
    /// Bytes of the segment.
    pub bytes: u64,
    /// Bytes that the kernel reports as present. For pages of a pool some kernels multiply them.
    pub present: u64,
}

impl Unattached {
    /// True if it can be on pages of this size: its present memory is a number of whole pages.
    pub fn may_lie_on(&self, size: PageSize) -> bool {
        self.present > 0 && self.present.is_multiple_of(size.bytes())
    }
}

/// The segments in the kernel's list that nobody has attached and that have pages. The first line names the columns.
pub(crate) fn unattached(list: &str) -> Vec<Unattached> {
    let mut lines = list.lines();
    let headings: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
    let of_line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let word = |heading: &str| words.get(headings.iter().position(|&other| other == heading)?).copied();
        if word("nattch")? != "0" {
            return None;
        }
        Some(Unattached {
            id: word("shmid")?.parse().ok()?,
            key: word("key")?.parse().ok()?,
            uid: word("uid")?.parse().ok()?,
            bytes: word("size")?.parse().ok()?,
            present: word("rss")?.parse().ok().filter(|&present| present > 0)?,
        })
    };
    lines.filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap
         0          3  1600               4194304   700   700      2  1000  1000  1000  1000 1700000000          0 1700000000               4194304                     0
        42          4   600               4194304   701   701      0    33    33    33    33          0          0 1700000000               4194304                     0
        43          5   600               4194304   701   701      0     0     0     0     0          0          0 1700000000                     0                     0
        44          6   600                 40960   701   701      0     0     0     0     0          0          0 1700000000                 40960                     0
";

    #[test]
    fn segments_with_pages_that_nobody_has_attached_are_found() {
        let found = unattached(LIST);
        assert_eq!(found.iter().map(|segment| segment.id).collect::<Vec<_>>(), [4, 6]);
        assert_eq!(found[0], Unattached { id: 4, key: 42, uid: 33, bytes: 4 << 20, present: 4 << 20 });
        let size = PageSize::new(2 << 20).unwrap();
        assert_eq!(found.iter().map(|segment| segment.may_lie_on(size)).collect::<Vec<_>>(), [true, false]);
        assert!(unattached("").is_empty() && unattached("x y\n1").is_empty());
    }
}
