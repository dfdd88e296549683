//! The record of an image, behind its ELF header: a mark that it is one, and the path that its source had.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Offset of the record: right behind the header of a 64-bit ELF file.
pub(crate) const OFFSET: u64 = 64;
/// Number of bytes at the beginning of an image that hold any record.
pub(crate) const MOST_BYTES: usize = MAGIC.len() + 2 + LONGEST_PATH;

const MAGIC: &[u8; 8] = b"PAGELIFT";
/// PATH_MAX of linux/limits.h; a longer path is left out.
const LONGEST_PATH: usize = 4096;

/// The bytes of the record for a source of this path.
pub(crate) fn write(source: &Path) -> Vec<u8> {
    let path = source.as_os_str().as_bytes();
    let path = if path.len() <= LONGEST_PATH { path } else { &[] };
    let mut bytes = MAGIC.to_vec();
    bytes.extend((path.len() as u16).to_le_bytes());
    bytes.extend(path);
    bytes
}

/// Reads a record; `None` if there is none.
pub(crate) fn read(bytes: &[u8]) -> Option<PathBuf> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let path = rest.get(..usize::from(u16::from_le_bytes(*length)))?;
    Some(PathBuf::from(OsString::from_vec(path.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_comes_back_as_it_was() {
        for path in [&b"/usr/bin/x"[..], b"", b"/a\xff\n", &[b'a'; LONGEST_PATH]] {
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            let bytes = write(path);
            assert!(bytes.len() <= MOST_BYTES);
            assert_eq!(read(&bytes).as_deref(), Some(path));
            (0..bytes.len()).for_each(|length| assert_eq!(read(&bytes[..length]), None));
        }
        assert_eq!(read(&write(Path::new(&"a".repeat(LONGEST_PATH + 1)))), Some(PathBuf::new()));
    }
}
