//! Tests of the texts.

use super::*;
use shootdowns::Life;
use shootdowns::summary::Others;

fn process(pid: i32, name: &str, sent: f64) -> ProcessSummary {
    ProcessSummary {
        pid,
        life: Life { pid, since: 0 },
        name: name.to_owned(),
        sent,
        received: sent,
        pages_per_flush: Some(1234.5),
        whole_flushes: Some(1.0),
        waited_seconds: Some(1.5),
        interrupted_seconds: Some(0.5),
        call_seconds: Some(2.5),
        page_faults: Some(7_654_321),
        ..ProcessSummary::default()
    }
}

fn summary(evidence: Evidence) -> Summary {
    Summary {
        evidence,
        refused: Vec::new(),
        unseen: Vec::new(),
        watched: None,
        seconds: 1.0,
        sent: Some(1_234_567),
        received: Some(1_234_567),
        interrupts: Some(1_234_567),
        processes: vec![process(4_194_303, "a-name-of-15-ch", 1_234_567.0), process(1, "init", 2.0)],
        others: Others::default(),
        watching: shootdowns::summary::Watching::default(),
    }
}

#[test]
fn a_watch_that_took_longer_is_named() {
    let of = |seconds, watched| overrun(Duration::from_secs(seconds), watched);
    let note = of(10, 13.04).unwrap();
    assert!(note.starts_with("Note: watched for 13.0 s instead of 10.0 s, since "), "{note}");
    assert_eq!([of(10, 10.3), of(1, 1.1), of(10, 4.0)], [None, None, None], "on time, or ended by Ctrl-C");
}

#[test]
fn the_time_in_calls_names_what_it_lacks() {
    let lacks = "Calls that began before the watch and ended after it are not in the time in calls.";
    let mut of_calls = summary(Evidence::TlbTracepoint);
    assert!(text(&of_calls, &[], None).contains(lacks));
    of_calls.processes.iter_mut().for_each(|process| process.call_seconds = None);
    assert!(!text(&of_calls, &[], None).contains(lacks));
}

#[test]
fn the_live_view_fits_into_its_terminal() {
    let summary = summary(Evidence::TlbTracepoint);
    for width in [60, 72, 80, 90, 100, 120, 200] {
        let picture = live(&summary, width);
        let widest = widest(picture.trim_start_matches(CLEAR));
        assert!(widest <= width.max(70), "{widest} columns in {width}:\n{picture}");
        let table: Vec<&str> = picture.lines().skip_while(|line| !line.is_empty()).take(6).collect();
        assert!(table.iter().all(|line| line.chars().count() <= width), "{width}:\n{picture}");
        assert!(picture.contains("4194303") && picture.contains("1,234,567"), "{picture}");
        assert!(picture.contains("a-name-of-15-ch") || picture.contains('…') && width < 120, "{width}:\n{picture}");
        assert_eq!(picture.contains("received/s"), width >= 200, "{width}:\n{picture}");
        assert!(picture.contains("250.0 %") && picture.contains("7,654,321") || width < 72, "{width}:\n{picture}");
        assert_eq!(picture.contains("150.0 %"), width >= 72, "{width}:\n{picture}");
    }
}

