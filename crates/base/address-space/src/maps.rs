//! Reads `/proc/PID/maps` (proc_pid_maps(5)).

use crate::{Address, AddressRange, PageSize, Protection};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use serde::Serialize;

/// The kernel's name for what a mapping maps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MappingName {
    /// No name: anonymous memory.
    Anonymous,
    /// `[heap]`: the brk area.
    Heap,
    /// `[stack]`.
    Stack,
    /// `[anon:NAME]`, named by `PR_SET_VMA_ANON_NAME`.
    Named(String),
    /// Anonymous memory on pages of the hugetlb pool (`/anon_hugepage`).
    HugetlbAnonymous,
    /// A file, by the path the kernel shows.
    File {
        /// The path as seen from the process's root, without the ` (deleted)` mark.
        path: String,
        /// The file has been removed or replaced since it was mapped.
        deleted: bool,
    },
    /// Any other bracketed name, `[vdso]` for example.
    Special(String),
}

impl MappingName {
    fn parse(text: &str, inode: u64) -> Self {
        match text {
            "" => Self::Anonymous,
            "[heap]" => Self::Heap,
            "[stack]" => Self::Stack,
            _ if text.starts_with("/anon_hugepage") && text.ends_with(" (deleted)") => Self::HugetlbAnonymous,
            _ => {
                if let Some(name) = text.strip_prefix("[anon:").and_then(|rest| rest.strip_suffix(']')) {
                    return Self::Named(name.to_owned());
                }
                if text.starts_with('[') && inode == 0 {
                    return Self::Special(text.to_owned());
                }
                let (path, deleted) = match text.strip_suffix(" (deleted)") {
                    Some(path) => (path, true),
                    None => (text, false),
                };
                Self::File { path: unescape(path), deleted }
            }
        }
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mapping {
    /// Addresses.
    pub range: AddressRange,
    /// Protection.
    pub protection: Protection,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Major and minor number as this file shows them. They differ from stat's on btrfs and overlayfs.
    pub device: (u32, u32),
    /// Inode number; 0 for anonymous memory.
    pub inode: u64,
    /// The mapped file or the name.
    pub name: MappingName,
}

/// The file of a mapping by its numbers, as maps shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumbers {
    /// Major and minor number of the device. They differ from stat's on btrfs and overlayfs.
    pub device: (u32, u32),
    /// Inode number; 0 for anonymous memory.
    pub inode: u64,
}

impl Mapping {
    /// The numbers of its file.
    pub fn file_numbers(&self) -> FileNumbers {
        FileNumbers { device: self.device, inode: self.inode }
    }

    /// True for private memory with no file behind it that the kernel backs with ordinary or transparent huge pages.
    pub fn is_plain_anonymous(&self) -> bool {
        !self.shared
            && matches!(self.name, MappingName::Anonymous | MappingName::Heap | MappingName::Named(_))
            && self.inode == 0
    }

