//! The hugetlb pools (`/sys/kernel/mm/hugepages`, `Documentation/admin-guide/mm/hugetlbpage.rst`).

use address_space::PageSize;
use kernel_calls::text::text_of;
use lift_plan::HugePool;
use std::fs;
use std::path::Path;

/// The pools below a directory, smallest page size first; empty where the kernel has none.
///
/// Available pages are free less reserved, plus what overcommit still allows.
pub fn pools_at(directory: &Path) -> Vec<HugePool> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut pools: Vec<HugePool> = entries.flatten().filter_map(|entry| pool_at(&entry.path())).collect();
    pools.sort_by_key(|pool| pool.size);
    pools
}

fn pool_at(directory: &Path) -> Option<HugePool> {
    let name = directory.file_name()?.to_str()?;
    let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let size = PageSize::new(kib.checked_mul(1024)?).ok()?;
    let read = |file: &str| -> u64 {
        text_of(directory.join(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    let [free, reserved, overcommit, surplus] =
        ["free_hugepages", "resv_hugepages", "nr_overcommit_hugepages", "surplus_hugepages"].map(read);
    let available = HugePool::available_of(free, reserved, overcommit, surplus);
    Some(HugePool { size, total: read("nr_hugepages"), available })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_is_free_less_reserved_plus_overcommit() {
        let root = std::env::temp_dir().join(format!("pagelift-pools-{}", std::process::id()));
        let directory = root.join("hugepages-2048kB");
        fs::create_dir_all(&directory).unwrap();
        for (file, value) in [
            ("nr_hugepages", "10"),
            ("free_hugepages", "7"),
            ("resv_hugepages", "3"),
            ("nr_overcommit_hugepages", "5"),
            ("surplus_hugepages", "1"),
        ] {
            fs::write(directory.join(file), format!("{value}\n")).unwrap();
        }
        fs::create_dir_all(root.join("not-a-pool")).unwrap();
        let pools = pools_at(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(pools.len(), 1);
        assert_eq!((pools[0].size.bytes(), pools[0].total, pools[0].available), (2 << 20, 10, 8));
        assert!(pools_at(&root).is_empty());
    }
}
