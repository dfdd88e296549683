//! Puts memory that the program has mapped itself on huge pages, in place: private, shared, or of a file.

use crate::auxiliary::Auxiliary;
use crate::executor::OwnProcess;
use crate::files::{self, File, c_path, names_in};
use crate::machine::machine_facts;
use crate::pagemap::Pagemap;
use address_space::{
    AddressRange, Mapping, MappingName, MappingUsage, PageSize, RangeSet, dense_runs, format_bytes, parse_smaps,
};
use alloc::format;
use alloc::string::{String, ToString};
use lift_execution::Executor;
use lift_plan::ThpMode;
use linux_raw::kernel::general::{S_IFMT, S_IFREG, statx};
use machine_facts::Looks;

/// Most bytes that one call collapses; the call holds the process's memory lock.
const AT_ONCE: u64 = 64 << 20;
/// One part in so many of a block of a file or of shared memory may be absent if the block is made huge: what fills it stays.
const ABSENT: u64 = 8;
/// Flags of mappings whose pages belong to a device or the kernel, or are watched by a userfaultfd. A driver that inserts its
/// own pages ("mm"), as BPF does for ring buffers, gives none back once they have left the page tables.
const LEFT_ALONE: [&str; 6] = ["pf", "io", "mm", "um", "uw", "ui"];

/// The outcome. All fields but the last two are bytes.
#[derive(Clone, Debug, Default)]
pub struct Advised {
    /// Whole huge pages of the range.
    pub considered: u64,
    /// Private anonymous memory that is on transparent huge pages now, as read back.
    pub anonymous: u64,
    /// Shared memory and mappings of files that are on huge pages of the page cache now, as read back.
    pub of_files: u64,
    /// Memory of the pool.
    pub pool: u64,
    /// Empty blocks, which the kernel can back by huge pages at their first access.
    pub advised: u64,
    /// The first reason why the rest is on ordinary pages.
    pub why: Option<String>,
    /// Duration in microseconds.
    pub microseconds: u64,
}

impl Advised {
    /// Bytes on huge pages.
    pub fn huge(&self) -> u64 {
        self.anonymous + self.of_files + self.pool
    }

    /// True if nothing more can become huge.
    pub fn is_complete(&self) -> bool {
        self.considered > 0 && self.huge() + self.advised >= self.considered
    }

    /// The outcome in words.
    pub fn line(&self) -> String {
        let mut line = format!("{} of {} on huge pages", format_bytes(self.huge()), format_bytes(self.considered));
        if self.advised > 0 {
            line += &format!("; {} at their first access", format_bytes(self.advised));
        }
        match &self.why {
            Some(why) if !self.is_complete() => line + "; not: " + why,
            _ => line,
        }
    }
}

