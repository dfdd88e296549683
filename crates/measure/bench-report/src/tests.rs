//! Pages of recorded and of hostile measurements.

mod decisions;
mod short;

use super::*;
use crate::switch_cost::{CpuCost, cpu_cost, switch_cost};
use measure::latency::Latency;
use measure::record::{
    AddressMap, Attempt, CostRanges, Counters, Design, Ended, Event, Figure, Header, HexAddress, HugeBytes, Lift,
    LiftedRange, Load, MapRange, MemoryUse, NotLifted, Observation, PageCosts, Switch, TimedBlock, Translation,
    WalkFigures, Windows,
};
use measure::toggle::{Blocks, Measured, Per, Treatment, WINDOWS, Window};

/// A record of a server of which the first arm gains a tenth.
fn record(arms: &[&str], blocks: usize, design: Design) -> Record {
    let names = arms.iter().map(|arm| (*arm).to_owned()).collect();
    let mut header = Header::new(design, "mariadbd".to_owned(), names, "Questions".to_owned(), Per::CpuSecond, 7);
    header.machine.kernel = "6.18.0".to_owned();
    header.machine.virtual_machine = Some(true);
    header.options = arms.iter().map(|arm| vec![format!("--pages={arm}")]).collect();
    header.started = Some(0);
    let mut events = vec![seen(None), seen(Some(0))];
    let mut noise = 0.0f64;
    for (number, block) in Blocks::new(arms.len(), 7).take(blocks).enumerate() {
        let gains = block.treatment == Treatment::Arm(0);
        let windows = block.treated().map(|treated| {
            noise = (noise * 1.618_034 + 0.37).fract();
            Window {
                work: 1000.0 * (1.0 + noise / 100.0) * if treated && gains { 1.1 } else { 1.0 },
                cpu: 0.4,
                wall: 0.4,
                cycles: 0.0,
            }
        });
        let latency =
            |treated| Latency { requests: 100, median: 1e-4, p99: if treated && gains { 3e-4 } else { 4e-4 } };
        let counters = Counters { minor_faults: 40, major_faults: 0, user: 0.3, system: 0.1 };
        events.push(Event::Block(Box::new(TimedBlock {
            measured: Measured { block, start: 0, windows },
            at: Some(number as f64 * 2.2),
            counters: Some([counters; WINDOWS]),
            switches: None,
            latency: (design == Design::Servers).then(|| block.treated().map(latency)),
            retried: None,
            unlifted: None,
            unchecked: false,
        })));
        events.push(Event::Switch(Switch { arm: Some(0), pause: 0.001, cpu: 0.004, covered: Some(4 << 20) }));
    }
    events.push(Event::End(Ended::TimeIsUp));
    Record { header, events }
}

fn seen(arm: Option<usize>) -> Event {
    let size = 1 << 21;
    let huge = HugeBytes { kind: "thp".to_owned(), page_size: Some(size), bytes: 4 << 20 };
    let range = |start: u64, object: &str, kind: &str, is_huge: bool| MapRange {
        start: HexAddress(start),
        end: HexAddress(start + (6 << 20)),
        protection: "r-x".to_owned(),
        kind: kind.to_owned(),
        object: object.to_owned(),
        resident: 5 << 20,
        huge: if is_huge { vec![huge.clone()] } else { Vec::new() },
    };
    let ranges =
        vec![range(0x5555_0000_0000, "mariadbd", "text", arm.is_some()), range(0x7fff_0000_0000, "", "stack", false)];
    let lift = Lift {
        program: "mariadbd".to_owned(),
        considered: 7 << 20,
        covered: 4 << 20,
        ranges: vec![LiftedRange {
            object: "mariadbd".to_owned(),
            kinds: vec!["text".to_owned()],
            start: HexAddress(0x5555_0000_0000),
            bytes: 6 << 20,
            source: Some("thp".to_owned()),
            page_size: size,
            covered: 4 << 20,
            advised: 0,
            failed: vec![Attempt {
                source: "file".to_owned(),
                reason: "small folios".to_owned(),
                fix: Some("pagelift cache prepare FILE".to_owned()),
            }],
        }],
        not_lifted: vec![NotLifted {
            object: "libc.so.6".to_owned(),
            kinds: vec!["text".to_owned()],
            bytes: 1 << 20,
            reason: "holds no whole 2 MiB page (1.0 MiB)".to_owned(),
            fix: Some("link it statically".to_owned()),
        }],
        ..Lift::default()
    };
    let memory = MemoryUse {
        resident: 10 << 20,
        proportional: Some(9 << 20),
        huge: if arm.is_some() { vec![huge.clone()] } else { Vec::new() },
        page_tables: Some(300 << 10),
    };
    Event::Observed(Box::new(Observation {
        arm,
        at: 0.1,
        process: "mariadbd".to_owned(),
        lift: arm.map(|_| lift),
        memory: Some(memory),
        map: Some(AddressMap::new(4096, ranges)),
    }))
}

