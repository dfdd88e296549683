//! Checks on ordinary pages.

use super::{Check, Checked, Ground, Needs, Subject, call, expect, expect_bytes, pattern, refused};
use address_space::{Address, AddressRange, Protection};
use lift_execution::Backing;

pub(super) fn checks<S: Subject>() -> Vec<Check<S>> {
    let check = |name, run| Check { name, needs: Needs::Nothing, run };
    vec![
        check("new_memory_is_private_anonymous_writable_and_zero", new_memory),
        check("map_at_maps_just_there", map_at),
        check("map_at_replaces_nothing", map_at_taken),
        check("unmap_removes_just_the_range", unmap),
        check("what_was_done_and_undone_leaves_nothing_behind", leaves_nothing),
        check("fresh_memory_stays_zero_when_populated", populate),
        check("a_copy_is_exact_to_the_byte", copy_is_exact),
        check("a_copy_from_or_to_nowhere_is_an_error", copy_from_nowhere),
        check("protect_changes_just_the_range_and_no_contents", protect),
        check("protect_of_nothing_is_an_error", protect_of_nothing),
        check("a_move_replaces_what_it_lands_on", move_replaces),
        check("a_move_takes_part_of_a_mapping_and_fills_part_of_another", move_of_part),
        check("a_move_back_restores_what_was", move_back),
        check("a_move_of_nothing_is_an_error", move_of_nothing),
        check("a_name_is_shown_or_refused", name),
    ]
}

/// Maps `pages` base pages and fills them with a pattern.
fn filled<S: Subject>(subject: &mut S, ground: &Ground, pages: u64, seed: u64) -> Result<AddressRange, String> {
    let length = pages * ground.base_page.bytes();
    let range = AddressRange::sized(call(subject.map(length, Backing::Ordinary))?, length);
    call(subject.write_memory(range.start(), &pattern(length, seed)))?;
    Ok(range)
}

/// The base pages `first` up to `end` of `range`.
fn pages(ground: &Ground, range: AddressRange, first: u64, end: u64) -> AddressRange {
    let page = ground.base_page.bytes();
    AddressRange::new(range.start() + first * page, range.start() + end * page)
}

/// Every byte of `range` is mapped with this protection; for `None` no byte is mapped.
fn expect_mapped<S: Subject>(subject: &mut S, range: AddressRange, protection: Option<Protection>) -> Checked {
    let space = call(subject.space())?;
    let holds = match protection {
        None => space.is_free(range),
        Some(p) => space.is_fully_mapped(range) && space.overlapping(range).iter().all(|m| m.protection == p),
    };
    expect(holds, || format!("{range} should be {protection:?}, found {:?}", space.overlapping(range)))
}

fn new_memory<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let before = call(subject.space())?;
    let length = 5 * ground.base_page.bytes();
    let range = AddressRange::sized(call(subject.map(length, Backing::Ordinary))?, length);
    expect(before.is_free(range), || format!("{range} was not free"))?;
    expect_mapped(subject, range, Some(Protection::READ_WRITE))?;
    let space = call(subject.space())?;
    let plain = space.overlapping(range).iter().all(address_space::Mapping::is_plain_anonymous);
    expect(plain, || format!("not anonymous: {:?}", space.overlapping(range)))?;
    expect_bytes(subject, range, &vec![0; length as usize])
}

fn map_at<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let around = filled(subject, ground, 7, 1)?;
    let hole = pages(ground, around, 2, 5);
    call(subject.unmap(hole))?;
    call(subject.map_at(hole, Backing::Ordinary))?;
    expect_mapped(subject, around, Some(Protection::READ_WRITE))?;
    let mut expected = pattern(around.len(), 1);
    let page = ground.base_page.bytes() as usize;
    expected[2 * page..5 * page].fill(0);
    expect_bytes(subject, around, &expected)
}

fn map_at_taken<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let taken = filled(subject, ground, 4, 21)?;
    call(subject.unmap(pages(ground, taken, 0, 2)))?;
    let before = call(subject.space())?;
    refused(subject.map_at(taken, Backing::Ordinary), "mapping over what is mapped")?;
    let after = call(subject.space())?;
    expect(before == after, || format!("before {before:?}, after {after:?}"))?;
    expect_bytes(
        subject,
        pages(ground, taken, 2, 4),
        &pattern(taken.len(), 21)[2 * ground.base_page.bytes() as usize..],
    )
}

fn unmap<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let range = filled(subject, ground, 5, 2)?;
    let (middle, page) = (pages(ground, range, 1, 3), ground.base_page.bytes() as usize);
    call(subject.unmap(middle))?;
    expect_mapped(subject, middle, None)?;
    let expected = pattern(range.len(), 2);
    expect_bytes(subject, pages(ground, range, 0, 1), &expected[..page])?;
    expect_bytes(subject, pages(ground, range, 3, 5), &expected[3 * page..])?;
    // Unmapped memory can be unmapped again: cleaning up relies on it.
    call(subject.unmap(range))?;
    expect_mapped(subject, range, None)
}

fn leaves_nothing<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let before = call(subject.space())?;
    let (a, b) = (filled(subject, ground, 3, 3)?, filled(subject, ground, 3, 4)?);
    call(subject.copy(a, b.start()))?;
    let _ = subject.name(a, "pagelift conformance");
    call(subject.protect(a, Protection::READ))?;
    call(subject.move_to(a, b.start()))?;
    call(subject.unmap(b))?;
    let after = call(subject.space())?;
    expect(before == after, || format!("before {before:?}, after {after:?}"))
}

