//! Finds the breakpoints and uprobes that stand in a program's code.
//!
//! Each is an instruction that was written over the program's own, and whoever wrote it knows it by its file and offset.
//! A copy of the page would carry the instruction to memory of which they know nothing, and it would end the program.

use super::images;
use address_space::{AddressRange, LoadSegment, LoadedObject, PageSize, RangeSet};
use kernel_calls::pagemap::Pagemap;
use lift_plan::{Plan, ProcessFacts};
use observation::ProcessFiles;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The pages of code which the plan would copy and in which a breakpoint or a uprobe stands.
pub fn find(pid: i32, process: &ProcessFacts, plan: &Plan, base_page: PageSize) -> RangeSet {
    let mut probed = RangeSet::new();
    let Ok(pagemap) = Pagemap::open(pid, base_page) else { return probed };
    // The dynamic linker has changed all of a code with relocations.
    for object in process.objects.iter().filter(|object| !object.image.text_relocations) {
        for segment in object.image.segments.iter().filter(|s| s.protection.execute && !s.protection.write) {
            let code = segment.file_memory().shifted(object.bias);
            if !plan.lifts.iter().any(|lift| lift.range.overlaps(code)) {
                continue;
            }
            for page in changed_pages(process, object, code, &pagemap, base_page) {
                if is_probed(pid, process, object, segment, page.intersect(code)) {
                    probed.insert(page);
                }
            }
        }
    }
    probed
}

fn changed_pages(
    process: &ProcessFacts,
    object: &LoadedObject,
    code: AddressRange,
    pagemap: &Pagemap,
    base_page: PageSize,
) -> Vec<AddressRange> {
    let of_file = process.space.overlapping(code).iter().filter(|m| m.path() == Some(object.path.as_str()));
    let ranges = of_file.map(|mapping| mapping.range.intersect(code.widened(base_page)));
    let changed = ranges.filter_map(|range| pagemap.changed(range).ok());
    changed.flat_map(|changed| changed.iter().flat_map(|range| range.pages(base_page)).collect::<Vec<_>>()).collect()
}

/// What cannot be compared with its file counts as probed: it was changed by somebody.
fn is_probed(
    pid: i32,
    process: &ProcessFacts,
    object: &LoadedObject,
    segment: &LoadSegment,
    part: AddressRange,
) -> bool {
    let Some((file, _)) = images::open(pid, &process.space, object) else { return true };
    let Ok(memory) = File::open(ProcessFiles::of(pid).path("mem")) else { return true };
    let (mut original, mut now) = (vec![0; part.len() as usize], vec![0; part.len() as usize]);
    let offset = segment.offset + (part.start().0 - object.bias - segment.memory.start().0);
    let read = file.read_exact_at(&mut original, offset).and_then(|()| memory.read_exact_at(&mut now, part.start().0));
    read.is_err() || holds_probe(&original, &now)
}

/// True where an instruction that breakpoints and uprobes are made of stands in code that was other in its file.
pub fn holds_probe(original: &[u8], now: &[u8]) -> bool {
    if cfg!(target_arch = "aarch64") {
        let pairs = original.chunks_exact(4).zip(now.chunks_exact(4));
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |word, &byte| word << 8 | u32::from(byte));
        // `brk` with any number.
        return pairs.filter(|(a, b)| a != b).any(|(_, now)| word(now) & 0xffe0_001f == 0xd420_0000);
    }
    // `int3`, and since Linux 6.18 a call in the place of a `nop` of five bytes.
    const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
    (0..now.len().min(original.len())).filter(|&at| original[at] != now[at]).any(|at| match now[at] {
        0xcc => true,
        0xe8 => original[at..].starts_with(&NOP),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn probes_are_told_from_other_changes() {
        let code = [0x55, 0x48, 0x89, 0xe5, 0x0f, 0x1f, 0x44, 0, 0, 0xcc, 0xc3];
        let changed = |at: usize, bytes: &[u8]| {
            let mut now = code;
            now[at..at + bytes.len()].copy_from_slice(bytes);
            holds_probe(&code, &now)
        };
        assert!(!holds_probe(&code, &code), "an int3 of the program's own is none of a debugger's");
        assert!(changed(0, &[0xcc]) && changed(4, &[0xe8, 1, 2, 3, 4]));
        assert!(!changed(0, &[0xe9, 1, 2, 3, 4]) && !changed(0, &[0x90]), "a program may patch itself");
    }
}
