use super::*;
use crate::toggle::{Block, Blocks, Treatment, WINDOWS, Window};
use proptest::prelude::*;

/// A record of before observations, times and counters were kept, as `pagelift bench -o` wrote it.
const OLD: &str = concat!(
    r#"{"format":"pagelift-bench","version":1,"design":"toggle","machine":{"architecture":"x86_64","kernel":"6.18.0","#,
    r#""processor":"CPU","cpus":2,"virtual_machine":true,"base_page_bytes":4096,"memory_bytes":1,"available_bytes":1,"#,
    r#""thp_enabled":"madvise","thp_defrag":"madvise","pools":[],"governors":[],"other_load":null,"stolen":0.0},"#,
    r#""program":"server","arms":["thp"],"unit":"commands","per":"cpu-second","seed":3}"#,
    "\n",
    r#"{"switch":{"arm":0,"pause":0.001,"cpu":0.002,"covered":4194304}}"#,
    "\n",
    r#"{"block":{"treatment":{"arm":0},"plain_outside":true,"windows":[{"work":1.0,"cpu":1.0,"wall":2.0},"#,
    r#"{"work":1.1,"cpu":1.0,"wall":2.0},{"work":1.1,"cpu":1.0,"wall":2.0},{"work":1.0,"cpu":1.0,"wall":2.0}]}}"#,
    "\n",
    r#"{"end":"time-is-up"}"#,
    "\n",
);

fn header() -> Header {
    let arms = vec!["thp".to_owned()];
    Header::new(Design::Toggle, "server".to_owned(), arms, "commands".to_owned(), Per::CpuSecond, 3)
}

fn block(block: Block) -> TimedBlock {
    let rate = if block.treatment == Treatment::Control { 1.0 } else { 1.1 };
    let windows = block.treated().map(|treated| Window {
        work: if treated { rate } else { 1.0 },
        cpu: 1.0,
        wall: 2.0,
        cycles: 0.0,
    });
    assert_eq!(windows.len(), WINDOWS);
    TimedBlock {
        measured: Measured { block, start: 0, windows },
        at: Some(8.0),
        counters: Some([Counters::default(); WINDOWS]),
        switches: None,
        latency: None,
        retried: None,
        unlifted: None,
        unchecked: false,
    }
}

fn written(events: &[Event]) -> String {
    let line = |text: serde_json::Result<String>| text.unwrap() + "\n";
    let lines: String = events.iter().map(|event| line(serde_json::to_string(event))).collect();
    line(serde_json::to_string(&header())) + &lines
}

fn blocks(count: usize) -> Vec<Event> {
    Blocks::new(1, 3).take(count).map(|one| Event::Block(Box::new(block(one)))).collect()
}

fn range(start: u64, bytes: u64, resident: u64) -> MapRange {
    MapRange {
        start: HexAddress(start),
        end: HexAddress(start + bytes),
        protection: "r-xp".to_owned(),
        kind: "text".to_owned(),
        object: "server".to_owned(),
        resident,
        huge: vec![HugeBytes { kind: "thp".to_owned(), page_size: Some(1 << 21), bytes: resident }],
    }
}

#[test]
fn what_is_written_is_read_again() {
    let mut events = blocks(40);
    let map = AddressMap::new(4096, vec![range(0x5555_0000_0000, 1 << 21, 1 << 21)]);
    let memory = MemoryUse { resident: 5, proportional: Some(4), huge: Vec::new(), page_tables: None };
    let seen = Observation { arm: Some(0), at: 0.5, map: Some(map), memory: Some(memory), ..Observation::default() };
    events.push(Event::Observed(Box::new(seen)));
    events.push(Event::Switch(Switch { arm: Some(0), pause: 0.001, cpu: 0.002, covered: Some(1) }));
    events.push(Event::End(Ended::TimeIsUp));
    let read = Record::parse(&written(&events)).unwrap();
    assert_eq!(read, Record { header: header(), events });
    assert_eq!(read.ended(), Some(&Ended::TimeIsUp));
    assert!((read.answer().arms[0].ratio.unwrap().centre - 1.1).abs() < 1e-9);
    assert_eq!(read.observations().count(), 1);
}

