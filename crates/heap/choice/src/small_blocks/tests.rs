use super::model::*;
use super::*;
use std::cell::Cell;

#[test]
fn blocks_in_use_are_summed_over_all_pages_of_all_arenas() {
    let (model, live) = model();
    let small = SmallBlocks::read(&model, RECORDS, || Some(4 * CHUNK)).unwrap();
    assert_eq!(small.live, live);
    let starts: Vec<u64> = small.arenas.iter().map(|arena| arena.start().0).collect();
    assert_eq!(starts, [FIRST, FIRST + 16 * CHUNK]);
    let mut empty = Model::new(LAYOUT);
    empty.word(COUNT, 0);
    assert_eq!(empty.live(0), Ok(0));
    empty.word(COUNT, 1);
    assert_eq!(empty.live(0), Ok(0), "an entry that is not filled in yet");
}

#[test]
fn records_that_contradict_themselves_are_read_again() {
    let contradictions: [([u16; 3], u64); 7] = [
        ([1000, 1, 1], 1 << 55),
        ([5, 4, 100], 64),
        ([5, 200, 100], 64),
        ([1, 1, 1], u64::MAX),
        ([1, 1, 2], u64::MAX),
        ([1, 1, 1], 64 * MIB),
        ([u16::MAX; 3], 1 << 52),
    ];
    for (counts, block) in contradictions {
        let (mut model, live) = model();
        model.page(FIRST, 1000, counts, block);
        assert_eq!(model.live(4 * CHUNK), Err(NotKnown::Inconsistent), "{counts:?} of {block}");
        assert!(model.reads.get() > 40, "read once only");
        let used = FIRST + PAGES + 1000 * LAYOUT.page + LAYOUT.page_used;
        model.cure.set(Some((model.reads.get() + 20, used, 0)));
        assert_eq!(model.live(4 * CHUNK), Ok(live), "{counts:?} of {block}");
    }
}

#[test]
fn one_torn_page_among_many_is_left_out() {
    let mut model = Model::new(LAYOUT);
    model.arena(0, FIRST, 1);
    (10..209).for_each(|slice| model.page(FIRST, slice, [10, 20, 30], 1000));
    model.page(FIRST, 300, [9, 3, 30], 1000);
    assert_eq!(model.live(CHUNK), Ok(199 * 10 * 1000));
    model.page(FIRST, 301, [9, 3, 30], 1000);
    model.page(FIRST, 302, [9, 3, 30], 1000);
    assert_eq!(model.live(CHUNK), Err(NotKnown::Inconsistent));
}

#[test]
fn what_the_arenas_cannot_hold_is_not_believed() {
    let (good, live) = model();
    assert_eq!(good.live(3 * CHUNK), Err(NotKnown::Inconsistent), "not what the account says");
    assert_eq!(SmallBlocks::read(&good, RECORDS, || None).unwrap_err(), NotKnown::Ended);
    // The account includes an arena only once it has been added.
    let asked = Cell::new(0);
    let growing = || Some(if asked.replace(asked.get() + 1) == 0 { 3 * CHUNK } else { 4 * CHUNK });
    assert_eq!(SmallBlocks::read(&good, RECORDS, growing).map(|small| small.live), Ok(live));

    let mut twice = good.clone();
    twice.word(TABLE + 16, FIRST);
    twice.word(COUNT, 3);
    assert_eq!(twice.live(7 * CHUNK), Err(NotKnown::Inconsistent));

    let mut overfull = Model::new(LAYOUT);
    overfull.arena(0, FIRST, 1);
    (5..8).for_each(|slice| overfull.page(FIRST, slice, [1, 1, 1], 20 * MIB));
    assert_eq!(overfull.live(CHUNK), Err(NotKnown::Inconsistent));

    let mut elsewhere = good;
    elsewhere.word(FIRST + PAGES + 7 * LAYOUT.page + LAYOUT.page_start, FIRST + 8 * SLICE);
    assert_eq!(elsewhere.live(4 * CHUNK), Err(NotKnown::Inconsistent));
}

#[test]
fn no_number_leads_beyond_its_bounds() {
    let (good, _) = model();
    let places = (0..SmallRecords::BYTES as u64 / 8).map(|index| RECORDS + index * 8);
    let places = places
        .chain([COUNT, TABLE, TABLE + 8])
        .chain([LAYOUT.arena_slices, LAYOUT.arena_pages, LAYOUT.arena_page_bits, BITS].map(|offset| FIRST + offset));
    for place in places {
        for value in [0, 1, 3, 511, 4097, 1 << 20, 1 << 32, FIRST, 1 << 63, u64::MAX - 7, u64::MAX] {
            let mut hostile = good.clone();
            hostile.word(place, value);
            // The sum differs only if fewer blocks are reported, or if a record is read as another one.
            let live = hostile.live(4 * CHUNK).unwrap_or(0);
            assert!(live <= 4 * CHUNK, "{value:#x} at {place:#x}: {live}");
        }
    }
}

#[test]
fn whatever_is_changed_nothing_panics() {
    let (good, _) = model();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..3000 {
        let mut hostile = good.clone();
        for _ in 0..1 + next() % 4 {
            let (piece, value) = (next() as usize % hostile.pieces.len(), next());
            let piece = &mut hostile.pieces[piece].1;
            // Most of an arena's records say nothing; its beginning and the bits say most.
            let most = if next() % 2 == 0 { piece.len() } else { piece.len().min(5000) };
            piece[value as usize % most] = (value >> 32) as u8;
        }
        assert!(hostile.live(4 * CHUNK).unwrap_or(0) <= 4 * CHUNK);
    }
}

/// Any address is readable and says the same.
struct Everywhere(u8);

impl Memory for Everywhere {
    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), NotKnown> {
        assert!(into.len() <= 8 << 20);
        into.fill(self.0);
        Ok(())
    }
}

#[test]
fn memory_that_says_one_thing_everywhere_is_not_believed() {
    for byte in 0..=u8::MAX {
        let read = SmallBlocks::read(&Everywhere(byte), RECORDS, || Some(CHUNK));
        assert_eq!(read, Err(NotKnown::Inconsistent), "{byte:#x}");
    }
}

#[test]
fn a_process_without_memory_has_ended() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let memory = ProcessMemoryFile::of(&process_view::ProcessFiles::of(child.id() as i32)).unwrap();
    assert_eq!(SmallBlocks::read(&memory, 0, || Some(0)), Err(NotKnown::Outside));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(SmallBlocks::read(&memory, 0, || Some(0)), Err(NotKnown::Ended));
}
