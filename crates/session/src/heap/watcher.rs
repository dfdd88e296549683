//! Collapses the memory of a program from outside again and again, for programs whose allocator takes no advice.

use super::in_place::{half_full, left_alone, refusal};
use crate::SessionError;
use crate::running::Chosen;
use crate::shared::{InPlaceOptions, InPlaceReport, LeftAlone, RepeatedLift, newly_huge};
use address_space::PageSize;
use linux::process_handle::ProcessHandle;
use machine_facts::{is_thp_off, meminfo_bytes};
use process_view::ProcessFiles;
use shared_memory::Reason;
use std::mem::discriminant;
use std::time::{Duration, Instant};

/// The first pass comes when most of a program's start is over.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The watcher uses at most one CPU's time divided by this.
const PAUSE_TIMES_PASS: u32 = 20;
/// Time after which memory that has not grown is examined again: another process may have stopped to share it.
const AGAIN: Duration = Duration::from_secs(30);

/// The passes over one process.
struct Watcher<'a> {
    process: &'a ProcessHandle,
    pid: i32,
    huge: PageSize,
    lift: RepeatedLift,
    /// Time and resident anonymous memory at the last pass without an error, if it needs no other one soon.
    settled: Option<(Instant, u64)>,
    /// Reasons that have been reported.
    reported: Vec<LeftAlone>,
    has_reported_error: bool,
}

/// True after the first pass over the whole heap that collapses nothing behind passes that did.
#[derive(Default)]
struct Settling {
    /// Some memory was collapsed.
    has_begun: bool,
    is_over: bool,
}

impl Settling {
    fn settles_after(&mut self, done: u64, is_whole: bool) -> bool {
        self.has_begun |= done > 0;
        let settles = self.has_begun && done == 0 && is_whole && !self.is_over;
        self.is_over |= settles;
        settles
    }
}

/// The result of one pass.
enum Pass {
    Done {
        /// Bytes that are newly on huge pages.
        bytes: u64,
        /// No part of the heap was left uncounted.
        is_whole: bool,
    },
    /// The kernel refuses, or the process has ended.
    Ends,
}

