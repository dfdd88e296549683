//! Holes of files: ranges that take no place on the disk or, on tmpfs, in memory.

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::io;
use std::ops::Range;

/// Counts the bytes of a range that lie in holes, and stops where there are more than `most`. What lies beyond the end of
/// the file counts as a hole. On a file system that does not know its holes there are none.
///
/// # Errors
/// Those of lseek(2).
pub fn holes_in(file: &File, range: Range<u64>, most: u64) -> io::Result<u64> {
    let (mut holes, mut at) = (0, range.start);
    while at < range.end && holes <= most {
        let data = seek(file, at, Whence::SeekData)?.unwrap_or(range.end).min(range.end);
        holes += data - at;
        at = match data < range.end {
            true => seek(file, data, Whence::SeekHole)?.unwrap_or(range.end).max(data + 1),
            false => data,
        };
    }
    Ok(holes)
}

/// The place found; `None` beyond the end of the file or of its data.
fn seek(file: &File, at: u64, whence: Whence) -> io::Result<Option<u64>> {
    let from = i64::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    match lseek(file, from, whence) {
        Ok(found) => Ok(Some(found as u64)),
        Err(Errno::ENXIO) => Ok(None),
        // The file system knows no holes.
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => {
            Ok(Some(if matches!(whence, Whence::SeekData) { at } else { u64::MAX }))
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
}
