//! Symbols that were stripped from a file into a file next to it: separate debug files (found by build-id or
//! `.gnu_debuglink`, as gdb's manual describes under "Separate Debug Files") and `.gnu_debugdata`.

use super::files::SymbolFiles;
use super::sections::Sections;
use crate::bounded_file::BoundedFile;
use crate::opening::MappedFile;
use linux::bounded::{SYMBOL_TABLES, UNPACKED_SYMBOLS};
use object::{Endianness, ReadCache, ReadRef};
use std::os::unix::fs::FileExt;

/// Where distributions put debug files.
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";
/// A debug file without a build-id is read whole for its checksum, but not if it is larger than this.
const MOST_CHECKED_BYTES: u64 = 1 << 30;

/// The debug file that belongs to the object at `path` of the process, with the path it was found at, as the process sees it.
pub(crate) fn debug_file<'data, R: ReadRef<'data>>(
    files: &SymbolFiles,
    path: &str,
    sections: &Sections<'data, R>,
    build_id: Option<&str>,
) -> Option<(String, MappedFile)> {
    let link = debug_link(sections);
    let by_build_id = build_id.and_then(|id| {
        let (directory, rest) = id.split_at_checked(2)?;
        Some(format!("{DEBUG_DIRECTORY}/.build-id/{directory}/{rest}.debug"))
    });
    let mut candidates: Vec<String> = by_build_id.iter().cloned().collect();
    if let Some((name, _)) = &link {
        let path = files.path_within(path);
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        candidates.push(format!("{directory}/{name}"));
        candidates.push(format!("{directory}/.debug/{name}"));
        candidates.push(format!("{DEBUG_DIRECTORY}{directory}/{name}"));
    }
    let fits = |file: &MappedFile| belongs(file, build_id, link.as_ref().map(|(_, checksum)| *checksum));
    let found = |path: &String| Some((path.clone(), files.open(path).filter(|file| fits(file))?));
    // A container seldom contains debug files; those of the host may fit.
    let of_host = || Some((by_build_id.clone()?, files.open_of_host(by_build_id.as_ref()?).filter(|file| fits(file))?));
    candidates.iter().find_map(found).or_else(of_host)
}

/// File name and checksum from `.gnu_debuglink`.
pub(crate) fn debug_link<'data, R: ReadRef<'data>>(sections: &Sections<'data, R>) -> Option<(String, u32)> {
    let bytes = sections.bytes(sections.named(".gnu_debuglink")?)?;
    let end = bytes.iter().position(|&b| b == 0)?;
    let name = std::str::from_utf8(&bytes[..end]).ok().filter(|name| !name.is_empty() && !name.contains('/'))?;
    let checksum = bytes.get((end + 1).next_multiple_of(4)..)?.get(..4)?.try_into().ok()?;
    let checksum = match sections.endian {
        Endianness::Little => u32::from_le_bytes(checksum),
        Endianness::Big => u32::from_be_bytes(checksum),
    };
    Some((name.to_owned(), checksum))
}

/// The build-id decides; the checksum does only if the object has none.
fn belongs(file: &MappedFile, build_id: Option<&str>, checksum: Option<u32>) -> bool {
    match (build_id, checksum) {
        (Some(wanted), _) => {
            let bytes = ReadCache::new(BoundedFile::new(&file.file, file.metadata.len(), SYMBOL_TABLES.bytes()));
            Sections::parse(&bytes, SYMBOL_TABLES).and_then(|sections| sections.build_id()).as_deref() == Some(wanted)
        }
        (None, Some(wanted)) => checksum_of(file) == Some(wanted),
        (None, None) => false,
    }
}

/// CRC-32 as `.gnu_debuglink` wants it (the polynomial of IEEE 802.3, reflected).
fn checksum_of(file: &MappedFile) -> Option<u32> {
    if file.metadata.len() > MOST_CHECKED_BYTES {
        return None;
    }
    let mut table = [0u32; 256];
    for (index, entry) in table.iter_mut().enumerate() {
        *entry = (0..8).fold(index as u32, |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 });
    }
    let mut checksum = u32::MAX;
    let mut buffer = vec![0; 1 << 16];
    let mut position = 0;
    loop {
        let count = file.file.read_at(&mut buffer, position).ok()?;
        if count == 0 {
            return Some(!checksum);
        }
        position += count as u64;
        for &byte in &buffer[..count] {
            checksum = table[usize::from(checksum as u8 ^ byte)] ^ (checksum >> 8);
        }
    }
}

/// `.gnu_debugdata`, an xz-compressed ELF file with just a symbol table, unpacked; `None` where it is damaged or too large.
pub(crate) fn mini_debug_data<'data, R: ReadRef<'data>>(sections: &Sections<'data, R>) -> Option<Vec<u8>> {
    let packed = sections.bytes(sections.named(".gnu_debugdata")?)?;
    UNPACKED_SYMBOLS.read_rest(lzma_rust2::XzReader::new(packed, true)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opening::open_regular;

    #[test]
    fn the_checksum_is_the_usual_one() {
        let path = std::env::temp_dir().join(format!("observation-checksum-{}", std::process::id()));
        std::fs::write(&path, "123456789").unwrap();
        assert_eq!(checksum_of(&open_regular(&path).unwrap().unwrap()), Some(0xcbf4_3926));
        std::fs::remove_file(&path).unwrap();
    }
}
