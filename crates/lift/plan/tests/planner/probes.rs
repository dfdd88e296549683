//! The search for breakpoints and uprobes, in a process of which each page can be changed, and its files be lost.

use crate::support::{PAGE, Program, RWX, Segment, Shape, machine_with, range};
use address_space::{Address, AddressRange, LoadedObject, MappingName, ObjectRole, Protection, RangeSet};
use lift_plan::{
    CodeReader, MachineFacts, ObjectChoice, Pages, Policy, Probes, Reason, plan, probed_pages, probes_of, semaphores_in,
};
use std::collections::BTreeMap;

const HUGE: u64 = 4 * PAGE;
const AT: u64 = 64 * HUGE;
/// Offset of the code in its first page, in bytes.
const SKEW: u64 = 0x100;

fn shape() -> Shape {
    let segments = vec![
        Segment::new(Protection::READ, 5 * PAGE),
        Segment::new(Protection::READ_EXECUTE, 9 * PAGE).skew(SKEW),
        Segment::new(Protection::READ_WRITE, 2 * PAGE),
        Segment::new(RWX, 2 * PAGE),
    ];
    Shape::new("/bin/exe", ObjectRole::Executable, AT, segments)
}

fn loaded(shape: &Shape) -> Program {
    let mut program = Program::new("probed");
    program.load(shape, true);
    program.finish()
}

/// The address of the code: from `SKEW` in its first page on.
const CODE: u64 = AT + 5 * PAGE + SKEW;

fn page_at(address: u64) -> AddressRange {
    AddressRange::sized(Address(address / PAGE * PAGE), PAGE)
}

fn machine() -> MachineFacts {
    machine_with(HUGE, 99)
}

fn policy() -> Policy {
    Policy { pages: Pages::Hugetlb, objects: ObjectChoice::All, ..Policy::default() }
}

/// The offset in the file of a breakpoint in the program's own code, in bytes.
const OWN_BREAKPOINT: u64 = CODE - AT + 3 * PAGE + 64;

/// A byte of the file: no breakpoint but the one, and no two pages alike.
fn in_file(offset: u64) -> u8 {
    let of_breakpoint = offset.checked_sub(OWN_BREAKPOINT).and_then(|at| breakpoint().get(at as usize).copied());
    of_breakpoint.unwrap_or(((offset * 7 + offset / PAGE) % 127) as u8)
}

/// The instruction that a breakpoint is made of.
fn breakpoint() -> Vec<u8> {
    if cfg!(target_arch = "aarch64") { 0xd420_0000u32.to_le_bytes().to_vec() } else { vec![0xcc] }
}

/// A process's memory and file as they are read.
#[derive(Clone, Default)]
struct Reader {
    /// Bytes that differ from the file, by their addresses.
    written: BTreeMap<u64, u8>,
    changed: RangeSet,
    tells_no_changes: bool,
    has_no_file: bool,
    shows_no_memory: bool,
    asked: Vec<AddressRange>,
}

impl Reader {
    fn write(mut self, at: u64, bytes: &[u8]) -> Self {
        self.written.extend(bytes.iter().enumerate().map(|(index, &byte)| (at + index as u64, byte)));
        self.changed.insert(page_at(at));
        self
    }
}

impl CodeReader for Reader {
    type File = ();

    fn changed(&mut self, range: AddressRange) -> Option<RangeSet> {
        self.asked.push(range);
        (!self.tells_no_changes).then(|| self.changed.within(range).collect())
    }

    fn open(&mut self, _: &LoadedObject) -> Option<()> {
        (!self.has_no_file).then_some(())
    }

    fn read_file((): &(), offset: u64, into: &mut [u8]) -> Option<()> {
        into.iter_mut().zip(offset..).for_each(|(byte, offset)| *byte = in_file(offset));
        Some(())
    }

    fn read_memory(&mut self, at: Address, into: &mut [u8]) -> Option<()> {
        for (byte, address) in into.iter_mut().zip(at.0..) {
            *byte = self.written.get(&address).copied().unwrap_or(in_file(address - AT));
        }
        (!self.shows_no_memory).then_some(())
    }
}

fn found(program: &Program, reader: &Reader) -> Vec<AddressRange> {
    probed_pages(&program.facts, &machine(), &policy(), &mut reader.clone()).iter().collect()
}

