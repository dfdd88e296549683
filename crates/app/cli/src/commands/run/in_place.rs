//! `pagelift run --lift shared,anon,jit,files`: memory that the program fills later.

use super::{Teller, lock, unwritten};
use crate::definition::RunArgs;
use crate::say;
use crate::text::data_files::{NOUN, ToldFiles};
use crate::text::in_place::{Told, family, line, noun};
use crate::text::message;
use foreign_text::printable;
use options::{Kind, Kinds, Policy};
use session::shared::{InPlace, InPlaceReports, expectation, newly_huge};
use session::start::InPlaceStart;
use session::{FilesStart, LiftReport, LiftedFiles, files_are_refused, process_name_in_time};
use std::collections::BTreeMap;

/// The kinds of memory that are wanted, and can be lifted.
#[derive(Default)]
pub struct Wanted {
    /// Kinds that can be lifted.
    pub memory: Vec<InPlace>,
    /// Mapped data files are wanted, and can be lifted.
    pub files: bool,
    /// Some were refused.
    pub is_short: bool,
}

impl Wanted {
    /// Checks which kinds the machine allows, and prints the reason and the fix for the others.
    pub fn of(args: &RunArgs) -> Self {
        let kinds = args.policy.policy().kinds;
        let mut wanted = Self::default();
        let name = std::path::Path::new(&args.command[0]).display();
        let tells = !args.outcome.quiet || args.require;
        for memory in InPlace::ALL.into_iter().filter(|memory| kinds.contains(memory.kind())) {
            let expected = expectation(memory);
            match expected.refused {
                Some(why) => {
                    wanted.is_short = true;
                    if tells {
                        say!("pagelift: {name}: {} is not lifted: {why}", noun(memory));
                    }
                }
                None => wanted.memory.push(memory),
            }
            if let Some(why) = expected.in_part.filter(|_| !args.outcome.quiet) {
                say!("pagelift: {name}: {}: {why}", noun(memory));
            }
        }
        let refused = kinds.contains(Kind::Files).then(|| files_are_refused().or_else(|| stays_traced(args)));
        wanted.files = refused == Some(None);
        // `all` means all kinds that can be lifted.
        if let Some(why) = refused.flatten().filter(|_| kinds != Kinds::ALL) {
            wanted.is_short = true;
            if tells {
                say!("pagelift: {name}: {NOUN} are not lifted: {why}");
            }
        }
        wanted
    }

