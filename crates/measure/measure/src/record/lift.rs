//! The effect of a lift, in the form of a record.

use crate::record::{AddressMap, HexAddress};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most entries of each list of a lift.
const MOST_ENTRIES: usize = 500;

/// The effect of a lift: the main part of the report that `pagelift run --report` writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lift {
    /// Name of the program's file.
    pub program: String,
    /// Why the program was not lifted, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlifted: Option<String>,
    /// Bytes of all memory that the options chose.
    pub considered: u64,
    /// Bytes that the kernel reported on huge pages afterwards.
    pub covered: u64,
    /// Bytes that become huge at their first access.
    pub advised: u64,
    /// Bytes that the lift made resident.
    pub made_resident: u64,
    /// The ranges of the plan.
    pub ranges: Vec<LiftedRange>,
    /// The memory that stays on base pages, with the reason.
    pub not_lifted: Vec<NotLifted>,
    /// Entries of both lists that were left out.
    #[serde(default)]
    pub left_out: usize,
}

/// A range of the plan, and its outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiftedRange {
    /// Name of the object.
    pub object: String,
    /// The kinds of memory.
    pub kinds: Vec<String>,
    /// First address.
    pub start: HexAddress,
    /// Bytes of the range.
    pub bytes: u64,
    /// The source that was used; absent if the range is unchanged.
    pub source: Option<String>,
    /// Size of the huge pages in bytes.
    pub page_size: u64,
    /// Bytes that the kernel reported on huge pages.
    pub covered: u64,
    /// Bytes that become huge when they are touched.
    pub advised: u64,
    /// Sources that did not serve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Attempt>,
}

/// A source that did not serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The source.
    pub source: String,
    /// Why.
    pub reason: String,
    /// The command or change that fixes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Memory that stays on base pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotLifted {
    /// Name of the object.
    pub object: String,
    /// The kinds of memory.
    pub kinds: Vec<String>,
    /// Bytes.
    pub bytes: u64,
    /// Why.
    pub reason: String,
    /// The command or change that fixes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl NotLifted {
    /// Bytes of a range's edge, which fills no huge page. `merging_helps`: the option `--edges merge-read-only` would
    /// cover the edge.
    pub fn edge(object: String, kinds: Vec<String>, bytes: u64, merging_helps: bool) -> Self {
        let fix = match merging_helps {
            true => "--edges merge-read-only",
            false => "relink it with segments aligned to huge pages",
        };
        let reason = "an edge that fills no huge page".to_owned();
        Self { object, kinds, bytes, reason, fix: Some(fix.to_owned()) }
    }
}

impl Lift {
    /// Reads the essential of a report that `pagelift run --report` has written.
    ///
    /// # Errors
    /// It is no such report.
    pub fn from_report(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<Report>(json).map(Self::from)
    }

    /// The reason why no memory was lifted; absent if some was.
    pub fn nothing(&self) -> Option<String> {
        let with_fix = |reason: &str, fix: &Option<String>| match fix {
            Some(fix) => format!("{reason}; fix: {fix}"),
            None => reason.to_owned(),
        };
        if self.covered > 0 || (self.advised > 0 && self.unlifted.is_none()) {
            return None;
        }
        let failed = self.ranges.iter().flat_map(|range| &range.failed).next();
        let failed = failed.map(|failed| format!("{}: {}", failed.source, with_fix(&failed.reason, &failed.fix)));
        let left = || self.not_lifted.first().map(|not| with_fix(&not.reason, &not.fix));
        Some(self.unlifted.clone().or(failed).or_else(left).unwrap_or_else(|| "the options chose nothing".to_owned()))
    }

    /// The reason why no memory was lifted, if ranges were to be lifted: another try may succeed.
    pub fn failed_for_now(&self) -> Option<String> {
        let is_planned = self.ranges.iter().any(|range| !range.failed.is_empty());
        self.nothing().filter(|_| is_planned)
    }

    /// Bytes on huge pages, and resident bytes, of the mappings that the lift covered, in a map of the same program at other
    /// addresses.
    pub(crate) fn huge_and_resident_in(&self, map: &AddressMap) -> (u64, u64) {
        let covered = |object: &str, kind: &str| {
            let mut ranges = self.ranges.iter().filter(|range| range.covered > 0 && range.object == object);
            ranges.any(|range| kind.split('+').any(|kind| range.kinds.iter().any(|lifted| lifted == kind)))
        };
        let of_lift = map.ranges.iter().filter(|range| covered(&range.object, &range.kind));
        of_lift.fold((0, 0), |(huge, resident): (u64, u64), range| {
            let of_range = range.huge.iter().fold(0, |sum: u64, huge| sum.saturating_add(huge.bytes));
            (huge.saturating_add(of_range), resident.saturating_add(range.resident))
        })
    }

    pub(crate) fn is_bounded(&self) -> bool {
        let is_short = |range: &LiftedRange| range.failed.len() <= MOST_ENTRIES && range.kinds.len() <= MOST_ENTRIES;
        self.ranges.len() <= MOST_ENTRIES
            && self.not_lifted.len() <= MOST_ENTRIES
            && self.ranges.iter().all(is_short)
            && self.not_lifted.iter().all(|not| not.kinds.len() <= MOST_ENTRIES)
    }

