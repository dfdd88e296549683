//! Checks on huge pages.

use super::{Check, Checked, Ground, Needs, Subject, call, expect, expect_bytes, pattern, refused};
use address_space::{AddressRange, PageSize, Protection};
use lift_execution::{Backing, CallError, ENOSYS};
use lift_plan::{Nodes, Placement, Preference};

/// More than any pool holds.
const TOO_MANY_PAGES: u64 = 1 << 24;

pub(super) fn checks<S: Subject>() -> Vec<Check<S>> {
    let pool = |name, run| Check { name, needs: Needs::Pool, run };
    let thp = |name, run| Check { name, needs: Needs::Thp, run };
    vec![
        pool("pool_memory_is_huge_once_it_is_populated", pool_is_huge),
        pool("pool_memory_takes_copies_and_protections", pool_copies),
        pool("pool_memory_is_split_nowhere", pool_is_not_split),
        pool("a_pool_that_is_too_small_is_an_error_and_no_signal", pool_too_small),
        pool("pool_memory_moves_over_others_where_the_kernel_can", pool_moves),
        pool("pool_memory_is_mapped_in_a_place_that_was_left", pool_in_place),
        pool("pool_memory_is_placed_before_it_is_populated", pool_placed),
        thp("advised_memory_becomes_huge_or_says_why_not", advised),
        thp("collapsing_keeps_contents_and_tells_the_truth", collapse),
        thp("huge_memory_that_is_moved_stays_what_it_was", moved),
        thp("only_what_is_huge_is_told_to_be", only_huge),
    ]
}

fn pool_of(ground: &Ground) -> Result<PageSize, String> {
    ground.pool.ok_or_else(|| "the ground has no pool".to_owned())
}

fn thp_of(ground: &Ground) -> Result<PageSize, String> {
    ground.thp.ok_or_else(|| "the ground has no transparent huge pages".to_owned())
}

/// `pages` populated pages of the pool.
fn from_pool<S: Subject>(subject: &mut S, size: PageSize, pages: u64) -> Result<AddressRange, String> {
    let length = pages * size.bytes();
    let range = AddressRange::sized(call(subject.map(length, Backing::Hugetlb { size, reserve: false }))?, length);
    call(subject.populate(range, size))?;
    Ok(range)
}

/// Ordinary memory of `pages` huge pages, aligned to them, and the whole mapping around it.
fn aligned<S: Subject>(subject: &mut S, size: PageSize, pages: u64) -> Result<AddressRange, String> {
    let length = (pages + 1) * size.bytes();
    let got = AddressRange::sized(call(subject.map(length, Backing::Ordinary))?, length);
    let start = got.start().align_up(size).unwrap_or(got.start());
    Ok(AddressRange::sized(start, pages * size.bytes()))
}

fn pool_is_huge<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let size = pool_of(ground)?;
    let range = from_pool(subject, size, 2)?;
    expect(range.start().is_aligned(size), || format!("{range} is not aligned to {size}"))?;
    let huge = call(subject.query_huge(range, size))?;
    expect(huge.covers(range), || format!("of {range} only {huge:?} is huge"))?;
    expect_bytes(subject, range, &vec![0; range.len() as usize])
}

fn pool_copies<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let size = pool_of(ground)?;
    let (from, to) = (aligned(subject, size, 2)?, from_pool(subject, size, 2)?);
    let text = pattern(from.len(), 30);
    call(subject.write_memory(from.start(), &text))?;
    call(subject.copy(from, to.start()))?;
    for protection in [Protection::READ_EXECUTE, Protection::READ, Protection::READ_WRITE] {
        call(subject.protect(to, protection))?;
        let space = call(subject.space())?;
        let found = space.overlapping(to);
        expect(found.iter().all(|m| m.protection == protection), || format!("{protection:?} asked for: {found:?}"))?;
        expect_bytes(subject, to, &text)?;
    }
    Ok(())
}

fn pool_is_not_split<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let size = pool_of(ground)?;
    let range = from_pool(subject, size, 2)?;
    call(subject.write_memory(range.start(), &pattern(range.len(), 31)))?;
    let part = AddressRange::sized(range.start(), ground.base_page.bytes());
    refused(subject.protect(part, Protection::READ), "protecting part of a pool page")?;
    let space = call(subject.space())?;
    let untouched = space.overlapping(range).iter().all(|m| m.protection == Protection::READ_WRITE);
    expect(untouched, || format!("{:?}", space.overlapping(range)))?;
    expect_bytes(subject, range, &pattern(range.len(), 31))
}

fn pool_too_small<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let size = pool_of(ground)?;
    let before = call(subject.space())?;
    let length = TOO_MANY_PAGES * size.bytes();
    for reserve in [true, false] {
        let result: Result<(), CallError> = subject.map(length, Backing::Hugetlb { size, reserve }).and_then(|at| {
            let range = AddressRange::sized(at, length);
            let populated = subject.populate(range, size);
            subject.unmap(range)?;
            populated
        });
        refused(result, "taking more pool pages than there are")?;
    }
    let after = call(subject.space())?;
    expect(before == after, || format!("before {before:?}, after {after:?}"))
}

