//! The result of a lift or a restore in this process.

use crate::objects::program_name;
use address_space::{RangeSet, format_bytes};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use lift_execution::Report;

/// The result of a lift or a restore.
#[derive(Clone, Debug, Default)]
pub struct LiftReport {
    /// The lift.
    pub lift: Report,
    /// A limitation of forks from now on, if there is one.
    pub forks: Option<&'static str>,
    /// Addresses of the objects that were chosen.
    pub chosen: RangeSet,
    /// Ranges of an earlier lift that a restore could not give back, with the reason of each.
    pub not_restored: Vec<(String, String)>,
}

impl LiftReport {
    /// A report of nothing, with the reason.
    pub fn nothing(why: String) -> Self {
        Self { lift: Report { unlifted: Some(why), ..Report::default() }, ..Self::default() }
    }

    /// Huge pages that were made, of any size.
    pub fn pages(&self) -> u64 {
        self.lift.ranges.iter().map(|range| range.covered.bytes() / range.page_size.bytes()).sum()
    }

    /// One line, as the command line's, without its end.
    pub fn line(&self) -> String {
        self.lift.line(&program_name().unwrap_or_else(|| "?".to_string()), linux_raw::process_id())
    }

    /// A line for each range, refusal and note, for verbose output.
    pub fn details(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for range in &self.lift.ranges {
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
        for refusal in &self.lift.refusals {
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
