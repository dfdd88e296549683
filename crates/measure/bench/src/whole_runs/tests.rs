//! Whole runs of shell commands.

use super::*;
use measure::record::Design;
use measure::toggle::Per;
use std::sync::atomic::{AtomicBool, Ordering};

/// Report of a lift that found no huge page.
const FAILED: &str = r#"{"program":"p","unlifted":null,"considered_bytes":8,"covered_bytes":0,
    "advised_bytes":0,"made_resident_bytes":0,"refusals":[],"edges":[],"ranges":[{"object":"p","kinds":["text"],
    "range":{"start":"0x0","end":"0x8"},"source":null,"page_size":8,"covered":[],"advised":0,"uncovered":[],
    "failed":[{"source":"collapse","reason":"no free huge page"}]}]}"#;
/// Report of a lift of all memory.
const LIFTED: &str = r#"{"program":"p","unlifted":null,"considered_bytes":8,"covered_bytes":8,
    "advised_bytes":0,"made_resident_bytes":8,"refusals":[],"edges":[],"ranges":[]}"#;
const REASON: &str = "collapse: no free huge page";

fn run_of(shell: &str, time: Duration) -> Record {
    run_blocks(shell, time, usize::MAX)
}

fn run_blocks(shell: &str, time: Duration, blocks: usize) -> Record {
    let arms = vec!["arm".to_owned()];
    let header = Header::new(Design::Runs, shell.to_owned(), arms, "runs".to_owned(), Per::Second, 1);
    let interrupted = AtomicBool::new(false);
    let limits = Limits { time, resolution: None, interrupted: &interrupted };
    let mut command = |_: Option<usize>, _: Option<&Path>| {
        let mut command = Command::new("sh");
        command.args(["-c", shell]);
        command
    };
    let mut tell = |progress: &Progress<'_>| interrupted.store(progress.blocks >= blocks, Ordering::Relaxed);
    run(&mut command, Observed::default(), header, limits, None, &mut tell).unwrap()
}

#[test]
fn runs_are_counted_and_timed() {
    let record = run_of("exit 0", Duration::from_millis(300));
    assert_eq!(record.ended(), Some(&Ended::TimeIsUp));
    let blocks = record.blocks();
    assert!(!blocks.is_empty());
    assert!(blocks.iter().flat_map(|block| block.windows).all(|window| window.work == 1.0 && window.wall > 0.0));
}

/// The kinds of all runs, in order, if runs below this time are short; and the number of blocks.
fn kinds_of_runs(short: Duration) -> (Vec<Option<usize>>, usize) {
    let header =
        Header::new(Design::Runs, "true".to_owned(), vec!["arm".to_owned()], "runs".to_owned(), Per::Second, 1);
    let interrupted = AtomicBool::new(false);
    let limits = Limits { time: Duration::from_millis(400), resolution: None, interrupted: &interrupted };
    let mut kinds = Vec::new();
    let mut command = |arm: Option<usize>, _: Option<&Path>| {
        kinds.push(arm);
        Command::new("true")
    };
    let pace = Pace { short, long: short, overtime: Duration::from_secs(100) };
    let record = run_with(pace, &mut command, Observed::default(), header, limits, None, &mut |_| ()).unwrap();
    (kinds, record.blocks().len())
}

#[test]
fn short_runs_of_another_kind_are_made_twice() {
    let (kinds, blocks) = kinds_of_runs(Duration::MAX);
    let changes = kinds.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes >= blocks - 1 && kinds.len() == blocks * WINDOWS + changes, "{blocks} blocks: {kinds:?}");
    // No run is the only one of its kind between two others.
    let alone = kinds.windows(3).filter(|three| three[0] != three[1] && three[1] != three[2]).count();
    assert_eq!(alone, 0, "{kinds:?}");
}

#[test]
fn long_runs_are_made_once() {
    let (kinds, blocks) = kinds_of_runs(Duration::ZERO);
    assert_eq!(kinds.len(), blocks * WINDOWS);
}

