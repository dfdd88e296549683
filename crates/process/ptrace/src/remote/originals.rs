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
use linux::unasked::{self, Unasked};
use linux::watch::watched;
use nix::errno::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

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
        let (root, path) = (format!("/proc/{pid}/root"), mapping.path()?);
        let by_link = |link: &String| open(unasked::place(Path::new(link)).ok()?, mapping, leads_to(link, mapping));
        let by_path = || open(place_below(Path::new(&root), path)?, mapping, false);
        let opened = || links.iter().find_map(by_link).or_else(by_path);
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

/// Opens the file at a place if it is the mapping's. With `same_path` its device is not compared. The place leads to the
/// checked file even if the program moves another file to the path meanwhile: opening a device may have an effect.
fn open(place: OwnedFd, mapping: &Mapping, same_path: bool) -> Option<File> {
    open_if(place, |found| is_file_of(found, mapping, same_path))
}

fn open_if(place: OwnedFd, is_it: impl FnOnce(&Unasked) -> bool) -> Option<File> {
    unasked::of(&place).ok().filter(is_it)?;
    unasked::reopen(place).ok()
}

/// The place that a path of a program leads to below its root, if the kernel knows the way (Linux 5.12). The program
/// chooses links and mounts on the way, so no file system is asked.
fn place_below(root: &Path, path: &str) -> Option<OwnedFd> {
    unasked::known_place_in_root(unasked::place(root).ok()?, Path::new(path)).ok()
}

/// True for a link of `/proc` that shows the mapping's path: btrfs and overlayfs have other devices in maps than in
/// stat(2).
fn leads_to(link: &str, mapping: &Mapping) -> bool {
    std::fs::read_link(link).is_ok_and(|target| target.to_str() == mapping.path())
}

fn is_file_of(found: &Unasked, mapping: &Mapping, same_path: bool) -> bool {
    let is_regular = found.mode & libc::S_IFMT == libc::S_IFREG;
    is_regular && found.inode == mapping.inode && (same_path || found.device == mapping.device)
}

/// True for a mapping of the file that a process executes.
pub fn shows_executable(pid: i32, mapping: &Mapping) -> bool {
    let link = format!("/proc/{pid}/exe");
    let found = || unasked::place(Path::new(&link)).and_then(unasked::of);
    let look = || found().is_ok_and(|found| is_file_of(&found, mapping, leads_to(&link, mapping)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::path::PathBuf;

    /// A folder that is removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("pagelift-originals-{name}-{}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        fn found(&self, name: &str) -> Unasked {
            unasked::of(unasked::place(&self.0.join(name)).unwrap()).unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mapping_of(found: &Unasked) -> Mapping {
        let (major, minor) = found.device;
        let line = format!("1000-2000 r-xp 00000000 {major:02x}:{minor:02x} {} /file\n", found.inode);
        address_space::AddressSpace::parse(&line).unwrap().mappings()[0].clone()
    }

    #[test]
    fn a_file_that_is_exchanged_after_the_check_is_not_opened() {
        let folder = Folder::new("exchanged");
        let path = |name: &str| folder.0.join(name);
        fs::write(path("file"), "checked").unwrap();
        fs::write(path("other"), "other").unwrap();
        let mapping = mapping_of(&folder.found("file"));
        let exchange = |found: &Unasked| {
            fs::rename(path("other"), path("file")).unwrap();
            is_file_of(found, &mapping, false)
        };
        let mut text = String::new();
        open_if(unasked::place(&path("file")).unwrap(), exchange).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "checked");
    }

    #[test]
    fn no_path_leads_to_a_pipe_or_out_of_the_root() {
        let folder = Folder::new("root");
        let path = |name: &str| folder.0.join(name);
        fs::create_dir(path("root")).unwrap();
        fs::write(path("outside"), "outside").unwrap();
        fs::write(path("root/inside"), "inside").unwrap();
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        nix::unistd::mkfifo(&path("root/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let link = |target: PathBuf, name: &str| std::os::unix::fs::symlink(target, path(name)).unwrap();
        link(path("outside"), "root/to-outside");
        link(path("pipe"), "root/to-pipe");
        let at =
            |name: &str, file: &str| open(place_below(&path("root"), name)?, &mapping_of(&folder.found(file)), false);
        assert!(at("/to-outside", "outside").is_none() && at("/../outside", "outside").is_none());
        assert!(at("/to-pipe", "pipe").is_none() && at("/pipe", "root/pipe").is_none());
        // Before Linux 5.12, and in containers that refuse openat2(2), nothing is opened by its path.
        let root = unasked::place(&path("root")).unwrap();
        if unasked::known_place_in_root(root, Path::new("/inside")).is_ok() {
            assert!(at("/inside", "root/inside").is_some());
        }
    }
}
