//! Copies a range to its staging copy while the program runs.

use super::LiveExecutor;
use crate::remote::calls::failed;
use crate::remote::originals::{Original, PROBED, expect_no_probe};
use address_space::{Address, AddressRange, Mapping, MappingName, RangeSet};
use lift_execution::CallError;

/// Maximum number of bytes that are copied at a time.
const COPIED_AT_ONCE: usize = 1 << 20;

impl LiveExecutor {
    /// Copies from the files behind the range, and from memory what was written since or has no file. The swap compares the
    /// latter with the range once more.
    pub(super) fn copy_range(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let mut rest = RangeSet::from_iter([from]);
        let mut originals = Vec::new();
        for mapping in self.planned.overlapping(from) {
            let part = mapping.range.intersect(from);
            match Original::of(self.process.pid().as_raw(), mapping) {
                Some(original) => {
                    self.copy_unwritten(&original, part, to + (part.start() - from.start()), &mut rest)?;
                    originals.push((part, original));
                }
                None => self.expect_unwritten_code(mapping, part)?,
            }
        }
        let parts: Vec<AddressRange> = rest.iter().collect();
        self.from_memory.remove(from);
        for part in parts {
            self.from_memory.insert(part);
            self.copy_memory(part, to + (part.start() - from.start()))?;
        }
        for (part, original) in &originals {
            let code: Vec<AddressRange> = self.code.within(*part).flat_map(|code| rest.within(code)).collect();
            for code in code {
                expect_no_probe(original, &self.memory, code, to + (code.start() - from.start()))?;
            }
        }
        Ok(())
    }

    /// Copies the pages of `part` that nobody has written, and removes them from `rest`.
    fn copy_unwritten(
        &self,
        original: &Original,
        part: AddressRange,
        to: Address,
        rest: &mut RangeSet,
    ) -> Result<(), CallError> {
        let Ok(changed) = self.pagemap.changed(part) else { return Ok(()) };
        let mut unwritten = RangeSet::from_iter([part]);
        changed.iter().for_each(|page| unwritten.remove(page));
        let mut buffer = vec![0; COPIED_AT_ONCE.min(part.len() as usize)];
        for range in unwritten.iter() {
            for chunk in chunks(range) {
                let bytes = &mut buffer[..chunk.len() as usize];
                if original.read(chunk.start(), bytes).is_none() {
                    continue;
                }
                let at = to + (chunk.start() - part.start());
                self.memory.write(at, bytes).map_err(|error| failed("writing memory", &error))?;
                rest.remove(chunk);
            }
        }
        Ok(())
    }

    /// Without the file, written code cannot be distinguished from a breakpoint.
    fn expect_unwritten_code(&self, mapping: &Mapping, part: AddressRange) -> Result<(), CallError> {
        let code: Vec<AddressRange> = self.code.within(part).collect();
        if !matches!(mapping.name, MappingName::File { .. }) || code.is_empty() {
            return Ok(());
        }
        let changed = self.pagemap.changed(part).map_err(|error| failed("reading the pagemap", &error))?;
        if code.iter().any(|code| changed.within(*code).next().is_some()) { Err(PROBED) } else { Ok(()) }
    }

    fn copy_memory(&self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let mut buffer = vec![0; COPIED_AT_ONCE.min(from.len() as usize)];
        for chunk in chunks(from) {
            let bytes = &mut buffer[..chunk.len() as usize];
            self.memory.read(chunk.start(), bytes).map_err(|error| failed("reading memory", &error))?;
            let at = to + (chunk.start() - from.start());
            self.memory.write(at, bytes).map_err(|error| failed("writing memory", &error))?;
        }
        Ok(())
    }
}

fn chunks(range: AddressRange) -> impl Iterator<Item = AddressRange> {
    let chunk = move |at: u64| {
        let length = (range.len() - at).min(COPIED_AT_ONCE as u64);
        AddressRange::sized(range.start() + at, length)
    };
    (0..range.len()).step_by(COPIED_AT_ONCE).map(chunk)
}
