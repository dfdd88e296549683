//! Access patterns whose misses follow from the shape alone, and a naive model that must agree on all others.

use estimate::tlb_model::{
    ArrayShape, Geometry, Index, Lookup, Replacement, Second, Side, Sizes, Tlbs, Translation, known_cpu, known_cpus,
};
use proptest::prelude::*;

const SMALL: u8 = 12;
const HUGE: u8 = 21;

fn cpu(first: ArrayShape, second: ArrayShape) -> Geometry {
    let (name, source) = ("test".to_owned(), "test".to_owned());
    Geometry {
        name,
        source,
        instruction: vec![first],
        data: vec![first],
        second: Second::Shared(vec![second]),
        joined: None,
    }
}

/// First-level misses and walks of `rounds` sweeps over `pages` pages with a distance of `stride`, after one sweep.
fn sweep(geometry: &Geometry, side: Side, shift: u8, pages: u64, stride: u64, rounds: u64) -> (u64, u64) {
    let mut tlbs = Tlbs::new(geometry);
    let (mut misses, mut walks) = (0, 0);
    for round in 0..=rounds {
        for page in (0..pages).map(|page| page * stride) {
            let outcome = tlbs.access(side, Translation { page, shift });
            if round > 0 {
                misses += u64::from(outcome != Lookup::First);
                walks += u64::from(outcome == Lookup::Walk);
            }
        }
    }
    (misses, walks)
}

/// LRU keeps a cyclic sweep that fits each set, and of a set that it does not fit it misses every access.
#[test]
fn cyclic_sweeps_over_sets_and_ways() {
    let all = Sizes::of(&[SMALL, HUGE]);
    let geometry = cpu(ArrayShape::new(all, 64, 4), ArrayShape::new(all, 1536, 12));
    let sweep = |pages, stride| sweep(&geometry, Side::Data, SMALL, pages, stride, 10);
    assert_eq!(sweep(64, 1), (0, 0));
    // One page too many: its set of 16 holds five pages, all of which miss; the other 60 hit.
    assert_eq!(sweep(65, 1), (5 * 10, 0));
    assert_eq!(sweep(80, 1), (80 * 10, 0));
    assert_eq!(sweep(1536, 1), (1536 * 10, 0));
    // The set of the 1,537th page holds 13.
    assert_eq!(sweep(1537, 1), (1537 * 10, 13 * 10));
    // All in one set of the first level, then of the second.
    assert_eq!(sweep(4, 16), (0, 0));
    assert_eq!(sweep(5, 16), (5 * 10, 0));
    assert_eq!(sweep(12, 128), (12 * 10, 0));
    assert_eq!(sweep(13, 128), (13 * 10, 13 * 10));
}

#[test]
fn lru_forgets_what_was_used_longest_ago() {
    let shape = ArrayShape::full(Sizes::of(&[SMALL]), 3);
    let mut tlbs = Tlbs::new(&cpu(shape, shape));
    let mut outcome = |page| tlbs.access(Side::Instruction, Translation { page, shift: SMALL });
    let walks = |page| (page, Lookup::Walk);
    let hits = |page| (page, Lookup::First);
    let second = |page| (page, Lookup::Second);
    // 1 is used again before 4 is, so 2 is replaced in the first level, then 3. The second level does not see hits in
    // the first: there 1 is replaced by 4, and needs a walk when it has left the first level too.
    let accesses = [walks(1), walks(2), walks(3), hits(1), walks(4), hits(1), second(2), hits(4), second(3), walks(1)];
    for (page, wanted) in accesses {
        assert_eq!(outcome(page), wanted, "page {page}");
    }
}

/// Four ways filled in turn: the tree then points at the first; after its use it points to the third, not the second.
#[test]
fn tree_plru_by_hand() {
    let shape = ArrayShape { replacement: Replacement::TreePlru, ..ArrayShape::full(Sizes::of(&[SMALL]), 4) };
    let mut tlbs = Tlbs::new(&cpu(shape, ArrayShape::full(Sizes::of(&[SMALL]), 64)));
    let mut outcome = |page| tlbs.access(Side::Data, Translation { page, shift: SMALL });
    (1..=4).for_each(|page| assert_eq!(outcome(page), Lookup::Walk));
    assert_eq!(outcome(1), Lookup::First);
    assert_eq!(outcome(5), Lookup::Walk);
    assert_eq!([1, 2, 4, 5].map(&mut outcome), [Lookup::First; 4]);
    assert_eq!(outcome(3), Lookup::Second);
}