#[test]
fn prose_fits_into_its_terminal_and_what_is_to_be_typed_stays_whole() {
    let cure = format!("    cure: GLIBC_TUNABLES={}", "glibc.malloc.trim_threshold=1:".repeat(4));
    let prose = format!("{cure}\n      ends it; it costs: {}\n\nNote: short\n", "resident memory ".repeat(9));
    let lines = fitted(prose.clone(), Some(80));
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!((lines[0], lines.last()), (cure.as_str(), Some(&"Note: short")));
    assert!(lines[1..].iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
    assert!(lines[1].starts_with("      ends it;") && lines[2].starts_with("        resident"), "{lines:#?}");
    assert_eq!(fitted(prose.clone(), None), prose);
}

#[test]
fn what_is_no_terminal_has_any_width() {
    let summary = summary(Evidence::TlbTracepoint);
    let printed = text(&summary, &[], None);
    assert!(
        printed.contains("received/s   in calls    faults/s   waiting   interrupted   pages each   of all"),
        "{printed}"
    );
    assert!(printed.lines().any(|line| line.starts_with("The whole") && line.ends_with("1,234,567/s")), "{printed}");
}

#[test]
fn paths_that_read_alike_are_shown_as_one() {
    let path = |share, function: &str, address| {
        let function = Some(function.to_owned());
        let frame = shootdowns::stacks::Frame { object: "a".to_owned(), function, address, index: None };
        PathSummary { share, cause: shootdowns::Cause::Munmap, frames: vec![frame] }
    };
    let mut process = process(1, "a", 1.0);
    process.paths =
        vec![path(0.375, "one", 1), path(0.25, "other", 2), path(0.25, "other", 3), path(0.125, "other", 4)];
    let shown = paths(&process);
    assert_eq!(shown.len(), 2);
    assert_eq!((shown[0].0, shown[0].1.as_str()), (0.625, "munmap: other"));
}

#[test]
fn long_symbols_fit_the_width() {
    let frame = |function: String| Frame { object: "a".to_owned(), function: Some(function), address: 1, index: None };
    let arguments = "llvm::Value*, ".repeat(20);
    let frames = vec![frame(format!("map<{arguments}int>::grow")), frame("nested::".repeat(30) + "end")];
    let path = PathSummary { share: 1.0, cause: shootdowns::Cause::Munmap, frames };
    let line = format!("  path 100 %, {}", call_path(&path));
    assert!(line.starts_with("  path 100 %, munmap: map<...>::grow < nested::"), "{line}");
    let lines = fitted(line, Some(80));
    assert!(lines.lines().count() > 3 && widest(&lines) <= 80, "{lines}");
    assert!(lines.ends_with("end\n"), "{lines}");
}

#[test]
fn calls_have_a_table_of_their_own() {
    let summary = summary(Evidence::SystemCalls);
    for width in [24, 80] {
        let picture = live(&summary, width);
        assert!(picture.contains("calls/s") && !picture.contains("waiting"), "{picture}");
        assert_eq!(picture.contains("7,654,321"), width == 80, "{picture}");
    }
}

fn diagnosis(pid: i32, findings: Vec<Finding>) -> Diagnosis {
    let severity =
        Severity { level: Level::Cure, share: Some(0.31), is_waiting: false, rate: 9057.0, faults: Some(45_000.0) };
    let life = Life { pid, since: 0 };
    Diagnosis { pid, life, allocator: None, environment: Vec::new(), severity, findings }
}

#[test]
fn few_stacks_are_a_guess_and_said_to_be() {
    let finding = Finding {
        share: 0.67,
        uncertain: true,
        behaviour: shootdowns::diagnosis::Behaviour::Program(shootdowns::Cause::Madvise),
        text: "its own calls".to_owned(),
        cures: Vec::new(),
        advice: None,
    };
    let mut summary = summary(Evidence::TlbTracepoint);
    (summary.processes[1].stacks, summary.processes[1].effective_stacks) = (3, 2.6);
    let printed = text(&summary, &[diagnosis(1, vec![finding.clone()])], None);
    assert!(printed.contains("from 3 stacks, too few for a cause; fix: watch for longer (--for 30s)"), "{printed}");
    assert!(printed.contains("  perhaps 67 %: its own calls"), "{printed}");
    (summary.processes[1].stacks, summary.processes[1].effective_stacks) = (30, 25.0);
    let printed = text(&summary, &[diagnosis(1, vec![Finding { uncertain: false, ..finding }])], None);
    assert!(printed.contains("\n  67 %: its own calls") && !printed.contains("too few"), "{printed}");
    let printed = text(&summary, &[diagnosis(4_194_303, Vec::new())], None);
    assert!(printed.contains("no stack was sampled"), "{printed}");
}

fn finding(variable: &str) -> Finding {
    let cure = Remedy {
        variable: variable.to_owned(),
        value: Some("1".to_owned()),
        beside_others: false,
        stays: Vec::new(),
        against: Vec::new(),
        whole: "1".to_owned(),
        effect: shootdowns::diagnosis::Effect::Ends,
        versions: "all".to_owned(),
        costs: "memory".to_owned(),
        source: "https://x".to_owned(),
    };
    Finding {
        share: 0.9,
        uncertain: false,
        behaviour: shootdowns::diagnosis::Behaviour::Program(shootdowns::Cause::Madvise),
        text: "its own calls".to_owned(),
        cures: vec![cure],
        advice: None,
    }
}

#[test]
fn a_line_says_whether_something_is_to_be_done() {
    let summary = summary(Evidence::TlbTracepoint);
    let storm = diagnosis(1, vec![finding("KEEP")]);
    let printed = text(&summary, std::slice::from_ref(&storm), None);
    let line = "  9,057/s, 31.0 % of one CPU in the calls and interrupts, 45,000 page faults/s: worth a cure\n";
    assert!(printed.contains(line) && printed.contains("    cure: KEEP=1\n"), "{printed}");
    assert_eq!(printed.matches(NEXT).count(), 1, "{printed}");
    let mut in_faults = storm.clone();
    in_faults.severity.is_waiting = true;
    let printed = text(&summary, &[in_faults], None);
    assert!(printed.contains(", 31.0 % of one CPU waiting for answers and in interrupts, "), "{printed}");
    let mut otherwise = storm.clone();
    otherwise.findings[0].cures[0].against = vec!["KEEP".to_owned()];
    let printed = self::text(&summary, &[otherwise], None);
    assert!(printed.contains("    cure: KEEP=1 in place of its present KEEP, which prevents it\n"), "{printed}");
    let mut is_set = storm.clone();
    is_set.findings[0].cures[0].value = None;
    assert!(!text(&summary, &[is_set], None).contains("Next"));
    let severity = Severity { level: Level::Nothing, share: None, is_waiting: false, rate: 12.0, faults: None };
    let calm = Diagnosis { severity, ..storm };
    let printed = text(&summary, std::slice::from_ref(&calm), None);
    assert!(printed.contains("  12/s, their time is not measured: do nothing\n"), "{printed}");
    assert!(printed.contains("90 %: its own calls\n") && !printed.contains("cure"), "{printed}");
    assert!(!printed.contains("Next"), "{printed}");
    let of_calls = Summary { evidence: Evidence::SystemCalls, ..summary };
    assert!(text(&of_calls, &[calm], None).contains("\n  12/s: do nothing\n"));
}

#[test]
fn the_same_advice_is_given_once() {
    let summary = summary(Evidence::TlbTracepoint);
    let both = [diagnosis(4_194_303, vec![finding("KEEP"), finding("OTHER")]), diagnosis(1, vec![finding("KEEP")])];
    let printed = text(&summary, &both, None);
    assert_eq!(printed.matches("cure: KEEP=1").count(), 1, "{printed}");
    assert_eq!(printed.matches("    cure: as above, KEEP\n").count(), 1, "{printed}");
    assert_eq!(printed.matches("cure: OTHER=1").count(), 1, "{printed}");
}

#[test]
fn a_thread_of_the_kernel_has_not_ended() {
    let mut summary = summary(Evidence::TlbTracepoint);
    let printed = text(&summary, &[diagnosis(1, Vec::new())], None);
    assert!(printed.contains("1 init: it has ended, or its files cannot be read"), "{printed}");
    summary.processes[1].kernel_thread = true;
    let printed = text(&summary, &[diagnosis(1, Vec::new())], None);
    assert!(printed.contains("1 init: a thread of the kernel\n"), "{printed}");
}

#[test]
fn a_machine_that_does_not_show_all_never_says_that_there_are_none() {
    let mut summary = summary(Evidence::TlbTracepoint);
    summary.processes.clear();
    assert!(text(&summary, &[], None).contains("No process sent or received any.\n"));
    summary.unseen = vec![shootdowns::machine::Unseen::KvmParavirtual];
    assert!(text(&summary, &[], None).contains("No process sent or received any.\n"), "senders are all counted");
    summary.unseen.push(shootdowns::machine::Unseen::AmdBroadcast);
    let printed = text(&summary, &[], None);
    assert!(printed.contains("does not report all, see the notes") && printed.contains("INVLPGB"), "{printed}");
}

#[test]
fn others_are_told_and_are_somebody() {
    let mut summary = summary(Evidence::TlbTracepoint);
    assert!(!text(&summary, &[], None).contains("Others"));
    summary.others = Others { sent: 1_000.0, received: 2_000_000.0 };
    let others = "Others, too many to keep apart: sent 1,000/s, received 2,000,000/s\n";
    assert!(text(&summary, &[], None).contains(others), "{}", text(&summary, &[], None));
    let narrow = live(&summary, 60);
    assert!(narrow.contains("Others, too many to keep apart: sent 1,000/s,\n"), "{narrow}");
    summary.processes.clear();
    let printed = live(&summary, 80);
    assert!(printed.contains(others) && !printed.contains("No process"), "{printed}");
    summary.evidence = Evidence::SystemCalls;
    assert!(text(&summary, &[], None).contains("Others, too many to keep apart: calls 1,000/s\n"));
}

#[test]
fn a_process_that_is_watched_alone_is_named_where_nothing_of_it_was_seen() {
    let mut summary = summary(Evidence::TlbTracepoint);
    (summary.processes, summary.watched) = (Vec::new(), Some(17));
    assert!(text(&summary, &[], None).contains("\nProcess 17 sent and received none.\n"));
    summary.evidence = Evidence::Interrupts;
    let printed = text(&summary, &[], None);
    assert!(printed.contains("Not available for process 17 alone"), "{printed}");
    summary.watched = None;
    assert!(!text(&summary, &[], None).contains("Not available"));
}

#[test]
fn a_watched_process_that_only_receives_has_a_verdict() {
    let mut summary = summary(Evidence::TlbTracepoint);
    (summary.watched, summary.processes[1].sent, summary.processes[1].received) = (Some(1), 0.0, 5.0);
    let printed = text(&summary, &[], None);
    assert!(printed.contains("\n1 init sends none: do nothing\n"), "{printed}");
    summary.watched = None;
    assert!(!text(&summary, &[], None).contains("do nothing"));
}

#[test]
fn paths_for_which_there_was_no_room_are_told() {
    let mut summary = summary(Evidence::TlbTracepoint);
    summary.processes[1].other_paths = 0.25;
    let printed = text(&summary, &[diagnosis(1, Vec::new())], None);
    assert!(printed.contains("  25 %: on paths for which there was no room\n"), "{printed}");
}

#[test]
fn rates_are_readable() {
    assert_eq!(per_second(3.0, 2.0), "1.5");
    assert_eq!(per_second(0.0, 2.0), "0");
    assert_eq!(per_second(1.0, 60.0), "<0.1");
    assert_eq!(per_second(9.96, 1.0), "10");
    assert_eq!(per_second(2_469_134.0, 2.0), "1,234,567");
    assert_eq!(grouped(999), "999");
}

#[test]
fn results_for_which_there_was_no_room_are_counted() {
    let mut summary = summary(Evidence::TlbTracepoint);
    assert!(!text(&summary, &[], None).contains("Left out"));
    summary.watching.left_out = LeftOut { processes: 1_024, threads: 0, paths: 7, times: 0 };
    let line = "Left out, to bound memory: 1,024 processes, 7 shootdowns with call paths.\n";
    assert!(text(&summary, &[], None).contains(line));
}

#[test]
fn a_diagnosis_belongs_to_one_program_of_a_number() {
    let mut summary = summary(Evidence::TlbTracepoint);
    let second = ProcessSummary { life: Life { pid: 1, since: 5 }, ..process(1, "second", 3.0) };
    summary.processes.push(second);
    let diagnosis = Diagnosis { life: Life { pid: 1, since: 5 }, ..diagnosis(1, Vec::new()) };
    let shown = text(&summary, &[diagnosis], None);
    assert!(shown.contains("\n1 second: ") && !shown.contains("\n1 init: "), "{shown}");
}

#[test]
fn a_watched_process_that_sent_before_it_executed_a_program_sends_some() {
    let mut summary = summary(Evidence::TlbTracepoint);
    let silent = ProcessSummary { life: Life { pid: 7, since: 5 }, received: 1.0, ..process(7, "second", 0.0) };
    summary.watched = Some(7);
    summary.processes = vec![silent];
    assert!(text(&summary, &[], None).contains("7 second sends none: do nothing"));
    summary.processes.push(process(7, "first", 3.0));
    assert!(!text(&summary, &[], None).contains("sends none"));
}
