//! The entry of a lift in a record of measurements.

use lift_plan::{EdgeCure, Kind, Reason};
use measure::record::{Attempt, HexAddress, Lift, LiftedRange, NotLifted};
use options::Choice;
use session::LiftReport;

/// Returns the entry for a lift, with the reason if no memory is on huge pages.
pub(super) fn recorded_lift(report: &LiftReport) -> Lift {
    let lift = &report.lift;
    let main_reason = || lift.main_shortfall().map(|shortfall| shortfall.reason.with_fix());
    let unlifted = lift.unlifted.clone().or_else(|| main_reason().filter(|_| lift.covered_bytes == 0));
    let ranges = lift.ranges.iter().map(|range| LiftedRange {
        object: range.object.clone(),
        kinds: words(&range.kinds),
        start: HexAddress(range.range.start().0),
        bytes: range.range.len(),
        source: range.source.map(|source| source.to_string()),
        page_size: range.page_size.bytes(),
        covered: range.covered.bytes(),
        advised: range.advised,
        failed: range.failed.iter().map(|failed| attempt(failed.source.to_string(), &failed.reason)).collect(),
    });
    let refused = lift
        .refusals
        .iter()
        .map(|refusal| not_lifted(&refusal.object, &refusal.kinds, refusal.range.len(), &refusal.reason));
    let edges = lift.edges.iter().map(|edge| {
        let merging_helps = edge.cure == EdgeCure::MergeReadOnly;
        NotLifted::edge(edge.object.clone(), words(&edge.kinds), edge.range.len(), merging_helps)
    });
    let uncovered = lift.ranges.iter().flat_map(|range| {
        range.uncovered.iter().map(|part| not_lifted(&range.object, &range.kinds, part.range.len(), &part.reason))
    });
    Lift {
        program: report.program.clone(),
        unlifted,
        considered: lift.considered_bytes,
        covered: lift.covered_bytes,
        advised: lift.advised_bytes,
        made_resident: lift.made_resident_bytes,
        ranges: ranges.collect(),
        not_lifted: refused.chain(edges).chain(uncovered).collect(),
        left_out: 0,
    }
    .condensed()
}

fn words(kinds: &[Kind]) -> Vec<String> {
    kinds.iter().map(|kind| kind.word().to_owned()).collect()
}

fn attempt(source: String, reason: &Reason) -> Attempt {
    Attempt { source, reason: reason.to_string(), fix: reason.fix() }
}

fn not_lifted(object: &str, kinds: &[Kind], bytes: u64, reason: &Reason) -> NotLifted {
    NotLifted { object: object.to_owned(), kinds: words(kinds), bytes, reason: reason.to_string(), fix: reason.fix() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{Address, AddressRange, PageSize, Protection, RangeSet};
    use lift_execution::{FailedAttempt, RangeOutcome, Report, Uncovered};
    use lift_plan::{Edge, Refusal, Source};

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), Address(end))
    }

    fn report() -> LiftReport {
        let (object, kinds) = ("server".to_owned(), vec![Kind::Text, Kind::Rodata]);
        let outcome = RangeOutcome {
            object: object.clone(),
            kinds: kinds.clone(),
            range: range(0x40_0000, 0xa0_0000),
            protection: Protection::READ_EXECUTE,
            source: Some(Source::Thp),
            page_size: PageSize::new(2 << 20).unwrap(),
            lifted: RangeSet::from_iter([range(0x40_0000, 0xa0_0000)]),
            covered: RangeSet::from_iter([range(0x40_0000, 0x60_0000)]),
            advised: 4096,
            made_resident: 8192,
            failed: vec![FailedAttempt { source: Source::Hugetlb, reason: Reason::NotReadable }],
            uncovered: vec![
                Uncovered { range: range(0x60_0000, 0x80_0000), reason: Reason::ThpOff },
                Uncovered { range: range(0x80_0000, 0xa0_0000), reason: Reason::ThpOff },
            ],
        };
        let refusal = Refusal {
            object: object.clone(),
            kinds: kinds.clone(),
            range: range(0, 4096),
            reason: Reason::NotReadable,
        };
        let edge = |cure| Edge {
            object: object.clone(),
            kinds: kinds.clone(),
            range: range(0, 8192),
            protection: Protection::READ,
            cure,
        };
        let mut report = LiftReport::new(7, object.clone());
        report.lift = Report {
            considered_bytes: 6 << 20,
            covered_bytes: 2 << 20,
            advised_bytes: 4096,
            made_resident_bytes: 8192,
            ranges: vec![outcome],
            refusals: vec![refusal],
            edges: vec![edge(EdgeCure::Relink), edge(EdgeCure::MergeReadOnly)],
            ..Report::default()
        };
        report.fixes = [Reason::ThpOff, Reason::NotReadable]
            .iter()
            .filter_map(|reason| Some((reason.to_string(), reason.fix()?)))
            .collect();
        report
    }

    #[test]
    fn an_entry_equals_that_of_the_written_report() {
        let report = report();
        let written = serde_json::to_string(&report).unwrap();
        assert_eq!(recorded_lift(&report), Lift::from_report(&written).unwrap());
    }

    #[test]
    fn an_entry_without_covered_memory_has_the_reason() {
        let mut report = report();
        report.lift.covered_bytes = 0;
        let unlifted = recorded_lift(&report).unlifted.unwrap();
        assert_eq!(unlifted, Reason::ThpOff.with_fix());
    }
}