fn source(name: &str, record: Record) -> Source {
    Source { name: name.to_owned(), record }
}

#[test]
fn a_page_says_what_the_record_holds() {
    let page = html(&[source("maria.jsonl", record(&["thp", "hugetlb"], 60, Design::Toggle))]);
    for expected in [
        "<title>Keep it: mariadbd</title>",
        "thp pays: +",
        "hugetlb: no difference that this machine can show",
        "plain against itself",
        "holds no whole 2 MiB page",
        "libc.so.6 text",
        "<td>link it statically</td>",
        "not file: small folios; fix: pagelift cache prepare FILE",
        "4.0 MiB</strong> of 7.0 MiB on huge pages",
        "mariadbd text, 6.0 MiB, r-x at 555500000000: 4.0 MiB on 2 MiB pages (thp), 1.0 MiB on 4 KiB pages",
        "this is a virtual machine",
        "--pages=hugetlb",
        "Page faults",
        "300.0 KiB",
        "1970-01-01 00:00 UTC, seed 7",
        "prefers-color-scheme:dark",
        "@media print",
    ] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
}

/// Multiplies the work of treated windows in the blocks of one treatment.
fn changed(mut record: Record, of: Treatment, factor: f64) -> Record {
    for event in &mut record.events {
        let Event::Block(block) = event else { continue };
        let treated = block.measured.block.treated();
        if block.measured.block.treatment == of {
            let windows = block.measured.windows.iter_mut().zip(treated);
            windows.filter(|(_, treated)| *treated).for_each(|(window, _)| window.work *= factor);
        }
    }
    record
}

/// For those who hear a page or go by keys: a language, one first heading, headings in order, names of drawings and inputs.
#[test]
fn a_page_can_be_read_aloud() {
    let page =
        html(&[source("a", record(&["thp"], 20, Design::Toggle)), source("b", record(&["thp"], 20, Design::Runs))]);
    assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\">"));
    assert_eq!((page.matches("<h1").count(), page.matches("<h2").count()), (1, 2));
    assert_eq!(page.matches("<svg").count(), page.matches("role=\"img\" aria-label=\"").count());
    for number in 0..2 {
        assert!(
            page.contains(&format!("aria-labelledby=\"h{number}\"")) && page.contains(&format!("id=\"h{number}\""))
        );
        assert!(
            page.contains(&format!("<label for=\"z{number}\"")) && page.contains(&format!("<input id=\"z{number}\""))
        );
        assert!(page.contains(&format!("href=\"#r{number}\"")) && page.contains(&format!("id=\"r{number}\"")));
    }
    assert!(
        page.matches("<th ").count()
            == page.matches("scope=\"").count() - page.matches("scope=\"colgroup\" class").count()
    );
}

