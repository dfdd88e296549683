//! This machine, read by the standard library.

use crate::facts::{MachineFacts, ThpFacts};
use crate::{Files, THP, thp_at};
use crate::{Kernel, Looks, facts_of, is_thp_off, memory_available_to, usual_huge_page_of};
use address_space::PageSize;
pub use linux::pages::base_page;
use linux::pages::transparent_huge_page;
use linux::release::kernel_release;
use linux::text::text_of;
use options::Policy;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Most directories that are searched for one.
const MOST_SEARCHED: usize = 100_000;

/// The files of the machine that this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Files for System {
    fn text(&self, path: &str) -> Option<String> {
        text_of(path).ok()
    }

    fn names_in(&self, path: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Searches once for each `top`: it is used for the root of this cgroup namespace, which never changes.
    fn path_below(&self, top: &str, levels: usize, directory: &str) -> Option<String> {
        static FOUND: Mutex<BTreeMap<String, Option<String>>> = Mutex::new(BTreeMap::new());
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        let search = || path_below(Path::new(top), levels, Path::new(directory));
        found.entry(top.to_owned()).or_insert_with(search).clone()
    }
}

/// The path of a directory that is so many levels below another, by its device and inode.
fn path_below(top: &Path, levels: usize, directory: &Path) -> Option<String> {
    let wanted = fs::metadata(directory).ok()?;
    let mut searched = 0;
    let mut level = vec![top.to_owned()];
    for _ in 0..levels {
        let mut next = Vec::new();
        for entry in level.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                next.push(entry.path());
            }
        }
        searched += next.len();
        if searched > MOST_SEARCHED {
            return None;
        }
        level = next;
    }
    let is_it = |found: &&PathBuf| {
        fs::metadata(found).is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
    };
    Some(level.iter().find(is_it)?.strip_prefix(top).ok()?.to_str()?.to_owned())
}

fn kernel() -> Kernel {
    Kernel { base_page: base_page(), release: kernel_release(), thp_size: transparent_huge_page() }
}

/// The machine's facts for a plan that concerns process `pid`.
pub fn machine_facts(pid: i32) -> MachineFacts {
    let facts = facts_of(&System, &kernel(), &format!("/proc/{pid}"), Looks::EVERYWHERE);
    if is_thp_off(&System.text(&format!("/proc/{pid}/status")).unwrap_or_default()) {
        return facts.with_thp_off_in_process();
    }
    facts
}

/// Like [`machine_facts`], for a plan by `policy`, and without the process's own setting of transparent huge pages.
/// Pools, memory and the cgroups that bound them, and the mode of transparent huge pages are read only if the policy
/// may use them; otherwise they count as none, as unbounded, and as off.
pub fn machine_facts_for(pid: i32, policy: &Policy) -> MachineFacts {
    facts_of(&System, &kernel(), &format!("/proc/{pid}"), Looks::for_policy(policy))
}

/// Bytes of memory that may be made resident for process `pid`, as [`MachineFacts::memory_available`] has it, with no more
/// reading than that takes.
pub fn memory_available(pid: i32) -> u64 {
    memory_available_to(&System, &format!("/proc/{pid}"))
}

/// The size of huge pages that is used if the user names none, like [`MachineFacts::usual_huge_page`], but reads only
/// the files that this needs.
pub fn usual_huge_page() -> Option<PageSize> {
    usual_huge_page_of(&System, transparent_huge_page())
}

/// Returns the system's transparent huge pages, without any process's own setting.
pub fn system_thp() -> Option<ThpFacts> {
    thp_at(&System, THP, transparent_huge_page()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_found_by_its_inode() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("kubepods/poda/own");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(folder.path().join("kubepods/podb/own")).unwrap();
        assert_eq!(path_below(folder.path(), 3, &own).as_deref(), Some("kubepods/poda/own"));
        assert_eq!(path_below(folder.path(), 2, &own), None);
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = machine_facts(std::process::id() as i32);
        assert!(facts.base_page.bytes() >= 4096);
        assert_eq!(facts.usual_huge_page(), usual_huge_page());
        assert!(memory_available(std::process::id() as i32) > 0);
        assert!(facts.memory_available > 0 && facts.max_mappings > 0);
        assert!(facts.pools.windows(2).all(|pair| pair[0].size < pair[1].size));
    }
}
