//! Results of the tests in virtual machines, by feature: the lines from which `make compatibility` makes
//! docs/COMPATIBILITY.md.

use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::fs;

/// The results of one feature on one machine.
#[derive(Debug, Default, PartialEq, Eq)]
struct Feature {
    name: String,
    passed: usize,
    failed: usize,
    /// Ways that were used, in their order.
    ways: Vec<String>,
}

/// Writes the results that a console shows to `compatibility/NAME` in the tests' folder, a line for each feature: release,
/// architecture, C library, file system of the programs, feature, checks passed and failed, ways. An earlier run's results
/// of this name are replaced.
///
/// # Errors
/// The lines cannot be written.
pub fn record_results(name: &str, console: &str) -> Result<()> {
    let folder = crate::scratch_folder().join("compatibility");
    fs::create_dir_all(&folder)?;
    let file = folder.join(name.replace('/', "-"));
    fs::write(&file, lines(console)).with_context(|| format!("cannot write {}", file.display()))
}

/// A run that did not say what it was on, or came to no end, has no line: it shows nothing.
fn lines(console: &str) -> String {
    let machine = console.lines().find_map(|line| line.strip_prefix("MACHINE "));
    let ended = console.lines().any(|line| line.starts_with("END OF CHECKS"));
    let Some(machine) = machine.filter(|_| ended) else { return String::new() };
    let mut text = String::new();
    for Feature { name, passed, failed, ways } in features(console).iter().filter(|f| f.passed + f.failed > 0) {
        let _ = writeln!(text, "{machine}\t{name}\t{passed}\t{failed}\t{}", ways.join(", "));
    }
    text
}

fn features(console: &str) -> Vec<Feature> {
    let mut features: Vec<Feature> = Vec::new();
    for line in console.lines() {
        // The kernel's own messages may stand before a result.
        let after = |mark: &str| line.split_once(mark).map(|(_, rest)| rest);
        if let Some(name) = line.strip_prefix("FEATURE ") {
            features.push(Feature { name: name.to_owned(), ..Feature::default() });
            continue;
        }
        let Some(feature) = features.last_mut() else { continue };
        if let Some(way) = line.strip_prefix("WAY ") {
            if !feature.ways.iter().any(|known| known == way) {
                feature.ways.push(way.to_owned());
            }
        } else if after("RESULT ok ").is_some() {
            feature.passed += 1;
        } else if after("RESULT failed ").is_some() {
            feature.failed += 1;
        }
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_count_for_the_feature_before_them() {
        let console = "MACHINE 6.1\tx86_64\tglibc 2.36\trootfs\nRESULT ok of none\nFEATURE a: b\nWAY thp\nRESULT ok 1\nWAY thp\n\
                       [ 3.0] kernel: RESULT failed 2: why\nFEATURE empty\nFEATURE c\nWAY hugetlb\nWAY thp\nRESULT ok 3\n";
        let machine = "6.1\tx86_64\tglibc 2.36\trootfs";
        let expected = format!("{machine}\ta: b\t1\t1\tthp\n{machine}\tc\t1\t0\thugetlb, thp\n");
        assert_eq!(lines(&format!("{console}END OF CHECKS\n")), expected);
        assert_eq!((lines(console), lines("FEATURE a\nRESULT ok 1\nEND OF CHECKS\n")), (String::new(), String::new()));
    }
}