#[test]
fn a_run_of_each_kind_is_looked_at() {
    let record = run_blocks("sleep 0.3", Duration::from_secs(100), 8);
    let seen: Vec<&Observation> = record.observations().collect();
    let mut arms: Vec<Option<usize>> = seen.iter().map(|seen| seen.arm).collect();
    arms.sort_unstable();
    assert_eq!(arms, [None, Some(0)]);
    let resident = |seen: &&Observation| seen.memory.as_ref().is_some_and(|memory| memory.resident > 0);
    assert!(seen.iter().all(resident), "{seen:?}");
    assert!(seen.iter().all(|seen| seen.process == "sh" || seen.process == "sleep"));
    assert!(record.timed_blocks().all(|block| block.counters.is_some_and(|of| of[0].minor_faults > 0)));
}

/// A record of runs, and the number of lifted ones with a report. `fails`: by its number, the lift of such a run finds no pages.
/// Runs below the time `short` are short, all others long.
fn run_with_failures(short: Duration, fails: &dyn Fn(usize) -> bool, options: &[&str]) -> (Record, usize) {
    let arms = vec!["arm".to_owned()];
    let header = Header::new(Design::Runs, "true".to_owned(), arms, "runs".to_owned(), Per::Second, 1);
    let header = Header { options: vec![options.iter().map(|word| (*word).to_owned()).collect()], ..header };
    let interrupted = AtomicBool::new(false);
    let limits = Limits { time: Duration::from_secs(100), resolution: None, interrupted: &interrupted };
    let mut lifts = 0;
    let mut command = |_: Option<usize>, report: Option<&Path>| {
        if let Some(report) = report {
            std::fs::write(report, if fails(lifts) { FAILED } else { LIFTED }).unwrap();
            lifts += 1;
        }
        Command::new("true")
    };
    let mut tell = |progress: &Progress<'_>| interrupted.store(progress.blocks >= 40, Ordering::Relaxed);
    let pace = Pace { short, long: short, overtime: Duration::from_secs(100) };
    let record = run_with(pace, &mut command, Observed::default(), header, limits, None, &mut tell).unwrap();
    (record, lifts)
}

fn retried(record: &Record) -> Vec<&str> {
    record.timed_blocks().filter_map(|block| block.retried.as_deref()).collect()
}

/// Numbers of runs after the first looks.
const LATE: std::ops::Range<usize> = 14..16;

#[test]
fn a_run_whose_lift_finds_no_pages_is_made_again() {
    for short in [Duration::MAX, Duration::ZERO] {
        for options in [&[] as &[&str], &["--heap=auto"]] {
            for failing in [0..2, LATE] {
                let (record, lifts) = run_with_failures(short, &|number| failing.contains(&number), options);
                assert!(record.lifted_nothing(0).is_none() && lifts > failing.end, "{lifts}: {record:?}");
                assert_eq!(retried(&record), [REASON], "{short:?} {failing:?}");
                assert!(record.timed_blocks().all(|block| block.unlifted.is_none() && !block.unchecked));
            }
        }
    }
}

/// A report would change a run of this length.
#[test]
fn runs_that_are_neither_short_nor_long_are_not_checked_later() {
    let mut reports = Vec::new();
    let mut command = |arm: Option<usize>, report: Option<&Path>| {
        reports.extend(arm.map(|_| report.is_some()));
        report.into_iter().for_each(|report| std::fs::write(report, LIFTED).unwrap());
        Command::new("true")
    };
    let arms = vec!["arm".to_owned()];
    let header = Header::new(Design::Runs, "true".to_owned(), arms, "runs".to_owned(), Per::Second, 1);
    let interrupted = AtomicBool::new(false);
    let limits = Limits { time: Duration::from_secs(100), resolution: None, interrupted: &interrupted };
    let mut tell = |progress: &Progress<'_>| interrupted.store(progress.blocks >= 40, Ordering::Relaxed);
    let pace = Pace { short: Duration::ZERO, long: Duration::MAX, overtime: Duration::from_secs(100) };
    let record = run_with(pace, &mut command, Observed::default(), header, limits, None, &mut tell).unwrap();
    let checked = reports.iter().filter(|report| **report).count();
    assert!((1..=LOOKS).contains(&checked) && reports[0] && reports.len() > LOOKS, "{reports:?}");
    let last = record.timed_blocks().filter(|block| block.measured.block.treatment.arm().is_some()).last();
    assert!(last.is_some_and(|block| block.unchecked) && record.timed_blocks().any(|block| !block.unchecked));
}

