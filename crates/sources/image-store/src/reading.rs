//! Reads the identity and the shape of an open file.

use crate::StoreError;
use address_space::ElfImage;
use nix::errno::Errno;
use object::ReadCache;
use process_view::{BoundedFile, FileIdentity};
use std::fs::File;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum number of bytes of a file that are read for its headers.
const MOST_HEADER_BYTES: u64 = 16 << 20;
/// Longer than one tick of the slowest clock that stamps files (10 ms if the kernel ticks 100 times a second).
pub(crate) const TICK: Duration = Duration::from_millis(25);
/// Longer than one tick on file systems with times in whole seconds (FAT: pairs of seconds).
const WHOLE_SECONDS: Duration = Duration::from_secs(3);

/// The identity of an open regular file.
pub(crate) fn identity(file: &File) -> Result<FileIdentity, StoreError> {
    let metadata = file.metadata().map_err(|error| StoreError::io("fstat of the source", error))?;
    if !metadata.is_file() {
        return Err(StoreError::NotARegularFile);
    }
    Ok(FileIdentity::of(&metadata))
}

/// Returns an identity of a file that every later change replaces, whether made by `write` or through a mapping.
///
/// File systems stamp a file when a page becomes writable in a mapping, and not again until the page has been written
/// back. So all pages are written back; if the file's times have not changed during that, no page is writable now.
pub(crate) fn identity_at_rest(file: &File) -> Result<FileIdentity, StoreError> {
    let found = settled_identity(file)?;
    match file.sync_data().map_err(|error| (error.raw_os_error().map(Errno::from_raw), error)) {
        // File systems that cannot be written have nothing to write back.
        Ok(()) | Err((Some(Errno::EINVAL | Errno::EROFS), _)) => {}
        Err((_, error)) => return Err(StoreError::io("fdatasync of the source", error)),
    }
    if identity(file)? == found { Ok(found) } else { Err(StoreError::SourceChanging) }
}

/// Returns the identity of a file that has been unchanged for so long that every later change gives it another
/// identity.
///
/// Files are stamped with a clock that advances every few milliseconds: a change within the same tick as the one before
/// leaves the times unchanged.
fn settled_identity(file: &File) -> Result<FileIdentity, StoreError> {
    let found = identity(file)?;
    if found.changed == (0, 0) {
        return Err(StoreError::NoTimeOfChange);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match rest_of(&found, now) {
        Rest::Enough => Ok(found),
        Rest::TooLittle => Err(StoreError::SourceChanging),
        Rest::OneTickMore => {
            std::thread::sleep(TICK);
            if identity(file)? == found { Ok(found) } else { Err(StoreError::SourceChanging) }
        }
    }
}

/// Time since the last change of a file, compared with the time needed.
#[derive(Debug, PartialEq, Eq)]
enum Rest {
    Enough,
    /// It will have soon.
    OneTickMore,
    TooLittle,
}

fn rest_of(found: &FileIdentity, now: Duration) -> Rest {
    let (seconds, nanoseconds) = found.changed.max(found.modified);
    let (Ok(seconds), Ok(nanoseconds)) = (seconds.try_into(), nanoseconds.try_into()) else { return Rest::Enough };
    let newest = Duration::new(seconds, nanoseconds);
    // A time far in the future was set by a program, or comes from a machine with another clock.
    if newest > now + TICK {
        return Rest::Enough;
    }
    match now.saturating_sub(newest) {
        age if found.changed.1 == 0 && age < WHOLE_SECONDS => Rest::TooLittle,
        age if age < TICK => Rest::OneTickMore,
        _ => Rest::Enough,
    }
}

/// Returns the loadable shape of an open file; only its headers are read.
///
/// # Errors
/// [`StoreError`] if it is not a regular file, or not a sound ELF file.
pub fn read_elf(file: &File) -> Result<ElfImage, StoreError> {
    let length = identity(file)?.size;
    elf_image(file, length)
}

/// The loadable shape of an open file of `length` bytes.
pub(crate) fn elf_image(file: &File, length: u64) -> Result<ElfImage, StoreError> {
    Ok(ElfImage::parse(&cache(file, length))?)
}

/// A view of the file for readers of ELF files.
pub(crate) fn cache(file: &File, length: u64) -> ReadCache<BoundedFile<'_>> {
    ReadCache::new(BoundedFile::new(file, length, MOST_HEADER_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed_at(seconds: i64, nanoseconds: i64) -> FileIdentity {
        let time = (seconds, nanoseconds);
        FileIdentity { device: 1, inode: 1, size: 1, modified: (0, 0), changed: time }
    }

    #[test]
    fn a_file_rests_for_longer_than_the_clock_that_stamped_it_stands_still() {
        let now = Duration::new(1000, 500_000_000);
        for (changed, rest) in [
            ((1000, 500_000_000), Rest::OneTickMore),
            ((1000, 480_000_000), Rest::OneTickMore),
            ((1000, 470_000_000), Rest::Enough),
            ((1000, 510_000_000), Rest::OneTickMore),
            ((1001, 0), Rest::Enough),
            ((1000, 0), Rest::TooLittle),
            ((998, 0), Rest::TooLittle),
            ((997, 0), Rest::Enough),
            ((-5, 7), Rest::Enough),
        ] {
            assert_eq!(rest_of(&changed_at(changed.0, changed.1), now), rest, "{changed:?}");
        }
    }

    #[test]
    fn an_identity_is_given_only_when_a_tick_has_passed() {
        let file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut &file, b"x").unwrap();
        let found = settled_identity(&file).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let changed = Duration::new(found.changed.0 as u64, found.changed.1 as u32);
        assert!(now - changed >= TICK, "{:?}", now - changed);
    }
}