#[test]
fn the_page_of_a_breakpoint_is_found_and_no_other() {
    let program = loaded(&shape());
    for at in [CODE, CODE + 4 * PAGE, CODE + 9 * PAGE - 4] {
        let reader = Reader::default().write(at, &breakpoint()).write(CODE + 2 * PAGE, &[0x7f, 0x7f, 0x7f, 0x7f]);
        assert_eq!(found(&program, &reader), [page_at(at)], "{at:x}");
    }
    assert_eq!(found(&program, &Reader::default().write(CODE, &[0x7f; 64])), []);
    let beside_its_own = Reader::default().write(AT + OWN_BREAKPOINT - 16, &[0x7f; 8]);
    assert_eq!(found(&program, &beside_its_own), [], "the program's own breakpoint");
    assert_eq!(found(&program, &Reader::default()), []);
}

/// A debugger may have changed code that cannot be compared.
#[test]
fn what_cannot_be_compared_counts_as_probed() {
    let program = loaded(&shape());
    let patched = Reader::default().write(CODE + PAGE, &[0x7f]);
    for reader in [Reader { has_no_file: true, ..patched.clone() }, Reader { shows_no_memory: true, ..patched.clone() }]
    {
        assert_eq!(found(&program, &reader), [page_at(CODE + PAGE)]);
    }
}

#[test]
fn all_code_is_compared_where_the_kernel_does_not_tell_what_was_changed() {
    let program = loaded(&shape());
    let reader = Reader { tells_no_changes: true, ..Reader::default() };
    assert_eq!(found(&program, &reader), []);
    let (breakpoint, last) = (breakpoint(), CODE + 9 * PAGE - 4);
    let reader = reader.write(CODE + 4 * PAGE, &breakpoint).write(CODE + 6 * PAGE, &[0x7f]).write(last, &breakpoint);
    // Each breakpoint is found, and the other change is none.
    assert_eq!(found(&program, &reader), [page_at(CODE + 4 * PAGE), page_at(last)]);
}

/// A later plan can lift code that the first plan leaves for want of pages.
#[test]
fn code_is_searched_whether_or_not_a_plan_of_now_would_lift_it() {
    let program = loaded(&shape());
    let reader = Reader::default().write(CODE + 4 * PAGE, &breakpoint());
    let empty = machine_with(HUGE, 0);
    assert!(plan(&program.facts, &empty, &policy()).lifts.is_empty());
    let searched = probed_pages(&program.facts, &empty, &policy(), &mut reader.clone());
    assert_eq!(searched.iter().collect::<Vec<_>>(), [page_at(CODE + 4 * PAGE)]);
    let none_chosen = Policy { objects: ObjectChoice::Matching(vec!["other".to_owned()]), ..policy() };
    assert!(probed_pages(&program.facts, &empty, &none_chosen, &mut reader.clone()).is_empty());
}

#[test]
fn only_code_of_the_file_that_would_be_lifted_is_looked_at() {
    let mut program = loaded(&shape());
    // The program has mapped its own memory into its code.
    let own = range(CODE - SKEW + 8 * PAGE, CODE - SKEW + 10 * PAGE);
    program.anonymous(own, Protection::READ_EXECUTE, MappingName::Anonymous);
    let program = program.finish();
    let everywhere = (AT..AT + 18 * PAGE).step_by(PAGE as usize);
    let reader = everywhere.fold(Reader::default(), |reader, at| reader.write(at + SKEW, &breakpoint()));
    let of_file = range(CODE - SKEW, own.start().0);
    assert_eq!(found(&program, &reader), [of_file]);
    let mut asked = reader.clone();
    probed_pages(&program.facts, &machine(), &policy(), &mut asked);
    assert_eq!(asked.asked, [of_file]);
    // The object holds no whole huge page of this size.
    let none = probed_pages(&program.facts, &machine_with(64 * HUGE, 9), &policy(), &mut reader.clone());
    assert_eq!(none, RangeSet::new(), "what stays is not copied");
    let relocated = loaded(&Shape { text_relocations: true, ..shape() });
    assert_eq!(found(&relocated, &reader), [], "its dynamic linker has changed all of it");
}