fn pool_moves<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let size = pool_of(ground)?;
    let (from, to) = (from_pool(subject, size, 2)?, aligned(subject, size, 2)?);
    call(subject.write_memory(from.start(), &pattern(from.len(), 32)))?;
    call(subject.protect(from, Protection::READ_EXECUTE))?;
    if !ground.movable_hugetlb {
        return refused(subject.move_to(from, to.start()), "moving pool memory on this kernel");
    }
    call(subject.move_to(from, to.start()))?;
    let huge = call(subject.query_huge(to, size))?;
    expect(huge.covers(to), || format!("of {to} only {huge:?} is huge"))?;
    let space = call(subject.space())?;
    expect(space.is_free(from), || format!("{from} is still mapped"))?;
    let sealed = space.overlapping(to).iter().all(|m| m.protection == Protection::READ_EXECUTE);
    expect(sealed, || format!("{:?}", space.overlapping(to)))?;
    expect_bytes(subject, to, &pattern(from.len(), 32))
}

/// Every machine has node 0; a kernel without NUMA has no `mbind`.
fn pool_placed<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let size = pool_of(ground)?;
    let length = 2 * size.bytes();
    let range = AddressRange::sized(call(subject.map(length, Backing::Hugetlb { size, reserve: true }))?, length);
    let on_first = Placement { preference: Preference::Bind, nodes: Nodes::from_iter([0]) };
    match subject.place(range, &on_first) {
        Err(error) if error.errno == ENOSYS => return Ok(()),
        placed => call(placed)?,
    }
    let nowhere = Placement { preference: Preference::Bind, nodes: Nodes::from_iter([1000]) };
    if subject.place(range, &nowhere).is_ok() {
        return call(subject.unmap(range)).and_then(|()| Err("a node that does not exist was accepted".to_owned()));
    }
    call(subject.populate(range, size))?;
    let huge = call(subject.query_huge(range, size))?;
    expect(huge.covers(range), || format!("of {range} only {huge:?} is huge"))
}

fn pool_in_place<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let size = pool_of(ground)?;
    let place = aligned(subject, size, 2)?;
    let text = pattern(place.len(), 33);
    call(subject.write_memory(place.start(), &text))?;
    let aside = aligned(subject, size, 2)?;
    call(subject.move_to(place, aside.start()))?;
    call(subject.map_at(place, Backing::Hugetlb { size, reserve: true }))?;
    call(subject.populate(place, size))?;
    call(subject.copy(aside, place.start()))?;
    expect_bytes(subject, place, &text)?;
    call(subject.unmap(place))?;
    call(subject.move_to(aside, place.start()))?;
    expect_bytes(subject, place, &text)
}

/// Huge pages may be short on any machine: the contents must be kept even then.
fn make_huge<S: Subject>(subject: &mut S, ground: &Ground, range: AddressRange) -> Result<bool, String> {
    let size = thp_of(ground)?;
    call(subject.advise_huge(range))?;
    call(subject.populate(range, size))?;
    let huge = call(subject.query_huge(range, size))?;
    if huge.covers(range) {
        return Ok(true);
    }
    let collapsed = subject.collapse(range);
    let huge = call(subject.query_huge(range, size))?;
    expect(ground.collapse || collapsed.is_err(), || "collapsed without MADV_COLLAPSE".to_owned())?;
    expect(huge.covers(range) || collapsed.is_err(), || format!("collapsed, but of {range} only {huge:?} is huge"))?;
    Ok(huge.covers(range))
}

fn advised<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let range = aligned(subject, thp_of(ground)?, 2)?;
    make_huge(subject, ground, range)?;
    expect_bytes(subject, range, &vec![0; range.len() as usize])
}

fn collapse<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let size = thp_of(ground)?;
    let range = aligned(subject, size, 3)?;
    // One page in the first, all of the second and no page of the third.
    let text = pattern(size.bytes(), 34);
    call(subject.write_memory(range.start() + ground.base_page.bytes(), &text[..64]))?;
    call(subject.write_memory(range.start() + size.bytes(), &text))?;
    let collapsed = subject.collapse(range);
    if collapsed.is_ok() {
        let huge = call(subject.query_huge(range, size))?;
        expect(huge.covers(range), || format!("collapsed, but of {range} only {huge:?} is huge"))?;
    }
    let mut expected = vec![0; range.len() as usize];
    let page = ground.base_page.bytes() as usize;
    expected[page..page + 64].copy_from_slice(&text[..64]);
    expected[size.bytes() as usize..2 * size.bytes() as usize].copy_from_slice(&text);
    expect_bytes(subject, range, &expected)
}

fn moved<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let size = thp_of(ground)?;
    let (from, to) = (aligned(subject, size, 2)?, aligned(subject, size, 2)?);
    let was_huge = make_huge(subject, ground, from)?;
    call(subject.write_memory(from.start(), &pattern(from.len(), 35)))?;
    call(subject.protect(from, Protection::READ_EXECUTE))?;
    call(subject.move_to(from, to.start()))?;
    expect_bytes(subject, to, &pattern(from.len(), 35))?;
    let huge = call(subject.query_huge(to, size))?;
    expect(!was_huge || huge.covers(to), || format!("of {to} only {huge:?} is still huge"))
}

fn only_huge<S: Subject>(subject: &mut S, ground: &Ground) -> Checked {
    let size = thp_of(ground)?;
    let range = aligned(subject, size, 2)?;
    let first = AddressRange::sized(range.start(), size.bytes());
    let second = AddressRange::new(first.end(), range.end());
    make_huge(subject, ground, first)?;
    // A huge page that is protected in parts is mapped by ordinary entries from then on.
    call(subject.protect(AddressRange::sized(first.start(), ground.base_page.bytes()), Protection::READ))?;
    let huge = call(subject.query_huge(range, size))?;
    expect(!huge.overlaps(first), || format!("{huge:?} is told to be huge, but {first} is split"))?;
    call(subject.unmap(second))?;
    let huge = call(subject.query_huge(range, size))?;
    expect(!huge.overlaps(second), || format!("{huge:?} is told to be huge, but {second} is not mapped"))
}
