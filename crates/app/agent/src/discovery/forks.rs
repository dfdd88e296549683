//! Processes that were forked from another one, and so have its memory.

use super::program::start_stack;
use super::{Sampler, executed_file, processes};
use crate::decision::{ExecutedFile, Identity};
use std::collections::{BTreeMap, BTreeSet};

/// A process that may be a fork.
#[derive(Clone, Copy, Debug)]
struct Relative {
    identity: Identity,
    parent: i32,
    file: ExecutedFile,
}

/// The processes that descend from a process and execute this file. An orphan counts if its stack began at the same
/// address: the address changes with each exec, so it has the memory of the process.
pub fn forks(of: Identity, file: ExecutedFile) -> Vec<Identity> {
    let Ok(sampler) = Sampler::now() else { return Vec::new() };
    let relatives = processes().unwrap_or_default().into_iter().filter_map(|pid| {
        let sample = sampler.sample(pid).filter(|sample| !sample.is_kernel_thread)?;
        Some(Relative { identity: sample.identity, parent: sample.parent, file: executed_file(pid)? })
    });
    forks_among(&relatives.collect::<Vec<_>>(), of, file)
}

/// The processes whose stack began at an address in `stacks`.
pub fn with_stacks(stacks: &BTreeSet<u64>) -> Vec<(Identity, ExecutedFile)> {
    let Ok(sampler) = Sampler::now() else { return Vec::new() };
    let has_one = |pid: &i32| start_stack(*pid).is_some_and(|stack| stacks.contains(&stack));
    let found = processes().unwrap_or_default().into_iter().filter(has_one);
    found.filter_map(|pid| Some((sampler.sample(pid)?.identity, executed_file(pid)?))).collect()
}

fn forks_among(all: &[Relative], of: Identity, file: ExecutedFile) -> Vec<Identity> {
    let family = all.iter().filter(|other| (other.file.device, other.file.inode) == (file.device, file.inode));
    let family: BTreeMap<i32, Relative> = family.map(|other| (other.identity.pid, *other)).collect();
    let has_its_stack = |other: &Relative| file.stack != 0 && other.file.stack == file.stack;
    let is_younger = |other: &Relative| other.identity != of && other.identity.start >= of.start;
    let descends = |other: &&Relative| {
        let mut at = *other;
        // Parents form a circle only if PIDs were reused meanwhile.
        for _ in 0..family.len() {
            match family.get(&at.parent) {
                _ if at.parent == of.pid => return true,
                Some(parent) if is_younger(parent) => at = parent,
                // A process before this one has forked it.
                Some(_) => return false,
                // Its parent has ended, and another process has adopted it.
                None => return has_its_stack(other),
            }
        }
        false
    };
    family.values().filter(|other| is_younger(other)).filter(descends).map(|other| other.identity).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn forks_are_found_and_no_siblings() {
        let file = ExecutedFile { device: 1, inode: 2, stack: 3 };
        let relative = |pid: i32, parent, file| {
            let identity = Identity { pid, start: pid as u64 };
            Relative { identity, parent, file }
        };
        let other_exec = ExecutedFile { stack: 4, ..file };
        let all = [
            relative(10, 1, file),
            relative(11, 10, file),
            relative(12, 11, file),
            relative(13, 10, other_exec),
            relative(14, 1, file),
            relative(15, 10, file),
            relative(16, 14, file),
            relative(17, 1, other_exec),
        ];
        let forks = |pid: i32, file| {
            let found = forks_among(&all, all[pid as usize - 10].identity, file);
            found.iter().map(|found| found.pid).collect::<Vec<_>>()
        };
        assert_eq!(forks(10, file), [11, 12, 13, 14, 15, 16], "13 executes the same file anew");
        assert_eq!(forks(11, file), [12, 14, 16], "15 is a sibling, and 14 was adopted");
        assert_eq!(forks(13, other_exec), [17]);
        let unknown = ExecutedFile { stack: 0, ..file };
        let orphan = [relative(10, 1, unknown), relative(11, 1, unknown)];
        assert_eq!(forks_among(&orphan, all[0].identity, unknown), []);
    }

    #[test]
    fn a_process_that_has_forked_nothing_has_no_forks() {
        let own = super::super::own_identity().unwrap();
        let file = executed_file(own.pid).unwrap();
        // A child of another test is a fork until it executes its program.
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let found = forks(own, file);
            if found.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "{found:?}");
            std::thread::yield_now();
        }
    }
}
