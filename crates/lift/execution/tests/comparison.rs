//! Comparing the mappings before and after a lift finds every difference that no lift should make.

use address_space::{Address, AddressRange, AddressSpace, PageSize, Protection};
use lift_execution::{Difference, compare};
use lift_plan::{Attempt, Kind, Plan, RangeLift, Source};

const BEFORE: &str = "\
10000-14000 r--p 0 fe:0 7 /bin/prog
14000-20000 r-xp 4000 fe:0 7 /bin/prog
20000-28000 rw-p 0 0:0 0
";

fn range(start: u64, end: u64) -> AddressRange {
    AddressRange::new(Address(start), Address(end))
}

/// A plan that makes 10000-18000 readable and executable, as merging does.
fn plan() -> Plan {
    let attempt = Attempt {
        source: Source::Thp,
        page_size: PageSize::new(0x8000).unwrap(),
        parts: Vec::new(),
        memory: 0,
        placement: None,
    };
    let lift = RangeLift {
        object: "prog".to_owned(),
        kinds: vec![Kind::Rodata, Kind::Text],
        range: range(0x10000, 0x18000),
        protection: Protection::READ_EXECUTE,
        attempts: vec![attempt],
    };
    Plan { lifts: vec![lift], ..Plan::default() }
}

fn differences(after: &str) -> Vec<Difference> {
    compare(&AddressSpace::parse(BEFORE).unwrap(), &AddressSpace::parse(after).unwrap(), &plan())
}

fn difference(start: u64, end: u64, expected: Option<Protection>, found: Option<Protection>) -> Vec<Difference> {
    vec![Difference { range: range(start, end), expected, found }]
}

#[test]
fn what_was_planned_and_what_stayed_is_no_difference() {
    assert_eq!(differences(BEFORE), []);
    let lifted = "\
10000-18000 r-xp 0 0:0 0 [anon:pagelift rodata+text prog]
18000-20000 r-xp 8000 fe:0 7 /bin/prog
20000-28000 rw-p 0 0:0 0
";
    assert_eq!(differences(lifted), []);
}

#[test]
fn a_hole_in_a_lifted_range_is_found() {
    let torn = "10000-14000 r--p 0 fe:0 7 /bin/prog\n18000-20000 r-xp 0 fe:0 7 /bin/prog\n20000-28000 rw-p 0 0:0 0\n";
    assert_eq!(differences(torn), difference(0x14000, 0x18000, Some(Protection::READ_EXECUTE), None));
}

#[test]
fn a_protection_that_nobody_planned_is_found() {
    let wide = BEFORE.replace("20000-28000 rw-p", "20000-28000 rwxp");
    let found = Protection { read: true, write: true, execute: true };
    assert_eq!(differences(&wide), difference(0x20000, 0x28000, Some(Protection::READ_WRITE), Some(found)));
    // Planned for the range beside it, not here.
    let beyond = BEFORE.replace("20000-28000 rw-p", "20000-28000 r-xp");
    let found = Some(Protection::READ_EXECUTE);
    assert_eq!(differences(&beyond), difference(0x20000, 0x28000, Some(Protection::READ_WRITE), found));
}

#[test]
fn a_mapping_left_behind_is_found() {
    let left = format!("{BEFORE}40000-48000 rw-p 0 0:0 0\n");
    assert_eq!(differences(&left), difference(0x40000, 0x48000, None, Some(Protection::READ_WRITE)));
    // Even between two mappings that existed before.
    let between = BEFORE.replace("20000-28000", "22000-28000");
    let before = AddressSpace::parse(&between).unwrap();
    let found = compare(&before, &AddressSpace::parse(BEFORE).unwrap(), &plan());
    assert_eq!(found, difference(0x20000, 0x22000, None, Some(Protection::READ_WRITE)));
}
