//! Copies from the file behind a mapping instead of from the mapping.
//!
//! Reading a mapping maps each page that the process has not touched, only for these page table entries to be removed
//! when the copy is swapped in. Reading the file gives the same bytes without that.

use crate::remote::arch::numbers;
use crate::remote::calls::shows_file;
use crate::remote::executor::ProcessExecutor;
use address_space::{Address, AddressRange, Mapping, RangeSet};
use lift_execution::Executor;
use linux::watch::watched;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Maximum number of bytes that one call reads, so that no call takes long if the file is on a slow disk.
const READ_AT_ONCE: u64 = 64 << 20;
/// Minimum length in bytes for which opening and closing a file pays off.
const LEAST: u64 = 1 << 18;

impl ProcessExecutor<'_, '_> {
    /// Copies what certainly belongs to the file, and returns the parts of `from` that are still to be copied from
    /// memory. Failures are not errors: what could not be read from a file is among these parts.
    pub(crate) fn copy_from_files(&mut self, from: AddressRange, to: Address) -> RangeSet {
        let mut rest = RangeSet::from_iter([from]);
        if from.len() < LEAST {
            return rest;
        }
        let Ok(space) = self.space() else { return rest };
        for mapping in space.overlapping(from).iter().filter(|mapping| shows_file(mapping)) {
            let part = mapping.range.intersect(from);
            let Some(own) = self.of_file(part).filter(|own| own.bytes() >= LEAST) else { continue };
            let Some(descriptor) = self.open_file_of(mapping) else { continue };
            for range in own.iter() {
                let offset = mapping.offset + (range.start() - mapping.range.start());
                let copied = self.read_file(descriptor, range.len(), to + (range.start() - from.start()), offset);
                rest.remove(AddressRange::sized(range.start(), copied));
            }
            // Linux closes a descriptor even where close reports an error (close(2)).
            let _ = self.call("close", numbers::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
        }
        rest
    }

    /// Returns the pages of a private mapping that have not been written.
    fn of_file(&self, range: AddressRange) -> Option<RangeSet> {
        let changed = self.pagemap()?.changed(range).ok()?;
        let mut own = RangeSet::from_iter([range]);
        changed.iter().for_each(|changed| own.remove(changed));
        Some(own)
    }

    /// Makes the process open the file behind a mapping; `None` where it has opened another file.
    fn open_file_of(&mut self, mapping: &Mapping) -> Option<u64> {
        let pid = self.pid();
        let is_same = |path: String| {
            // A link that the user has put at the path may lead to a file system that does not answer.
            let metadata = watched(|| format!("looking at a file of process {pid}"), || fs::metadata(path)).ok()?;
            let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
            (metadata.is_file() && (metadata.ino(), device) == (mapping.inode, mapping.device)).then_some(())
        };
        let path = match is_same(format!("/proc/{pid}/exe")) {
            Some(()) => "/proc/self/exe",
            None => mapping.path()?,
        };
        // The check before keeps the process from opening a device, which may have an effect; the check afterwards
        // closes the race.
        is_same(format!("/proc/{pid}/root/{path}")).or_else(|| is_same(format!("/proc/{pid}/exe")))?;
        let descriptor = self.open_file(path).ok()?;
        let opened = is_same(format!("/proc/{pid}/fd/{descriptor}"));
        if opened.is_none() {
            let _ = self.call("close", numbers::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
        }
        opened.map(|()| descriptor)
    }

    /// Makes the process read from a file to its memory. Returns the number of bytes.
    fn read_file(&mut self, descriptor: u64, length: u64, to: Address, offset: u64) -> u64 {
        let mut done = 0;
        while done < length {
            let arguments = [descriptor, to.0 + done, (length - done).min(READ_AT_ONCE), offset + done, 0, 0];
            match self.call("pread64", numbers::SYS_pread64, arguments) {
                Ok(read) if read > 0 => done += read,
                _ => break,
            }
        }
        // The rest of the last page, after the end of the file, is zeros in the mapping and is copied from there.
        done - done % self.base_page_bytes()
    }
}
