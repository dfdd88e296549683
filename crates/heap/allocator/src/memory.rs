//! Memory that is available outside of the hugetlb pool: the machine's, within the limits of memory cgroups.

use crate::sys::read_file;
use core::ffi::CStr;

/// Bytes that can be allocated without running out of memory; `None` if they are not known.
pub fn available() -> Option<u64> {
    let limited = under_limits();
    match (of_the_machine(), limited) {
        (Some(machine), Some(limited)) => Some(machine.min(limited)),
        (machine, limited) => machine.or(limited),
    }
}

/// `MemAvailable` and `SwapFree` of `/proc/meminfo`, in bytes.
fn of_the_machine() -> Option<u64> {
    let mut buffer = [0u8; 2048];
    let text = read_text(c"/proc/meminfo", &mut buffer)?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(field("MemAvailable")? + field("SwapFree").unwrap_or(0))
}

fn read_text<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a str> {
    let length = read_file(path, buffer)?;
    core::str::from_utf8(&buffer[..length]).ok()
}

/// The smallest remainder that a memory cgroup of this process leaves, in bytes. Looks at cgroups of both versions, where
/// they are usually mounted.
fn under_limits() -> Option<u64> {
    let mut buffer = [0u8; 4096];
    let text = read_text(c"/proc/self/cgroup", &mut buffer)?;
    let mut least: Option<u64> = None;
    // Lines of cgroups(7): a number, controllers, and the path, between colons.
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let ways: &[Files] = match controllers {
            "" => &UNIFIED,
            _ if controllers.split(',').any(|controller| controller == "memory") => &BY_CONTROLLER,
            _ => continue,
        };
        for files in ways {
            least = least.into_iter().chain(files.least_left(path)).min();
        }
    }
    least
}

/// The folder of a hierarchy, and its files with the limit, the usage, and the page cache in it, which can be dropped.
struct Files {
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    cache: &'static str,
}

const UNIFIED: [Files; 2] = [
    Files { folder: "/sys/fs/cgroup", limit: "/memory.max", used: "/memory.current", cache: "inactive_file" },
    Files { folder: "/sys/fs/cgroup/unified", limit: "/memory.max", used: "/memory.current", cache: "inactive_file" },
];
const BY_CONTROLLER: [Files; 1] = [Files {
    folder: "/sys/fs/cgroup/memory",
    limit: "/memory.limit_in_bytes",
    used: "/memory.usage_in_bytes",
    cache: "total_inactive_file",
}];

impl Files {
    /// The smallest remainder of this cgroup and its ancestors, in bytes.
    fn least_left(&self, path: &str) -> Option<u64> {
        let mut least: Option<u64> = None;
        let mut path = path.trim_end_matches('/');
        loop {
            least = least.into_iter().chain(self.left(path)).min();
            match path.rfind('/') {
                Some(at) => path = &path[..at],
                None => return least,
            }
        }
    }

    fn left(&self, path: &str) -> Option<u64> {
        // A limit of `max` is none.
        let limit = self.number(path, self.limit)?;
        let used = self.number(path, self.used)?;
        let mut buffer = [0u8; 4096];
        let statistics = self.read(path, "/memory.stat", &mut buffer).unwrap_or_default();
        let cache = statistics.lines().find_map(|line| line.strip_prefix(self.cache)?.trim().parse::<u64>().ok());
        Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
    }

    fn number(&self, path: &str, file: &str) -> Option<u64> {
        let mut buffer = [0u8; 64];
        self.read(path, file, &mut buffer)?.trim().parse().ok()
    }

    fn read<'a>(&self, path: &str, file: &str, buffer: &'a mut [u8]) -> Option<&'a str> {
        let mut whole = [0u8; libc::PATH_MAX as usize];
        let mut end = 0;
        for part in [self.folder, path, file] {
            whole.get_mut(end..end + part.len())?.copy_from_slice(part.as_bytes());
            end += part.len();
        }
        read_text(CStr::from_bytes_until_nul(&whole).ok()?, buffer)
    }
}
