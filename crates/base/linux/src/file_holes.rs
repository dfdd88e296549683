//! Holes of files (lseek(2)): ranges that take no place on the disk or, on tmpfs, in memory, and read as zeros.

use crate::watch::watched;
use nix::errno::Errno;
use nix::unistd::{Whence, lseek64};
use std::fs::File;
use std::io;
use std::ops::Range;

/// The offset of the first byte at `offset` or behind it that is not in a hole; `None` where there is none. File systems that
/// do not know their holes have none. Moves the file's position.
///
/// # Errors
/// The kernel's.
pub fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    seek(file, offset, Whence::SeekData)
}

/// The offset of the first hole at or after `offset`; `None` beyond the end of the file. The end counts as a hole if there
/// is no other. Moves the file's position.
///
/// # Errors
/// The kernel's.
pub fn next_hole(file: &File, offset: u64) -> io::Result<Option<u64>> {
    seek(file, offset, Whence::SeekHole)
}

/// Counts the bytes of a range that are in holes, and stops if there are more than `most`. Bytes beyond the end of the file
/// count as a hole. On a file system that does not know its holes there are none.
///
/// # Errors
/// Those of lseek(2).
pub fn holes_in(file: &File, range: Range<u64>, most: u64) -> io::Result<u64> {
    let (mut holes, mut at) = (0, range.start);
    while at < range.end && holes <= most {
        let data = next_data(file, at)?.unwrap_or(range.end).min(range.end);
        holes += data - at;
        at = match data < range.end {
            true => next_hole(file, data)?.unwrap_or(range.end).max(data + 1),
            false => data,
        };
    }
    Ok(holes)
}

fn seek(file: &File, offset: u64, whence: Whence) -> io::Result<Option<u64>> {
    let Ok(from) = i64::try_from(offset) else { return Ok(None) };
    // It waits for the lock of the file, which a program can hold for ever.
    match watched(|| "looking for holes in a file".to_owned(), || lseek64(file, from, whence)) {
        Ok(found) => Ok(u64::try_from(found).ok()),
        Err(Errno::ENXIO) => Ok(None),
        // The file system knows no holes.
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => {
            Ok(Some(if matches!(whence, Whence::SeekData) { offset } else { u64::MAX }))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_counted_up_to_a_limit() {
        let page = crate::pages::base_page().bytes();
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(100 * page).unwrap();
        for number in [0, 1, 50] {
            file.write_all_at(b"x", number * page).unwrap();
        }
        assert_eq!(holes_in(&file, 0..100 * page, u64::MAX).unwrap(), 97 * page);
        assert_eq!(holes_in(&file, 0..2 * page, u64::MAX).unwrap(), 0);
        assert_eq!(holes_in(&file, 50 * page..52 * page, u64::MAX).unwrap(), page);
        assert!(holes_in(&file, 0..100 * page, page).unwrap() > page);
        assert_eq!(holes_in(&file, 99 * page..102 * page, u64::MAX).unwrap(), 3 * page);
    }

    #[test]
    fn holes_are_between_what_was_written() {
        let page = crate::pages::base_page().bytes();
        let path = std::env::temp_dir().join(format!("pagelift-holes-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(1000 * page).unwrap();
        file.write_all_at(b"x", 500 * page).unwrap();
        let data = next_data(&file, 0).unwrap().unwrap();
        // File systems may keep more than a page at a time.
        assert!(data <= 500 * page && next_data(&file, 500 * page).unwrap() == Some(500 * page));
        assert!(next_hole(&file, 500 * page).unwrap().unwrap() > 500 * page);
        assert_eq!((next_data(&file, 1000 * page).unwrap(), next_hole(&file, u64::MAX).unwrap()), (None, None));
    }
}
