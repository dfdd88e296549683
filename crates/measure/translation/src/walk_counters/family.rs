//! The tables of events.

use crate::walk_counters::CpuIdentity;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::LazyLock;

/// The purpose of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Instruction fetches.
    Code,
    /// Loads.
    Loads,
    /// Stores.
    Stores,
    /// Loads and stores, which the CPU counts together.
    Data,
    /// All, which the CPU counts together.
    Both,
    /// Walks through the tables of a hypervisor.
    Nested,
    /// The core, with all its hardware threads.
    Core,
}

/// The meaning of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Cycles with at least one walk.
    Active,
    /// Walks in progress, summed over cycles.
    Pending,
    /// Walks, of all page sizes.
    Walks,
    /// Walks that ended at a 4 KiB page.
    #[serde(rename = "walks-4k")]
    Walks4K,
    /// At several base pages that one entry covers (16 KiB, on Zen 1 32 KiB).
    WalksCoalesced,
    /// At a page of 2 or 4 MiB.
    #[serde(rename = "walks-2m")]
    Walks2M,
    /// At a page of 1 GiB.
    #[serde(rename = "walks-1g")]
    Walks1G,
    /// At a page smaller than 2 MiB.
    WalksSmall,
    /// At a page of 2 MiB or more.
    WalksLarge,
    /// Misses in the first TLB that hit in the second.
    L2Hits,
    /// Misses in the second TLB.
    L2Refills,
    /// Accesses to the second TLB.
    L2Accesses,
    /// Cycles in which the pipeline waits for translation or for the tags of the instruction cache, which need it.
    Stalls,
    /// Cycles.
    Cycles,
}

impl What {
    /// The pages at which walks end that it counts.
    pub const fn page_words(self) -> &'static str {
        match self {
            Self::Walks4K => "4K",
            Self::WalksCoalesced => "coalesced",
            Self::Walks2M => "2M",
            Self::Walks1G => "1G",
            Self::WalksSmall => "<2M",
            Self::WalksLarge => "≥2M",
            _ => "all",
        }
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventCode {
    /// The purpose of the access.
    pub side: Side,
    /// The counted quantity.
    pub counts: What,
    /// Its name at the source.
    pub name: String,
    /// Event select.
    pub code: u64,
    /// Unit mask, x86-64 only.
    #[serde(default)]
    pub umask: u64,
    /// Counter mask, Intel only: counts cycles in which the event happens at least so often.
    #[serde(default)]
    pub cmask: u64,
    /// Number of general counters, from the first on, that can count it.
    pub counters: u32,
}

impl EventCode {
    /// `perf_event_attr.config` of a raw event. x86: event in bits 0–7, the rest of an AMD event in 32–35, umask 8–15, cmask
    /// 24–31 (`/sys/bus/event_source/devices/cpu/format`). AArch64: the event.
    pub fn config(&self) -> u64 {
        if self.umask == 0 && self.cmask == 0 && self.code > 0xfff {
            return self.code;
        }
        (self.code & 0xff) | (self.umask << 8) | (self.cmask << 24) | ((self.code >> 8) << 32)
    }
}

/// CPUs of a family. Ranges hold both ends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cpus {
    vendor: String,
    #[serde(default)]
    family: u64,
    #[serde(default)]
    models: Vec<[u64; 2]>,
    steppings: Option<[u64; 2]>,
    #[serde(default)]
    part: u64,
}

impl Cpus {
    fn contain(&self, cpu: &CpuIdentity) -> bool {
        let within = |range: &[u64; 2], number: u64| (range[0]..=range[1]).contains(&number);
        self.vendor == cpu.vendor
            && (self.family, self.part) == (cpu.family, cpu.part)
            && (self.models.is_empty() || self.models.iter().any(|models| within(models, cpu.model)))
            && self.steppings.is_none_or(|steppings| within(&steppings, cpu.stepping))
    }
}

/// The events of one CPU family, or of one kind of core.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Family {
    /// Its name.
    pub name: String,
    /// Source of the codes.
    pub source: String,
    /// Number of page walkers that can work at the same time, if published.
    pub walkers: Option<u32>,
    /// Source of this number.
    pub walkers_source: Option<String>,
    /// The kernel's name for the PMU of this kind of core, on CPUs with several.
    pub pmu: Option<String>,
    /// Events.
    pub events: Vec<EventCode>,
    cpus: Vec<Cpus>,
}