#[test]
fn switches_count_only_where_the_header_says_so() {
    let mut record = Record { header: header(), events: blocks(40) };
    for event in &mut record.events {
        let Event::Block(block) = event else { continue };
        let is_arm = block.measured.block.treatment != Treatment::Control;
        // Each window in an arm is preceded by a switch with as much CPU time as itself.
        let switch =
            |treated| Window { work: 0.0, cpu: if treated && is_arm { 1.0 } else { 0.0 }, wall: 0.0, cycles: 0.0 };
        block.switches = Some(block.measured.block.treated().map(switch));
    }
    let centre = |answer: &Answer| answer.arms[0].ratio.unwrap().centre;
    assert!((centre(&record.answer()) - 1.1).abs() < 1e-9 && record.steady_answer().is_none());
    record.header.windows = Some(Windows { length: 1.0, settle: 0.1, with_switches: true, only_work: true });
    assert!((centre(&record.answer()) - 0.55).abs() < 1e-9);
    let steady = record.steady_answer().unwrap();
    assert!((centre(&steady) - 1.1).abs() < 1e-9 && steady.control == record.answer().control);
    let text = written(&record.events);
    assert_eq!(Record::parse(&text).unwrap().events, record.events);
}

#[test]
fn records_of_earlier_versions_are_read() {
    let record = Record::parse(OLD).unwrap();
    assert_eq!((record.blocks().len(), record.switches().count(), record.observations().count()), (1, 1, 0));
    assert_eq!(record.ended(), Some(&Ended::TimeIsUp));
    assert!(record.header.options.is_empty() && record.timed_blocks().all(|block| block.at.is_none()));
}

#[test]
fn a_record_that_was_cut_off_keeps_its_blocks() {
    let text = written(&blocks(8));
    assert_eq!(Record::parse(&text[..text.len() - 20]).unwrap().blocks().len(), 7);
}

