//! Names of programs in labels over the run of an agent: the time series database stores every name that ever was a label.

use super::families::{MOST_GAINS, MOST_PROGRAMS, OTHER, Programs, label_of};
use super::snapshot::Snapshot;
use std::collections::BTreeSet;

/// The names that this run has used so far.
#[derive(Debug, Default)]
pub struct Names {
    lifted: BTreeSet<String>,
    measured: BTreeSet<String>,
}

impl Names {
    /// Replaces the names of programs for which there is no room: their memory counts for `other`, and their gains are left out.
    /// The first names stay, so that a program never changes between its name and `other`.
    pub fn apply(&mut self, snapshot: &mut Snapshot) {
        for name in Programs::of(snapshot).names() {
            add(&mut self.lifted, name, MOST_PROGRAMS);
        }
        for name in snapshot.gains.iter().filter_map(|gain| label_of(&gain.program)) {
            add(&mut self.measured, &name, MOST_GAINS);
        }
        snapshot.gains.retain(|gain| self.measured.contains(&gain.program));
        for lifted in snapshot.lifted.iter_mut().filter(|lifted| !self.lifted.contains(&lifted.program)) {
            lifted.program = OTHER.to_owned();
        }
    }
}

fn add(names: &mut BTreeSet<String>, name: &str, most: usize) {
    if names.len() < most {
        names.insert(name.to_owned());
    }
}
