//! Data files that a running process maps: cached bytes, huge folios, and bytes that huge pages map.

use crate::SessionError;
use crate::files::{effort_in_place, prepare_mapped};
use address_space::{MappingUsage, PageSize, RangeSet};
use lift_plan::{CacheShortfall, CachedFile, FileView, MappedFile};
use linux::bounded::MAPPED_FILES;
use linux::file_cache::cached_pages;
use linux::pagemap::Pagemap;
use linux::pages::base_page;
use options::Prepare;
use page_cache::Hold;
use process_view::coverage::MemoryKind;
use process_view::{ObjectReader, ProcessFiles, ProcessMemory, TmpfsDevices, open_mapped};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for looking at all files of a process.
const MOST_LOOKING: Duration = Duration::from_secs(10);

/// A data file of a process. All fields but the first and the last are bytes.
#[derive(Clone, Debug, Serialize)]
pub struct DataFileReport {
    /// Path as maps shows it.
    pub path: String,
    /// Mapped, in mappings that can hold a huge page.
    pub mapped: u64,
    /// In the page tables of the process.
    pub resident: u64,
    /// Mapped by huge pages.
    pub huge: u64,
    /// In the page cache, from the first mapped offset to the last one; `None` if the kernel does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// In huge folios there.
    pub cached_huge: u64,
    /// In mappings whose addresses and offsets agree.
    pub congruent: u64,
    /// Number of mappings.
    pub mappings: usize,
}

/// The data files of a process.
#[derive(Default)]
pub struct DataFiles {
    /// The facts for the planner.
    pub mapped: Vec<MappedFile>,
    /// Numbers of each file, for users.
    pub reports: Vec<DataFileReport>,
    /// Keeps huge folios in the page cache until the process has mapped them.
    pub held: Vec<Hold>,
}

impl DataFiles {
    /// Bytes that huge pages map already.
    pub fn huge(&self) -> u64 {
        self.mapped.iter().flat_map(|file| &file.views).map(|view| view.huge.bytes()).sum()
    }
}

/// Reads the state of the files, brought into huge folios if wanted. Shared mappings of tmpfs are shared memory.
///
/// # Errors
/// The process cannot be read.
pub fn look(
    pid: i32,
    reader: &mut ObjectReader,
    size: PageSize,
    how: Prepare,
    available: u64,
) -> Result<DataFiles, SessionError> {
    let until = Instant::now() + MOST_LOOKING;
    let memory = ProcessMemory::read_by(reader, pid)?;
    let process = ProcessFiles::of(pid);
    let devices = TmpfsDevices::seen_by(&process);
    let mut files: BTreeMap<_, Vec<&MappingUsage>> = BTreeMap::new();
    let mut budget = MAPPED_FILES.budget();
    for (kind, usage) in memory.besides_objects() {
        let mapping = &usage.mapping;
        let is_shared_memory = mapping.shared && devices.contains(mapping.device);
        let fits = !mapping.range.whole_pages(size).is_empty() && !usage.has_flag("ht");
        if kind == MemoryKind::File && fits && !is_shared_memory && budget.spend(size_of::<FileView>() as u64) {
            files.entry((mapping.file_numbers(), mapping.path())).or_default().push(usage);
        }
    }
    let (pagemap, mut found) = (Pagemap::open(pid, base_page()).ok(), DataFiles::default());
    for ((numbers, path), usages) in files {
        let path = path.unwrap_or_default();
        let mut file = CachedFile { path: path.to_owned(), numbers, ..CachedFile::default() };
        let (mut cached, mut length) = (None, None);
        let start = usages.iter().map(|usage| usage.mapping.offset).min().unwrap_or(0);
        let end = usages.iter().map(|usage| usage.mapping.offset.saturating_add(usage.mapping.range.len())).max();
        let offsets = start..end.unwrap_or(0);
        let why = |why: String| Some(CacheShortfall { why, fix: None });
        match open_mapped(&process, &usages[0].mapping) {
            _ if Instant::now() >= until => file.shortfall = why("there was no time to read it".to_owned()),
            Ok(Some((opened, identity))) if identity.inode == numbers.inode => {
                let effort = effort_in_place(how);
                let prepared = prepare_mapped(&opened, Path::new(path), offsets.clone(), size, effort, available);
                (file.huge, file.shortfall) = (prepared.huge, prepared.shortfall);
                found.held.push(prepared.held);
                length =
                    opened.metadata().ok().map(|metadata| base_page().pages_for(metadata.len()) * base_page().bytes());
                let counted = cached_pages(&opened, offsets).ok();
                cached = counted.map(|pages| pages.cached.saturating_mul(base_page().bytes()));
            }
            // A device, for example.
            Ok(None) => continue,
            Ok(Some(_)) => file.shortfall = why("its path leads to another file by now".to_owned()),
            Err(error) => file.shortfall = why(format!("its file cannot be opened: {error}")),
        }
        let views: Vec<_> = usages.iter().map(|usage| view(usage, pagemap.as_ref())).collect();
        let agree = views.iter().filter(|view| view.out_of_step(size) == 0);
        found.reports.push(DataFileReport {
            path: path.to_owned(),
            mapped: views.iter().map(|view| view.range.len()).sum(),
            resident: usages.iter().map(|usage| usage.resident).sum(),
            huge: usages.iter().map(|usage| usage.huge()).sum(),
            cached,
            cached_huge: file.huge.iter().map(|part| part.end - part.start).sum(),
            congruent: agree.map(|view| view.range.len()).sum(),
            mappings: views.len(),
        });
        found.mapped.push(MappedFile { file, length, views });
    }
    Ok(found)
}

