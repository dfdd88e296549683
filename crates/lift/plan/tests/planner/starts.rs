//! A start leaves out only work that would change nothing.

use crate::support::{MACHINE, Program, Shape, base_page, machine_with, page_size, random};
use address_space::{ElfKind, LoadedObject};
use lift_plan::{
    BeforeExec, Coverable, Kind, Kinds, Numa, Pages, Policy, Source, StartWork, cached_coverable, plan, start_work,
};
use proptest::prelude::*;
use std::ops::Range;

const HUGE: u64 = random::HUGE_SIZES[0];

/// Mostly a policy by which something can be left out.
fn policy() -> impl Strategy<Value = Policy> {
    let read_only = vec![Kind::Text, Kind::Rodata];
    let files = proptest::sample::subsequence(read_only, 1..=2).prop_map(|kinds| Policy {
        pages: Pages::File,
        kinds: Kinds::of(&kinds),
        ..Policy::default()
    });
    let bound = prop_oneof![Just(Numa::Own), Just(Numa::Local)];
    let other =
        (random::policy(), bound, any::<bool>()).prop_map(|(policy, numa, seal)| Policy { numa, seal, ..policy });
    prop_oneof![4 => files, 1 => other]
}

fn before_exec<'a>(object: &'a LoadedObject, huge: &'a [Range<u64>], collapses_libraries: bool) -> BeforeExec<'a> {
    let (usual, base_page) = (page_size(HUGE), base_page());
    BeforeExec { image: &object.image, huge, usual, base_page, elf_machine: MACHINE, collapses_libraries }
}

/// The part that the file shows at the best of all bases.
fn at_the_best(object: &LoadedObject, huge: &[Range<u64>], kinds: Kinds) -> Coverable {
    let shown = |bias| cached_coverable(&object.image, huge, bias, page_size(HUGE), base_page(), kinds);
    let step = object.image.largest_alignment(base_page()).bytes();
    (0..HUGE).step_by(step as usize).map(shown).max().unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    /// At its entry, the plan for such a program would only map the parts that its own file shows in place, and no
    /// other base would show more of the file than its present or future base.
    #[test]
    fn what_is_left_out_would_change_nothing(
        shape in random::shape(),
        interpreter in any::<bool>(),
        blocks in any::<u64>(),
        policy in policy(),
        collapses in any::<bool>(),
        refaults_huge in any::<bool>(),
    ) {
        let shape = Shape { interpreter, ..shape };
        let parts = random::huge_parts(blocks);
        let mut program = Program::new("starts");
        // A program without a dynamic linker has not yet protected its relocated memory.
        let object = program.load(&shape, interpreter);
        program.cached(shape.path, parts.clone(), true);
        let mut program = program.finish();
        program.facts.relocates_itself = !interpreter;
        let work = start_work(&before_exec(&object, &parts, collapses), &policy);
        if work == StartWork::AtEntry {
            return Ok(());
        }
        let mut machine = machine_with(HUGE, 1000);
        machine.refaults_huge = refaults_huge;
        let made = plan(&program.facts, &machine, &policy);
        let sources = made.lifts.iter().flat_map(|lift| &lift.attempts).map(|attempt| attempt.source);
        prop_assert!(sources.into_iter().all(|source| source == Source::File), "{made:?}");
        prop_assert!(!collapses || object.image.is_static(), "libraries would be collapsed");
        if work == StartWork::Nothing && shape.kind == ElfKind::PositionIndependent {
            let here = cached_coverable(&object.image, &parts, object.bias, page_size(HUGE), base_page(), policy.kinds);
            let best = at_the_best(&object, &parts, policy.kinds);
            prop_assert!(best.read_only == 0 || here == best, "{here:?} instead of {best:?}");
        }
    }
}

fn large(kind: ElfKind, align: u64) -> LoadedObject {
    let segments = vec![crate::support::Segment::new(address_space::Protection::READ_EXECUTE, 4 * HUGE)];
    let shape = Shape::new("/bin/exe", address_space::ObjectRole::Executable, 16 * HUGE, segments).aligned(align);
    Shape { kind, ..shape }.object()
}

fn of_files() -> Policy {
    Policy { pages: Pages::File, kinds: Kinds::of(&[Kind::Text, Kind::Rodata]), ..Policy::default() }
}

#[test]
fn what_lies_right_by_itself_needs_nothing() {
    let huge = random::huge_parts(0b1111);
    let work = |object: &LoadedObject, policy: &Policy| start_work(&before_exec(object, &huge, false), policy);
    let base_page = base_page().bytes();
    assert_eq!(work(&large(ElfKind::FixedAddress, base_page), &of_files()), StartWork::Nothing);
    assert_eq!(work(&large(ElfKind::PositionIndependent, HUGE), &of_files()), StartWork::Nothing);
    assert_eq!(work(&large(ElfKind::PositionIndependent, base_page), &of_files()), StartWork::Base);
    let small = start_work(&before_exec(&large(ElfKind::PositionIndependent, base_page), &[], false), &of_files());
    assert_eq!(small, StartWork::Nothing, "there is nothing to show");
}

#[test]
fn whatever_else_may_serve_needs_the_entry() {
    let huge = random::huge_parts(0b1111);
    let object = large(ElfKind::FixedAddress, base_page().bytes());
    let others = [
        Policy { pages: Pages::Auto, ..of_files() },
        Policy { pages: Pages::FileThenImage, ..of_files() },
        Policy { kinds: Kinds::USUAL, ..of_files() },
        Policy { seal: true, ..of_files() },
        Policy { page_size: Some(page_size(16 * HUGE)), ..of_files() },
    ];
    for policy in others {
        assert_eq!(start_work(&before_exec(&object, &huge, false), &policy), StartWork::AtEntry, "{policy:?}");
    }
    assert_eq!(start_work(&before_exec(&object, &huge, true), &of_files()), StartWork::AtEntry);
}

#[test]
fn the_dynamic_linker_and_a_program_of_another_machine_need_the_entry() {
    let huge = random::huge_parts(0b1111);
    let work = |object: &LoadedObject| start_work(&before_exec(object, &huge, false), &of_files());
    let mut object = large(ElfKind::FixedAddress, base_page().bytes());
    assert_eq!(work(&object), StartWork::Nothing);
    object.image.machine = MACHINE + 1;
    assert_eq!(work(&object), StartWork::AtEntry);
    object.image.machine = MACHINE;
    object.image.soname = Some("ld-linux-x86-64.so.2".to_owned());
    assert_eq!(work(&object), StartWork::AtEntry);
}

/// Its address is unknown before it is mapped.
#[test]
fn a_program_that_relocates_itself_needs_the_entry_however_it_is_aligned() {
    let huge = random::huge_parts(0b1111);
    for align in [base_page().bytes(), HUGE] {
        let mut object = large(ElfKind::PositionIndependent, align);
        object.image.interpreter = None;
        assert_eq!(start_work(&before_exec(&object, &huge, false), &of_files()), StartWork::AtEntry, "{align}");
    }
}
