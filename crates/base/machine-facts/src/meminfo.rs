//! `/proc/meminfo`.

/// A field of the text of `/proc/meminfo`, in bytes; `None` where the kernel does not have it.
pub fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_fields_are_bytes() {
        assert_eq!(meminfo_bytes("MemTotal: 8 kB\nHugepagesize:    2048 kB\n", "Hugepagesize"), Some(2 << 20));
        assert_eq!(meminfo_bytes("", "Hugepagesize"), None);
        assert_eq!(meminfo_bytes("MemTotalX: 1 kB", "MemTotal"), None);
    }
}
