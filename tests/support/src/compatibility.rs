//! Results of the tests in virtual machines, by feature: the lines from which `make compatibility` makes
//! docs/COMPATIBILITY.md.

use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::fs;

/// The results of one feature on one machine.
#[derive(Debug, Default, PartialEq, Eq)]
struct Feature {
    /// Release, architecture, C library and file system, divided by tabs.
    machine: String,
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

/// A run that did not report its machine, or did not finish, has no line: it shows nothing.
fn lines(console: &str) -> String {
    if !console.lines().any(|line| line.starts_with("END OF CHECKS")) {
        return String::new();
    }
    let mut text = String::new();
    let is_shown = |feature: &&Feature| feature.passed + feature.failed > 0 && !feature.machine.is_empty();
    for Feature { machine, name, passed, failed, ways } in features(console).iter().filter(is_shown) {
        let _ = writeln!(text, "{machine}\t{name}\t{passed}\t{failed}\t{}", ways.join(", "));
    }
    text
}

fn features(console: &str) -> Vec<Feature> {
    let mut features: Vec<Feature> = Vec::new();
    let mut machine = "";
    for line in console.lines() {
        // Messages of the kernel can precede a result on its line.
        let after = |mark: &str| line.split_once(mark).map(|(_, rest)| rest);
        // Programs of several C libraries are tried on one machine, one after the other.
        machine = line.strip_prefix("MACHINE ").unwrap_or(machine);
        if let Some(name) = line.strip_prefix("FEATURE ") {
            // A feature that is named again continues.
            let known = features.iter().position(|known| known.machine == machine && known.name == name);
            let new = || Feature { machine: machine.to_owned(), name: name.to_owned(), ..Feature::default() };
            let feature = known.map_or_else(new, |index| features.remove(index));
            features.push(feature);
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
        let other = format!(
            "{console}MACHINE 6.1\tx86_64\tmusl 1.2\trootfs\nFEATURE c\nRESULT ok 4\nFEATURE d\nFEATURE c\nRESULT failed 5\nEND OF CHECKS\n"
        );
        assert_eq!(lines(&other), format!("{expected}6.1\tx86_64\tmusl 1.2\trootfs\tc\t1\t1\t\n"));
        assert_eq!((lines(console), lines("FEATURE a\nRESULT ok 1\nEND OF CHECKS\n")), (String::new(), String::new()));
    }
}