/// A call that has changed nothing.
pub enum Unadvised {
    /// The range is empty, or not all of it is mapped.
    NotMapped(String),
    /// The process cannot be read.
    NotSeen(&'static str),
}

/// Advises all whole huge pages of a range, collapses those in use, and reads back what is huge.
///
/// # Errors
/// Nothing was changed.
pub fn advise(range: AddressRange) -> Result<Advised, Unadvised> {
    let started = linux_raw::monotonic_microseconds();
    let base = Auxiliary::read().ok_or(Unadvised::NotSeen("found no /proc/self"))?.base_page;
    let thp = machine_facts(base, Looks { at_pools: false, at_memory: true })
        .thp
        .ok_or(Unadvised::NotSeen("this kernel has no transparent huge pages"))?;
    let smaps = files::text(c"/proc/thread-self/smaps");
    let smaps = smaps.ok().and_then(|text| parse_smaps(&text).ok()).ok_or(Unadvised::NotSeen("smaps is unreadable"))?;
    let pagemap = Pagemap::open(base).map_err(|_| Unadvised::NotSeen("found no /proc/self/pagemap"))?;
    let mut rest = RangeSet::from_iter([range]);
    smaps.iter().for_each(|usage| rest.remove(usage.mapping.range));
    match rest.iter().next() {
        _ if range.is_empty() => return Err(Unadvised::NotMapped("found no bytes, needed memory".to_string())),
        Some(gap) => return Err(Unadvised::NotMapped(format!("found no memory at {gap}, needed a mapped range"))),
        None => {}
    }
    // SAFETY:
    // - it collapses, which the kernel makes invisible to others, and drops page tables of files that were not written to.
    let executor = unsafe { OwnProcess::new(base) };
    let asked = range.widened(base);
    let mut advising = Advising { asked, size: thp.size, base, pagemap, executor, done: Advised::default() };
    for usage in smaps.iter().filter(|usage| usage.mapping.range.overlaps(range)) {
        let whole = usage.mapping.range.intersect(range).whole_pages(thp.size);
        advising.done.considered += whole.len();
        let refused = match thp.mode {
            _ if whole.is_empty() => continue,
            _ if usage.has_flag("ht") => {
                advising.done.pool += whole.len();
                continue;
            }
            ThpMode::OffInProcess => {
                Err("transparent huge pages are off for this process (PR_SET_THP_DISABLE)".to_string())
            }
            mode => advising.mapping(usage, whole, mode != ThpMode::Never),
        };
        if let Err(why) = refused {
            advising.done.why.get_or_insert(why);
        }
    }
    let mut done = advising.done;
    if done.considered == 0 {
        done.why = Some(format!("no whole huge page of {} in the range", thp.size));
    }
    done.microseconds = linux_raw::monotonic_microseconds() - started;
    Ok(done)
}

struct Advising {
    /// The range of the call, in whole base pages.
    asked: AddressRange,
    size: PageSize,
    base: PageSize,
    pagemap: Pagemap,
    executor: OwnProcess,
    done: Advised,
}

impl Advising {
    /// Advises whole huge pages of one mapping. Returns the reason why some stay on ordinary pages.
    fn mapping(&mut self, usage: &MappingUsage, whole: AddressRange, may_advise: bool) -> Result<(), String> {
        let (mapping, shows_file) = (&usage.mapping, usage.mapping.shared || usage.mapping.inode != 0);
        let out_of_step = mapping.range.start().0.wrapping_sub(mapping.offset) % self.size.bytes();
        match () {
            () if !mapping.protection.read => return Err("not readable".to_string()),
            () if LEFT_ALONE.iter().any(|flag| usage.has_flag(flag))
                || matches!(mapping.name, MappingName::Special(_)) =>
            {
                return Err("memory of a device or the kernel, or watched by a userfaultfd".to_string());
            }
            () if shows_file && out_of_step != 0 => {
                return Err(format!(
                    "address and offset disagree by {} KiB, needed a multiple of {}; fix: mmap at such an address",
                    out_of_step / 1024,
                    self.size
                ));
            }
            () if shows_file && !mapping.shared && mapping.protection.write => {
                return Err(
                    "a private mapping of a file that may be written; fix: map it read-only or shared".to_string()
                );
            }
            () => {}
        }
        // Advice for a part divides a mapping, and mremap(2) refuses to resize or move several mappings.
        let advised = if self.asked.covers(mapping.range) { mapping.range } else { whole };
        // The kernel refuses only mappings without huge pages of any kind.
        let _ = self.executor.advise_huge(advised);
        let (empty, why) = if shows_file { self.shown(mapping, whole) } else { self.anonymous(whole) };
        let huge = self.executor.query_huge(whole, self.size).unwrap_or_default().bytes_in(whole);
        *(if shows_file { &mut self.done.of_files } else { &mut self.done.anonymous }) += huge;
        if empty > 0 && !may_advise && !shows_file {
            return Err(
                "transparent huge pages are off; fix: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
                    .to_string(),
            );
        }
        self.done.advised += empty;
        why.map_or(Ok(()), Err)
    }

    /// Collapses blocks of private anonymous memory that are at least half in use. Returns the bytes of empty blocks.
    fn anonymous(&mut self, whole: AddressRange) -> (u64, Option<String>) {
        let touched = self.pagemap.touched(whole).unwrap_or_default();
        let already = self.pagemap.huge(whole).unwrap_or_default();
        let mut why = None;
        for run in dense_runs(whole, self.size, &touched, &already, AT_ONCE) {
            if self.executor.collapse(run).is_err() {
                for page in run.pages(self.size) {
                    why = self.executor.collapse(page).err().map(|error| error.to_string()).or(why);
                }
            }
        }
        let empty = whole.pages(self.size).filter(|page| !touched.overlaps(*page));
        (empty.map(AddressRange::len).sum(), why.or_else(|| Some(too_empty("half"))))
    }