#[test]
fn what_is_no_record_is_refused_with_its_line() {
    let after = |line: &str| written(&blocks(3)) + line + "\n";
    let cases = [
        (String::new(), "line 1 is not one of `pagelift bench -o`: the file is empty"),
        ("{}\n".to_owned(), "line 1 is not one of `pagelift bench -o`: missing field `format`"),
        ("not json\n".to_owned(), "needed: its first line, {\"format\":\"pagelift-bench\",\"version\":1,…}"),
        (
            OLD.replacen("\"version\":1", "\"version\":2", 1),
            "line 1 is not one of `pagelift bench -o`: it is pagelift-bench 2",
        ),
        (after("{\"blok\":1}"), "line 5 is not one of `pagelift bench -o`: unknown variant `blok`"),
        (after("{\"blok\":1}"), "needed: {\"block\":…}, {\"switch\":…}, {\"observed\":…} or {\"end\":…}"),
        (
            after("{\"switch\":{\"arm\":7,\"pause\":0,\"cpu\":0,\"covered\":null}}"),
            "line 5 is not one of `pagelift bench -o`: its arm is 7",
        ),
    ];
    for (text, expected) in cases {
        let error = Record::parse(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn maps_keep_what_is_resident_and_say_what_they_leave_out() {
    let ranges: Vec<MapRange> = (0..3000).map(|at| range(at << 30, 1 << 20, at % 3 * 4096)).collect();
    let map = AddressMap::new(4096, ranges);
    assert_eq!((map.ranges.len(), map.left_out.ranges), (1000, 2000));
    assert!(map.ranges.iter().all(|range| range.resident == 8192));
    assert!(map.ranges.windows(2).all(|pair| pair[0].start < pair[1].start));
    assert_eq!(map.left_out.resident, 1000 * 4096);
}

#[test]
fn unbounded_lists_are_refused() {
    let ranges = vec![range(0, 4096, 0); 1001];
    let map = AddressMap { ranges, ..AddressMap::default() };
    let seen = Observation { map: Some(map), ..Observation::default() };
    let error = Record::parse(&written(&[Event::Observed(Box::new(seen))])).unwrap_err();
    assert_eq!(error.line, 2);
}

#[test]
fn the_essential_of_a_lift_s_report_is_kept() {
    let report = r#"{"format":"pagelift-report","version":1,"pid":1,"program":"server","unlifted":null,"base":null,
        "other_threads":0,"considered_bytes":7340032,"covered_bytes":4194304,"advised_bytes":0,"made_resident_bytes":0,
        "lift_microseconds":1,"stopped_microseconds":1,
        "ranges":[{"object":"server","kinds":["text"],"range":{"start":"0x400000","end":"0xa00000"},"protection":"r-x",
            "source":"thp","page_size":2097152,"covered":[{"start":"0x400000","end":"0x800000"}],"advised":0,
            "made_resident":0,"failed":[{"source":"file","reason":"small folios"}],
            "uncovered":[{"range":{"start":"0x800000","end":"0xa00000"},"reason":"memory is fragmented or short"}]}],
        "refusals":[{"object":"libc.so.6","kinds":["text"],"range":{"start":"0x1000","end":"0x2000"},"reason":"small"},
            {"object":"libc.so.6","kinds":["text"],"range":{"start":"0x3000","end":"0x5000"},"reason":"small"}],
        "edges":[{"object":"server","kinds":["rodata"],"range":{"start":"0x3ff000","end":"0x400000"},"protection":"r--",
            "cure":"merge-read-only"}],
        "not_understood":[],"without_image":[],"unexpected":[],"fixes":{"small folios":"pagelift cache prepare FILE","memory is fragmented or short":"compact"}}"#;
    let lift = Lift::from_report(report).unwrap();
    assert_eq!((lift.covered, lift.ranges[0].covered, lift.ranges[0].bytes), (4 << 20, 4 << 20, 6 << 20));
    assert_eq!(lift.ranges[0].source.as_deref(), Some("thp"));
    assert_eq!(lift.ranges[0].failed[0].reason, "small folios");
    assert_eq!(lift.ranges[0].failed[0].fix.as_deref(), Some("pagelift cache prepare FILE"));
    let of = |not: &NotLifted| (not.reason.clone(), not.fix.clone(), not.bytes);
    let row = |reason: &str, fix: Option<&str>, bytes| (reason.to_owned(), fix.map(str::to_owned), bytes);
    let expected = [
        row("memory is fragmented or short", Some("compact"), 2 << 20),
        row("small", None, 3 * 4096),
        row("an edge that fills no huge page", Some("--edges merge-read-only"), 4096),
    ];
    assert_eq!(lift.not_lifted.iter().map(of).collect::<Vec<_>>(), expected);
    assert!(Lift::from_report("{}").is_err());
}

proptest! {
    #[test]
    fn no_damaged_record_makes_the_reader_panic(at in 0..OLD.len(), with in any::<char>(), cut in 0..OLD.len()) {
        let damaged: String = OLD.char_indices().map(|(i, c)| if i == at { with } else { c }).collect();
        let _ = Record::parse(&damaged).map(|record| record.answer());
        let _ = Record::parse(&OLD[..cut]).map(|record| record.answer());
    }
}

#[test]
fn curves_of_a_probe_are_kept_compared_and_bounded() {
    let costs = |pages: &str, points: &[(u64, f64)]| PageCosts { pages: pages.to_owned(), points: points.to_vec() };
    let data = vec![costs("4 KiB", &[(1, 0.0), (2, 4.0), (4, 40.0)]), costs("2 MiB THP", &[(1, 0.0), (2, 1.0)])];
    let mut header = Header::new(Design::Runs, "p".into(), vec!["a".into()], "runs".into(), Per::Second, 1);
    header.probe = Some(Box::new(Translation { data, splintered: Some(true), ..Translation::default() }));
    let text = serde_json::to_string(&header).unwrap() + "\n";
    let record = Record::parse(&text).unwrap();
    assert_eq!(record.header, header);
    let probe = header.probe.as_mut().unwrap();
    let wanted = Compared { footprint: 2, base: ("4 KiB", 4.0), huge: ("2 MiB THP", 1.0) };
    assert_eq!(compared(&probe.data), [wanted]);
    assert_eq!(compared(&probe.code), []);
    probe.code = vec![costs("4 KiB", &[(1, 0.0); 129])];
    let error = Record::parse(&(serde_json::to_string(&header).unwrap() + "\n")).unwrap_err();
    assert!(error.found.contains("more points"), "{error}");
}