    /// The path of the file mapped, if it is one.
    pub fn path(&self) -> Option<&str> {
        match &self.name {
            MappingName::File { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// Where and why a text of maps cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the process's maps cannot be read: `{text}`")]
pub struct MapsError {
    /// Line number, from 1.
    pub line: usize,
    /// The line, cut to 200 characters.
    pub text: String,
}

impl MapsError {
    pub(crate) fn new(index: usize, text: &str) -> Self {
        Self { line: index + 1, text: text.chars().take(200).collect() }
    }
}

/// Reads the text of `/proc/PID/maps`.
///
/// # Errors
/// [`MapsError`] for a line that does not have the form the manual page gives, or that is not behind the one before.
pub fn parse_maps(text: &str) -> Result<Vec<Mapping>, MapsError> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let error = || MapsError::new(index, line);
        let mapping = parse_line(line).ok_or_else(error)?;
        if mappings.last().is_some_and(|last| last.range.end() > mapping.range.start()) {
            return Err(error());
        }
        mappings.push(mapping);
    }
    Ok(mappings)
}

/// Parses one header line of maps or smaps; `None` for any other line.
pub(crate) fn parse_line(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let text = rest.trim_start_matches(' ');
        let (field, tail) = text.split_at(text.find(' ').unwrap_or(text.len()));
        rest = tail;
        (!field.is_empty()).then_some(field)
    };
    let (start, end) = field()?.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let permissions = field()?.as_bytes();
    let offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = field()?.parse().ok()?;
    let name = rest.trim_start_matches(' ');
    if start >= end || permissions.len() != 4 {
        return None;
    }
    Some(Mapping {
        range: AddressRange::new(Address(start), Address(end)),
        protection: Protection::parse(permissions)?,
        shared: match permissions[3] {
            b's' | b'S' => true,
            b'p' => false,
            _ => return None,
        },
        offset,
        device,
        inode,
        name: MappingName::parse(name, inode),
    })
}

fn hex(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|c| c.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// Unescapes a path: the kernel writes a newline as `\012` and everything else unchanged.
fn unescape(path: &str) -> String {
    path.replace("\\012", "\n")
}

impl Mapping {
    /// True if the mapping begins and ends on pages of `size`.
    pub fn is_aligned(&self, size: PageSize) -> bool {
        self.range.start().is_aligned(size) && self.range.end().is_aligned(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
55d0c0a00000-55d0c0a02000 r--p 00000000 fe:00 1234                       /usr/bin/my prog (deleted)
55d0c0a02000-55d0c0a06000 r-xp 00002000 fe:00 1234                       /usr/bin/my prog
55d0c1000000-55d0c1200000 rw-p 00000000 00:0f 77                         /anon_hugepage (deleted)
55d0c2000000-55d0c2021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 
7f0000200000-7f0000400000 r-xp 00000000 00:00 0                          [anon:pagelift text]
7f0000400000-7f0000401000 rw-s 00000000 00:01 5                          /memfd:x (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00100000-7ffc00102000 r-xp 00000000 00:00 0                          [vdso]
";

    #[test]
    fn every_kind_of_line_is_understood() {
        let maps = parse_maps(TEXT).unwrap();
        assert_eq!(maps.len(), 9);
        assert_eq!(maps[0].name, MappingName::File { path: "/usr/bin/my prog".into(), deleted: true });
        assert_eq!(maps[1].protection, Protection::READ_EXECUTE);
        assert_eq!((maps[1].offset, maps[1].device, maps[1].inode), (0x2000, (0xfe, 0), 1234));
        assert_eq!(maps[2].name, MappingName::HugetlbAnonymous);
        assert_eq!(maps[3].name, MappingName::Heap);
        assert_eq!(maps[4].name, MappingName::Anonymous);
        assert_eq!(maps[5].name, MappingName::Named("pagelift text".into()));
        assert!(maps[6].shared && !maps[5].shared);
        assert_eq!(maps[8].name, MappingName::Special("[vdso]".into()));
    }

    #[test]
    fn names_in_brackets_are_the_kernels_where_there_is_no_file() {
        let name = |inode: u64, text: &str| {
            parse_maps(&format!("1000-2000 rw-p 0 00:00 {inode} {text}")).unwrap().remove(0).name
        };
        let file = |path: &str| MappingName::File { path: path.into(), deleted: false };
        assert_eq!(name(0, "[stack]"), MappingName::Stack);
        assert_eq!(name(0, "[uprobes]"), MappingName::Special("[uprobes]".into()));
        assert_eq!(name(7, "[uprobes]"), file("[uprobes]"));
        assert_eq!(name(0, "/SYSV00000000"), file("/SYSV00000000"));
    }

    #[test]
    fn plain_anonymous_memory_is_private_and_of_no_file() {
        let maps = parse_maps(TEXT).unwrap();
        let plain: Vec<_> = maps.iter().map(Mapping::is_plain_anonymous).collect();
        assert_eq!(plain, [false, false, false, true, true, true, false, false, false]);
        let of = |shared, inode| Mapping { shared, inode, ..maps[4].clone() };
        let cases = [of(false, 0), of(true, 0), of(false, 9), of(true, 9)].map(|mapping| mapping.is_plain_anonymous());
        assert_eq!(cases, [true, false, false, false]);
        let paths: Vec<_> = maps.iter().map(Mapping::path).collect();
        let (prog, memfd) = (Some("/usr/bin/my prog"), Some("/memfd:x"));
        assert_eq!(paths, [prog, prog, None, None, None, None, memfd, None, None]);
    }

    #[test]
    fn a_mapping_is_aligned_at_both_ends() {
        let aligned = |start: u64, end: u64| {
            let mapping = parse_maps(&format!("{start:x}-{end:x} rw-p 0 00:00 0")).unwrap().remove(0);
            mapping.is_aligned(PageSize::new(0x4000).unwrap())
        };
        assert_eq!(
            [aligned(0x4000, 0xc000), aligned(0x4000, 0xb000), aligned(0x5000, 0xc000), aligned(0x5000, 0xb000)],
            [true, false, false, false]
        );
    }

    #[test]
    fn broken_lines_are_named() {
        for bad in ["zz", "1-2 r-xp 0 0:0", "2000-1000 r-xp 0 0:0 0", "+1-2 r-xp 0 0:0 0", "1-2 q-xp 0 0:0 0"] {
            assert_eq!(parse_maps(bad).unwrap_err().line, 1, "{bad}");
        }
        let overlapping = "1000-3000 r--p 0 0:0 0\n2000-4000 r--p 0 0:0 0\n";
        assert_eq!(parse_maps(overlapping).unwrap_err().line, 2);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC*") {
            let _ = parse_maps(&text);
        }

        #[test]
        fn no_damaged_maps_makes_the_reader_panic(at in 0..TEXT.len(), with in any::<char>()) {
            let damaged: String = TEXT.char_indices().map(|(i, c)| if i == at { with } else { c }).collect();
            let _ = parse_maps(&damaged);
        }
    }
}
