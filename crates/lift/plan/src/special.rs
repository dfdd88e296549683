//! Mappings that must stay as they are.

use crate::SpecialMapping;
use address_space::MappingFlags;
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

/// Properties of a mapping that a copy of its memory would lose, by their flags in smaps (proc_pid_smaps(5)).
const SPECIAL_FLAGS: [(&str, &str); 10] = [
    ("mt", "tagged (PROT_MTE)"),
    ("dc", "not inherited by children (MADV_DONTFORK)"),
    ("wf", "wiped in children (MADV_WIPEONFORK)"),
    ("dd", "kept out of core dumps (MADV_DONTDUMP)"),
    ("lo", "locked in memory (mlock)"),
    ("sl", "sealed (mseal)"),
    ("nh", "advised against huge pages (MADV_NOHUGEPAGE)"),
    ("um", "registered with userfaultfd"),
    ("uw", "registered with userfaultfd"),
    ("ui", "registered with userfaultfd"),
];

/// Returns the mappings that have such a property.
pub fn special_mappings(mappings: &[MappingFlags]) -> Vec<SpecialMapping> {
    let special = |mapping: &MappingFlags| {
        let property = special_properties(mapping).into_iter().next()?;
        Some(SpecialMapping { range: mapping.range, property })
    };
    mappings.iter().filter_map(special).collect()
}

/// Returns all such properties of a mapping, the most important first.
pub fn special_properties(mapping: &MappingFlags) -> Vec<String> {
    let has = |flag: &str| mapping.flags.split(' ').any(|found| found == flag);
    let flagged = SPECIAL_FLAGS.iter().filter(|(flag, _)| has(flag)).map(|(_, property)| (*property).to_owned());
    let key = mapping.protection_key;
    let guarded = (key != 0).then(|| alloc::format!("guarded by protection key {key}"));
    flagged.chain(guarded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::parse_flags;

    #[test]
    fn tagged_memory_is_special_and_guarded_code_is_not() {
        let text = "1000-2000 rw-p 0 00:00 0\nVmFlags: rd wr mt\n2000-3000 r-xp 0 00:00 0\nVmFlags: rd ex bt\n";
        let special = special_mappings(&parse_flags(text).unwrap());
        let properties: Vec<_> = special.iter().map(|special| special.property.as_str()).collect();
        assert_eq!(properties, ["tagged (PROT_MTE)"]);
    }

    #[test]
    fn special_mappings_are_recognised_by_their_flags() {
        let text = "\
1000-2000 rw-p 0 00:00 0
VmFlags: rd wr dc
2000-3000 rw-p 0 00:00 0
ProtectionKey: 3
VmFlags: rd wr
3000-4000 rw-p 0 00:00 0
ProtectionKey: 0
VmFlags: rd wr hg
";
        let special = special_mappings(&parse_flags(text).unwrap());
        let properties: Vec<_> = special.iter().map(|special| special.property.as_str()).collect();
        assert_eq!(properties, ["not inherited by children (MADV_DONTFORK)", "guarded by protection key 3"]);
    }
}
