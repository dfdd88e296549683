//! A process with all its descendants.

use crate::ProcessFiles;
use address_space::ProcessStat;
use std::collections::BTreeMap;
use std::fs;

/// A process and its descendants, as far as they can be seen; parents first.
pub fn tree_of(root: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let stat = ProcessFiles::of(pid).text("stat").ok();
        if let Some(parent) = stat.and_then(|stat| ProcessStat::parse(&stat)?.parent()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(pid) = tree.get(next) {
        let below = children.remove(pid).unwrap_or_default();
        tree.extend(below);
        next += 1;
    }
    tree
}
