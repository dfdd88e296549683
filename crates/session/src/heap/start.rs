//! Chooses how the heap of a program that is about to start gets huge pages.

use crate::parts;
use address_space::{PageSize, format_bytes};
use heap_abi::{LARGEST_GRAIN, LIBRARY, MOST_NODES, NodePages, pages_to_take, share_by_node};
use heap_choice::{Allocator, Context, Environment, Forced, HeapChoice, Program, choose, free_pages_by_node};
use lift_plan::{MachineFacts, ThpMode};
use machine_facts::{Cgroups, HugetlbLimit, POOLS, System, pools_at};
use options::HeapPages;
use serde::Serialize;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Options of a start that concern the heap.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapOptions {
    /// How the heap gets huge pages.
    pub pages: HeapPages,
    /// Bytes of the pool that the heap takes at the start; `None`: half of the pool's free pages.
    pub reserve: Option<u64>,
    /// Overrides the choice that fits the program's allocator.
    pub forced: Option<Forced>,
}

/// A program's allocator, and what `HeapPages::Auto` does with it.
#[derive(Serialize)]
pub struct HeapPlan {
    /// The allocator that was found.
    pub allocator: Allocator,
    /// What is done with `HeapPages::Auto`.
    #[serde(rename = "way")]
    pub choice: HeapChoice,
}

/// The plan for the program in `file`, which was opened at `path`; `None` where it is not an ELF program of this machine.
pub fn heap_plan(path: &Path, file: &File, machine: &MachineFacts) -> Option<HeapPlan> {
    let environment = Environment::of_this_process();
    let program = Program::of_file(path, file, &environment).ok()??;
    let options = HeapOptions { pages: HeapPages::Auto, ..HeapOptions::default() };
    let (allocator, choice) = choose_for(&program, &options, &[], machine, &environment)?;
    Some(HeapPlan { allocator, choice })
}

/// What a start does for the heap.
#[derive(Default)]
pub struct HeapStart {
    /// The program's whole environment, where it differs from this process's.
    pub environment: Option<Vec<CString>>,
    /// The helper collapses the program's memory into pages of this size while the program runs.
    pub collapse: Option<PageSize>,
    /// The allocator and what was decided about it; `None` where no heap was asked for.
    pub decision: Option<HeapDecision>,
    /// True where less is done than was asked for.
    pub is_short: bool,
}

/// What was decided about a heap.
pub struct HeapDecision {
    /// The name of the program's file.
    pub program: String,
    /// The allocator, without the evidence; `None` where the file is not an ELF program of this machine.
    pub allocator: Option<String>,
    /// What is done and what is not, each with its reason.
    pub notes: Vec<String>,
}

/// Decides for the program at `path`. For a script that is its interpreter. `only` are the names to which the start is
/// limited.
pub fn prepare_heap(options: &HeapOptions, only: &[String], path: &Path, machine: &MachineFacts) -> HeapStart {
    if options.pages == HeapPages::Off {
        return HeapStart::default();
    }
    let environment = Environment::of_this_process();
    let chosen = match Program::read(path, &environment) {
        Ok(Some(program)) => choose_for(&program, options, only, machine, &environment),
        _ => None,
    };
    let Some((allocator, choice)) = chosen else {
        let decision = HeapDecision { program: path.display().to_string(), allocator: None, notes: Vec::new() };
        return HeapStart { decision: Some(decision), is_short: true, ..HeapStart::default() };
    };
    let mut notes: Vec<String> = choice.refusals.iter().chain(&choice.reasons).cloned().collect();
    if let Some(preload) = choice.preload.as_ref().filter(|preload| preload.pool_bytes > 0) {
        notes.push(format!("{} asked of the pool", format_bytes(preload.pool_bytes)));
    }
    let program = path.file_name().unwrap_or(path.as_os_str()).display().to_string();
    HeapStart {
        environment: (!choice.variables.is_empty()).then(|| with_variables(None, &choice.variables)),
        collapse: choice.collapse.then(|| machine.thp.map(|thp| thp.size)).flatten(),
        decision: Some(HeapDecision { program, allocator: Some(family_of(&allocator)), notes }),
        is_short: !choice.refusals.is_empty(),
    }
}

/// The allocator's name without the evidence.
pub(super) fn family_of(allocator: &Allocator) -> String {
    let text = allocator.to_string();
    text.split(" (").next().unwrap_or(&text).to_owned()
}

