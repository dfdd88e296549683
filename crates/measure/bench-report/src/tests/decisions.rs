//! Decisions, their reasons and the next commands.

use super::*;
use crate::decision::Next;

#[test]
fn a_page_leads_with_the_decision() {
    let of = |record: Record| {
        let page = html(&[source("a", record)]);
        let head = page.split_once("<h1").unwrap().1.split_once("</header>").unwrap().0;
        head.replace("\u{2212}", "-")
    };
    let pays = || record(&["thp"], 60, Design::Toggle);
    let keep = of(pays());
    assert!(
        keep.contains(">Keep it<")
            && keep.contains("thp gains +")
            && keep.contains("Next:</span><pre class=\"scroll\" tabindex=\"0\">pagelift attach --pages=thp PID</pre>"),
        "{keep}"
    );
    let costs = of(changed(pays(), Treatment::Arm(0), 0.8));
    assert!(costs.contains(">Leave it<") && costs.contains("thp costs -"), "{costs}");
    // The box contains only the command.
    let asked = "\">pagelift stat -p PID</pre><span class=\"faint\">whether its other memory can gain</span>";
    assert!(costs.contains(asked), "{costs}");
    let equal = of(changed(pays(), Treatment::Arm(0), 1.0 / 1.1));
    assert!(equal.contains(">Leave it<") && equal.contains("thp gains less than 1 %, if anything"), "{equal}");
    let disturbed = of(changed(pays(), Treatment::Control, 1.05));
    assert!(
        disturbed.contains(">Cannot tell<") && disturbed.contains("the experiment was disturbed: plain differs"),
        "{disturbed}"
    );
    assert!(disturbed.contains("Next:</span><span>the same command again</span>"), "{disturbed}");
}

#[test]
fn a_server_that_was_started_for_a_toggle_is_started_lifted() {
    let mut pays = record(&["thp"], 60, Design::Toggle);
    let next = |record: &Record| decision::advice(record).next.unwrap().to_string();
    pays.header.command = ["bench", "--toggle", "1234"].map(str::to_owned).to_vec();
    assert_eq!(next(&pays), "pagelift attach --pages=thp 1234");
    for (words, named) in [
        (["bench", "--toggle", "mariadbd"], "mariadbd"),
        (["bench", "--toggle=mariadbd", "--lift=text"], "mariadbd"),
        (["bench", "--toggle", "a;reboot"], "PID"),
        (["bench", "--toggle", "--steady"], "PID"),
    ] {
        pays.header.command = words.map(str::to_owned).to_vec();
        assert_eq!(next(&pays), format!("pagelift attach --pages=thp {named}"));
    }
    pays.header.command = ["bench", "--toggle", "--", "mariadbd"].map(str::to_owned).to_vec();
    assert_eq!(next(&pays), "pagelift run --pages=thp -- CMD");
}

/// After a lift, plain runs of the program are on huge pages, too.
#[test]
fn huge_pages_compared_with_huge_pages_decide_nothing() {
    let mut both = record(&["thp"], 60, Design::Runs);
    let Some(Event::Observed(plain)) = both.events.first_mut() else { panic!("no observation") };
    let Event::Observed(lifted) = seen(Some(0)) else { panic!("no observation") };
    plain.map = lifted.map;
    assert_eq!(both.plain_huge(0), Some(1.0));
    let advice = decision::advice(&both);
    assert!(advice.reason.starts_with("huge pages were compared with huge pages: 100 %"), "{advice:?}");
    assert_eq!(advice.next, Some(Next::Words("the same command with --cold-plain".to_owned())));
    // The report of a lift has no heap.
    let mut with_heap = both.clone();
    with_heap.header.options = vec![vec!["--pages=thp".to_owned(), "--heap=auto".to_owned()]];
    assert_eq!((with_heap.plain_huge(0), with_heap.lifted_nothing(0)), (None, None));
    assert_eq!(decision::advice(&with_heap).headline, "Keep it");
    // The driver g++ was observed instead of cc1plus.
    let Some(Event::Observed(plain)) = both.events.first_mut() else { panic!("no observation") };
    plain.process = "g++".to_owned();
    assert_eq!(both.plain_huge(0), None);
    assert_eq!(decision::advice(&both).headline, "Keep it");
}

/// A short plain run is often observed early: the resident part is on huge pages.
#[test]
fn a_plain_run_that_was_seen_early_counts_by_its_resident_memory() {
    let mut both = record(&["thp"], 60, Design::Runs);
    let Some(Event::Observed(plain)) = both.events.first_mut() else { panic!("no observation") };
    let text = &mut plain.map.as_mut().unwrap().ranges[0];
    text.huge = vec![HugeBytes { kind: "file".to_owned(), page_size: Some(1 << 21), bytes: 2 << 20 }];
    text.resident = 2 << 20;
    assert_eq!(both.plain_huge(0), Some(1.0));
    assert!(decision::advice(&both).reason.starts_with("huge pages were compared"));
    let Some(Event::Observed(plain)) = both.events.first_mut() else { panic!("no observation") };
    plain.map.as_mut().unwrap().ranges[0].resident = 5 << 20;
    assert_eq!(both.plain_huge(0), Some(0.5), "2 of the 4 MiB that the lift covers");
}

