//! CPUID of real processors, as recorded, and as hypervisors show it that hide the description of the TLBs.

use estimate::tlb_model::{ArrayShape, CpuidError, Geometry, Leaf, Second, geometry_of, known_cpu};
use std::collections::BTreeMap;

const DUMPS: &str = include_str!("dumps/processors.txt");

/// Leaves that describe TLBs.
const DESCRIPTIONS: [u32; 5] = [2, 0x18, 0x8000_0005, 0x8000_0006, 0x8000_0019];

struct Dump {
    /// Name in `known_cpus`.
    known: &'static str,
    title: &'static str,
    leaves: BTreeMap<(u32, u32), Leaf>,
}

fn dumps() -> Vec<Dump> {
    let mut dumps: Vec<Dump> = Vec::new();
    for line in DUMPS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(title) = line.strip_prefix("== ") {
            let (known, title) = title.split_once(' ').unwrap();
            dumps.push(Dump { known, title, leaves: BTreeMap::new() });
            continue;
        }
        let words: Vec<u32> = line.split(' ').map(|word| u32::from_str_radix(word, 16).unwrap()).collect();
        let [number, subleaf, eax, ebx, ecx, edx] = words.try_into().unwrap();
        dumps.last_mut().unwrap().leaves.insert((number, subleaf), Leaf { eax, ebx, ecx, edx });
    }
    dumps
}

impl Dump {
    /// The geometry that is read if the hypervisor zeroes the leaves that `hides` names.
    fn read(&self, hides: impl Fn(u32) -> bool) -> Result<Geometry, CpuidError> {
        geometry_of(|number, subleaf| {
            let found = self.leaves.get(&(number, subleaf)).filter(|_| !hides(number));
            found.copied().unwrap_or_default()
        })
    }
}

/// Entries for pages of `1 << shift` bytes.
fn entries(arrays: &[ArrayShape], shift: u8) -> usize {
    arrays.iter().filter(|array| array.sizes.has(shift)).map(|array| array.entries).sum()
}

/// Entries for small and huge pages of the first level for data and of the second level. CPUID describes both on all
/// dumps. Leaf 2 halves the first level for code if two threads share it.
fn sizes(geometry: &Geometry) -> Vec<usize> {
    let (first, second) = match &geometry.second {
        Second::Shared(arrays) => (arrays, arrays),
        Second::Split { instruction, data } => (instruction, data),
    };
    [&geometry.data, first, second]
        .into_iter()
        .flat_map(|arrays| [12, 21].map(|shift| entries(arrays, shift)))
        .collect()
}

#[test]
fn recorded_processors_are_as_the_table_says() {
    let dumps = dumps();
    assert!(dumps.len() >= 12, "{}", dumps.len());
    for dump in dumps {
        let described = dump.read(|_| false).unwrap_or_else(|error| panic!("{}: {error}", dump.title));
        assert!(described.source.starts_with("CPUID"), "{}: {}", dump.title, described.source);
        assert_eq!(sizes(&described), sizes(&known_cpu(dump.known).unwrap()), "{}", dump.title);
    }
}

#[test]
fn processors_whose_description_is_hidden_are_known_by_their_model() {
    for dump in dumps() {
        let hidden = dump
            .read(|number| DESCRIPTIONS.contains(&number))
            .unwrap_or_else(|error| panic!("{}: {error}", dump.title));
        let known = known_cpu(dump.known).unwrap();
        assert_eq!((&hidden.name, sizes(&hidden)), (&known.name, sizes(&known)), "{}", dump.title);
        assert!(hidden.source.starts_with("known for "), "{}: {}", dump.title, hidden.source);
    }
}

/// Leaf 0x18 alone is hidden in virtual machines on Emerald Rapids, whose leaf 2 only refers to it.
#[test]
fn one_hidden_leaf_is_enough_where_nothing_else_describes_them() {
    for dump in dumps().into_iter().filter(|dump| dump.known.ends_with("rapids")) {
        let hidden = dump.read(|number| number == 0x18).unwrap();
        assert_eq!(hidden.name, dump.known, "{}", dump.title);
    }
}

#[test]
fn what_is_hidden_and_unknown_is_an_error_that_names_the_processor() {
    for dump in dumps() {
        let all = |number: u32| number == 1 || DESCRIPTIONS.contains(&number);
        let error = dump.read(all).unwrap_err().to_string();
        assert!(error.contains("family 0, model 0 are not known"), "{}: {error}", dump.title);
    }
}

/// There is no panic and no inconsistent array, whatever value a hypervisor shows in a register of a leaf.
#[test]
fn any_single_register_may_be_anything() {
    for dump in dumps() {
        for (&place, leaf) in &dump.leaves {
            for value in [0, 1, 0xff, 0xffff, 0xffff_ffff, 0x8000_0000] {
                let registers = [
                    Leaf { eax: value, ..*leaf },
                    Leaf { ebx: value, ..*leaf },
                    Leaf { ecx: value, ..*leaf },
                    Leaf { edx: value, ..*leaf },
                ];
                for changed in registers {
                    let read = geometry_of(|number, subleaf| {
                        if (number, subleaf) == place {
                            changed
                        } else {
                            dump.leaves.get(&(number, subleaf)).copied().unwrap_or_default()
                        }
                    });
                    assert!(
                        read.is_err() || read.unwrap().arrays().all(ArrayShape::is_sound),
                        "{} {place:x?}",
                        dump.title
                    );
                }
            }
        }
    }
}
