//! The tables against the events that Debian's perf carries from the kernel's own files (package linux-perf).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use walk_counters::families;

const PERF: [&str; 2] = ["/usr/bin/perf", "/usr/lib/linux-tools/perf"];
/// Families that perf 6.1 does not know yet, and names that the tables make themselves.
const LATER: [&str; 15] = [
    "Zen 5",
    "Granite Rapids",
    "Emerald Rapids",
    "Sierra Forest",
    "Clearwater Forest",
    "Meteor Lake, P cores",
    "Meteor Lake, E cores",
    "Arrow Lake, P cores",
    "Arrow Lake, E cores",
    "Lunar Lake, P cores",
    "Lunar Lake, E cores",
    "Panther Lake, P cores",
    "Panther Lake, E cores",
    "Alder Lake-N",
    "Rocket Lake",
];

/// Event, umask and cmask of each name, as they stand in the program: `name … event=0x8,cmask=1,umask=0x10`.
fn encodings(program: &[u8]) -> BTreeMap<String, BTreeSet<(u64, u64, u64)>> {
    const WITHIN: usize = 6;
    let words: Vec<&[u8]> = program.split(|&byte| byte == 0).filter(|word| !word.is_empty()).collect();
    let mut found: BTreeMap<String, BTreeSet<(u64, u64, u64)>> = BTreeMap::new();
    for (index, word) in words.iter().enumerate() {
        let Ok(code) = str::from_utf8(word) else { continue };
        if !code.contains("event=") || code.contains(' ') {
            continue;
        }
        let number = |name: &str| {
            let value = code.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')).unwrap_or("0");
            value.strip_prefix("0x").map_or_else(|| value.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
        };
        let (Some(event), Some(umask), Some(cmask)) = (number("event"), number("umask"), number("cmask")) else {
            continue;
        };
        // The name stands before the topic and the description.
        for name in words[index.saturating_sub(WITHIN)..index].iter().filter_map(|word| str::from_utf8(word).ok()) {
            if name.contains('.') && !name.contains(' ') || name.starts_with("bp_") {
                found.entry(name.to_lowercase()).or_default().insert((event, umask, cmask));
            }
        }
    }
    found
}

#[test]
fn the_kernel_s_perf_has_the_same_encodings() {
    let Some(program) = PERF.iter().find_map(|path| fs::read(path).ok()) else {
        println!("skipped: no perf at {PERF:?}; needed: apt install linux-perf");
        return;
    };
    let known = encodings(&program);
    if known.len() < 100 {
        println!("skipped: this perf has its events in another form ({} were read)", known.len());
        return;
    }
    let (mut compared, mut wrong) = (0, Vec::new());
    for family in families().iter().filter(|family| !LATER.contains(&family.name.as_str())) {
        for event in &family.events {
            let Some(of_name) = known.get(&event.name.to_lowercase()) else { continue };
            compared += 1;
            if !of_name.contains(&(event.code, event.umask, event.cmask)) {
                wrong.push(format!("{}: {} is {of_name:x?} in perf", family.name, event.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 150, "only {compared} events were compared");
    println!("{compared} events compared");
}