fn populate<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let length = 3 * ground.base_page.bytes();
    let range = AddressRange::sized(call(subject.map(length, Backing::Ordinary))?, length);
    call(subject.populate(range, ground.base_page))?;
    expect_bytes(subject, range, &vec![0; length as usize])?;
    call(subject.unmap(range))?;
    refused(subject.populate(range, ground.base_page), "populating what is not mapped")
}

fn copy_is_exact<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let (from, to) = (filled(subject, ground, 300, 6)?, filled(subject, ground, 300, 7)?);
    let (skip, length) = (3, from.len() - 8);
    call(subject.copy(AddressRange::sized(from.start() + skip, length), to.start() + 5))?;
    let mut expected = pattern(to.len(), 7);
    expected[5..5 + length as usize].copy_from_slice(&pattern(from.len(), 6)[3..3 + length as usize]);
    expect_bytes(subject, to, &expected)?;
    expect_bytes(subject, from, &pattern(from.len(), 6))?;
    // Code and sealed data are sources too.
    call(subject.protect(from, Protection::READ_EXECUTE))?;
    call(subject.copy(from, to.start()))?;
    expect_bytes(subject, to, &pattern(from.len(), 6))
}

fn copy_from_nowhere<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let (range, other) = (filled(subject, ground, 4, 8)?, filled(subject, ground, 4, 9)?);
    call(subject.unmap(pages(ground, range, 2, 4)))?;
    refused(subject.copy(range, other.start()), "copying from a hole")?;
    refused(subject.copy(other, range.start()), "copying to a hole")
}

fn protect<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let range = filled(subject, ground, 6, 10)?;
    let kinds = [Protection::READ, Protection::READ_EXECUTE, Protection::READ_WRITE, Protection::READ];
    for protection in kinds {
        call(subject.protect(pages(ground, range, 2, 4), protection))?;
        expect_mapped(subject, pages(ground, range, 2, 4), Some(protection))?;
        expect_mapped(subject, pages(ground, range, 0, 2), Some(Protection::READ_WRITE))?;
        expect_mapped(subject, pages(ground, range, 4, 6), Some(Protection::READ_WRITE))?;
        expect_bytes(subject, range, &pattern(range.len(), 10))?;
    }
    Ok(())
}

fn protect_of_nothing<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let range = filled(subject, ground, 2, 11)?;
    call(subject.unmap(range))?;
    refused(subject.protect(range, Protection::READ), "protecting what is not mapped")
}

fn move_replaces<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let (from, to) = (filled(subject, ground, 3, 12)?, filled(subject, ground, 3, 13)?);
    call(subject.protect(from, Protection::READ_EXECUTE))?;
    call(subject.move_to(from, to.start()))?;
    expect_mapped(subject, from, None)?;
    expect_mapped(subject, to, Some(Protection::READ_EXECUTE))?;
    expect_bytes(subject, to, &pattern(to.len(), 12))
}

fn move_of_part<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let (from, to) = (filled(subject, ground, 6, 14)?, filled(subject, ground, 6, 15)?);
    call(subject.move_to(pages(ground, from, 2, 4), to.start() + ground.base_page.bytes()))?;
    expect_mapped(subject, pages(ground, from, 2, 4), None)?;
    expect_mapped(subject, pages(ground, from, 0, 2), Some(Protection::READ_WRITE))?;
    let page = ground.base_page.bytes() as usize;
    let mut expected = pattern(to.len(), 15);
    expected[page..3 * page].copy_from_slice(&pattern(from.len(), 14)[2 * page..4 * page]);
    expect_bytes(subject, to, &expected)?;
    expect_bytes(subject, pages(ground, from, 4, 6), &pattern(from.len(), 14)[4 * page..])
}

fn move_back<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let (range, aside) = (filled(subject, ground, 6, 16)?, filled(subject, ground, 2, 17)?);
    let before = call(subject.space())?;
    let part = pages(ground, range, 2, 4);
    call(subject.move_to(part, aside.start()))?;
    call(subject.map_at(part, Backing::Ordinary))?;
    call(subject.unmap(part))?;
    call(subject.move_to(aside, part.start()))?;
    expect_bytes(subject, range, &pattern(range.len(), 16))?;
    let after = call(subject.space())?;
    let same = before.overlapping(range).iter().all(|m| m.protection == Protection::READ_WRITE);
    expect(same && after.is_fully_mapped(range) && after.is_free(aside), || format!("{after:?}"))
}

fn move_of_nothing<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let (from, to) = (filled(subject, ground, 2, 18)?, filled(subject, ground, 2, 19)?);
    call(subject.unmap(from))?;
    refused(subject.move_to(from, to.start()), "moving what is not mapped")?;
    refused(subject.move_to(to, Address(to.start().0 + 1)), "moving to the middle of a page")
}

fn name<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let range = filled(subject, ground, 2, 20)?;
    let text = "pagelift text of prog";
    let named = subject.name(range, text);
    let space = call(subject.space())?;
    let shown = space.overlapping(range).iter().any(|m| m.name == address_space::MappingName::Named(text.to_owned()));
    expect(shown == named.is_ok(), || format!("{named:?}, but maps shows {:?}", space.overlapping(range)))?;
    expect_bytes(subject, range, &pattern(range.len(), 20))
}