fn view(usage: &MappingUsage, pagemap: Option<&Pagemap>) -> FileView {
    let mapping = &usage.mapping;
    let all = || RangeSet::from_iter([mapping.range]);
    let changed = match mapping.shared {
        true => RangeSet::new(),
        // If the kernel does not report it, every page may have been written to.
        false => pagemap.and_then(|pagemap| pagemap.changed(mapping.range).ok()).unwrap_or_else(all),
    };
    let huge = pagemap.filter(|_| usage.huge() > 0).and_then(|pagemap| pagemap.huge(mapping.range).ok());
    FileView {
        range: mapping.range,
        offset: mapping.offset,
        protection: mapping.protection,
        huge: huge.unwrap_or_default(),
        changed,
        refused: refused(usage),
    }
}

/// Why the kernel maps nothing there by huge pages, or keeps its page tables.
fn refused(usage: &MappingUsage) -> Option<CacheShortfall> {
    let has = |flag: &str| usage.has_flag(flag);
    let why = match () {
        () if has("lo") => "locked in memory (mlock): the kernel keeps its page tables",
        () if has("nh") => "the program has refused huge pages there (MADV_NOHUGEPAGE)",
        () if ["um", "uw", "ui"].into_iter().any(has) => "userfaultfd watches it",
        () => return None,
    };
    Some(CacheShortfall { why: why.to_owned(), fix: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn a_locked_or_watched_mapping_is_left_alone() {
        let refused_with = |flags: &str| {
            let text = format!("200000-600000 r--s 0 fe:00 7 /data\nVmFlags: rd mr {flags}\n");
            refused(&address_space::parse_smaps(&text).unwrap()[0]).map(|shortfall| shortfall.why)
        };
        assert_eq!(refused_with("sh"), None);
        assert!(refused_with("lo").unwrap().starts_with("locked"));
        assert!(refused_with("nh").unwrap().contains("MADV_NOHUGEPAGE"));
        assert!(refused_with("uw").unwrap().contains("userfaultfd"));
    }

    #[test]
    fn the_data_files_of_this_process_are_found() {
        let (folder, size) = (tempfile::tempdir().unwrap(), PageSize::new(2 << 20).unwrap());
        let path = folder.path().join("data");
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![1; 6 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        let mapping = linux::file_mapping::FileMapping::readable(&file, 0, 6 << 20, size).unwrap();
        let look = || look(std::process::id() as i32, &mut ObjectReader::new(), size, Prepare::Never, 0).unwrap();
        let found = look();
        let is_own = |report: &&DataFileReport| Path::new(&report.path) == path;
        let own = found.reports.iter().find(is_own);
        // On tmpfs it is shared memory.
        if let Some(own) = own {
            assert_eq!((own.mapped, own.congruent, own.mappings), (6 << 20, 6 << 20, 1));
        }
        // The result holds huge folios by separate mappings.
        drop((mapping, found));
        assert!(!look().reports.iter().any(|report| Path::new(&report.path) == path));
    }
}