impl Family {
    /// Returns the families of a CPU: one, or one for each kind of core; empty if no table has it.
    pub fn of(cpu: &CpuIdentity) -> Vec<&'static Self> {
        families().iter().filter(|family| family.cpus.iter().any(|cpus| cpus.contain(cpu))).collect()
    }

    /// CPUs of this family, one for each end of each range of models.
    pub fn examples(&self) -> impl Iterator<Item = CpuIdentity> + '_ {
        self.cpus.iter().flat_map(|cpus| {
            let models = if cpus.models.is_empty() { vec![0] } else { cpus.models.iter().copied().flatten().collect() };
            models.into_iter().map(|model| CpuIdentity {
                vendor: cpus.vendor.clone(),
                family: cpus.family,
                model,
                stepping: cpus.steppings.map_or(0, |steppings| steppings[0]),
                part: cpus.part,
            })
        })
    }

    /// The events in groups that are counted at the same time, by their places in the table. None has more than `most`, nor
    /// more than the general counters that each of its events can use.
    pub(crate) fn groups(&self, most: usize) -> Vec<Range<usize>> {
        let mut groups: Vec<Range<usize>> = Vec::new();
        for index in 0..self.events.len() {
            let longer = |group: &Range<usize>| group.start..index + 1;
            let least = |group: Range<usize>| self.events[group].iter().map(|event| event.counters as usize).min();
            let fits = |group: &Range<usize>| longer(group).len() <= least(longer(group)).unwrap_or(0).min(most);
            match groups.last_mut().filter(|group| fits(group)) {
                Some(group) => group.end = index + 1,
                None => groups.push(index..index + 1),
            }
        }
        groups
    }

    /// The event that counts this.
    pub fn event(&self, side: Side, counts: What) -> Option<&EventCode> {
        self.events.iter().find(|event| (event.side, event.counts) == (side, counts))
    }
}

macro_rules! tables {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!(concat!("../../families/", $name, ".toml")))),*] };
}

const TABLES: [(&str, &str); 37] = tables![
    "amd-zen1",
    "amd-zen2",
    "amd-zen3",
    "amd-zen4",
    "amd-zen5",
    "arm-neoverse-n1",
    "arm-neoverse-n2",
    "arm-neoverse-n3",
    "arm-neoverse-v1",
    "arm-neoverse-v2",
    "arm-neoverse-v3",
    "intel-alder-lake-e",
    "intel-alder-lake-n",
    "intel-alder-lake-p",
    "intel-arrow-lake-e",
    "intel-arrow-lake-p",
    "intel-broadwell-client",
    "intel-broadwell-server",
    "intel-cascade-lake",
    "intel-clearwater-forest",
    "intel-emerald-rapids",
    "intel-granite-rapids",
    "intel-haswell",
    "intel-ice-lake-client",
    "intel-ice-lake-server",
    "intel-lunar-lake-e",
    "intel-lunar-lake-p",
    "intel-meteor-lake-e",
    "intel-meteor-lake-p",
    "intel-panther-lake-e",
    "intel-panther-lake-p",
    "intel-rocket-lake",
    "intel-sapphire-rapids",
    "intel-sierra-forest",
    "intel-skylake-client",
    "intel-skylake-server",
    "intel-tiger-lake",
];