/// Pages that differ by the number of sets share a set of a linear index; folding spreads them.
#[test]
fn folding_spreads_a_stride() {
    let shape = |index| ArrayShape { index, ..ArrayShape::new(Sizes::of(&[SMALL]), 1536, 12) };
    let walks = |index| {
        let geometry = cpu(ArrayShape::full(Sizes::of(&[SMALL]), 4), shape(index));
        sweep(&geometry, Side::Data, SMALL, 128, 128, 1).1
    };
    assert_eq!((walks(Index::Linear), walks(Index::FoldedXor)), (128, 0));
}

/// The requirement for this model: 2,048 entries, half of which hold 2 MiB pages.
#[test]
fn sapphire_rapids_has_half_of_its_second_level_for_huge_pages() {
    let cpu = known_cpu("sapphire-rapids").unwrap();
    let walks = |shift, pages| sweep(&cpu, Side::Data, shift, pages, 1, 4).1;
    assert_eq!((walks(SMALL, 2048), walks(SMALL, 2048 + 128)), (0, 4 * (2048 + 128)));
    assert_eq!((walks(HUGE, 1024), walks(HUGE, 1024 + 128)), (0, 4 * (1024 + 128)));
}

/// Code and data compete for a shared second level and not for a split one.
#[test]
fn a_split_level_keeps_sides_apart() {
    let both = |cpu: &str| {
        let mut tlbs = Tlbs::new(&known_cpu(cpu).unwrap());
        let mut walks = 0;
        for round in 0..3 {
            for page in 0..1024 {
                let at = |page| Translation { page, shift: SMALL };
                let outcomes =
                    [tlbs.access(Side::Instruction, at(page)), tlbs.access(Side::Data, at((1 << 20) + page))];
                walks += if round == 0 { 0 } else { outcomes.iter().filter(|o| **o == Lookup::Walk).count() };
            }
        }
        walks
    };
    assert_eq!(both("zen2"), 0);
    assert!(both("skylake-sp") > 2000);
}

/// Skylake's L1 has no entry of 1 GiB for code: a piece is entered.
#[test]
fn a_size_that_no_array_holds_is_split() {
    let mut tlbs = Tlbs::new(&known_cpu("skylake-sp").unwrap());
    let mut outcome = |page, shift| tlbs.access(Side::Instruction, Translation { page, shift });
    assert_eq!([outcome(3, 30), outcome(9, SMALL), outcome(3, 30)], [Lookup::Walk, Lookup::Walk, Lookup::First]);
}

/// A set as a plain list, an array as a list of sets, searched and aged in the most obvious way.
struct Naive {
    shape: ArrayShape,
    sets: Vec<Vec<(u64, u8, u64)>>,
}

impl Naive {
    fn new(shape: ArrayShape) -> Self {
        Self { shape, sets: vec![Vec::new(); shape.sets()] }
    }

    fn set(&mut self, page: u64) -> &mut Vec<(u64, u8, u64)> {
        let sets = self.sets.len() as u64;
        let set = match self.shape.index {
            Index::Linear => page % sets,
            Index::FoldedXor => (page % sets) ^ (page / sets % sets),
        };
        &mut self.sets[set as usize]
    }

    fn find(&mut self, page: u64, shift: u8, now: u64) -> bool {
        match self.set(page).iter_mut().find(|entry| (entry.0, entry.1) == (page, shift)) {
            Some(entry) => {
                entry.2 = now;
                true
            }
            None => false,
        }
    }

    fn oldest(&mut self, page: u64) -> Option<u64> {
        let ways = self.shape.ways;
        let set = self.set(page);
        if set.len() < ways { None } else { set.iter().map(|entry| entry.2).min() }
    }

    fn insert(&mut self, page: u64, shift: u8, now: u64) {
        if let Some(oldest) = self.oldest(page) {
            self.set(page).retain(|entry| entry.2 != oldest);
        }
        self.set(page).push((page, shift, now));
    }
}

struct NaiveTlbs {
    first: [Vec<Naive>; 2],
    second: [Vec<Naive>; 2],
    is_shared: bool,
    now: u64,
}