#[test]
fn code_is_not_searched_by_a_policy_that_copies_none() {
    let program = loaded(&shape());
    let reader = Reader::default().write(CODE + 4 * PAGE, &breakpoint());
    let of = |pages| probes_of(&program.facts, &machine(), &Policy { pages, ..policy() }, &mut reader.clone());
    assert_eq!(of(Pages::Image), Probes::default());
    assert_eq!(of(policy().pages).probed, RangeSet::from_iter([page_at(CODE + 4 * PAGE)]));
}

/// Data of eight pages, all from the file, behind code; `of_file` returns the file's semaphores.
fn with_semaphores(of_file: impl Fn() -> Option<RangeSet>, moment: fn(&mut Program)) -> (Program, Vec<AddressRange>) {
    let segments =
        vec![Segment::new(Protection::READ_EXECUTE, HUGE), Segment::new(Protection::READ_WRITE, 2 * HUGE).zeros(PAGE)];
    let mut program = loaded(&Shape::new("/bin/exe", ObjectRole::Executable, AT, segments));
    moment(&mut program);
    program.facts.semaphores = semaphores_in(&program.facts, &machine(), &policy(), |_| of_file());
    let found = program.facts.semaphores.iter().collect();
    (program, found)
}

#[test]
fn huge_pages_with_semaphores_stay_with_their_file() {
    let (data, semaphore) = (AT + HUGE, AddressRange::sized(Address(HUGE + 5 * PAGE + 6), 2));
    let (program, found) = with_semaphores(|| Some(RangeSet::from_iter([semaphore])), |_| ());
    assert_eq!(found, [semaphore.shifted(AT)]);
    let plan = plan(&program.facts, &machine(), &policy());
    let data_lifts = plan.lifts.iter().filter(|lift| lift.protection.write).map(|lift| lift.range);
    assert_eq!(data_lifts.collect::<Vec<_>>(), [range(data, data + HUGE)]);
    let stays = plan.refusals.iter().find(|refusal| refusal.reason == Reason::Semaphores).map(|refusal| refusal.range);
    assert_eq!(stays, Some(range(data + HUGE, data + 2 * HUGE)));
}

#[test]
fn data_whose_semaphores_are_unknown_stays_with_its_file() {
    let data = range(AT + HUGE, AT + 3 * HUGE);
    assert_eq!(with_semaphores(|| None, |_| ()).1, [data]);
    let asks_none = || panic!("no data is copied in a program that runs");
    assert_eq!(with_semaphores(asks_none, |program| program.facts.running = true).1, []);
    assert_eq!(with_semaphores(asks_none, |program| program.facts.other_threads = true).1, []);
}

/// The first huge page of an object, and the sources of each range that is lifted.
fn header_page(segments: Vec<Segment>, pages: Pages, is_cached: bool) -> (bool, Vec<AddressRange>) {
    let mut program = loaded(&Shape::new("/bin/exe", ObjectRole::Executable, AT, segments));
    if is_cached {
        program = program.all_cached();
    }
    let plan = plan(&program.facts, &machine(), &Policy { pages, ..policy() });
    let refused = plan.refusals.iter().filter(|refusal| refusal.reason == Reason::FileHeader);
    let refused: Vec<_> = refused.map(|refusal| refusal.range).collect();
    assert!(refused.is_empty() || refused == [range(AT, AT + HUGE)], "{refused:?}");
    (!refused.is_empty(), plan.lifts.iter().map(|lift| lift.range).collect())
}

/// Tools find an object by the first line of maps that names its file.
#[test]
fn a_huge_page_with_the_elf_header_and_no_code_is_never_a_copy() {
    let data = || vec![Segment::new(Protection::READ, 3 * HUGE)];
    let (all, rest) = (range(AT, AT + 3 * HUGE), range(AT + HUGE, AT + 3 * HUGE));
    for pages in [Pages::Thp, Pages::Hugetlb, Pages::Auto] {
        assert_eq!(header_page(data(), pages, false), (true, vec![rest]), "{pages:?}");
    }
    // The file itself shows it by its own name.
    for pages in [Pages::File, Pages::Auto] {
        assert_eq!(header_page(data(), pages, true), (false, vec![all]), "{pages:?}");
    }
    // Code is worth more.
    let code = vec![Segment::new(Protection::READ_EXECUTE, 3 * HUGE)];
    assert_eq!(header_page(code, Pages::Thp, false), (false, vec![all]));
}
