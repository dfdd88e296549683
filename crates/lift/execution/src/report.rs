//! The report of one lift: the plan, the coverage that the kernel reports, and both in a line of text.

use crate::outcome::{LiftOutcome, RangeOutcome, Sealing};
use crate::verify::Difference;
use address_space::{AddressRange, PageSize, format_bytes};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use lift_plan::{Edge, Kind, Plan, Refusal, Shortfall, Source};
use serde::Serialize;

/// Bytes of a lift that are covered from one source by pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoveredBySource {
    /// The source.
    pub source: Source,
    /// Size of its pages.
    pub page_size: PageSize,
    /// Covered bytes.
    pub bytes: u64,
}

/// The goal and the outcome of a lift.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Why the program was not lifted, if so.
    pub unlifted: Option<String>,
    /// Bytes of all memory that the policy chose.
    pub considered_bytes: u64,
    /// Bytes that the kernel reports on huge pages.
    pub covered_bytes: u64,
    /// Bytes that were advised, and become huge at their first access.
    pub advised_bytes: u64,
    /// Bytes that the lift made resident.
    pub made_resident_bytes: u64,
    /// Bytes that an earlier lift of the same process has put on new pages; they are not considered again.
    #[serde(skip)]
    pub already_bytes: u64,
    /// Bytes of the chosen memory that huge pages mapped before the lift, and that the plan leaves out. Earlier lifts have
    /// put them there, or the kernel by itself.
    pub huge_before_bytes: u64,
    /// Time to prepare and execute the plan, in microseconds.
    pub lift_microseconds: u64,
    /// Outcome of sealing, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sealing: Option<Sealing>,
    /// Each range of the plan.
    pub ranges: Vec<RangeOutcome>,
    /// The refusals in the plan.
    pub refusals: Vec<Refusal>,
    /// Edges of lifted ranges.
    pub edges: Vec<Edge>,
    /// Differences that no step should have made; always empty unless Pagelift has a fault.
    pub unexpected: Vec<Difference>,
}

impl Report {
    /// Returns the report of a plan that was executed in `microseconds`.
    pub fn new(plan: Plan, outcome: LiftOutcome, microseconds: u64) -> Self {
        Self {
            unlifted: None,
            considered_bytes: plan.considered,
            covered_bytes: outcome.covered(),
            advised_bytes: outcome.ranges.iter().map(|range| range.advised).sum(),
            made_resident_bytes: outcome.made_resident(),
            already_bytes: 0,
            huge_before_bytes: 0,
            lift_microseconds: microseconds,
            sealing: outcome.sealing,
            ranges: outcome.ranges,
            refusals: plan.refusals,
            edges: plan.edges,
            unexpected: outcome.unexpected,
        }
    }

    /// Returns the bytes covered, by source and page size.
    pub fn sources(&self) -> Vec<CoveredBySource> {
        let mut sources: Vec<CoveredBySource> = Vec::new();
        for range in self.ranges.iter().filter(|range| !range.covered.is_empty()) {
            let Some(source) = range.source else { continue };
            let (page_size, bytes) = (range.page_size, range.covered.bytes());
            match sources.iter_mut().find(|covered| (covered.source, covered.page_size) == (source, page_size)) {
                Some(covered) => covered.bytes += bytes,
                None => sources.push(CoveredBySource { source, page_size, bytes }),
            }
        }
        sources
    }

    /// Returns the bytes covered from one source.
    pub fn covered_from(&self, source: Source) -> u64 {
        self.sources().iter().filter(|covered| covered.source == source).map(|covered| covered.bytes).sum()
    }

    /// True if no memory is on huge pages by this lift, or will be at its first access.
    pub fn is_nothing(&self) -> bool {
        self.covered_bytes == 0 && self.advised_bytes == 0
    }

    /// True if the plan is not empty and was carried out completely.
    pub fn is_complete(&self) -> bool {
        self.unlifted.is_none()
            && self.unexpected.is_empty()
            && self.sealing.as_ref().is_none_or(|sealing| sealing.not_sealed == 0)
            && !(self.is_nothing() && self.already_bytes == 0 && self.huge_before_bytes == 0)
            && self.ranges.iter().all(RangeOutcome::is_complete)
            && self.refusals.iter().all(|refusal| refusal.reason.is_expected())
    }

    /// True if the plan, which may be empty, was carried out completely, and leaves out memory only for expected reasons, or
    /// parts that fill no huge page of this size.
    pub fn leaves_no_whole_page(&self, huge: Option<PageSize>) -> bool {
        let fills_none = |range: AddressRange| huge.is_some_and(|huge| range.whole_pages(huge).is_empty());
        self.unlifted.is_none()
            && self.unexpected.is_empty()
            && self.sealing.as_ref().is_none_or(|sealing| sealing.not_sealed == 0)
            && self.ranges.iter().all(RangeOutcome::is_complete)
            && self.refusals.iter().all(|refusal| refusal.reason.is_expected() || fills_none(refusal.range))
    }