#[test]
fn servers_are_shown_with_their_load() {
    let mut servers = record(&["thp"], 20, Design::Servers);
    let command = "redis://127.0.0.1:{port}?query=PING".to_owned();
    servers.header.load = Some(Load { command: command.clone(), metric: None, clients: Some(4), starts: 6 });
    let page = html(&[source("a", servers.clone())]);
    assert!(page.contains("Servers side by side") && page.contains(&command), "{page}");
    assert!(page.contains("Starts asked for: 6") && page.contains("Each process has other addresses"), "{page}");
    assert!(markdown(&[source("a", servers)]).contains("| link it statically |"));
}

#[test]
fn what_the_cpu_counted_is_shown_and_what_it_did_not_has_its_reason() {
    let mut counted = record(&["thp"], 20, Design::Toggle);
    let of = |value: Option<f64>| Figure {
        name: "code: cycles in page walks, %".to_owned(),
        value,
        not_counted: value.is_none().then(|| "no event for it".to_owned()),
    };
    let state =
        |arm, value| Event::Walks(Box::new(WalkFigures { arm, figures: vec![of(value)], ..WalkFigures::default() }));
    counted.events.extend([state(None, Some(7.5)), state(Some(0), None)]);
    let line = "code: cycles in page walks, %: plain 7.500, thp not counted (no event for it)";
    assert!(
        html(&[source("a", counted.clone())]).contains(line)
            && markdown(&[source("a", counted.clone())]).contains(line)
    );
    for event in &mut counted.events {
        let Event::Walks(walks) = event else { continue };
        let nowhere = Figure { name: "data: stalls".to_owned(), value: None, not_counted: Some("no event".to_owned()) };
        walks.figures.extend([nowhere.clone(), Figure { name: "code: stalls".to_owned(), ..nowhere }]);
        (walks.counted_share, walks.user_only) = (walks.arm.map(|_| 0.4), true);
    }
    let page = html(&[source("a", counted.clone())]);
    assert!(page.contains("<li>not counted: data: stalls; code: stalls (no event)</li>"), "{page}");
    assert!(
        page.contains("counted 40 % of the time at least, and scaled") && page.contains("the kernel's part is not")
    );
    counted.events.retain(|event| !matches!(event, Event::Walks(_)));
    let none = WalkFigures { not_counted: Some("no PMU".to_owned()), ..WalkFigures::default() };
    counted.events.push(Event::Walks(Box::new(none)));
    assert!(html(&[source("a", counted)]).contains("page walks were not counted: no PMU"));
}

#[test]
fn the_probe_of_the_machine_is_drawn_and_said() {
    let mut probed = record(&["thp"], 20, Design::Toggle);
    let costs = |pages: &str, most: f64| PageCosts {
        pages: pages.to_owned(),
        points: (16..=28).map(|power| (1 << power, most * f64::from(power - 16) / 12.0)).collect(),
    };
    let sizes = vec![costs("4 KiB", 43.0), costs("2 MiB THP", 14.9)];
    let of =
        |saved| CostRanges { pages: "2 MiB THP".to_owned(), passes: 3, base: (43.0, 44.0), huge: (14.9, 14.9), saved };
    let probe = Translation {
        data: sizes.clone(),
        code: sizes.clone(),
        splintered: Some(true),
        data_ranges: Some(of(Some((0.65, 0.66)))),
        code_ranges: Some(of(None)),
        others: Some(1.8),
        ..Translation::default()
    };
    probed.header.probe = Some(Box::new(probe));
    let page = html(&[source("a", probed.clone())]);
    let times = "visited at random: 43.0 to 44.0 ns of translation an access on 4 KiB pages, 14.9 on 2 MiB THP";
    let line = format!("256.0 MiB of data, {times}: 65 to 66 % less");
    assert!(page.contains(&line) && page.contains("the host backs huge pages by smaller ones"), "{page}");
    assert!(page.contains(&format!("256.0 MiB of code, {times}; the passes differ too much for a share")), "{page}");
    assert!(page.contains("meanwhile other programs used 1.8 CPUs"), "{page}");
    assert_eq!(page.matches("Translation of an access by footprint").count(), 4, "for wide and narrow windows");
    assert!(page.len() <= MOST_BYTES && markdown(&[source("a", probed.clone())]).contains("43.0 to 44.0 ns"));
    // A record of before ranges were kept.
    probed.header.probe = Some(Box::new(Translation { data: sizes, ..Translation::default() }));
    let lines = words::translation(&probed);
    assert!(lines[0].contains("43.0 ns of translation an access") && !lines[0].contains('%'), "{lines:?}");
    let why = Translation { not_measured: Some("768 MiB are needed".to_owned()), ..Translation::default() };
    probed.header.probe = Some(Box::new(why));
    let page = html(&[source("a", probed)]);
    assert!(page.contains("was not measured: 768 MiB are needed") && !page.contains("Translation of an access by"));
    assert!(!html(&[source("a", record(&["thp"], 20, Design::Toggle))]).contains("Cost of address translation"));
}

