//! The files behind a program's mappings, read by this process.
//!
//! A copy of code is made while the program runs, or while others may change it. A page of a private mapping that nobody has
//! written is copied from its file: the copy is then right whatever the mapping shows at that moment, also if the program
//! unmaps it, maps something else at its place, and maps the file again. A page that was written is copied from memory, and
//! must not hold a breakpoint or uprobe: who inserted it finds it by file and offset, not in the copy.

use crate::remote::RemoteMemory;
use crate::remote::calls::{failed, shows_file};
use address_space::{Address, AddressRange, LoadedObject, Mapping, RangeSet};
use lift_execution::CallError;
use lift_plan::holds_probe;
use linux::watch::watched;
use nix::errno::Errno;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Maximum number of bytes that are compared at a time.
const COMPARED_AT_ONCE: u64 = 256 << 10;

/// A breakpoint or uprobe was inserted while the copy was made, or may have been.
pub const PROBED: CallError = CallError {
    call: "copying code, in which a breakpoint or uprobe was inserted meanwhile,",
    errno: Errno::EBUSY as i32,
};

/// The file that a private mapping shows.
pub struct Original {
    file: File,
    length: u64,
    mapping: Mapping,
}

impl Original {
    /// Opens the file behind a mapping; `None` if this user cannot, or if another file is at its path.
    pub fn of(pid: i32, mapping: &Mapping) -> Option<Self> {
        if !shows_file(mapping) {
            return None;
        }
        let (start, end) = (mapping.range.start().0, mapping.range.end().0);
        // The first two are links to the file itself (proc(5)); the first needs CAP_CHECKPOINT_RESTORE.
        let links = [format!("/proc/{pid}/map_files/{start:x}-{end:x}"), format!("/proc/{pid}/exe")];
        let path = format!("/proc/{pid}/root{}", mapping.path()?);
        // btrfs and overlayfs have other devices in maps than in stat(2).
        let by_link = |link: &String| {
            let same_path = std::fs::read_link(link).is_ok_and(|target| target.to_str() == mapping.path());
            open(link, mapping, same_path)
        };
        let opened = || links.iter().find_map(by_link).or_else(|| open(&path, mapping, false));
        let file = watched(|| format!("opening a file of process {pid}"), opened)?;
        let length = file.metadata().ok()?.len();
        Some(Self { file, length, mapping: mapping.clone() })
    }

    /// Reads what the file has at an address of its mapping. `None` if it ends before the last page, or cannot be read.
    pub fn read(&self, at: Address, into: &mut [u8]) -> Option<()> {
        let offset = self.mapping.offset.checked_add(at - self.mapping.range.start())?;
        let there = usize::try_from(self.length.checked_sub(offset)?).unwrap_or(usize::MAX).min(into.len());
        let (of_file, after) = into.split_at_mut(there);
        watched(|| "reading a mapped file".to_owned(), || self.file.read_exact_at(of_file, offset)).ok()?;
        // The rest of the file's last page is zeros. Pages after it cannot be read.
        let page = usize::try_from(linux::pages::base_page().bytes()).ok()?;
        (after.len() < page).then(|| after.fill(0))
    }
}

/// Opens the file of a mapping at a path. With `same_path` its device is not compared.
fn open(path: &str, mapping: &Mapping, same_path: bool) -> Option<File> {
    let is_it = |found: &Metadata| is_file_of(found, mapping, same_path);
    // Opening a device may have an effect.
    std::fs::metadata(path).ok().filter(is_it)?;
    let file = File::open(path).ok()?;
    file.metadata().ok().filter(is_it)?;
    Some(file)
}

fn is_file_of(found: &Metadata, mapping: &Mapping, same_path: bool) -> bool {
    let device = (libc::major(found.dev()), libc::minor(found.dev()));
    found.is_file() && found.ino() == mapping.inode && (same_path || device == mapping.device)
}

/// True for a mapping of the file that a process executes.
pub fn shows_executable(pid: i32, mapping: &Mapping) -> bool {
    let link = format!("/proc/{pid}/exe");
    let look = || {
        let same_path = std::fs::read_link(&link).is_ok_and(|target| target.to_str() == mapping.path());
        std::fs::metadata(&link).is_ok_and(|found| is_file_of(&found, mapping, same_path))
    };
    watched(|| format!("looking at the executable of process {pid}"), look)
}

/// Returns the code of objects as their files have it, without the padding that the last page of a segment shows.
pub fn code_of(objects: &[LoadedObject]) -> RangeSet {
    // The dynamic linker itself has written code with text relocations.
    let objects = objects.iter().filter(|object| !object.image.text_relocations);
    let segments = objects.flat_map(|object| object.image.segments.iter().map(move |segment| (object, segment)));
    let code = segments.filter(|(_, segment)| segment.protection.execute && !segment.protection.write);
    code.map(|(object, segment)| segment.file_memory().shifted(object.bias)).collect()
}

/// Refuses the copy at `copy` of the code at `part`, copied from memory, if it holds a probe that the file does not have.
///
/// # Errors
/// The copy holds a probe, or the copy or the file cannot be read.
pub fn expect_no_probe(
    original: &Original,
    memory: &RemoteMemory,
    part: AddressRange,
    copy: Address,
) -> Result<(), CallError> {
    let mut done = 0;
    while done < part.len() {
        let length = (part.len() - done).min(COMPARED_AT_ONCE) as usize;
        let (mut in_file, mut in_copy) = (vec![0; length], vec![0; length]);
        memory.read(copy + done, &mut in_copy).map_err(|error| failed("reading memory", &error))?;
        original.read(part.start() + done, &mut in_file).ok_or(PROBED)?;
        if holds_probe(&in_file, &in_copy) {
            return Err(PROBED);
        }
        done += length as u64;
    }
    Ok(())
}
