//! The tables against the events that Debian's perf carries from the kernel's own files (package linux-perf), family by
//! family: perf chooses them by the CPU's identity, as the kernel's mapfile.csv says.

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use translation::walk_counters::{CpuIdentity, Family, families};

const PERF: [&str; 2] = ["/usr/bin/perf", "/usr/lib/linux-tools/perf"];
/// A CPU that each perf of the last years knows, and some of its events.
const KNOWN: (&str, [&str; 6]) = (
    "GenuineIntel-6-55-[01234]",
    [
        "dtlb_load_misses.walk_pending",
        "itlb_misses.stlb_hit",
        "dtlb_store_misses.walk_active",
        "ept.walk_pending",
        "itlb_misses.walk_pending",
        "dtlb_load_misses.walk_completed",
    ],
);
/// `R_X86_64_RELATIVE`: the word at the offset holds the addend.
const RELATIVE: u64 = 8;

/// An event's name, the PMU that its file names if any, and its event, umask and cmask.
type Events = BTreeMap<(String, String), BTreeSet<(u64, u64, u64)>>;

/// Perf as a file. Its map of CPUs is an array of (architecture, CPUs, events, number of events, …), its events are offsets
/// into one long string (tools/perf/pmu-events/jevents.py since Linux 6.1).
struct Perf<'a> {
    elf: ElfFile64<'a, Endianness>,
    file: &'a [u8],
    /// Words that hold addresses.
    addresses: HashMap<u64, u64>,
    /// Offset of the events' string in the file.
    strings: usize,
}

impl<'a> Perf<'a> {
    fn read(file: &'a [u8]) -> Option<Self> {
        let elf = ElfFile64::parse(file).ok()?;
        let relocations = elf.section_by_name(".rela.dyn")?.data().ok()?;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let entries = relocations.chunks_exact(24).filter(|entry| word(&entry[8..16]) == RELATIVE);
        let addresses = entries.map(|entry| (word(&entry[..8]), word(&entry[16..]))).collect();
        let mut perf = Self { elf, file, addresses, strings: 0 };
        let (_, offsets) = perf.map().into_iter().find(|(cpus, _)| cpus == KNOWN.0)?;
        perf.strings = perf.beginning_of_strings(&offsets)?;
        Some(perf)
    }

    fn offset(&self, address: u64) -> Option<usize> {
        let section = self.elf.sections().find(|section| {
            section.address() > 0 && (section.address()..section.address() + section.size()).contains(&address)
        })?;
        Some((section.file_range()?.0 + address - section.address()) as usize)
    }

    fn text(&self, offset: usize) -> Option<&'a str> {
        let bytes = self.file.get(offset..)?;
        str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
    }

    /// All CPUs as perf writes them, in its order, with the offsets of their events.
    fn map(&self) -> Vec<(String, Vec<i32>)> {
        let entry = |at: u64| {
            let cpus = self.text(self.offset(*self.addresses.get(&at)?)?)?.to_owned();
            let table = self.offset(*self.addresses.get(&(at + 8))?)?;
            let length = self.file.get(self.offset(at + 16)?..)?.first_chunk().copied().map(u32::from_le_bytes)?;
            let offsets = self.file.get(table..table + 4 * length as usize)?.chunks_exact(4);
            Some((cpus, offsets.map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap_or_default())).collect()))
        };
        let known =
            self.file.windows(KNOWN.0.len() + 1).position(|part| part.strip_suffix(b"\0") == Some(KNOWN.0.as_bytes()));
        let address = self.elf.section_by_name(".rodata").zip(known).map(|(section, known)| {
            known as u64 + section.address() - section.file_range().map_or(0, |(offset, _)| offset)
        });
        let at = self.addresses.iter().find(|(_, held)| Some(**held) == address).map(|(at, _)| *at);
        let Some(at) = at else { return Vec::new() };
        const ENTRY: u64 = 32;
        let first = (0..).map(|back| at - ENTRY * back).take_while(|at| entry(*at).is_some()).last().unwrap_or(at);
        (0..).map_while(|next| entry(first + ENTRY * next)).collect()
    }

    /// The place from which the offsets of a known CPU lead to each of its events.
    fn beginning_of_strings(&self, offsets: &[i32]) -> Option<usize> {
        let mut votes: HashMap<usize, usize> = HashMap::new();
        for name in KNOWN.1 {
            let word = [b"\0", name.as_bytes(), b"\0"].concat();
            let places = self.file.windows(word.len()).enumerate().filter(|(_, part)| **part == word[..]);
            let beginnings: BTreeSet<usize> = places
                .flat_map(|(at, _)| offsets.iter().filter_map(move |offset| (at + 1).checked_sub(*offset as usize)))
                .collect();
            beginnings.into_iter().for_each(|place| *votes.entry(place).or_default() += 1);
        }
        votes.into_iter().find(|(_, count)| *count == KNOWN.1.len()).map(|(place, _)| place)
    }

    /// The events at those offsets. A name is first, then the PMU and other texts, one of which is the code.
    fn events(&self, offsets: &[i32]) -> Events {
        const FIELDS: usize = 14;
        let mut events = Events::new();
        for offset in offsets {
            let bytes = self.file.get(self.strings + *offset as usize..).unwrap_or_default();
            let fields: Vec<&str> =
                bytes.split(|byte| *byte == 0).take(FIELDS).map(|field| str::from_utf8(field).unwrap_or("")).collect();
            let code = fields.iter().find(|field| field.contains("event=") && !field.contains(' '));
            let number = |name: &str| {
                let value = code?.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')).unwrap_or("0");
                value.strip_prefix("0x").map_or_else(|| value.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
            };
            if let (Some(event), Some(umask), Some(cmask)) = (number("event"), number("umask"), number("cmask")) {
                let key = (fields[0].to_lowercase(), fields[1].to_owned());
                events.entry(key).or_default().insert((event, umask, cmask));
            }
        }
        events
    }
}