impl NaiveTlbs {
    fn new(geometry: &Geometry) -> Self {
        let arrays = |shapes: &[ArrayShape]| shapes.iter().copied().map(Naive::new).collect();
        let (second, is_shared) = match &geometry.second {
            Second::Shared(shapes) => ([arrays(shapes), Vec::new()], true),
            Second::Split { instruction, data } => ([arrays(instruction), arrays(data)], false),
        };
        Self { first: [arrays(&geometry.instruction), arrays(&geometry.data)], second, is_shared, now: 0 }
    }

    fn access(&mut self, side: Side, Translation { page, shift }: Translation) -> Lookup {
        self.now += 1;
        let now = self.now;
        let index = usize::from(side == Side::Data);
        let second = &mut self.second[if self.is_shared { 0 } else { index }];
        let first = &mut self.first[index];
        let has = |array: &&mut Naive| array.shape.sizes.has(shift);
        if first.iter_mut().filter(has).any(|array| array.find(page, shift, now)) {
            return Lookup::First;
        }
        let outcome = match second.iter_mut().filter(has).any(|array| array.find(page, shift, now)) {
            true => Lookup::Second,
            false => Lookup::Walk,
        };
        let enter = |arrays: &mut Vec<Naive>| {
            let mut able: Vec<(Option<u64>, &mut Naive)> =
                arrays.iter_mut().filter(has).map(|array| (array.oldest(page), array)).collect();
            able.sort_by_key(|(oldest, _)| *oldest);
            able.into_iter().take(1).for_each(|(_, array)| array.insert(page, shift, now));
        };
        if outcome == Lookup::Walk {
            enter(second);
        }
        enter(first);
        outcome
    }
}

/// Accesses with some locality: near pages, far pages, and both sizes.
fn accesses() -> impl Strategy<Value = Vec<(bool, u64, bool)>> {
    let page = prop_oneof![3 => 0..200u64, 2 => 0..4000u64, 1 => (0..40u64).prop_map(|page| page * 128)];
    prop::collection::vec((any::<bool>(), page, prop::bool::weighted(0.2)), 0..6000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_known_cpu_does_what_the_naive_model_does(accesses in accesses(), which in 0..64usize) {
        let cpus = known_cpus();
        let cpu = &cpus[which % cpus.len()];
        let (mut tlbs, mut naive) = (Tlbs::new(cpu), NaiveTlbs::new(cpu));
        for (is_data, page, is_huge) in accesses {
            let side = if is_data { Side::Data } else { Side::Instruction };
            let translation = Translation { page, shift: if is_huge { HUGE } else { SMALL } };
            prop_assert_eq!(tlbs.access(side, translation), naive.access(side, translation), "{}", cpu.name);
        }
    }

    /// LRU has no anomaly: more ways never miss more.
    #[test]
    fn more_ways_never_walk_more(accesses in accesses(), ways in 1..12usize) {
        let sizes = Sizes::of(&[SMALL, HUGE]);
        let walks = |ways: usize| {
            let mut tlbs = Tlbs::new(&cpu(ArrayShape::full(sizes, 1), ArrayShape::new(sizes, 16 * ways, ways)));
            accesses.iter().filter(|(_, page, is_huge)| {
                let shift = if *is_huge { HUGE } else { SMALL };
                tlbs.access(Side::Data, Translation { page: *page, shift }) == Lookup::Walk
            }).count()
        };
        prop_assert!(walks(ways + 1) <= walks(ways));
    }

    #[test]
    fn a_used_page_is_there_at_once(accesses in accesses(), which in 0..64usize, plru in any::<bool>()) {
        let cpus = known_cpus();
        let replacement = if plru { Replacement::TreePlru } else { Replacement::Lru };
        let mut tlbs = Tlbs::new(&cpus[which % cpus.len()].clone().with_replacement(replacement));
        for (is_data, page, _) in accesses {
            let side = if is_data { Side::Data } else { Side::Instruction };
            let translation = Translation { page, shift: SMALL };
            tlbs.access(side, translation);
            // Another page of the other side must not take it out of the first level.
            let other = if is_data { Side::Instruction } else { Side::Data };
            tlbs.access(other, Translation { page: page + 1, shift: SMALL });
            prop_assert_eq!(tlbs.access(side, translation), Lookup::First);
        }
    }
}