    /// True if no such memory is lifted.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && !self.files
    }

    /// Why the program is not started.
    pub fn refused(&self, args: &RunArgs) -> Option<String> {
        let kinds = args.policy.policy().kinds;
        let has_any = InPlace::ALL.into_iter().any(|memory| kinds.contains(memory.kind()));
        match () {
            () if args.fill && !has_any => Some(
                "--fill concerns shared, anonymous and generated memory only; needed: --lift shared, anon or jit".to_owned(),
            ),
            () if args.dry_run && (has_any || kinds.contains(Kind::Files)) && kinds.usual().is_empty() => Some(
                "--dry-run: nothing is known about memory that the program fills later; needed: `pagelift inspect --lift shared \
                 PID` once it runs"
                    .to_owned(),
            ),
            () if args.require && self.is_short => Some("--require ends it here".to_owned()),
            () => None,
        }
    }

    /// True if nothing but memory that cannot be lifted is wanted.
    pub fn is_all_refused(&self, args: &RunArgs) -> bool {
        self.is_short && self.is_empty() && args.policy.policy().kinds.usual().is_empty()
    }

    /// Names the memory that the helper lifts as it fills.
    pub fn start(&self, args: &RunArgs) -> Option<InPlaceStart> {
        let (fill, most) = (args.fill, args.policy.max_memory);
        let policy = || Policy { max_memory: None, ..args.policy.policy() };
        let files = self.files.then(|| FilesStart { policy: policy(), prepare: args.prepare });
        (!self.is_empty() && !args.dry_run).then(|| InPlaceStart { memory: self.memory.clone(), fill, most, files })
    }

    /// Describes the lift of this memory.
    pub fn note(&self) -> Option<String> {
        let nouns: Vec<_> = self.memory.iter().map(|memory| noun(*memory)).collect();
        let in_place = nouns.split_last().map(|(last, others)| match others {
            [] => format!("{last} is lifted in place as it fills"),
            _ => format!("{} and {last} are lifted in place as they fill", others.join(", ")),
        });
        let files = self.files.then(|| format!("{NOUN} are lifted as they become resident"));
        let notes: Vec<_> = in_place.into_iter().chain(files).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// Returns why the mapped data files of programs that stay traced will not be lifted, with the fix.
fn stays_traced(args: &RunArgs) -> Option<String> {
    (args.follow_lifted || args.only.len() > 1).then(|| {
        "programs stay traced with --follow-lifted or several names in --only, and a process has one tracer; fix: --only \
         with one name"
            .to_owned()
    })
}

/// The messages printed about each kind of memory.
#[derive(Default)]
pub struct ToldOfRun {
    in_place: BTreeMap<&'static str, Told>,
    files: ToldFiles,
}

impl Teller<'_> {
    /// Reports a check of memory that fills. Large growth is printed, and each reason once. A program that has a
    /// terminal may be drawing on it by then.
    pub(super) fn looked(
        &self,
        report: &LiftReport,
        pids: &[i32],
        looked: &InPlaceReports,
        errors: &[(InPlace, String)],
    ) {
        let Some(&first) = pids.first() else { return };
        let mut told = lock(&self.told);
        let name = family(&process_name_in_time(first), pids.len());
        let (mut lines, mut has_news) = (Vec::new(), false);
        for looked in looked.all() {
            let told = told.in_place.entry(noun(looked.memory)).or_default();
            let has_lifted = newly_huge(looked) > 0;
            if has_lifted && (told.has_doubled(looked) || self.args.outcome.verbose) {
                lines.push(line(&name, looked));
            }
            let left_alone = told.left_alone(looked);
            has_news |= has_lifted || !left_alone.is_empty();
            lines.extend(left_alone);
        }
        for (memory, why) in errors {
            let line = format!("{name}: {}: {why}", noun(*memory));
            lines.extend(told.in_place.entry(noun(*memory)).or_default().once(line));
        }
        if has_news {
            self.write_later(report);
        }
        if !self.is_quiet_for(first) {
            self.say_looked(report, first, &lines);
        }
    }

    /// Reports a check of mapped data files in the same way.
    pub(super) fn files_lifted(&self, report: &LiftReport, lifted: &[LiftedFiles]) {
        let Some(first) = lifted.first() else { return };
        let mut lines = lock(&self.told).files.lines(lifted, self.args.outcome.verbose);
        if !lines.is_empty() || lifted.iter().any(|lifted| lifted.covered() > 0) {
            self.write_later(report);
        }
        if self.is_quiet_for(first.pid) {
            lines.retain(|(lifted, _)| lifted.has_fault());
        }
        let lines: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
        self.say_looked(report, first.pid, &lines);
    }

    /// True if a process that runs prints faults only.
    fn is_quiet_for(&self, pid: i32) -> bool {
        self.args.outcome.quiet || !self.args.outcome.verbose && message::writes_to_terminal(pid)
    }

    /// Prints lines about a check by the standard error of a process.
    fn say_looked(&self, report: &LiftReport, first: i32, lines: &[String]) {
        if !lines.is_empty() {
            let text: String =
                lines.iter().map(|line| format!("{}\n", printable(&format!("pagelift: {line}")))).collect();
            self.say_later_by(first, report.pid, &text);
        }
    }

    /// Writes the report again after the start.
    pub(super) fn write_later(&self, report: &LiftReport) {
        let Some(path) = &self.later_report else { return };
        if let Err(error) = report.write(path, !self.args.only.is_empty()) {
            self.say_later(report.pid, &unwritten(path, &error), "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_named() {
        let note = |memory: &[InPlace]| Wanted { memory: memory.to_vec(), ..Wanted::default() }.note();
        assert_eq!(note(&[]), None);
        assert_eq!(note(&[InPlace::Jit]).as_deref(), Some("generated code is lifted in place as it fills"));
        assert_eq!(
            note(&InPlace::ALL).as_deref(),
            Some("shared memory, anonymous memory and generated code are lifted in place as they fill")
        );
        let files = Wanted { memory: vec![InPlace::Jit], files: true, is_short: false }.note();
        let expected =
            "generated code is lifted in place as it fills; mapped data files are lifted as they become resident";
        assert_eq!(files.as_deref(), Some(expected));
    }
}
