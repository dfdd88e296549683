//! Facts about a file system before any attempt.

use crate::Refusal;
use linux::file_flags;
use linux::release::kernel_release;
use linux::text::text_of;
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{FsType, Statfs, fstatfs};
use process_view::open_regular_file;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file system's support of large folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ability {
    /// Since this release of the kernel.
    Since(u32, u32),
    /// Not up to this release, later ones were not measured.
    NotUpTo(u32, u32),
    /// Its pages are the only copy: they are collapsed, never evicted.
    CollapseOnly,
}

/// Magic number (`linux/magic.h`), name and ability. Measured on 6.1, 6.12, 6.18 and 7.2, btrfs on 7.3, too; releases from the kernel's
/// history (`mapping_set_large_folios`).
const KNOWN: [(u32, &str, Ability); 8] = [
    (0xef53, "ext4", Ability::Since(6, 16)),
    (0x5846_5342, "xfs", Ability::Since(5, 18)),
    (0xe0f5_e1e2, "erofs", Ability::Since(6, 2)),
    (0x9123_683e, "btrfs", Ability::NotUpTo(7, 3)),
    (0x7371_7368, "squashfs", Ability::NotUpTo(7, 2)),
    (0x0102_1994, "tmpfs", Ability::CollapseOnly),
    (0x794c_7630, "overlayfs", Ability::Since(0, 0)),
    (0x9584_58f6, "hugetlbfs", Ability::CollapseOnly),
];

/// The last release whose disk file systems were seen to refuse to collapse mapped files; 7.2 collapses them.
const COLLAPSES_NONE: (u32, u32) = (6, 18);

/// Bytes of an ext4 superblock from its start to the end of the feature words (`fs/ext4/ext4.h`).
const SUPERBLOCK: u64 = 1024;
const FEATURE_INCOMPAT: u64 = SUPERBLOCK + 0x60;
const INCOMPAT_ENCRYPT: u32 = 0x1_0000;
const RO_COMPAT_VERITY: u32 = 0x8000;

/// The file system of a file.
#[derive(Debug)]
pub(crate) struct FileSystem {
    /// Its name; the magic number if the name is unknown.
    pub name: String,
    ability: Option<Ability>,
    known_name: &'static str,
}

impl FileSystem {
    /// The one of an open file.
    pub fn of(file: &File) -> std::io::Result<Self> {
        Ok(Self::of_type(fstatfs(file)?.filesystem_type()))
    }

    fn of_type(found: FsType) -> Self {
        let magic = found.0 as u32;
        match KNOWN.iter().find(|(known, _, _)| *known == magic) {
            Some((_, name, ability)) => Self { name: (*name).to_owned(), ability: Some(*ability), known_name: name },
            None => Self { name: format!("type {magic:#x}"), ability: None, known_name: "" },
        }
    }

    /// True if its pages may be evicted and read again.
    pub fn can_be_evicted(&self) -> bool {
        self.ability != Some(Ability::CollapseOnly)
    }

    /// Why evicting and reading again would be in vain, if that is known.
    pub fn refuse(&self, file: &File) -> Option<Refusal> {
        let of_ext4 = || ext4_refusal(file).filter(|_| self.name == "ext4");
        self.refuse_on(kernel_release()).or_else(of_ext4)
    }

    /// Why it has no large folios on a release of the kernel, if that is known.
    fn refuse_on(&self, release: (u32, u32)) -> Option<Refusal> {
        match self.ability {
            Some(Ability::Since(major, minor)) if release < (major, minor) => {
                Some(Refusal::KernelTooOld { name: self.known_name, found: release, needed: (major, minor) })
            }
            Some(Ability::NotUpTo(major, minor)) if release <= (major, minor) => {
                Some(Refusal::FileSystem { name: self.name.clone(), release })
            }
            _ => None,
        }
    }
}

/// True if files on the file system of a path may be collapsed in place, or if this is unknown.
pub fn may_collapse_in_place(path: &Path) -> bool {
    let ability = |found: Statfs| FileSystem::of_type(found.filesystem_type()).ability;
    // The path may lead to a file system that does not answer, which is not asked.
    let found = || fstatfs(open_regular_file(path).ok()??).ok();
    kernel_release() > COLLAPSES_NONE || found().is_none_or(|found| ability(found) == Some(Ability::CollapseOnly))
}

