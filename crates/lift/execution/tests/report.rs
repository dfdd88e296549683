//! The line that reports the result of a lift.

use address_space::{Address, AddressRange, PageSize, Protection, RangeSet};
use lift_execution::{RangeOutcome, Report, Sealing, Uncovered};
use lift_plan::{Kind, Reason, Source};

const MIB: u64 = 1 << 20;

/// A range of which the first `covered` bytes are on huge pages of `page` bytes, and why the rest is not.
fn range(length: u64, covered: u64, page: u64, source: Option<Source>) -> RangeOutcome {
    let range = AddressRange::sized(Address(1 << 40), length);
    let rest = AddressRange::new(range.start() + covered, range.end());
    RangeOutcome {
        object: "program".to_owned(),
        kinds: vec![Kind::Text],
        range,
        protection: Protection::READ_EXECUTE,
        source,
        page_size: PageSize::new(page).expect("a page size"),
        lifted: RangeSet::new(),
        covered: RangeSet::from_iter([AddressRange::sized(range.start(), covered)]),
        advised: 0,
        made_resident: covered,
        failed: Vec::new(),
        uncovered: if rest.is_empty() {
            Vec::new()
        } else {
            vec![Uncovered { range: rest, reason: Reason::NoHugePages }]
        },
    }
}

fn report(ranges: Vec<RangeOutcome>, microseconds: u64) -> Report {
    Report {
        considered_bytes: ranges.iter().map(|range| range.range.len()).sum(),
        covered_bytes: ranges.iter().map(|range| range.covered.bytes()).sum(),
        lift_microseconds: microseconds,
        ranges,
        ..Report::default()
    }
}

fn line(report: &Report) -> String {
    report.line("program", 7)
}

#[test]
fn milliseconds_are_rounded() {
    let lifted = || vec![range(2 * MIB, 2 * MIB, 2 * MIB, Some(Source::Hugetlb))];
    for (microseconds, told) in [(0, "0.0"), (49, "0.0"), (50, "0.1"), (1249, "1.2"), (1251, "1.3"), (9_960, "10.0")] {
        let wanted = format!("pagelift: program[7]: 2.0 of 2.0 MiB on 2 MiB pages (hugetlb), {told} ms");
        assert_eq!(line(&report(lifted(), microseconds)), wanted);
    }
    let _ = line(&report(lifted(), u64::MAX));
}

#[test]
fn only_page_sizes_that_cover_something_are_named() {
    let huge = range(4 * MIB, 2 * MIB, 2 * MIB, Some(Source::Thp));
    let none = range(1024 * MIB, 0, 1024 * MIB, None);
    let told = line(&report(vec![huge.clone(), none], 0));
    let wanted = "pagelift: program[7]: 2.0 MiB of 1.0 GiB on 2 MiB pages (thp), 0.0 ms; 1.0 GiB not: ";
    assert!(told.starts_with(wanted), "{told}");
    let several = vec![huge, range(1024 * MIB, 1024 * MIB, 1024 * MIB, Some(Source::Hugetlb))];
    let told = line(&report(several, 0));
    let wanted = "1.0 of 1.0 GiB on 2 MiB and 1 GiB pages (thp 2.0 MiB, hugetlb 1.0 GiB), 0.0 ms; 2.0 MiB not: ";
    assert!(told.contains(wanted), "{told}");
}

#[test]
fn only_what_neither_covers_nor_advises_is_nothing() {
    for (covered_bytes, advised_bytes) in [(0, 0), (MIB, 0), (0, MIB), (MIB, MIB)] {
        let report = Report { covered_bytes, advised_bytes, ..Report::default() };
        assert_eq!(report.is_nothing(), covered_bytes + advised_bytes == 0, "{covered_bytes} and {advised_bytes}");
    }
}

#[test]
fn what_an_earlier_lift_did_is_neither_nothing_nor_a_shortfall() {
    let nothing = Report::default();
    assert_eq!(line(&nothing), "pagelift: program[7]: nothing lifted: the process has none of the requested memory");
    assert!(!nothing.is_complete());
    let again = Report { already_bytes: 4 * MIB, ..nothing };
    assert_eq!(line(&again), "pagelift: program[7]: 4.0 MiB lifted before, nothing new");
    assert!(again.is_complete());
    let kernel = Report { already_bytes: 0, huge_before_bytes: 6 * MIB, ..again.clone() };
    assert_eq!(line(&kernel), "pagelift: program[7]: 6.0 MiB on huge pages before, nothing new");
    assert!(kernel.is_complete());
    let partly = Report { ranges: vec![range(2 * MIB, 0, 2 * MIB, None)], ..kernel };
    let reason = Reason::NoHugePages.with_fix();
    assert_eq!(
        line(&partly),
        format!("pagelift: program[7]: 6.0 MiB on huge pages before, nothing new; 2.0 MiB not: {reason}")
    );
    assert!(!partly.is_complete());
    let more =
        Report { huge_before_bytes: 6 * MIB, ..report(vec![range(2 * MIB, 2 * MIB, 2 * MIB, Some(Source::Thp))], 0) };
    let expected = "pagelift: program[7]: 2.0 of 2.0 MiB on 2 MiB pages (thp), 6.0 MiB on huge pages before, 0.0 ms";
    assert_eq!(line(&more), expected);
    let refused = Report { unlifted: Some("it is not running".to_owned()), ..again };
    assert_eq!(line(&refused), "pagelift: program[7]: not lifted: it is not running");
    assert!(!refused.is_complete());
}

#[test]
fn what_is_advised_and_what_is_sealed_is_told() {
    let lifted = report(vec![range(2 * MIB, 2 * MIB, 2 * MIB, Some(Source::Thp))], 0);
    let told = |report: Report| line(&report).split_once("(thp)").expect("its source").1.to_owned();
    assert_eq!(told(Report { advised_bytes: 4 * MIB, ..lifted.clone() }), ", 4.0 MiB more advised, 0.0 ms");
    let sealing = |reason| Some(Sealing { sealed: MIB, not_sealed: 0, reason });
    assert_eq!(told(Report { sealing: sealing(None), ..lifted.clone() }), ", 1.0 MiB sealed, 0.0 ms");
    let refused = told(Report { sealing: sealing(Some(Reason::NoHugePages)), ..lifted });
    assert!(refused.starts_with(", 1.0 MiB sealed, 0.0 ms; not all is sealed, which needs Linux 6.10: "), "{refused}");
}

#[test]
fn a_lift_is_complete_only_with_all_ranges_and_all_seals() {
    let whole = report(vec![range(2 * MIB, 2 * MIB, 2 * MIB, Some(Source::Thp))], 0);
    assert!(whole.is_complete());
    let sealing = |not_sealed| Some(Sealing { sealed: MIB, not_sealed, reason: None });
    assert!(Report { sealing: sealing(0), ..whole.clone() }.is_complete());
    assert!(!Report { sealing: sealing(1), ..whole }.is_complete());
    assert!(!report(vec![range(4 * MIB, 2 * MIB, 2 * MIB, Some(Source::Thp))], 0).is_complete());
}
