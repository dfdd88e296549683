//! The result of a lift, in numbers and as lines of text.

use crate::files;
use address_space::{PageSize, format_bytes};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use lift_execution::Outcome;
use lift_plan::{Plan, Reason, Shortfall, Source};

/// The result of a lift or a restore.
#[derive(Clone, Debug, Default)]
pub struct LiftReport {
    /// The plan: refusals, edges, bytes considered.
    pub plan: Plan,
    /// The outcome of its steps.
    pub outcome: Outcome,
    /// Bytes that were lifted before and still are.
    pub already: u64,
    /// Duration in microseconds.
    pub microseconds: u64,
    /// The reason if nothing could be read or done at all.
    pub unlifted: Option<String>,
    /// A limitation of forks from now on, if there is one.
    pub forks: Option<&'static str>,
    /// Ranges of an earlier lift that a restore could not give back, with the reason of each.
    pub not_restored: Vec<(String, String)>,
}

impl LiftReport {
    /// A report of nothing, with the reason.
    pub fn nothing(why: String) -> Self {
        Self { unlifted: Some(why), ..Self::default() }
    }

    /// Bytes that the kernel backs with huge pages, as read back.
    pub fn covered(&self) -> u64 {
        self.outcome.covered()
    }

    /// Bytes that will be huge once they are touched.
    pub fn advised(&self) -> u64 {
        self.outcome.ranges.iter().map(|range| range.advised).sum()
    }

    /// Huge pages that were made, of any size.
    pub fn pages(&self) -> u64 {
        self.outcome.ranges.iter().map(|range| range.covered.bytes() / range.page_size.bytes()).sum()
    }

    /// True if everything that the plan promised is there, and it promised something.
    pub fn is_complete(&self) -> bool {
        self.unlifted.is_none()
            && self.covered() + self.advised() + self.already > 0
            && self.outcome.is_complete()
            && self.plan.refusals.iter().all(|refusal| matches!(refusal.reason, Reason::NoWholePage { .. }))
    }

    /// The reason that keeps most memory off huge pages.
    pub fn shortfall(&self) -> Option<Shortfall<'_>> {
        let uncovered = self.outcome.ranges.iter().flat_map(|range| &range.uncovered);
        let uncovered = uncovered.map(|uncovered| (uncovered.range.len(), &uncovered.reason));
        let refused = self.plan.refusals.iter().map(|refusal| (refusal.range.len(), &refusal.reason));
        Shortfall::weightiest(uncovered.chain(refused))
    }

    /// One line, as the command line's, without its end.
    pub fn line(&self) -> String {
        let head = format!("pagelift: {}[{}]: ", program(), linux_raw::process_id());
        if let Some(why) = &self.unlifted {
            return format!("{head}not lifted: {why}");
        }
        if let Some(difference) = self.outcome.unexpected.first() {
            return format!("{head}FAULT: the address space differs where it should not: {difference:?}");
        }
        let shortfall = self.shortfall();
        if self.covered() + self.advised() == 0 && self.already > 0 {
            return format!("{head}{} lifted before, nothing new", format_bytes(self.already));
        }
        if self.covered() + self.advised() == 0 {
            return match shortfall {
                Some(shortfall) => format!("{head}nothing lifted: {}", shortfall.reason.with_fix()),
                None => format!("{head}nothing lifted: none of the memory asked for is there"),
            };
        }
        let mut text = format!("{head}{}", self.coverage());
        if self.advised() > 0 {
            text += &format!(", {} more advised", format_bytes(self.advised()));
        }
        text += &format!(", {}.{} ms", self.microseconds / 1000, self.microseconds % 1000 / 100);
        if let Some(shortfall) = shortfall.filter(|shortfall| !shortfall.is_expected) {
            text += &format!("; {} not: {}", format_bytes(shortfall.bytes), shortfall.reason.with_fix());
        }
        text
    }

    fn coverage(&self) -> String {
        let covered = format_bytes(self.covered());
        let all = format_bytes(self.plan.considered);
        // "19.4 of 33.9 MiB" where the units agree.
        let short = match (covered.split_once(' '), all.split_once(' ')) {
            (Some((number, unit)), Some((_, same))) if unit == same => number.to_string(),
            _ => covered,
        };
        let by = |source: Source| {
            let bytes = self.outcome.covered_from(source);
            (bytes > 0).then_some((source, bytes))
        };
        let sources: Vec<_> = [by(Source::File), by(Source::Hugetlb), by(Source::Thp)].into_iter().flatten().collect();
        let mut sizes: Vec<PageSize> = self.outcome.ranges.iter().map(|range| range.page_size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let sizes = sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let named = match sources.as_slice() {
            [] => return format!("{short} of {all} on huge pages"),
            [(source, _)] => source.to_string(),
            several => several
                .iter()
                .map(|(source, bytes)| format!("{source} {}", format_bytes(*bytes)))
                .collect::<Vec<_>>()
                .join(", "),
        };
        format!("{short} of {all} on {sizes} pages ({named})")
    }

    /// A line for each range, refusal and note, for verbose output.
    pub fn details(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for range in &self.outcome.ranges {
            let kinds = range.kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
            let size = format_bytes(range.range.len());
            let covered = format_bytes(range.covered.bytes());
            let from = range.source.map_or_else(|| "ordinary pages".to_string(), |source| source.to_string());
            let mut line = format!("pagelift:   {} {kinds} {}: {covered} of {size}, {from}", range.object, range.range);
            for (bytes, reason) in range.uncovered.iter().map(|u| (u.range.len(), &u.reason)) {
                line += &format!("; {} not: {}", format_bytes(bytes), reason.with_fix());
            }
            lines.push(line);
        }
        for refusal in &self.plan.refusals {
            let kinds = refusal.kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
            lines.push(format!(
                "pagelift:   {} {kinds} {}: refused: {}",
                refusal.object,
                refusal.range,
                refusal.reason.with_fix()
            ));
        }
        lines.extend(self.forks.map(|note| format!("pagelift:   forks: {note}")));
        for (object, why) in &self.not_restored {
            lines.push(format!("pagelift:   {object}: not restored: {why}"));
        }
        lines
    }
}

/// The program's name for messages.
fn program() -> String {
    let path = files::program::path().unwrap_or_default();
    let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.is_empty() { "?".to_string() } else { name.to_string() }
}