#[test]
fn each_design_has_a_way_to_a_plain_program_on_small_pages() {
    for (design, next) in [
        (Design::Runs, "the same command with --cold-plain"),
        (Design::Servers, "pagelift cache drop FILE, then the same command with --pages=thp"),
        (Design::Toggle, "end the program, pagelift cache drop FILE, start it, then the same command with --pages=thp"),
    ] {
        let mut both = record(&["thp"], 60, design);
        let Event::Observed(lifted) = seen(Some(0)) else { panic!("no observation") };
        let Some(Event::Observed(plain)) = both.events.first_mut() else { panic!("no observation") };
        plain.map = lifted.map;
        assert_eq!(decision::advice(&both).next, Some(Next::Words(next.to_owned())));
    }
}

#[test]
fn nothing_lifted_has_a_next_command() {
    let of = |design, worker: Option<&str>, fix: Option<&str>| {
        let mut nothing = record(&["thp"], 60, design);
        nothing.header.worker = worker.map(str::to_owned);
        for event in &mut nothing.events {
            match event {
                Event::Observed(seen) if seen.arm.is_some() => {
                    let left = NotLifted {
                        object: "g++".to_owned(),
                        kinds: vec!["text".to_owned()],
                        bytes: 1 << 20,
                        reason: "holds no whole 2 MiB page (640.0 KiB)".to_owned(),
                        fix: fix.map(str::to_owned),
                    };
                    seen.lift = Some(Lift { not_lifted: vec![left], ..Lift::default() });
                }
                Event::Block(block) => block.measured.windows.iter_mut().for_each(|window| window.work = 100.0),
                _ => {}
            }
        }
        let advice = decision::advice(&nothing);
        assert_eq!(advice.headline, "Nothing was lifted");
        advice.next.map(|next| next.to_string())
    };
    assert_eq!(of(Design::Runs, Some("cc1plus"), None).unwrap(), "the same command with --only cc1plus");
    assert_eq!(of(Design::Runs, None, None).unwrap(), "the same command with --heap=auto (whether its heap gains)");
    assert_eq!(of(Design::Runs, None, Some("link it statically")), None, "the reason has the fix");
}

#[test]
fn lifts_that_were_made_again_are_counted_with_their_reason() {
    let mut again = record(&["thp"], 20, Design::Toggle);
    assert_eq!(words::retries(&again), None);
    let reason = "thp: no free huge page; fix: echo 1 > /proc/sys/vm/compact_memory";
    let blocks =
        again.events.iter_mut().filter_map(|event| if let Event::Block(block) = event { Some(block) } else { None });
    blocks.take(2).for_each(|block| block.retried = Some(reason.to_owned()));
    let note = format!("in 2 blocks a lift was made again, since the first try lifted nothing: {reason}");
    assert_eq!(words::retries(&again), Some(note.clone()));
    assert!(markdown(&[source("a", again.clone())]).contains("in 2 blocks a lift was made again"));
    assert!(html(&[source("a", again)]).contains("in 2 blocks a lift was made again"));
}

#[test]
fn runs_that_count_without_a_lift_are_named() {
    let mut late = record(&["thp"], 20, Design::Runs);
    assert_eq!(words::unlifted(&late), None);
    let blocks =
        late.events.iter_mut().filter_map(|event| if let Event::Block(block) = event { Some(block) } else { None });
    let of_arm = blocks.filter(|block| block.measured.block.treatment.arm().is_some());
    of_arm.take(1).for_each(|block| block.unlifted = Some("no free huge page".to_owned()));
    let note = "in 1 block a lifted run counts although its lift failed in several tries: no free huge page";
    assert_eq!(words::unlifted(&late).as_deref(), Some(note));
    assert!(markdown(&[source("a", late.clone())]).contains(note) && html(&[source("a", late)]).contains(note));
}

#[test]
fn lifts_that_are_not_checked_are_counted() {
    let mut runs = record(&["thp"], 20, Design::Runs);
    assert_eq!(words::unchecked(&runs), None);
    for event in &mut runs.events {
        let Event::Block(block) = event else { continue };
        block.unchecked = block.measured.block.treatment.arm().is_some();
    }
    let blocks = words::count(runs.answer().arms[0].blocks);
    let note = words::unchecked(&runs).unwrap();
    assert!(note.starts_with(&format!("in {blocks} it was not checked whether the lift failed")), "{note}");
    // A command of --against has no lift.
    runs.events.retain(|event| !matches!(event, Event::Observed(_)));
    assert_eq!(words::unchecked(&runs), None);
}