/// A CPU as perf names it, and whether a pattern of its map is about it: `GenuineIntel-6-55-[01234]`, mostly without a
/// stepping.
fn is_about(pattern: &str, cpu: &CpuIdentity) -> bool {
    let CpuIdentity { vendor, family, model, stepping, .. } = cpu;
    let name = format!("{vendor}-{family}-{model:X}-{stepping:X}");
    Regex::new(&format!("^(?:{pattern})(?:-|$)")).is_ok_and(|pattern| pattern.is_match(&name))
}

/// Compares one family. Returns the differences, and the number of compared events.
fn compare(family: &Family, known: &Events) -> (Vec<String>, usize) {
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for event in &family.events {
        let is_of_pmu = |pmu: &str| family.pmu.as_deref().is_none_or(|own| pmu == own);
        let of_name = known.iter().filter(|((name, pmu), _)| *name == event.name.to_lowercase() && is_of_pmu(pmu));
        let codes: BTreeSet<_> = of_name.flat_map(|(_, codes)| codes).copied().collect();
        if codes.is_empty() {
            continue;
        }
        compared += 1;
        if !codes.contains(&(event.code, event.umask, event.cmask)) {
            wrong.push(format!("{}: {} is {codes:x?} in perf", family.name, event.name));
        }
    }
    (wrong, compared)
}

#[test]
fn the_kernel_s_perf_has_the_same_encodings() {
    let Some(program) = PERF.iter().find_map(|path| fs::read(path).ok()) else {
        println!("skipped: no perf at {PERF:?}; needed: apt install linux-perf");
        return;
    };
    let Some(perf) = Perf::read(&program) else {
        println!("skipped: this perf has its events in another form");
        return;
    };
    let map = perf.map();
    let (mut all, mut wrong, mut unknown) = (0, Vec::new(), Vec::new());
    for family in families() {
        let mut of_family = 0;
        for cpu in family.examples() {
            let Some((_, offsets)) = map.iter().find(|(pattern, _)| is_about(pattern, &cpu)) else { continue };
            let (of_cpu, compared) = compare(family, &perf.events(offsets));
            wrong.extend(of_cpu);
            of_family += compared;
        }
        all += of_family;
        if of_family == 0 {
            unknown.push(family.name.as_str());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(all > 250 && unknown.len() < families().len() / 2, "{all} events were compared; not known: {unknown:?}");
    println!("{all} events compared; perf does not know {}", unknown.join("; "));
}

/// A code of another family under the same name is wrong.
#[test]
fn each_family_is_compared_with_its_own_events() {
    let code = |event, umask| BTreeSet::from([(event, umask, 0)]);
    let family = families().iter().find(|family| family.name == "Alder Lake, Raptor Lake, P cores").unwrap();
    let name = "itlb_misses.walk_completed".to_owned();
    let on = |pmu: &str, event| ((name.clone(), pmu.to_owned()), code(event, 0x0e));
    assert_eq!(compare(family, &Events::from([on("cpu_core", 0x11), on("cpu_atom", 0x85)])), (Vec::new(), 1));
    assert_eq!(compare(family, &Events::from([on("cpu_core", 0x85), on("cpu_atom", 0x11)])).0.len(), 1);
    assert_eq!(compare(family, &Events::new()), (Vec::new(), 0));
    let skylake = CpuIdentity { vendor: "GenuineIntel".into(), family: 6, model: 0x55, stepping: 4, part: 0 };
    assert!(is_about("GenuineIntel-6-55-[01234]", &skylake) && !is_about("GenuineIntel-6-5", &skylake));
    assert!(is_about("GenuineIntel-6-(3C|55)", &skylake) && !is_about("GenuineIntel-6-55-[56789ABCDEF]", &skylake));
}
