//! Copies from the file that a mapping shows instead of from the mapping.
//!
//! What a process has not touched of a file must first be mapped page by page when it is read through a mapping, and all
//! of that is torn down again as soon as the copy is swapped in. The file gives the same bytes without.

use crate::arch::numbers;
use crate::executor::ProcessExecutor;
use address_space::{Address, AddressRange, Mapping, MappingName, RangeSet};
use lift_execution::Executor;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Less than this is not worth a file's opening and closing. In bytes.
const LEAST: u64 = 1 << 18;

impl ProcessExecutor<'_> {
    /// Copies what is certain to be the file's own, and returns what of `from` is still to be copied from memory. No
    /// failure matters: what could not be read from a file is left to be read as before.
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

    /// The pages of a private mapping that nobody has written to.
    fn of_file(&self, range: AddressRange) -> Option<RangeSet> {
        let changed = self.pagemap()?.changed(range).ok()?;
        let mut own = RangeSet::from_iter([range]);
        changed.iter().for_each(|changed| own.remove(changed));
        Some(own)
    }

    /// Lets the process open the file behind a mapping; `None` where what it has opened is not the very same.
    fn open_file_of(&mut self, mapping: &Mapping) -> Option<u64> {
        let is_same = |path: String| {
            let metadata = fs::metadata(path).ok()?;
            let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
            (metadata.is_file() && (metadata.ino(), device) == (mapping.inode, mapping.device)).then_some(())
        };
        let pid = self.pid();
        let path = match is_same(format!("/proc/{pid}/exe")) {
            Some(()) => "/proc/self/exe",
            None => mapping.path()?,
        };
        // Looking first keeps devices from being opened, which may act; looking again afterwards closes the race.
        is_same(format!("/proc/{pid}/root/{path}")).or_else(|| is_same(format!("/proc/{pid}/exe")))?;
        let descriptor = self.open_file(path).ok()?;
        let opened = is_same(format!("/proc/{pid}/fd/{descriptor}"));
        if opened.is_none() {
            let _ = self.call("close", numbers::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
        }
        opened.map(|()| descriptor)
    }

    /// How many bytes could be read.
    fn read_file(&mut self, descriptor: u64, length: u64, to: Address, offset: u64) -> u64 {
        let mut done = 0;
        while done < length {
            let arguments = [descriptor, to.0 + done, length - done, offset + done, 0, 0];
            match self.call("pread64", numbers::SYS_pread64, arguments) {
                Ok(read) if read > 0 => done += read,
                _ => break,
            }
        }
        // What lies behind the last whole page, the end of the file, is zeros in the mapping and left to it.
        done - done % self.base_page_bytes()
    }
}

fn shows_file(mapping: &Mapping) -> bool {
    matches!(mapping.name, MappingName::File { deleted: false, .. }) && !mapping.shared && mapping.inode != 0
}