/// Returns why the file system of this file keeps it out of large folios; `None` if only an attempt can show whether it
/// does.
pub fn unfit(file: &File) -> Option<Refusal> {
    FileSystem::of(file).ok()?.refuse(file)
}

/// The conditions of `ext4_should_enable_large_folio` (`fs/ext4/inode.c`, Linux 6.16).
fn ext4_refusal(file: &File) -> Option<Refusal> {
    let attributes = file_flags::shown(file).unwrap_or(0);
    if attributes & file_flags::ENCRYPTED != 0 {
        return Some(Refusal::Encrypted("an encrypted file"));
    }
    if attributes & file_flags::VERITY != 0 {
        return Some(Refusal::Verity("a file protected by fs-verity"));
    }
    if file_flags::flags(file).is_ok_and(|flags| flags & file_flags::JOURNAL_DATA != 0) {
        return Some(Refusal::DataJournal("the attribute j (data journalling)"));
    }
    let device = file.metadata().ok()?.dev();
    let mounts = text_of("/proc/self/mountinfo").unwrap_or_default();
    let mount = mount_of(&mounts, device);
    if mount.as_ref().is_some_and(|mount| mount.options.split(',').any(|option| option == "data=journal")) {
        return Some(Refusal::DataJournal("a file system mounted data=journal"));
    }
    let (incompatible, read_only_compatible) = features(device, mount.map(|mount| mount.source))?;
    if incompatible & INCOMPAT_ENCRYPT != 0 {
        return Some(Refusal::Encrypted("an ext4 file system with the feature encrypt"));
    }
    (read_only_compatible & RO_COMPAT_VERITY != 0)
        .then_some(Refusal::Verity("an ext4 file system with the feature verity"))
}

/// The entry of one mounted file system in mountinfo.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    source: PathBuf,
    options: String,
}

/// Fields as in proc_pid_mountinfo(5): the device is the third; type, source and the file system's own options follow the
/// lone hyphen.
fn mount_of(mountinfo: &str, device: u64) -> Option<Mount> {
    let device = format!("{}:{}", major(device), minor(device));
    let line = mountinfo.lines().rev().find(|line| line.split(' ').nth(2) == Some(&device))?;
    let mut fields = line.split_once(" - ")?.1.split(' ').skip(1);
    Some(Mount { source: PathBuf::from(fields.next()?), options: fields.next()?.to_owned() })
}

/// The words `s_feature_incompat` and `s_feature_ro_compat` of a mounted ext4 file system. Only root can read them.
fn features(device: u64, source: Option<PathBuf>) -> Option<(u32, u32)> {
    let by_number = PathBuf::from(format!("/dev/block/{}:{}", major(device), minor(device)));
    let disk = [Some(by_number), source].into_iter().flatten().find_map(|path| open_disk(&path, device))?;
    let mut words = [0; 8];
    disk.read_exact_at(&mut words, FEATURE_INCOMPAT).ok()?;
    let word = |at: usize| Some(u32::from_le_bytes(words.get(at..at + 4)?.try_into().ok()?));
    Some((word(0)?, word(4)?))
}