    /// Puts blocks of a file or of shared memory on huge pages if nearly all of a block is in memory. Returns the bytes of
    /// blocks with nothing in memory.
    fn shown(&mut self, mapping: &Mapping, whole: AddressRange) -> (u64, Option<String>) {
        let file = open(mapping);
        let touched = self.pagemap.touched(whole).unwrap_or_default();
        let huge = self.executor.query_huge(whole, self.size).unwrap_or_default();
        let (mut empty, mut why) = (0, None);
        for block in whole.pages(self.size).filter(|block| !huge.covers(*block)) {
            let offset = mapping.offset + (block.start() - mapping.range.start());
            let cached = file.as_ref().and_then(|file| {
                let pages = linux_raw::cached_pages(file.descriptor(), offset, block.len()).ok()?;
                Some(pages.cached * self.base.bytes())
            });
            match cached.unwrap_or(0).max(touched.bytes_in(block)) {
                0 => empty += block.len(),
                present if present < block.len() - block.len() / ABSENT => why = Some(too_empty("7/8")),
                _ => why = self.block(mapping, file.as_ref(), block, offset).err().or(why),
            }
        }
        (empty, why)
    }

    fn block(
        &mut self,
        mapping: &Mapping,
        file: Option<&Shown>,
        block: AddressRange,
        offset: u64,
    ) -> Result<(), String> {
        // tmpfs, and from Linux 7.2 on other file systems.
        let Err(error) = self.executor.collapse(block) else { return Ok(()) };
        if mapping.protection.write {
            return Err(error.to_string()
                + "; needed: shmem_enabled `advise` for shared memory, a mapping that is not writable for a file");
        }
        self.executor.refault(block).map_err(|error| error.to_string())?;
        let is_huge =
            |executor: &mut OwnProcess, size| executor.query_huge(block, size).is_ok_and(|huge| huge.covers(block));
        if is_huge(&mut self.executor, self.size) {
            return Ok(());
        }
        // In small folios: read again, which the advice makes the kernel do by huge ones. Pages that others map stay.
        if let Some(file) = file {
            self.executor.drop_tables(block).map_err(|error| error.to_string())?;
            let _ = linux_raw::evict(file.descriptor(), offset, block.len());
            let _ = self.executor.touch(block);
            if is_huge(&mut self.executor, self.size) {
                return Ok(());
            }
        }
        Err("in small folios of the page cache; fix: pagelift cache prepare FILE".to_string())
    }
}

fn too_empty(share: &str) -> String {
    format!("blocks with less than {share} in memory; fix: call again once they are filled")
}

/// A descriptor of the file that a mapping shows.
enum Shown {
    /// One of the program, which stays open.
    Program(i32),
    Own(File),
}

impl Shown {
    fn descriptor(&self) -> i32 {
        match self {
            Self::Program(descriptor) => *descriptor,
            Self::Own(file) => file.descriptor(),
        }
    }
}

/// A descriptor of the file that a mapping shows; `None` if its path leads elsewhere. If the program has one, no other is
/// opened: closing any descriptor of a file releases all record locks of the process on that file (fcntl(2)).
fn open(mapping: &Mapping) -> Option<Shown> {
    let MappingName::File { path, deleted: false } = &mapping.name else { return None };
    let path = c_path(path)?;
    let status = linux_raw::cached_status(&path).ok()?;
    if status.stx_ino != mapping.inode || u32::from(status.stx_mode) & S_IFMT != S_IFREG {
        return None;
    }
    let place = |status: &statx| (status.stx_dev_major, status.stx_dev_minor, status.stx_ino);
    for name in names_in(c"/proc/thread-self/fd").ok()? {
        let found = linux_raw::cached_status(&c_path(&format!("/proc/thread-self/fd/{name}"))?);
        if found.is_ok_and(|found| place(&found) == place(&status)) {
            return name.parse().ok().map(Shown::Program);
        }
    }
    File::open(&path).ok().map(Shown::Own)
}