#[test]
fn a_lift_that_never_finds_pages_is_no_retry() {
    let (record, _) = run_with_failures(Duration::MAX, &|_| true, &[]);
    assert_eq!(record.lifted_nothing(0).as_deref(), Some(REASON));
    assert!(record.timed_blocks().all(|block| block.retried.is_none()));
}

#[test]
fn later_runs_that_lift_nothing_are_recorded() {
    for short in [Duration::MAX, Duration::ZERO] {
        let (record, _) = run_with_failures(short, &|number| number >= LATE.start, &[]);
        assert!(record.lifted_nothing(0).is_none() && retried(&record).is_empty(), "{record:?}");
        let unlifted: Vec<_> = record.timed_blocks().filter_map(|block| block.unlifted.as_deref()).collect();
        assert!(!unlifted.is_empty() && unlifted.iter().all(|why| *why == REASON), "{unlifted:?}");
    }
}

/// The first block of the arm in an experiment of short runs: the first lifted run after a plain one is a warm-up. `fails`: by its number since the last plain
/// run, the lift of such a run finds no pages; [`usize::MAX`] before the first plain run.
fn block_with_warm_ups(fails: &dyn Fn(usize) -> bool) -> TimedBlock {
    let arms = vec!["arm".to_owned()];
    let header = Header::new(Design::Runs, "true".to_owned(), arms, "runs".to_owned(), Per::Second, 1);
    let interrupted = AtomicBool::new(false);
    let limits = Limits { time: Duration::from_secs(100), resolution: None, interrupted: &interrupted };
    let mut since_plain = None;
    let mut command = |arm: Option<usize>, report: Option<&Path>| {
        let number = since_plain.unwrap_or(usize::MAX);
        if let Some(report) = report {
            std::fs::write(report, if fails(number) { FAILED } else { LIFTED }).unwrap();
        }
        since_plain = if arm.is_none() { Some(0) } else { since_plain.map(|number| number + 1) };
        Command::new("true")
    };
    let mut tell = |progress: &Progress<'_>| interrupted.store(progress.blocks >= 4, Ordering::Relaxed);
    let pace = Pace { short: Duration::MAX, long: Duration::MAX, overtime: Duration::from_secs(100) };
    let record = run_with(pace, &mut command, Observed::default(), header, limits, None, &mut tell).unwrap();
    record.timed_blocks().find(|block| block.measured.block.treatment.arm().is_some()).unwrap().clone()
}

#[test]
fn a_warm_up_that_lifts_nothing_does_not_count_if_the_measured_run_lifts() {
    let tries = pauses().count() + 1;
    let block = block_with_warm_ups(&|number| number < tries);
    assert!(block.unlifted.is_none() && block.retried.is_none(), "{block:?}");
}

#[test]
fn a_retry_is_recorded_although_a_later_run_gives_up() {
    // The warm-up is made twice, and the measured run of the same block gives up.
    let block = block_with_warm_ups(&|number| number != 1 && number != usize::MAX);
    assert_eq!((block.retried.as_deref(), block.unlifted.as_deref()), (Some(REASON), Some(REASON)));
}

#[test]
fn times_near_the_bound_do_not_change_whether_runs_are_long() {
    let pace = Pace { short: SHORT, long: LONG, overtime: OVERTIME };
    assert!(!pace.is_long(false, 0.99) && pace.is_long(false, 1.0) && pace.is_long(true, 0.99));
    assert!(!pace.is_long(true, 0.4), "one slow run is followed by short ones");
}

#[test]
fn a_report_that_is_too_long_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    File::create(&report).unwrap().set_len(LIFT_REPORT.bytes() + 1).unwrap();
    assert!(lift_in(&report).is_none() && !report.exists());
}