/// Opens a block device of this number, and nothing else.
fn open_disk(path: &Path, device: u64) -> Option<File> {
    let is_it = |found: &fs::Metadata| found.file_type().is_block_device() && found.rdev() == device;
    fs::metadata(path).ok().filter(is_it)?;
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok().filter(is_it)?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
25 30 0:23 / /proc rw,relatime shared:12 - proc proc rw
30 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard,data=journal
31 30 7:1 /a /a\\040b rw,relatime - ext4 /dev/loop1 rw
";

    #[test]
    fn mounts_are_found_by_device() {
        let mount = mount_of(MOUNTS, nix::sys::stat::makedev(254, 0)).unwrap();
        assert_eq!((mount.source, mount.options.as_str()), ("/dev/vda".into(), "rw,discard,data=journal"));
        assert_eq!(mount_of(MOUNTS, nix::sys::stat::makedev(7, 1)).unwrap().options, "rw");
        assert!(mount_of(MOUNTS, nix::sys::stat::makedev(7, 2)).is_none() && mount_of("x\n1 2 7:2 - \n", 0).is_none());
    }

    #[test]
    fn file_systems_are_named() {
        assert_eq!(FileSystem::of_type(FsType(0xef53)).name, "ext4");
        assert_eq!(FileSystem::of_type(FsType(0x6969)).name, "type 0x6969");
        assert!(!FileSystem::of_type(FsType(0x0102_1994)).can_be_evicted());
        let file = File::open("/proc/self/status").unwrap();
        assert_eq!(FileSystem::of_type(FsType(0x9123_683e)).refuse(&file).is_some(), kernel_release() <= (7, 3));
    }

    /// Lines of a document, and the cells of table rows.
    fn document(path: &str) -> Vec<(String, Vec<String>)> {
        let text = fs::read_to_string(format!("{}/../../../docs/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
        text.lines().map(|line| (line.to_owned(), cells(line))).collect()
    }

    /// The first cell of the row that has a text.
    fn case_of(document: &[(String, Vec<String>)], text: &str) -> String {
        document.iter().find(|(line, _)| line.starts_with('|') && line.contains(text)).expect(text).1[0].clone()
    }

    /// The release that a text names after these words.
    fn release_in(text: &str, before: &str) -> (u32, u32) {
        let numbers = text.split_once(before).expect(before).1;
        let mut numbers = numbers.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// The item of LIMITS.md on file systems, as one line.
    fn limits_of_file_systems() -> String {
        let lines = document("LIMITS.md").into_iter().map(|(line, _)| line);
        let mut item = lines.skip_while(|line| !line.starts_with("- **File systems.**"));
        let first = item.next().expect("LIMITS.md has no item on file systems");
        item.take_while(|line| line.starts_with("  ")).fold(first, |text, line| text + " " + line.trim())
    }

    /// The guide and the limits name the file systems that are known here.
    #[test]
    fn the_documents_name_what_is_known() {
        let advice = case_of(&document("guides/files.md"), "these have no large folios");
        let limits = limits_of_file_systems();
        for (_, name, ability) in KNOWN {
            let (advised, limited) = match ability {
                Ability::Since(0, 0) | Ability::CollapseOnly => continue,
                Ability::Since(major, minor) => {
                    (format!("{name} before {major}.{minor}"), format!("{name} {major}.{minor}"))
                }
                Ability::NotUpTo(major, minor) => (name.to_owned(), format!("{name} up to {major}.{minor}")),
            };
            assert!(advice.contains(&advised), "`{advised}` is missing in: {advice}");
            assert!(limits.contains(&limited), "`{limited}` is missing in: {limits}");
        }
        for option in ["data=journal", "encrypt", "verity"] {
            assert!(advice.contains(option) && limits.contains(option), "{option} is missing");
        }
    }

    /// The observations in virtual machines agree with the guide's advice and with this table.
    #[test]
    fn what_was_seen_on_other_kernels_is_what_is_known() {
        let document = document("guides/files.md");
        let before = release_in(&case_of(&document, "cache prepare --replace FILE"), "Linux before ");
        assert_eq!(release_in(&case_of(&document, "attach --pages file PID"), "from Linux "), before);
        let mut rows = document.iter().skip_while(|(line, _)| !line.starts_with("| kernel |"));
        let heads = &rows.next().expect("the table of kernels").1;
        let column = |name: &str| heads.iter().position(|head| head == name).expect(name);
        let (run, attach) = (column("run"), column("attach, small"));
        let mut seen = 0;
        for (line, cells) in rows.skip(1).take_while(|(line, _)| line.starts_with('|')) {
            let release = release_in(&cells[0], "");
            let (_, name, ability) = KNOWN.into_iter().find(|(_, name, _)| name.starts_with(&cells[1])).expect(line);
            let known = FileSystem { name: name.to_owned(), ability: Some(ability), known_name: name };
            assert_eq!(known.refuse_on(release).is_some(), cells[run].starts_with("refused"), "{line}");
            if let Some(answer) = cells.get(attach).filter(|answer| !answer.is_empty()) {
                assert_eq!(
                    (answer == "file", answer == "file"),
                    (release > COLLAPSES_NONE, release >= before),
                    "{line}"
                );
                seen += 1;
            }
        }
        assert!(seen > 0, "nothing was attached to");
    }

    #[test]
    fn only_disks_of_the_number_are_opened() {
        assert!(open_disk(std::path::Path::new("/dev/null"), 0x103).is_none());
        assert!(open_disk(std::path::Path::new("/etc/passwd"), 0).is_none());
    }
}