#[test]
fn a_page_needs_nothing_else() {
    let page = html(&[source("a", record(&["thp"], 20, Design::Toggle))]);
    for outside in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn a_record_without_observations_is_shown_too() {
    let mut old = record(&["thp"], 20, Design::Toggle);
    old.events.retain(|event| matches!(event, Event::Block(_)));
    old.header.options.clear();
    let page = html(&[source("old", old.clone())]);
    assert!(page.contains("made by an earlier version") && page.contains("the file was cut off"), "{page}");
    old.events.clear();
    let page = html(&[source("old", old.clone())]);
    assert!(
        page.contains("Cannot tell yet")
            && page.contains("the same command with --for 20m")
            && page.contains("No pair was measured."),
        "{page}"
    );
    assert!(markdown(&[source("old", old)]).contains("too few blocks"));
}

/// All texts of a record are foreign.
#[test]
fn hostile_text_does_nothing() {
    const EVIL: &str = "</title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'`|@root\n# x\u{202e}\u{1b}[2J";
    let mut hostile = record(&[EVIL], 20, Design::Toggle);
    hostile.header.program = EVIL.to_owned();
    hostile.header.unit = EVIL.to_owned();
    hostile.header.options = vec![vec![EVIL.to_owned()]];
    hostile.header.pagelift = Some(EVIL.to_owned());
    hostile.header.design = Design::Servers;
    let load = Load { command: EVIL.to_owned(), metric: Some(EVIL.to_owned()), clients: Some(1), starts: 1 };
    hostile.header.load = Some(load);
    let machine = &mut hostile.header.machine;
    (machine.kernel, machine.architecture) = (EVIL.to_owned(), EVIL.to_owned());
    (machine.cpu_model, machine.thp_enabled, machine.thp_defrag) =
        (Some(EVIL.into()), Some(EVIL.into()), Some(EVIL.into()));
    machine.governors = vec![EVIL.to_owned(); 1000];
    for event in &mut hostile.events {
        let Event::Observed(seen) = event else { continue };
        seen.process = EVIL.to_owned();
        seen.memory.iter_mut().flat_map(|memory| &mut memory.huge).for_each(|huge| huge.kind = EVIL.to_owned());
        for range in seen.map.iter_mut().flat_map(|map| &mut map.ranges) {
            (range.object, range.kind, range.protection) = (EVIL.to_owned(), EVIL.to_owned(), EVIL.to_owned());
            range.huge.iter_mut().for_each(|huge| huge.kind = EVIL.to_owned());
        }
        let Some(lift) = &mut seen.lift else { continue };
        lift.unlifted = Some(EVIL.to_owned());
        for range in &mut lift.ranges {
            (range.object, range.kinds, range.source) = (EVIL.to_owned(), vec![EVIL.to_owned()], Some(EVIL.to_owned()));
            range.failed =
                vec![Attempt { source: EVIL.to_owned(), reason: EVIL.to_owned(), fix: Some(EVIL.to_owned()) }];
        }
        for not in &mut lift.not_lifted {
            (not.object, not.kinds, not.reason) = (EVIL.to_owned(), vec![EVIL.to_owned()], EVIL.to_owned());
            not.fix = Some(EVIL.to_owned());
        }
    }
    let figure = Figure { name: EVIL.to_owned(), value: Some(f64::MAX), not_counted: Some(EVIL.to_owned()) };
    let walks = WalkFigures {
        arm: Some(0),
        cores: EVIL.to_owned(),
        figures: vec![figure],
        counted_share: Some(f64::NAN),
        user_only: true,
        with_children: true,
        not_counted: None,
    };
    hostile.events.push(Event::Walks(Box::new(walks)));
    let costs = PageCosts { pages: EVIL.to_owned(), points: vec![(0, f64::MAX), (u64::MAX, -1.0)] };
    let why = Translation { data: vec![costs.clone(), costs], ..Translation::default() };
    hostile.header.probe = Some(Box::new(why));
    hostile.events.push(Event::End(Ended::Failed(EVIL.to_owned())));
    let page = html(&[source(EVIL, hostile.clone()), source(EVIL, hostile.clone())]);
    assert_eq!(
        (page.matches("<script").count(), page.matches("<img").count(), page.matches("</style").count()),
        (1, 0, 1)
    );
    assert!(!page.contains('\u{202e}') && !page.contains('\u{1b}') && !page.contains("title=\"</"));
    let text = markdown(&[source(EVIL, hostile.clone()), source(EVIL, hostile)]);
    assert!(!text.contains("\n# x") && !text.contains('\u{202e}') && !text.contains('\u{1b}'));
    // Each row of a table has as many cells as its heading.
    let cells = |line: &str| line.replace("\\|", "").matches('|').count();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.windows(2).filter(|pair| pair.iter().all(|line| line.starts_with('|'))) {
        assert_eq!(cells(pair[0]), cells(pair[1]), "{pair:?}");
    }
    // Outside of code no mark of HTML is left alone.
    for line in text.lines().filter(|line| !line.contains('`')) {
        assert!(!line.replace("\\<", "").contains('<'), "{line}");
    }
}

#[test]
fn numbers_beyond_measure_are_drawn_and_written() {
    let mut wild = record(&["thp"], 60, Design::Toggle);
    for (number, event) in wild.events.iter_mut().enumerate() {
        match event {
            Event::Block(block) => {
                block.at = Some([f64::MAX, -1.0, 0.0][number % 3]);
                block.measured.windows[number % 4].work = [1e308, 1e-308, -1e308, 0.0][number / 4 % 4];
                block.measured.windows[number % 3].wall = 1e308;
                block.counters = Some(
                    [Counters { minor_faults: u64::MAX, major_faults: u64::MAX, user: 1e308, system: -1e308 }; WINDOWS],
                );
            }
            Event::Observed(seen) => {
                let map = seen.map.as_mut().unwrap();
                map.base_page = 3;
                for range in &mut map.ranges {
                    (range.start, range.end, range.resident) = (HexAddress(u64::MAX), HexAddress(0), u64::MAX);
                    range.huge = vec![HugeBytes { kind: String::new(), page_size: Some(0), bytes: u64::MAX }; 3];
                }
                seen.memory.as_mut().unwrap().huge =
                    vec![HugeBytes { kind: String::new(), page_size: None, bytes: u64::MAX }; 9];
            }
            Event::Switch(switch) => (switch.cpu, switch.pause) = (1e308, -1e308),
            Event::Walks(_) | Event::End(_) => {}
        }
    }
    wild.header.started = Some(u64::MAX);
    for design in [Design::Toggle, Design::Runs, Design::Servers] {
        wild.header.design = design;
        let page = html(&[source("wild", wild.clone())]);
        assert!(!page.contains("NaN") && !page.contains("inf") && page.len() < MOST_BYTES, "{page}");
        assert!(markdown(&[source("wild", wild.clone())]).len() < 20_000);
    }
}

/// A day of windows of 100 ms, large maps, many arms, and as many records as a page takes.
#[test]
fn no_page_is_too_long() {
    let mut long = record(&["thp", "hugetlb", "image", "file"], 12_000, Design::Toggle);
    for event in &mut long.events {
        let Event::Observed(seen) = event else { continue };
        let map = seen.map.as_mut().unwrap();
        let one = map.ranges[0].clone();
        let range = |number: u64| MapRange {
            start: HexAddress(number << 24),
            end: HexAddress((number << 24) + (1 << 20)),
            object: format!("a library of the number {number} with a long name"),
            ..one.clone()
        };
        map.ranges = (0..1000).map(range).collect();
        if let Some(lift) = &mut seen.lift {
            lift.ranges = vec![lift.ranges[0].clone(); 500];
            let reason = |number: usize| NotLifted {
                reason: format!("reason {number}: {}", "x".repeat(500)),
                ..lift.not_lifted[0].clone()
            };
            lift.not_lifted = (0..500).map(reason).collect();
        }
    }
    let page = html(&[source("long", long.clone())]);
    assert!(page.len() < MOST_BYTES && page.contains("neighbouring pairs share a dot"), "{}", page.len());
    assert!(page.contains("mappings of little memory are left out") && page.contains("more ranges are in the record"));
    let mut short = long.clone();
    short.events.truncate(2 + 600);
    let many: Vec<Source> = (0..MOST_RECORDS).map(|number| source(&number.to_string(), short.clone())).collect();
    let page = html(&many);
    assert!(page.len() < MOST_BYTES, "{}", page.len());
    assert_eq!(page.matches("<article").count(), MOST_RECORDS);
}

/// Parts of one object that stay on base pages for one reason have one name.
#[test]
fn an_object_is_named_once_for_a_reason() {
    let mut record = record(&["thp"], 5, Design::Toggle);
    for event in &mut record.events {
        let Event::Observed(seen) = event else { continue };
        let Some(lift) = &mut seen.lift else { continue };
        let reason = "holds no whole 2 MiB page (2.0 MiB)".to_owned();
        lift.not_lifted.push(NotLifted { reason, ..lift.not_lifted[0].clone() });
    }
    let text = markdown(&[source("a", record)]);
    assert!(text.contains("| 2.0 MiB | holds no whole 2 MiB page | link it statically | `libc.so.6 text` |"), "{text}");
}

#[test]
fn markdown_says_what_the_record_holds() {
    let text = markdown(&[source("a", record(&["thp"], 60, Design::Toggle))]);
    for expected in [
        "## Keep it: `mariadbd`\n",
        "| Compared | Questions per CPU second | Pairs | Finding |\n| --- | --- | ---: | --- |\n| `thp` against plain | \\+10.",
        "| plain against itself | ",
        "| 1.0 MiB | holds no whole 2 MiB page | link it statically | `libc.so.6 text` |",
        "| `plain` | 10.0 MiB | 9.0 MiB | 0 B | 300.0 KiB |",
        "- this is a virtual machine",
        "`thp`: `--pages=thp`",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let both = [source("a", record(&["thp"], 60, Design::Toggle)), source("b", record(&["thp"], 5, Design::Runs))];
    assert!(markdown(&both).starts_with("## Does it pay? 2 measurements\n\n| Program | Arm |"));
}

#[test]
fn a_counter_that_goes_backwards_is_named_with_its_value() {
    let mut record = record(&["thp"], 20, Design::Toggle);
    let block =
        record.events.iter_mut().find_map(|event| if let Event::Block(block) = event { Some(block) } else { None });
    block.unwrap().measured.windows[2].work = -1234.0;
    let said = words::unusable(&record, &record.answer()).unwrap();
    assert!(
        said.starts_with("1 block does not count: the counter of Questions went backwards, by 1234 in one window"),
        "{said}"
    );
}

/// The page runs this script and no other.
#[test]
fn the_policy_names_the_script_s_hash() {
    use base64::Engine;
    use sha2::Digest;
    let hash = sha2::Sha256::digest(include_str!("html/zoom.js").as_bytes());
    let hash = base64::engine::general_purpose::STANDARD.encode(hash);
    assert!(html::POLICY.ends_with(&format!("; script-src 'sha256-{hash}'")), "{hash}");
}

#[test]
fn latencies_stand_beside_those_of_plain() {
    let servers = record(&["thp"], 40, Design::Servers);
    let lines = latency(&servers);
    assert_eq!(
        lines,
        [
            "latency, thp: half within 100 µs (plain 100 µs), 99 % within 300 µs (plain 400 µs): -25.0 % [-25.0, -25.0] (plain \
             against itself +0.0 % [+0.0, +0.0])",
        ]
    );
    assert!(markdown(&[source("a", servers.clone())]).contains("99 % within 300 µs"));
    assert!(html(&[source("a", servers)]).contains("99 % within 300 µs"));
    let few = latency(&record(&["thp"], 8, Design::Servers));
    assert!(few[0].ends_with("too few blocks for an interval"), "{few:?}");
    assert!(latency(&record(&["thp"], 40, Design::Toggle)).is_empty());
}

/// A server with 0.4 ms of CPU time for a unit of work continues during each switch, which takes 6 ms in addition.
#[test]
fn what_a_program_works_during_a_switch_is_not_its_cost() {
    let mut record = record(&["thp"], 40, Design::Toggle);
    for event in &mut record.events {
        let Event::Block(block) = event else { continue };
        let measured = &mut block.measured;
        let switched = |treated| {
            let work = if treated && measured.block.treatment == Treatment::Arm(0) { 500.0 } else { 0.0 };
            Window { work, cpu: if work > 0.0 { work * 4e-4 + 6e-3 } else { 0.0 }, wall: work / 1e3, cycles: 0.0 }
        };
        block.switches = Some(measured.block.treated().map(switched));
        let is_control = measured.block.treatment == Treatment::Control;
        for (window, treated) in measured.windows.iter_mut().zip(measured.block.treated()) {
            window.work = if treated || is_control { window.work } else { 1000.0 };
        }
    }
    let mut windows = Windows { length: 0.4, settle: 0.1, with_switches: false, only_work: true };
    record.header.windows = Some(windows);
    let cost = |record: &Record| switch_cost(record, &record.answer(), 0).unwrap();
    let CpuCost::Beyond(estimate) = cost(&record).cpu else { panic!("{:?}", cost(&record)) };
    assert!((estimate.centre - 6e-3).abs() < 1e-9, "{estimate:?}");
    assert_eq!(cpu_cost(cost(&record).cpu), "6.0 ms [6.0, 6.0] of its CPU time beyond its work");
    assert!(html(&[source("a", record.clone())]).contains("6.0 ms [6.0, 6.0]"));

    // The gain of a tenth saves a tenth of 66 ms in that time.
    let paid = cost(&record).paid_back.unwrap();
    assert!((0.06..0.07).contains(&paid), "{paid}");

    // A counter of system calls includes the calls of a lift; an older record does not contain this fact.
    windows.only_work = false;
    record.header.windows = Some(windows);
    assert_eq!(cost(&record).cpu, CpuCost::WithWork(4e-3));
    assert_eq!(cpu_cost(cost(&record).cpu), "at most 4.0 ms of its CPU time, its work counted");
    assert_eq!(cost(&record).paid_back, None);
}

/// The report of a lift has no heap, whose huge pages are in the observed memory.
#[test]
fn a_lift_beside_a_heap_is_not_all_that_is_on_huge_pages() {
    let mut heap = record(&["lifted"], 40, Design::Runs);
    let shown = |record: &Record| [markdown(&[source("a", record.clone())]), html(&[source("a", record.clone())])];
    assert!(shown(&heap).iter().all(|page| !page.contains("besides the heap")));
    heap.header.options = vec![vec!["--heap=auto".to_owned()]];
    for page in shown(&heap) {
        assert!(
            page.contains("of 7.0 MiB besides the heap on huge pages") && page.contains("no part of the lift"),
            "{page}"
        );
    }
}