#[test]
fn an_interruption_ends_the_descendants_of_a_run() {
    let header = Header::new(Design::Runs, "sh".to_owned(), vec!["arm".to_owned()], "runs".to_owned(), Per::Second, 1);
    let interrupted = AtomicBool::new(false);
    let limits = Limits { time: Duration::from_secs(100), resolution: None, interrupted: &interrupted };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let mut command = |_: Option<usize>, _: Option<&Path>| {
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'echo $$ > $0; exec sleep 1000' $0; true"]).arg(&file);
        command
    };
    let (record, sleep) = std::thread::scope(|scope| {
        let sleep = scope.spawn(|| {
            let until = Instant::now() + Duration::from_secs(60);
            let mut text = String::new();
            while !text.ends_with('\n') && Instant::now() < until {
                std::thread::sleep(LOOK);
                text = std::fs::read_to_string(&file).unwrap_or_default();
            }
            let sleep = text.trim().parse().ok().and_then(StartedProcess::of);
            interrupted.store(true, Ordering::Relaxed);
            sleep
        });
        let record = run(&mut command, Observed::default(), header, limits, None, &mut |_| ()).unwrap();
        (record, sleep.join().unwrap().expect("the run has not started its child within 60 s"))
    });
    assert_eq!(record.ended(), Some(&Ended::Interrupted));
    assert!(!sleep.runs());
}

#[test]
fn a_run_that_fails_ends_it() {
    let record = run_of("exit 3", Duration::from_secs(100));
    let Some(Ended::Failed(why)) = record.ended() else { panic!("{:?}", record.ended()) };
    assert!(why.contains(" failed (exit status: 3); needed: a command that succeeds; fix: run it alone"), "{why}");
}

/// An arm's command is Pagelift's own, with options that the user has not written.
#[test]
fn a_failed_arm_is_named_with_the_command_of_the_user() {
    let mut command = |arm: Option<usize>, _: Option<&Path>| Command::new(if arm.is_some() { "false" } else { "true" });
    let header =
        Header::new(Design::Runs, "x".to_owned(), vec!["lifted".to_owned()], "runs".to_owned(), Per::Second, 1);
    let interrupted = AtomicBool::new(false);
    let limits = Limits { time: Duration::from_secs(100), resolution: None, interrupted: &interrupted };
    let record = run(&mut command, Observed::default(), header, limits, None, &mut |_| ()).unwrap();
    let Some(Ended::Failed(why)) = record.ended() else { panic!("{:?}", record.ended()) };
    assert!(why.starts_with("\"true\" failed (exit status: 1); ") && why.ends_with(" (in a run of lifted)"), "{why}");
}

/// The end of an experiment and its number of blocks, if each run sleeps for these seconds.
fn end_of_runs(seconds: &str, time: Duration, overtime: Duration) -> (Ended, usize) {
    let arms = vec!["arm".to_owned()];
    let header = Header::new(Design::Runs, "sleep".to_owned(), arms, "runs".to_owned(), Per::Second, 1);
    let interrupted = AtomicBool::new(false);
    let limits = Limits { time, resolution: None, interrupted: &interrupted };
    let pace = Pace { short: Duration::ZERO, long: Duration::MAX, overtime };
    let mut command = |_: Option<usize>, _: Option<&Path>| {
        let mut command = Command::new("sleep");
        command.arg(seconds);
        command
    };
    let record = run_with(pace, &mut command, Observed::default(), header, limits, None, &mut |_| ()).unwrap();
    (record.ended().unwrap().clone(), record.blocks().len())
}

#[test]
fn a_command_that_does_not_end_is_ended() {
    let (ended, blocks) = end_of_runs("1000", Duration::from_millis(200), Duration::ZERO);
    let Ended::Failed(why) = ended else { panic!("{ended:?}") };
    assert!(why.starts_with(r#""sleep" "1000" did not end by itself within 0 s; needed"#) && blocks == 0, "{why}");
    assert!(why.contains("--toggle -- CMD, or --server CMD"), "{why}");
}

#[test]
fn long_runs_end_within_a_block_once_the_time_is_over() {
    // The third run begins after the time. On a busy machine a run takes longer than it sleeps.
    let (ended, blocks) = end_of_runs("1.1", Duration::from_secs(2), Duration::ZERO);
    let Ended::Failed(why) = ended else { panic!("{ended:?}") };
    assert!(why.starts_with("the time was over before the first block of 4 runs, and a run takes "), "{why}");
    assert_eq!(blocks, 0);
    let expected = "the time was over before the first block of 4 runs, and a run takes 1 s; needed: 6 blocks of each kind; \
                    fix: --for 1m, or less work in a run";
    assert_eq!(too_long(1.1, 2), expected);
    let in_overtime = end_of_runs("0.15", Duration::from_millis(200), Duration::from_secs(100));
    assert_eq!(in_overtime, (Ended::TimeIsUp, 1));
}