fn choose_for(
    program: &Program,
    options: &HeapOptions,
    only: &[String],
    machine: &MachineFacts,
    environment: &Environment,
) -> Option<(Allocator, HeapChoice)> {
    if program.executable.machine != machine.elf_machine {
        return None;
    }
    let allocator = Allocator::of(program);
    let pool = match options.pages {
        HeapPages::Pool(size) => pool_share(size, options.reserve, machine),
        HeapPages::Thp | HeapPages::Auto | HeapPages::Off => [NodePages::default(); MOST_NODES],
    };
    let context = Context {
        pages: options.pages,
        forced: options.forced,
        replaceable: allocator.is_replaceable(program),
        thp: machine.thp.map_or(ThpMode::Never, |thp| thp.mode),
        grain: grain(machine)?,
        library: library(),
        pool,
        only: only.join(","),
        environment,
    };
    let mut choice = choose(&allocator, &context);
    if let HeapPages::Pool(size) = options.pages
        && choice.preload.as_ref().is_some_and(|preload| preload.pool_bytes == 0)
    {
        choice.refusals.push(no_pages(size));
    }
    Some((allocator, choice))
}

/// Why the pool has no page for this process, and the command that fixes it.
fn no_pages(size: PageSize) -> String {
    let pools = pools_at(&System, POOLS);
    let free = pools.iter().find(|pool| pool.size == size).map_or(0, |pool| pool.available);
    let limits = Cgroups::of(&System, "/proc/self").limits(&System, &[size]);
    match limits.hugetlb_of(size).filter(|limit| free > 0 && limit.left < size.bytes()) {
        Some(HugetlbLimit { file, .. }) => {
            format!("a cgroup allows no more pages of {size}, of which the pool has {free}; fix: echo BYTES > {file}")
        }
        None => format!("found {free} free pages of {size} in the pool; {}", fix(size)),
    }
}

/// The command that fills the pool.
fn fix(size: PageSize) -> String {
    let file = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", size.kib());
    if !Path::new(&file).exists() {
        return format!("this machine has no huge pages of {size}");
    }
    format!("fix: echo NUMBER > {file}, or for large pages hugepagesz= and hugepages= when booting")
}

fn pool_share(size: PageSize, wanted: Option<u64>, machine: &MachineFacts) -> [NodePages; MOST_NODES] {
    let available = machine.pool(size).map_or(0, |pool| pool.available);
    if machine.pool(size).is_none() {
        return [NodePages::default(); MOST_NODES];
    }
    let pages = pages_to_take(size, available, wanted);
    share_by_node(&free_pages_by_node(Path::new("/sys/devices/system/node"), size), pages)
}

/// The unit in which the preloaded heap manages memory.
fn grain(machine: &MachineFacts) -> Option<PageSize> {
    let sizes = machine.thp.iter().map(|thp| thp.size).chain(machine.pools.iter().map(|pool| pool.size));
    sizes.filter(|size| size.bytes() <= LARGEST_GRAIN).max()
}

/// The preloaded library.
fn library() -> Result<String, String> {
    let found = parts::find(LIBRARY).map_err(|error| error.in_full())?;
    // The dynamic linker takes blanks and colons for the ends of names.
    let path = found.to_str().filter(|path| !path.contains([' ', ':'])).map(str::to_owned);
    path.ok_or_else(|| {
        format!(
            "{} cannot be preloaded: blanks and colons end a name in LD_PRELOAD; needed: another folder",
            found.display()
        )
    })
}

/// Returns an environment, this process's where none is given, with `variables` set.
pub(super) fn with_variables(environment: Option<Vec<CString>>, variables: &[(String, String)]) -> Vec<CString> {
    let own = || std::env::vars_os().map(|(name, value)| [name.into_vec(), b"=".to_vec(), value.into_vec()].concat());
    let before = environment.unwrap_or_else(|| own().filter_map(|variable| CString::new(variable).ok()).collect());
    let is_set = |variable: &CString| {
        let name = variable.to_bytes().split(|&byte| byte == b'=').next().unwrap_or_default();
        variables.iter().any(|(set, _)| set.as_bytes() == name)
    };
    let set = variables.iter().filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok());
    before.into_iter().filter(|variable| !is_set(variable)).chain(set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_set_once() {
        let environment = with_variables(None, &[("PATH".to_owned(), "/nowhere".to_owned())]);
        let paths: Vec<_> = environment.iter().filter(|v| v.to_bytes().starts_with(b"PATH=")).collect();
        assert_eq!(paths, [c"PATH=/nowhere"]);
    }
}
