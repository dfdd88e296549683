//! Checks on mappings of files, by which shared images are put in place.

use super::{Check, Checked, Ground, Needs, Subject, call, expect, expect_bytes, refused};
use address_space::{AddressRange, Protection};
use lift_execution::{Backing, CallError, ENOSYS, FileMapping};

pub(super) fn checks<S: Subject>() -> Vec<Check<S>> {
    let check = |name, run| Check { name, needs: Needs::File, run };
    vec![
        check("a_file_is_mapped_privately_from_its_offset_on", mapped),
        check("a_mapped_file_moves_over_others", moved),
        check("a_file_is_mapped_in_place_of_others_or_elsewhere_only", in_place),
        check("a_file_that_is_not_there_is_an_error", missing),
    ]
}

fn part(path: &str, offset: u64, protection: Protection) -> FileMapping<'_> {
    FileMapping { path, offset, protection }
}

/// The first two base pages of the file.
fn map<S: Subject>(subject: &mut S, ground: &Ground, protection: Protection) -> Result<AddressRange, String> {
    let path = ground.file.ok_or_else(|| "the ground has no file".to_owned())?;
    let length = 2 * ground.base_page.bytes();
    Ok(AddressRange::sized(call(subject.map_file(part(path, 0, protection), length))?, length))
}

fn mapped<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let before = call(subject.space())?;
    let (path, page) = (ground.file.unwrap_or_default(), ground.base_page.bytes());
    let first = map(subject, ground, Protection::READ)?;
    let second = AddressRange::sized(call(subject.map_file(part(path, page, Protection::READ_EXECUTE), page))?, page);
    let space = call(subject.space())?;
    for (range, protection, offset) in [(first, Protection::READ, 0), (second, Protection::READ_EXECUTE, page)] {
        let found = space.overlapping(range);
        let right = space.is_fully_mapped(range)
            && found.iter().all(|m| m.path() == Some(path) && m.protection == protection && !m.shared)
            && found.iter().all(|m| m.offset.wrapping_sub(m.range.start().0) == offset.wrapping_sub(range.start().0));
        expect(before.is_free(range) && right, || format!("{range} should be {path} from {offset} on: {found:?}"))?;
    }
    let bytes = call(subject.read_memory(first))?;
    expect_bytes(subject, second, &bytes[page as usize..])
}

fn moved<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let from = map(subject, ground, Protection::READ)?;
    let bytes = call(subject.read_memory(from))?;
    let to = AddressRange::sized(call(subject.map(from.len(), Backing::Ordinary))?, from.len());
    call(subject.move_to(from, to.start()))?;
    expect_bytes(subject, to, &bytes)?;
    let space = call(subject.space())?;
    expect(space.is_free(from), || format!("{from} is still mapped"))?;
    call(subject.unmap(to))
}

fn in_place<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let (path, page) = (ground.file.unwrap_or_default(), ground.base_page.bytes());
    let file = map(subject, ground, Protection::READ)?;
    let bytes = call(subject.read_memory(file))?;
    // An anonymous page on either side.
    let around = AddressRange::sized(call(subject.map(3 * page, Backing::Ordinary))?, 3 * page);
    let place = AddressRange::sized(around.start() + page, page);
    match subject.map_file_at(part(path, page, Protection::READ), place) {
        Err(CallError { errno: ENOSYS, .. }) => {}
        result => {
            call(result)?;
            expect_bytes(subject, place, &bytes[page as usize..])?;
            let space = call(subject.space())?;
            let left = |range| space.overlapping(range).iter().all(|m| m.is_plain_anonymous());
            let right = space.is_fully_mapped(around)
                && around.without(place).into_iter().all(left)
                && space.overlapping(place).iter().all(|m| m.path() == Some(path) && m.protection == Protection::READ);
            expect(right, || format!("{place} should be {path}: {space:?}"))?;
            let nowhere = subject.map_file_at(part("/no/such/file", 0, Protection::READ), place);
            refused(nowhere, "mapping no file in place")?;
            expect_bytes(subject, place, &bytes[page as usize..])?;
        }
    }
    call(subject.unmap(around))?;
    call(subject.unmap(file))
}

fn missing<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let before = call(subject.space())?;
    refused(subject.map_file(part("/no/such/file", 0, Protection::READ), ground.base_page.bytes()), "mapping no file")?;
    let after = call(subject.space())?;
    expect(before == after, || format!("before {before:?}, after {after:?}"))
}