/// Collapses a process's memory onto pages of size `huge` again and again until it ends or the kernel refuses. `pid` is
/// the number of the process behind `process`. The caller learns each kind of reason once, and by `once_settled` of the first
/// pass that counts the whole heap and finds no more memory to collapse.
pub fn collapse_while_it_runs(
    process: &ProcessHandle,
    pid: i32,
    huge: PageSize,
    tell: &mut dyn FnMut(&str),
    once_settled: &dyn Fn(),
) {
    let mut settling = Settling::default();
    let lift = RepeatedLift::begin();
    let (settled, reported) = (None, Vec::new());
    let mut watcher = Watcher { process, pid, huge, lift, settled, reported, has_reported_error: false };
    let mut pause = FIRST_PAUSE;
    while !process.ends_within(pause) {
        let started = Instant::now();
        let Pass::Done { bytes, is_whole } = watcher.pass(tell) else { return };
        if settling.settles_after(bytes, is_whole) {
            once_settled();
        }
        let longer = if bytes > 0 { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        pause = longer.max(started.elapsed() * PAUSE_TIMES_PASS);
    }
}

impl Watcher<'_> {
    fn pass(&mut self, tell: &mut dyn FnMut(&str)) -> Pass {
        let status = ProcessFiles::of(self.pid).text("status").unwrap_or_default();
        let resident = meminfo_bytes(&status, "RssAnon").unwrap_or(u64::MAX);
        // To suspend the setting would need a tracer, and the program may have another one.
        if is_thp_off(&status) || !self.is_due(resident) {
            return Pass::Done { bytes: 0, is_whole: true };
        }
        let options = InPlaceOptions { chosen: Chosen::ByHandle(self.pid, self.process), ..half_full() };
        let looked = self.lift.lift(&[self.pid], options);
        self.take(looked, resident, tell)
    }

    /// True if memory has changed by a huge page since a pass that settled all, or that pass was long ago.
    fn is_due(&self, resident: u64) -> bool {
        let has_changed = |before: u64| resident.abs_diff(before) >= self.huge.bytes();
        self.settled.is_none_or(|(at, before)| has_changed(before) || at.elapsed() >= AGAIN)
    }

    /// Takes the result of a lift. An error is the end only if the process has ended.
    fn take(&mut self, looked: Result<InPlaceReport, SessionError>, resident: u64, tell: &mut dyn FnMut(&str)) -> Pass {
        if !self.process.is_alive() {
            return Pass::Ends;
        }
        let report = match looked {
            Ok(report) => report,
            Err(error) => {
                self.settled = None;
                if !std::mem::replace(&mut self.has_reported_error, true) {
                    tell(&format!("{}; it is tried again", error.in_full()));
                }
                return Pass::Done { bytes: 0, is_whole: false };
            }
        };
        if let Some(why) = refusal(&report) {
            tell(&why);
            return Pass::Ends;
        }
        let (bytes, is_whole) = (newly_huge(&report), !is_counted_in_part(&report));
        let is_settled = bytes == 0 && !report.segments.iter().flat_map(|segment| &segment.left_alone).any(is_brief);
        self.settled = is_settled.then(|| (Instant::now(), resident));
        self.report(left_alone(&report), tell);
        Pass::Done { bytes, is_whole }
    }

    /// Reports reasons of kinds that are new.
    fn report(&mut self, left: Vec<LeftAlone>, tell: &mut dyn FnMut(&str)) {
        let kind = |left: &LeftAlone| left.cause.as_ref().map(discriminant);
        for left in left.into_iter().filter(|left| !is_brief(left)) {
            if self.reported.iter().any(|reported| kind(reported) == kind(&left)) {
                continue;
            }
            let fix = left.fix.as_ref().map(|fix| format!("; fix: {fix}")).unwrap_or_default();
            tell(&format!("left on small pages: {}{fix}; it is tried again", left.reason));
            self.reported.push(left);
        }
    }
}

/// True for a block that was in use, moved or emptied during a pass, and for the rest of a heap that was counted in part: the
/// next pass comes soon.
fn is_brief(left: &LeftAlone) -> bool {
    matches!(left.cause, Some(Reason::Busy { .. } | Reason::TooScattered | Reason::Changed | Reason::Gone))
}