/// A reader types what is shown as code.
#[test]
fn only_commands_and_options_are_shown_as_code() {
    let shown = |fix: &str| {
        let mut record = record(&["thp"], 20, Design::Toggle);
        let seen = record.events.iter_mut().filter_map(|event| match event {
            Event::Observed(seen) => seen.lift.as_mut(),
            _ => None,
        });
        for left in seen.flat_map(|lift| &mut lift.not_lifted) {
            left.fix = Some(fix.to_owned());
        }
        let (page, text) = (html(&[source("a", record.clone())]), markdown(&[source("a", record)]));
        let of_page = (page.contains(&format!("<code>{fix}</code>")), page.contains(&format!("<td>{fix}</td>")));
        let of_text = (text.contains(&format!("| `{fix}` |")), text.contains(&format!("| {fix} |")));
        assert_eq!(of_page, of_text, "{fix}");
        of_page
    };
    for fix in ["relink it with segments aligned to huge pages", "restart the program", "remove it, and lift again"] {
        assert_eq!(shown(fix), (false, true));
    }
    assert_eq!(shown("pagelift cache prepare FILE"), (true, false));
    for fix in ["--edges merge-read-only", "echo 1 > /proc/sys/vm/compact_memory", "pagelift pool reserve 2M:4"] {
        assert!(words::can_be_typed(fix), "{fix}");
    }
    for fix in ["--pages thp, or pagelift run", "pagelift cache prepare FILE, and start it again", ""] {
        assert!(!words::can_be_typed(fix), "{fix}");
    }
}

/// At 4 % of a CPU a window of 400 ms holds 16 ms of work.
#[test]
fn little_work_in_a_window_calls_for_longer_windows() {
    let mut idle = record(&["thp"], 60, Design::Toggle);
    for event in &mut idle.events {
        let Event::Block(block) = event else { continue };
        let treated = block.measured.block.treated();
        for (number, (window, treated)) in block.measured.windows.iter_mut().zip(treated).enumerate() {
            window.cpu = 0.016;
            let noise = 1.0 + 0.2 * ((block.at.unwrap_or(0.0) * 7.3 + number as f64 * 0.61).fract() - 0.5);
            window.work = 1000.0 * noise * if treated { 1.0 } else { 1.001 };
        }
    }
    let advice = decision::advice(&idle);
    assert!(advice.headline.starts_with("Cannot tell yet: about "), "{advice:?}");
    assert!(advice.reason.contains("the program used 4 % of a CPU, 16 ms in each window"), "{advice:?}");
    assert!(advice.next.as_ref().is_some_and(|next| next.to_string().ends_with(" --window 2500ms")), "{advice:?}");
}

/// A record in which 99 % of the requests of the arm wait `factor` as long, and the windows of a control block differ by
/// up to `noise`.
fn with_waits(mut record: Record, factor: f64, noise: f64) -> Record {
    let mut above = false;
    for event in &mut record.events {
        let Event::Block(block) = event else { continue };
        let is_arm = block.measured.block.treatment == Treatment::Arm(0);
        above = above == is_arm;
        let spread = if above { 1.0 + noise } else { 1.0 / (1.0 + noise) };
        let p99 = |treated| if treated { if is_arm { 4e-4 * factor } else { 4e-4 * spread } } else { 4e-4 };
        let window = |treated| Latency { requests: 100, median: 1e-4, p99: p99(treated) };
        block.latency = Some(block.measured.block.treated().map(window));
    }
    record
}

#[test]
fn a_decision_names_longer_waits() {
    let reason = |record: Record| decision::advice(&record).reason;
    let pays = || record(&["thp"], 60, Design::Toggle);
    let waits = "99 of 100 requests are answered within 600 µs instead of 400 µs, +50.0 % [+50.0, +50.0]";
    let worse = reason(with_waits(pays(), 1.5, 0.1));
    assert!(worse.starts_with("thp gains +") && worse.ends_with(&format!("; latency is worse: {waits}")), "{worse}");
    let unsure = reason(with_waits(pays(), 1.5, 3.0));
    assert!(unsure.contains(&format!("; {waits}; that is not certain, since plain differs from itself")), "{unsure}");
    for silent in [with_waits(pays(), 0.9, 0.1), with_waits(pays(), 1.0, 0.1), pays()] {
        assert!(!reason(silent).contains("answered within"), "no longer waits");
    }
    // Throughput speaks against the arm already; and servers that were started once show nothing about another start.
    let costs = changed(with_waits(pays(), 1.5, 0.1), Treatment::Arm(0), 0.8);
    assert!(!reason(costs).contains("answered within"));
    let once = with_waits(record(&["thp"], 60, Design::Servers), 1.5, 0.1);
    assert!(!reason(once).contains("answered within"));
}

/// The reason of the end has the fix.
#[test]
fn a_failure_before_the_first_block_suggests_no_longer_time() {
    let mut record = record(&["thp"], 0, Design::Runs);
    let why = "\"server\" failed (exit status: 1); needed: a command that succeeds; fix: run it alone";
    *record.events.last_mut().unwrap() = Event::End(Ended::Failed(why.to_owned()));
    let advice = decision::advice(&record);
    assert_eq!((advice.headline.as_str(), advice.next), ("Cannot tell", None));
    assert_eq!(advice.reason, format!("no block was measured: {why}"));
    assert_eq!(words::said(&record, &record.answer(), 0), "no block was measured");
    let page = html(&[source("a", record)]);
    assert_eq!(page.matches("failed (exit status: 1)").count(), 1, "{page}");
}
