//! A share of the hugetlb pool for one test: reserved under a lock that all tests take, given back when it is dropped.
//! A test process that was killed cannot give back; what it changed stands in a file beside the lock, and whoever
//! takes the lock next puts it right first.

use crate::need::meminfo;
use address_space::PageSize;
use anyhow::{Context as _, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOCK: &str = "/run/lock/pagelift-pool.lock";
const RECORD: &str = "/run/lock/pagelift-pool.before-tests";
const ATTEMPTS: u32 = 5;

/// Holds the lock and the pool at the wanted size until dropped.
#[derive(Debug)]
pub struct PoolReservation {
    page: PageSize,
    pages: u64,
    _lock: Flock<File>,
}

impl PoolReservation {
    /// Reserves this number of free bytes, rounded up to pages, of the default huge page size.
    ///
    /// # Errors
    /// See [`PoolReservation::of`].
    pub fn of_default_pages(bytes: u64) -> Result<Self> {
        let page = default_huge_page()?;
        Self::of(page, page.pages_for(bytes))
    }

    /// Exactly `pages` free pages of one size, no overcommit. Waits for other tests that use the pool.
    ///
    /// # Errors
    /// Not root, a size that the machine does not have, or memory too fragmented, also after compaction.
    pub fn of(page: PageSize, pages: u64) -> Result<Self> {
        let reservation = Self::begin(page, pages)?;
        reservation.resize(pages)?;
        Ok(reservation)
    }

    /// As many pages of one size as the kernel gives, up to `most`, for what can do with fewer; at least one.
    ///
    /// # Errors
    /// As for [`PoolReservation::of`], where there is none.
    pub fn up_to(page: PageSize, most: u64) -> Result<Self> {
        let mut reservation = Self::begin(page, most)?;
        if let Err(error) = reservation.resize(most) {
            reservation.pages = available_pages(page)?;
            ensure!(reservation.pages > 0, error);
        }
        Ok(reservation)
    }

    /// Takes the lock, and notes what is to be put back.
    fn begin(page: PageSize, pages: u64) -> Result<Self> {
        let lock = lock_pool()?;
        // The kernel would take all memory that there is for a pool that it cannot fill.
        let (wanted, found) = (pages.saturating_mul(page.bytes()), meminfo("MemAvailable").unwrap_or(0));
        ensure!(
            wanted <= found,
            "a pool of {} MiB is wanted, {} MiB of memory are available",
            wanted >> 20,
            found >> 20
        );
        let overcommit = pool_file(page, "nr_overcommit_hugepages");
        // Gigantic pages have an overcommit that cannot even be written.
        let overcommitted = read_number(&overcommit)? != 0;
        let files = [Some(pool_file(page, "nr_hugepages")), overcommitted.then(|| overcommit.clone())];
        record_values(files.into_iter().flatten())?;
        let reservation = Self { page, pages, _lock: lock };
        if overcommitted {
            fs::write(&overcommit, "0").context("the pool's overcommit cannot be set")?;
        }
        Ok(reservation)
    }

    /// Sets the number of free pages anew, for a test that wants a pool to change.
    ///
    /// # Errors
    /// As for [`PoolReservation::of`].
    pub fn resize(&self, pages: u64) -> Result<()> {
        let file = pool_file(self.page, "nr_hugepages");
        for attempt in 0..ATTEMPTS {
            let in_use = read_number(&file)?.saturating_sub(available_pages(self.page)?);
            fs::write(&file, (in_use + pages).to_string()).context("the pool cannot be set")?;
            if available_pages(self.page)? == pages {
                return Ok(());
            }
            // Compaction may take a while where memory is in small pieces, so it comes only when it is called for.
            fs::write("/proc/sys/vm/compact_memory", "1").ok();
            std::thread::sleep(Duration::from_millis(100 * u64::from(attempt)));
        }
        let free = meminfo("MemFree").unwrap_or(0) >> 20;
        bail!(
            "memory is too fragmented: the kernel gave {} of {pages} pages of {} while {free} MiB are free; \
             `echo 3 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/compact_memory` helps, a restart surely does",
            available_pages(self.page)?,
            self.page
        )
    }

    /// The pages' size.
    pub fn page(&self) -> PageSize {
        self.page
    }

    /// How many pages were reserved.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages of the reservation that nothing uses now.
    ///
    /// # Errors
    /// The pool cannot be read.
    pub fn free(&self) -> Result<u64> {
        available_pages(self.page)
    }
}

impl Drop for PoolReservation {
    fn drop(&mut self) {
        if let Err(error) = restore_recorded() {
            eprintln!("the pool could not be put back: {error:#}");
        }
    }
}

fn lock_pool() -> Result<Flock<File>> {
    let file = File::options().create(true).append(true).open(LOCK).with_context(|| format!("cannot open {LOCK}"))?;
    let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| e).context("cannot lock the pool")?;
    restore_recorded()?;
    Ok(lock)
}

/// Writes down what the files hold now, before anything is changed. The lock must be held.
fn record_values(files: impl Iterator<Item = PathBuf>) -> Result<()> {
    let mut record = String::new();
    for file in files {
        record += &format!("{} {}\n", file.display(), read_number(&file)?);
    }
    fs::write(RECORD, record).with_context(|| format!("cannot write {RECORD}"))
}

/// Puts back what the record says and removes it, so that one value that the kernel refuses does not keep all later tests
/// from their pool. The lock must be held.
fn restore_recorded() -> Result<()> {
    let Ok(record) = fs::read_to_string(RECORD) else { return Ok(()) };
    fs::remove_file(RECORD).with_context(|| format!("cannot remove {RECORD}"))?;
    let mut result = Ok(());
    for (path, value) in record.lines().filter_map(|line| line.split_once(' ')) {
        ensure!(path.starts_with("/sys/kernel/mm/hugepages/"), "{RECORD} names {path}, which is no pool");
        result = result.and(fs::write(path, value).with_context(|| format!("cannot write {value} to {path}")));
    }
    result
}

/// A file of the pool of one page size in sysfs.
pub fn pool_file(page: PageSize, name: &str) -> PathBuf {
    Path::new("/sys/kernel/mm/hugepages").join(page.directory().to_string()).join(name)
}

/// Pages that are free and not promised to anybody.
///
/// # Errors
/// The machine has no pool of this size.
pub fn available_pages(page: PageSize) -> Result<u64> {
    let free = read_number(&pool_file(page, "free_hugepages"))?;
    Ok(free.saturating_sub(read_number(&pool_file(page, "resv_hugepages"))?))
}

/// The machine's default huge page size, `Hugepagesize` of `/proc/meminfo`.
///
/// # Errors
/// The kernel has no hugetlb.
pub fn default_huge_page() -> Result<PageSize> {
    let bytes = meminfo("Hugepagesize").context("this kernel has no hugetlb pages")?;
    Ok(PageSize::new(bytes)?)
}

fn read_number(file: &Path) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    text.trim().parse().with_context(|| format!("no number in {}: {text}", file.display()))
}