/// True if a part of the heap had no time to be counted.
fn is_counted_in_part(report: &InPlaceReport) -> bool {
    let is_part = |left: &LeftAlone| left.cause == Some(Reason::TooScattered);
    report.segments.iter().flat_map(|segment| &segment.left_alone).any(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::Mutex;

    fn watcher(process: &ProcessHandle) -> Watcher<'_> {
        let (pid, huge) = (std::process::id() as i32, PageSize::new(2 << 20).unwrap());
        let (settled, reported) = (None, Vec::new());
        Watcher { process, pid, huge, lift: RepeatedLift::begin(), settled, reported, has_reported_error: false }
    }

    #[test]
    fn the_next_process_with_the_same_pid_is_left_alone() {
        let mut ended = Command::new("true").spawn().unwrap();
        let process = ProcessHandle::open(ended.id() as i32).unwrap();
        ended.wait().unwrap();
        // As if this process had got the number.
        let own = std::process::id() as i32;
        let options = InPlaceOptions { chosen: Chosen::ByHandle(own, &process), ..half_full() };
        let refused = RepeatedLift::begin().lift(&[own], options).map(|_| ()).map_err(|error| error.to_string());
        assert!(refused.is_err(), "{refused:?}");
        let mut told = Vec::new();
        assert!(matches!(watcher(&process).pass(&mut |why| told.push(why.to_owned())), Pass::Ends));
        collapse_while_it_runs(
            &process,
            own,
            PageSize::new(2 << 20).unwrap(),
            &mut |why| told.push(why.to_owned()),
            &|| (),
        );
        assert!(told.is_empty(), "{told:?}");
    }

    #[test]
    fn collapsed_memory_is_reported_once() {
        let mut settling = Settling::default();
        let passes = [0, 0, 4 << 20, 2 << 20, 0, 0, 2 << 20, 0];
        let settled = passes.map(|done| settling.settles_after(done, true));
        assert_eq!(settled, [false, false, false, false, true, false, false, false]);
    }

    #[test]
    fn a_heap_that_was_counted_in_part_is_not_collapsed() {
        let mut settling = Settling::default();
        let passes = [(4 << 20, false), (0, false), (2 << 20, false), (0, false), (0, true), (0, true)];
        let settled = passes.map(|(done, is_whole)| settling.settles_after(done, is_whole));
        assert_eq!(settled, [false, false, false, false, true, false]);
    }

    #[test]
    fn an_error_is_reported_once_and_is_not_the_end() {
        let process = ProcessHandle::open(std::process::id() as i32).unwrap();
        let (mut watcher, mut told) = (watcher(&process), Vec::new());
        for _ in 0..2 {
            let error = SessionError::io("reading process 7", std::io::Error::from_raw_os_error(libc::EMFILE));
            let pass = watcher.take(Err(error), 0, &mut |why: &str| told.push(why.to_owned()));
            assert!(matches!(pass, Pass::Done { bytes: 0, is_whole: false }) && watcher.is_due(0));
        }
        assert!(told.len() == 1 && told[0].ends_with("; it is tried again"), "{told:?}");
    }

    #[test]
    fn each_kind_of_reason_is_reported_once() {
        let process = ProcessHandle::open(std::process::id() as i32).unwrap();
        let (mut watcher, mut told) = (watcher(&process), Vec::new());
        let left = |cause: Reason| {
            let (reason, fix) = (cause.to_string(), cause.fix());
            LeftAlone { reason, fix, blocks: 1, bytes: 1, is_fine: false, cause: Some(cause) }
        };
        for common in [4096, 8192] {
            let reasons = vec![left(Reason::Forked { common }), left(Reason::Busy { tries: 6, seconds: None })];
            watcher.report(reasons, &mut |why: &str| told.push(why.to_owned()));
        }
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("left on small pages: blocks that share pages"), "{told:?}");
    }

    #[test]
    fn memory_that_has_not_grown_is_not_examined_at_each_pass() {
        let process = ProcessHandle::open(std::process::id() as i32).unwrap();
        let settled = Some((Instant::now(), 8 << 20));
        let watcher = Watcher { settled, ..watcher(&process) };
        assert!(!watcher.is_due(9 << 20) && watcher.is_due(10 << 20) && watcher.is_due(6 << 20));
    }

    #[test]
    fn memory_of_a_running_program_gets_huge_pages_until_it_ends() {
        let script = "x=$(head -c 33554432 /dev/zero | tr '\\0' a); read y";
        let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let (pid, huge) = (child.id() as i32, PageSize::new(2 << 20).unwrap());
        let process = ProcessHandle::open(pid).unwrap();
        let of_smaps = || meminfo_bytes(&ProcessFiles::of(pid).text("smaps_rollup").ok()?, "AnonHugePages");
        let told = Mutex::new(Vec::new());
        let is_huge = std::thread::scope(|scope| {
            let watch = || {
                collapse_while_it_runs(
                    &process,
                    pid,
                    huge,
                    &mut |why| told.lock().unwrap().push(why.to_owned()),
                    &|| (),
                )
            };
            let watching = scope.spawn(watch);
            let end = Instant::now() + Duration::from_secs(60);
            let mut is_huge = false;
            // Without root the kernel refuses, and the watcher ends.
            while !is_huge && !watching.is_finished() && told.lock().unwrap().is_empty() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
                is_huge = of_smaps().is_some_and(|bytes| bytes >= 16 << 20);
            }
            child.kill().unwrap();
            child.wait().unwrap();
            is_huge
        });
        let told = told.lock().unwrap();
        assert!(is_huge || !told.is_empty(), "nothing was collapsed");
        assert!(told.iter().all(|why| !why.contains("tried again") || why.contains("left on")), "{told:?}");
    }
}