/// All tables.
pub fn families() -> &'static [Family] {
    static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(|| {
        let parse = |(name, text): &(&str, &str)| {
            toml::from_str(text).unwrap_or_else(|error| unreachable!("a test has read families/{name}.toml: {error}"))
        };
        TABLES.iter().map(parse).collect()
    });
    &FAMILIES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn named(name: &str) -> &'static Family {
        families().iter().find(|family| family.name == name).unwrap()
    }

    fn config(family: &str, side: Side, counts: What) -> u64 {
        named(family).event(side, counts).unwrap().config()
    }

    #[test]
    fn every_file_is_a_table_and_every_table_is_listed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/families");
        let files: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap().trim_end_matches(".toml").to_owned())
            .collect();
        assert_eq!(files, TABLES.iter().map(|(name, _)| (*name).to_owned()).collect());
        for (name, text) in TABLES {
            let family: Family = toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!family.events.is_empty() && !family.source.is_empty(), "{name}");
            assert_eq!(family.walkers.is_some(), family.walkers_source.is_some(), "{name}");
            let counted: BTreeSet<_> = family.events.iter().map(|event| (event.side, event.counts)).collect();
            assert_eq!(counted.len(), family.events.len(), "{name} has two events for one purpose");
        }
    }

    /// Against the numbers of Linux's and Intel's files as a person reads them there.
    #[test]
    fn encodings_are_those_of_the_manuals() {
        assert_eq!(config("Skylake-SP", Side::Code, What::Active), 0x0100_1085);
        assert_eq!(config("Skylake-SP", Side::Loads, What::Pending), 0x1008);
        assert_eq!(config("Skylake-SP", Side::Stores, What::Walks), 0x0e49);
        assert_eq!(config("Skylake-SP", Side::Nested, What::Pending), 0x104f);
        assert_eq!(config("Sapphire Rapids", Side::Code, What::Active), 0x0100_1011);
        assert_eq!(config("Sapphire Rapids", Side::Loads, What::Walks2M), 0x0412);
        assert_eq!(config("Sapphire Rapids", Side::Core, What::Cycles), 0x02ec);
        assert_eq!(config("Haswell", Side::Code, What::Pending), 0x1085);
        assert_eq!(config("Zen 3", Side::Data, What::Walks), 0xf045);
        assert_eq!(config("Zen 2", Side::Code, What::Walks), 0x0785);
        assert_eq!(config("Zen 4", Side::Code, What::Walks), 0x0f85);
        assert_eq!(config("Neoverse N1", Side::Data, What::Walks), 0x34);
        assert_eq!(config("Neoverse V3", Side::Code, What::Pending), 0x8129);
        assert!(named("Ice Lake-SP").event(Side::Nested, What::Pending).is_none());
        assert!(named("Ice Lake-SP").event(Side::Code, What::Walks1G).is_none());
        assert!(named("Zen 4").event(Side::Code, What::Active).is_none());
        let event = EventCode { code: 0x1cf, umask: 2, ..named("Zen 3").events[0].clone() };
        assert_eq!(event.config(), 0x1_0000_02cf);
    }

    #[test]
    fn no_group_needs_more_counters_than_its_events_can_use() {
        for family in families() {
            let groups = family.groups(3);
            let all: Vec<usize> = groups.iter().cloned().flatten().collect();
            assert_eq!(all, (0..family.events.len()).collect::<Vec<_>>(), "{}", family.name);
            for group in groups {
                let least = family.events[group.clone()].iter().map(|event| event.counters).min().unwrap();
                assert!(group.len() <= 3 && group.len() <= least as usize, "{}: {group:?}", family.name);
            }
        }
        assert!(families().iter().all(|family| family.examples().all(|cpu| Family::of(&cpu).contains(&family))));
        let mut narrow = named("Zen 3").clone();
        narrow.events.truncate(5);
        for (event, counters) in narrow.events.iter_mut().zip([4, 2, 4, 1, 4]) {
            event.counters = counters;
        }
        assert_eq!(narrow.groups(3), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(narrow.groups(1).len(), 5);
    }

    #[test]
    fn each_cpu_has_one_table_or_one_for_each_kind_of_core() {
        let x86 = |vendor: &str, family, model, stepping| {
            let cpu = CpuIdentity { vendor: vendor.into(), family, model, stepping, part: 0 };
            Family::of(&cpu).iter().map(|family| family.name.as_str()).collect::<Vec<_>>()
        };
        let intel = |model, stepping| x86("GenuineIntel", 6, model, stepping);
        assert_eq!(intel(0x55, 4), ["Skylake-SP"]);
        assert_eq!(intel(0x55, 7), ["Cascade Lake, Cooper Lake"]);
        assert_eq!(intel(0x8f, 8), ["Sapphire Rapids"]);
        assert_eq!(intel(0x97, 2).len(), 2);
        assert!(intel(0x2a, 7).is_empty());
        let amd = |family, model| x86("AuthenticAMD", family, model, 1);
        assert_eq!(amd(0x19, 1), ["Zen 3"]);
        assert_eq!(amd(0x19, 0x11), ["Zen 4"]);
        assert_eq!((amd(0x17, 0x31), amd(0x1a, 2)), (vec!["Zen 2"], vec!["Zen 5"]));
        let arm = CpuIdentity { vendor: "0x41".into(), part: 0xd40, ..CpuIdentity::default() };
        assert_eq!(Family::of(&arm)[0].name, "Neoverse V1");
        assert!(Family::of(&CpuIdentity::default()).is_empty());
        for family in families() {
            let twins = families()
                .iter()
                .filter(|other| other.pmu == family.pmu && other.cpus.iter().any(|cpus| family.cpus.contains(cpus)));
            assert_eq!(twins.count(), 1, "{}", family.name);
        }
    }

    #[test]
    fn the_kernel_s_list_tells_the_cpu() {
        let x86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nstepping\t: 1\n\nprocessor\t: 1\n";
        let cpu = CpuIdentity::parse(x86);
        assert_eq!(cpu.to_string(), "AuthenticAMD family 25, model 0x1, stepping 1");
        let arm = CpuIdentity::parse("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n");
        assert_eq!(arm.to_string(), "implementer 0x41, part 0xd4f");
        assert_eq!(CpuIdentity::parse("nonsense"), CpuIdentity::default());
    }
}
