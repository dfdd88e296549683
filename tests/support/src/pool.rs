//! A share of the hugetlb pool for one test: reserved under a lock that all tests take, returned when dropped. If a
//! test process is killed, its changes remain recorded in a file beside the lock; the next holder of the lock undoes
//! them first.

use crate::need::meminfo;
use crate::process::poll_until;
use address_space::PageSize;
use anyhow::{Context as _, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOCK: &str = "/run/lock/pagelift-pool.lock";
const RECORD: &str = "/run/lock/pagelift-pool.before-tests";
const ATTEMPTS: u32 = 5;
/// Time after which no process is still inside a read of an ended program's mappings.
const LONG_AFTER_AN_END: Duration = Duration::from_secs(60);

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

    /// As many pages of one size as the kernel gives, up to `most` and at least one, for tests that can do with fewer.
    ///
    /// # Errors
    /// As for [`PoolReservation::of`], if no page is free.
    pub fn up_to(page: PageSize, most: u64) -> Result<Self> {
        let mut reservation = Self::begin(page, most)?;
        if let Err(error) = reservation.resize(most) {
            reservation.pages = available_pages(page)?;
            ensure!(reservation.pages > 0, error);
        }
        Ok(reservation)
    }

    /// Takes the lock, and records the values to restore.
    fn begin(page: PageSize, pages: u64) -> Result<Self> {
        let lock = lock_pool()?;
        // The kernel would take all available memory for a pool that it cannot fill.
        let (wanted, found) = (pages.saturating_mul(page.bytes()), meminfo("MemAvailable").unwrap_or(0));
        ensure!(
            wanted <= found,
            "a pool of {} MiB is wanted, {} MiB of memory are available",
            wanted >> 20,
            found >> 20
        );
        let overcommit = pool_file(page, "nr_overcommit_hugepages");
        // The overcommit of gigantic pages is not even writable.
        let overcommitted = read_number(&overcommit)? != 0;
        let files = [Some(pool_file(page, "nr_hugepages")), overcommitted.then(|| overcommit.clone())];
        record_values(files.into_iter().flatten())?;
        let reservation = Self { page, pages, _lock: lock };
        if overcommitted {
            fs::write(&overcommit, "0").context("the pool's overcommit cannot be set")?;
        }
        Ok(reservation)
    }

    /// Sets the number of free pages again, for a test that changes the pool.
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
            // Compaction of fragmented memory may take a while, so it runs only if needed.
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

    /// Number of reserved pages.
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

    /// Waits until this number of pages is free. The memory of a program outlives it while another process reads its
    /// `/proc/PID/maps`, or while the kernel destroys its rings of io_uring.
    ///
    /// # Errors
    /// Another number is still free after a minute, or the pool cannot be read.
    pub fn wait_until_free(&self, due: u64) -> Result<()> {
        let mut found = self.free()?;
        let waited = poll_until(LONG_AFTER_AN_END, "free pages of the pool", || {
            found = self.free().unwrap_or(found);
            found == due
        });
        waited.with_context(|| format!("{found} pages of the pool are free, due: {due}"))
    }

    /// Waits until all pages of the reservation are free, as [`PoolReservation::wait_until_free`].
    ///
    /// # Errors
    /// As for [`PoolReservation::wait_until_free`]: a page is lost.
    pub fn wait_until_all_free(&self) -> Result<()> {
        self.wait_until_free(self.pages)
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

/// Records the current values of the files before any change. The lock must be held.
fn record_values(files: impl Iterator<Item = PathBuf>) -> Result<()> {
    let mut record = String::new();
    for file in files {
        record += &format!("{} {}\n", file.display(), read_number(&file)?);
    }
    fs::write(RECORD, record).with_context(|| format!("cannot write {RECORD}"))
}

/// Restores the recorded values and removes the record, so that one value that the kernel refuses does not keep all
/// later tests from their pool. The lock must be held.
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

/// Unreserved free pages.
///
/// # Errors
/// The machine has no pool of this size.
pub fn available_pages(page: PageSize) -> Result<u64> {
    let free = read_number(&pool_file(page, "free_hugepages"))?;
    // It is below zero while a forked child has pages of a process that has ended, see `HugePool::reserved_of`.
    let reserved = read_number(&pool_file(page, "resv_hugepages"))?;
    Ok(free.saturating_sub(if reserved.cast_signed() < 0 { 0 } else { reserved }))
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