    /// Returns the report without the ranges of one kind of memory, for a line that names that memory apart.
    #[must_use]
    pub fn without(&self, kind: Kind) -> Self {
        let is_of = |kinds: &[Kind]| kinds == [kind];
        let (left_out, ranges): (Vec<_>, Vec<_>) =
            self.ranges.iter().cloned().partition(|range: &RangeOutcome| is_of(&range.kinds));
        let (refused, refusals): (Vec<_>, Vec<_>) =
            self.refusals.iter().cloned().partition(|refusal: &Refusal| is_of(&refusal.kinds));
        let sum = |of: fn(&RangeOutcome) -> u64| left_out.iter().map(of).sum::<u64>();
        let refused: u64 = refused.iter().map(|refusal| refusal.range.len()).sum();
        Self {
            considered_bytes: self.considered_bytes.saturating_sub(refused + sum(|range| range.range.len())),
            covered_bytes: self.covered_bytes.saturating_sub(sum(|range| range.covered.bytes())),
            advised_bytes: self.advised_bytes.saturating_sub(sum(|range| range.advised)),
            made_resident_bytes: self.made_resident_bytes.saturating_sub(sum(|range| range.made_resident)),
            ranges,
            refusals,
            ..self.clone()
        }
    }

    /// Returns the reason that keeps most memory off huge pages.
    pub fn main_shortfall(&self) -> Option<Shortfall<'_>> {
        let uncovered = self.ranges.iter().flat_map(|r| &r.uncovered).map(|u| (u.range.len(), &u.reason));
        let refused = self.refusals.iter().map(|refusal| (refusal.range.len(), &refusal.reason));
        Shortfall::weightiest(uncovered.chain(refused))
    }

    /// Returns the report as a line, without a line feed.
    pub fn line(&self, program: &str, pid: i32) -> String {
        let head = format!("pagelift: {program}[{pid}]: ");
        if let Some(why) = &self.unlifted {
            return format!("{head}not lifted: {why}");
        }
        if let Some(difference) = self.unexpected.first() {
            return format!(
                "{head}FAULT: {} differs from the program's own memory{difference}; fix: restart the program, and report this; {}",
                difference.range,
                self.coverage()
            );
        }
        let shortfall = self.main_shortfall();
        let rest = shortfall.filter(|shortfall| !shortfall.is_expected).map_or_else(String::new, |shortfall| {
            format!("; {} not: {}", format_bytes(shortfall.bytes), shortfall.reason.with_fix())
        });
        let huge_before = format!("{} on huge pages before", format_bytes(self.huge_before_bytes));
        if self.is_nothing() {
            return match shortfall {
                _ if self.already_bytes > 0 => {
                    format!("{head}{} lifted before, nothing new{rest}", format_bytes(self.already_bytes))
                }
                _ if self.huge_before_bytes > 0 => format!("{head}{huge_before}, nothing new{rest}"),
                Some(shortfall) => format!("{head}nothing lifted: {}", shortfall.reason.with_fix()),
                None => format!("{head}nothing lifted: the process has none of the requested memory"),
            };
        }
        let mut text = format!("{head}{}", self.coverage());
        if self.advised_bytes > 0 {
            text += &format!(", {} more advised", format_bytes(self.advised_bytes));
        }
        if let Some(sealing) = &self.sealing {
            text += &format!(", {} sealed", format_bytes(sealing.sealed));
        }
        if self.huge_before_bytes > 0 {
            text += &format!(", {huge_before}");
        }
        let tenths = self.lift_microseconds.saturating_add(50) / 100;
        text += &format!(", {}.{} ms", tenths / 10, tenths % 10);
        text += &rest;
        if let Some(reason) = self.sealing.as_ref().and_then(|sealing| sealing.reason.as_ref()) {
            text += &format!("; not all is sealed, which needs Linux 6.10: {}", reason.with_fix());
        }
        text
    }

    fn coverage(&self) -> String {
        let sources = self.sources();
        let covered = format_bytes(self.covered_bytes);
        let all = format_bytes(self.considered_bytes);
        // "19.4 of 33.9 MiB" if the units agree.
        let short = match (covered.split_once(' '), all.split_once(' ')) {
            (Some((number, unit)), Some((_, same))) if unit == same => number.to_string(),
            _ => covered,
        };
        let mut sizes: Vec<PageSize> = sources.iter().map(|covered| covered.page_size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let sizes = sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let by = match sources.as_slice() {
            [] => return format!("{short} of {all} on huge pages"),
            [covered] => covered.source.to_string(),
            several => several
                .iter()
                .map(|covered| format!("{} {}", covered.source, format_bytes(covered.bytes)))
                .collect::<Vec<_>>()
                .join(", "),
        };
        format!("{short} of {all} on {sizes} pages ({by})")
    }
}