    /// Joins the entries of memory that stays on base pages if they differ only in their bytes, and keeps the largest
    /// entries of each list.
    #[must_use]
    pub fn condensed(mut self) -> Self {
        let mut joined: BTreeMap<_, u64> = BTreeMap::new();
        for NotLifted { object, kinds, bytes, reason, fix } in self.not_lifted {
            let sum = joined.entry((object, kinds, reason, fix)).or_default();
            *sum = sum.saturating_add(bytes);
        }
        let entry = |((object, kinds, reason, fix), bytes)| NotLifted { object, kinds, bytes, reason, fix };
        self.not_lifted = joined.into_iter().map(entry).collect();
        let all = self.ranges.len() + self.not_lifted.len();
        self.ranges.sort_by_key(|range| std::cmp::Reverse(range.bytes));
        self.ranges.truncate(MOST_ENTRIES);
        self.not_lifted.sort_by_key(|not| std::cmp::Reverse(not.bytes));
        self.not_lifted.truncate(MOST_ENTRIES);
        self.left_out = all - self.ranges.len() - self.not_lifted.len();
        self
    }
}

/// The report's own words.
#[derive(Deserialize)]
struct Report {
    program: String,
    unlifted: Option<String>,
    considered_bytes: u64,
    covered_bytes: u64,
    advised_bytes: u64,
    made_resident_bytes: u64,
    ranges: Vec<ReportedRange>,
    refusals: Vec<ReportedRefusal>,
    edges: Vec<ReportedEdge>,
    /// By reason.
    #[serde(default)]
    fixes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Addresses {
    start: HexAddress,
    end: HexAddress,
}

impl Addresses {
    fn bytes(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }
}

#[derive(Deserialize)]
struct ReportedRange {
    object: String,
    kinds: Vec<String>,
    range: Addresses,
    source: Option<String>,
    page_size: u64,
    covered: Vec<Addresses>,
    advised: u64,
    failed: Vec<Attempt>,
    uncovered: Vec<ReportedUncovered>,
}

#[derive(Deserialize)]
struct ReportedUncovered {
    range: Addresses,
    reason: String,
}

#[derive(Deserialize)]
struct ReportedRefusal {
    object: String,
    kinds: Vec<String>,
    range: Addresses,
    reason: String,
}

#[derive(Deserialize)]
struct ReportedEdge {
    object: String,
    kinds: Vec<String>,
    range: Addresses,
    cure: String,
}

fn sum<'a>(ranges: impl IntoIterator<Item = &'a Addresses>) -> u64 {
    ranges.into_iter().fold(0, |sum, range| sum.saturating_add(range.bytes()))
}

impl From<Report> for Lift {
    fn from(report: Report) -> Self {
        let fix = |reason: &str| report.fixes.get(reason).cloned();
        let not_lifted = |object: &str, kinds: &[String], reason: &str, bytes| NotLifted {
            object: object.to_owned(),
            kinds: kinds.to_vec(),
            bytes,
            reason: reason.to_owned(),
            fix: fix(reason),
        };
        let of_refusal =
            |part: &ReportedRefusal| not_lifted(&part.object, &part.kinds, &part.reason, part.range.bytes());
        let of_edge = |edge: &ReportedEdge| {
            NotLifted::edge(edge.object.clone(), edge.kinds.clone(), edge.range.bytes(), edge.cure == "merge-read-only")
        };
        let of_range = |range: &ReportedRange| {
            let of_part =
                |part: &ReportedUncovered| not_lifted(&range.object, &range.kinds, &part.reason, part.range.bytes());
            range.uncovered.iter().map(of_part).collect::<Vec<_>>()
        };
        let refused = report.refusals.iter().map(of_refusal).chain(report.edges.iter().map(of_edge));
        let not_lifted = refused.chain(report.ranges.iter().flat_map(of_range)).collect();
        let mut ranges: Vec<LiftedRange> = report.ranges.into_iter().map(LiftedRange::from).collect();
        for failed in ranges.iter_mut().flat_map(|range| &mut range.failed) {
            failed.fix = report.fixes.get(&failed.reason).cloned();
        }
        Self {
            program: report.program,
            unlifted: report.unlifted,
            considered: report.considered_bytes,
            covered: report.covered_bytes,
            advised: report.advised_bytes,
            made_resident: report.made_resident_bytes,
            ranges,
            not_lifted,
            left_out: 0,
        }
        .condensed()
    }
}

impl From<ReportedRange> for LiftedRange {
    fn from(range: ReportedRange) -> Self {
        Self {
            start: range.range.start,
            bytes: range.range.bytes(),
            covered: sum(&range.covered),
            object: range.object,
            kinds: range.kinds,
            source: range.source,
            page_size: range.page_size,
            advised: range.advised,
            failed: range.failed,
        }
    }
}
