//! Chooses the source of huge pages for the heap of a program that is about to start.

use crate::parts;
use address_space::{PageSize, agreeing, format_bytes};
use foreign_text::quoted_path;
use heap_abi::{LARGEST_GRAIN, LIBRARY, MOST_NODES, NodePages, pages_to_take, share_by_node, share_evenly};
use heap_choice::{Allocator, Context, ElfFacts, Environment, Forced, HeapChoice, Program, Reads, choose};
use lift_plan::{MachineFacts, NodeFacts, Nodes, Numa, PoolOnNodes, Reason, ThpMode, nodes_for, pool_on};
use linux::bounded::ENVIRONMENT;
use machine_facts::{Cgroups, HugetlbLimit, POOLS, System, pools_at};
use options::HeapPages;
use process_view::{ProcessFiles, exists_in_root, open_executed};
use serde::Serialize;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Options of a start that concern the heap.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapOptions {
    /// The source of the heap's huge pages.
    pub pages: HeapPages,
    /// Bytes of the pool that the heap takes at the start; `None`: half of the pool's free pages.
    pub reserve: Option<u64>,
    /// Overrides the choice that fits the program's allocator.
    pub forced: Option<Forced>,
    /// The nodes of the pool's pages.
    pub numa: Numa,
}

/// A program's allocator, and the action of `HeapPages::Auto` on it.
#[derive(Serialize)]
pub struct HeapPlan {
    /// The allocator that was found.
    pub allocator: Allocator,
    /// The decision for `HeapPages::Auto`.
    #[serde(rename = "way")]
    pub choice: HeapChoice,
}

impl HeapPlan {
    /// The allocator, the action of `HeapPages::Auto` on it, and the reason, as one line.
    pub fn line(&self) -> String {
        let HeapChoice { reasons, refusals, .. } = &self.choice;
        let sentences: Vec<String> = reasons.iter().cloned().chain(refusals.iter().map(ToString::to_string)).collect();
        format!("{}: {}", family_of(&self.allocator), sentences.join("; "))
    }
}

/// The plan for the program in `file`, which was opened at `path`; `None` if it is not an ELF program of this machine.
pub fn heap_plan(path: &Path, file: &File, machine: &MachineFacts) -> Option<HeapPlan> {
    let environment = Environment::of_this_process();
    let program = Program::of_file(path, file, &environment).ok()??;
    let options = HeapOptions { pages: HeapPages::Auto, ..HeapOptions::default() };
    let (allocator, choice) = choose_for(&program, &options, &[], machine, &environment)?;
    Some(HeapPlan { allocator, choice })
}

/// The actions of a start for the heap.
#[derive(Default)]
pub struct HeapStart {
    /// The program's whole environment, if it differs from this process's.
    pub environment: Option<Vec<CString>>,
    /// The program's whole environment without the heap's variables, if it differs from this process's.
    pub without_heap: Option<Vec<CString>>,
    /// The helper collapses the program's memory into pages of this size while the program runs.
    pub collapse: Option<PageSize>,
    /// The allocator and the decision about it; `None` if no heap was requested.
    pub decision: Option<HeapDecision>,
    /// True if less is done than requested.
    pub is_short: bool,
}

/// The decision about a heap.
pub struct HeapDecision {
    /// The name of the program's file.
    pub program: String,
    /// The allocator, without the evidence; `None` if the file is not an ELF program of this machine.
    pub allocator: Option<String>,
    /// The actions taken and not taken, each with its reason.
    pub notes: Vec<String>,
}

/// Decides for the program at `path`; for a script, that is its interpreter. `only` are the names to which the start is
/// limited.
pub fn prepare_heap(options: &HeapOptions, only: &[String], path: &Path, machine: &MachineFacts) -> HeapStart {
    if options.pages == HeapPages::Off {
        return HeapStart::default();
    }
    let environment = Environment::of_this_process();
    let chosen = match Program::read_at_start(path, &environment) {
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
        without_heap: None,
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
        HeapPages::Pool(size) => pool_share(size, options, machine),
        HeapPages::Thp | HeapPages::Auto | HeapPages::Off => Ok(NO_PAGES),
    };
    let context = Context {
        pages: options.pages,
        forced: options.forced,
        not_replaceable: allocator.not_replaceable(program),
        thp: machine.thp.map_or(ThpMode::Never, |thp| thp.mode),
        grain: grain(machine)?,
        library: library().and_then(|path| for_glibc_of(program, path)),
        pool: *pool.as_ref().unwrap_or(&NO_PAGES),
        chosen_nodes: options.numa != Numa::Own,
        only: only.join(","),
        environment,
    };
    let mut choice = choose(&allocator, &context);
    if let HeapPages::Pool(size) = options.pages
        && let Some(pool_bytes) = choice.preload.as_ref().map(|preload| preload.pool_bytes)
    {
        choice.refusals.extend(match pool_bytes {
            0 => Some(pool.map_or_else(|why| said(&why), |_| no_pages(size, options, machine))),
            needed => too_few_pages(size, needed, options.numa, machine),
        });
    }
    let is_placed = matches!(options.pages, HeapPages::Pool(_)) && choice.preload.is_some();
    if options.numa != Numa::Own && !is_placed {
        choice.reasons.push(NOT_PLACED.to_owned());
    }
    if options.reserve.is_some() && !is_placed {
        choice.reasons.push(NOT_RESERVED.to_owned());
    }
    Some((allocator, choice))
}

const NO_PAGES: [NodePages; MOST_NODES] = [NodePages { node: 0, pages: 0 }; MOST_NODES];

/// The part of `--numa` that does not concern a heap.
const NOT_PLACED: &str = "--numa chooses the nodes of pool pages of the preloaded heap only: other memory of the heap \
     follows the program's own memory policy (numactl --membind)";

/// Why a heap takes no pages by `--heap-reserve`.
const NOT_RESERVED: &str =
    "--heap-reserve has no effect: only a preloaded heap on pool pages, --heap=2M for example, takes them at the start";

/// A reason with its fix.
fn said(why: &Reason) -> String {
    why.fix().map_or_else(|| why.to_string(), |fix| format!("{why}; fix: {fix}"))
}

/// Why the pool has no page for this process, and the command that fixes it.
fn no_pages(size: PageSize, options: &HeapOptions, machine: &MachineFacts) -> String {
    let HeapOptions { numa, reserve, .. } = *options;
    let pages = reserve.map_or_else(|| "NUMBER".to_owned(), |bytes| size.pages_for(bytes).to_string());
    let pools = pools_at(&System, POOLS);
    let free = pools.iter().find(|pool| pool.size == size).map_or(0, |pool| pool.available);
    let limits = Cgroups::of(&System, "/proc/self").limits(&System, &[size]);
    let nodes = machine.numa.as_ref().and_then(|facts| nodes_for(facts, numa).ok()).unwrap_or_default();
    let elsewhere = machine.pool(size).map_or(0, |pool| pool_on(machine, pool, &nodes).elsewhere);
    match (limits.hugetlb_of(size).filter(|limit| free > 0 && limit.left < size.bytes()), nodes.iter().next()) {
        (Some(HugetlbLimit { file, .. }), _) => {
            let file = quoted_path(file);
            format!("a cgroup allows no more pages of {size}, of which the pool has {free}; fix: echo BYTES > {file}")
        }
        (None, Some(node)) if elsewhere > 0 => format!(
            "found no free page of {size} in the pool on {nodes}; {elsewhere} on other nodes may not be used; fix: pagelift pool \
             reserve {}:{pages}@{node}{}",
            size.word(),
            half(reserve)
        ),
        _ => format!(
            "found {free} free {} of {size} in the pool; {}",
            agreeing(free, "page"),
            fix(size, &pages, reserve)
        ),
    }
}

/// Why the pool has fewer free pages for this process than `needed` bytes, and the command that fixes it; `None` if it
/// has enough.
fn too_few_pages(size: PageSize, needed: u64, numa: Numa, machine: &MachineFacts) -> Option<String> {
    let pool = machine.pool(size)?;
    let nodes = machine.numa.as_ref().and_then(|facts| nodes_for(facts, numa).ok());
    let anywhere = PoolOnNodes { here: pool.available, elsewhere: 0 };
    let PoolOnNodes { here, elsewhere } = nodes.as_ref().map_or(anywhere, |nodes| pool_on(machine, pool, nodes));
    let found = here.saturating_mul(size.bytes());
    if found >= needed {
        return None;
    }
    let limits = Cgroups::of(&System, "/proc/self").limits(&System, &[size]);
    let all = pools_at(&System, POOLS).iter().find(|pool| pool.size == size).map_or(0, |pool| pool.available);
    let limit = limits.hugetlb_of(size).filter(|limit| limit.left < needed && all >= size.pages_for(needed));
    let rest = "the rest is on transparent huge pages";
    if let Some(HugetlbLimit { left, limit, file, .. }) = limit {
        let enough = limit.saturating_sub(*left).saturating_add(needed);
        let (left, needed, file) = (format_bytes(*left), format_bytes(needed), quoted_path(file));
        return Some(format!(
            "a cgroup allows {left} more of {size} pages, needed {needed}; fix: echo {enough} > {file}; {rest}"
        ));
    }
    let (on, at) = match nodes.as_ref().and_then(|nodes| nodes.iter().next().map(|first| (nodes, first))) {
        Some((nodes, first)) if elsewhere > 0 => (format!(" on {nodes}"), format!("@{first}")),
        _ => (String::new(), String::new()),
    };
    Some(format!(
        "found {} free in the pool of {size} pages{on}, needed {}; fix: pagelift pool reserve {}:{}{at}; {rest}",
        format_bytes(found),
        format_bytes(needed),
        size.word(),
        size.pages_for(needed)
    ))
}

/// The number of pages that a heap takes without `--heap-reserve`.
const fn half(reserve: Option<u64>) -> &'static str {
    match reserve {
        Some(_) => "",
        None => " (the heap takes half of the free pages, or what --heap-reserve names)",
    }
}

/// The command that fills the pool with `pages`.
fn fix(size: PageSize, pages: &str, reserve: Option<u64>) -> String {
    let file = format!("{}/nr_hugepages", machine_facts::pool_directory(size, None));
    if !Path::new(&file).exists() {
        return format!("this machine has no huge pages of {size}");
    }
    format!(
        "fix: pagelift pool reserve {}:{pages}{}, or for large pages hugepagesz= and hugepages= when booting",
        size.word(),
        half(reserve)
    )
}

/// The pages of the pool that the heap takes, by node: from the nodes that `--numa`, or else the process's cpuset and
/// memory policy, allows.
fn pool_share(
    size: PageSize,
    options: &HeapOptions,
    machine: &MachineFacts,
) -> Result<[NodePages; MOST_NODES], Reason> {
    let Some(pool) = machine.pool(size) else { return Ok(NO_PAGES) };
    let Some(facts) = &machine.numa else {
        return match options.numa {
            Numa::Node(node) if node != 0 => Err(Reason::NodeForbidden { node, allowed: Nodes::from_iter([0]) }),
            _ => Ok(share_by_node(&NO_PAGES, pages_to_take(size, pool.available, options.reserve), 0)),
        };
    };
    let nodes = nodes_for(facts, options.numa)?;
    let pages = pages_to_take(size, pool_on(machine, pool, &nodes).here, options.reserve);
    let free = |facts: &NodeFacts| {
        let of_size = facts.pools.iter().filter(|(of, _)| *of == size);
        NodePages { node: facts.node, pages: of_size.map(|(_, free)| free).sum() }
    };
    let mut by_node = NO_PAGES;
    let with_pages = facts.nodes.iter().filter(|facts| nodes.contains(facts.node)).map(free);
    by_node.iter_mut().zip(with_pages.filter(|node| node.pages > 0)).for_each(|(place, node)| *place = node);
    let home = nodes.iter().next().unwrap_or(0);
    Ok(match options.numa {
        Numa::Interleave => share_evenly(&by_node, pages, home),
        Numa::Own | Numa::Local | Numa::Node(_) => share_by_node(&by_node, pages, home),
    })
}

/// Variables for the heap of a followed program.
pub struct HeapAtExec {
    /// Variables to be set, `NAME=VALUE`.
    pub variables: Vec<CString>,
    /// Requests that are not possible for this program, with the reasons.
    pub refusals: Vec<String>,
    /// Options that have no effect for this program, with the reasons.
    pub notes: Vec<String>,
    /// The variables include the preloaded heap.
    pub preloads: bool,
    /// The heap gets huge pages only if it is collapsed from outside.
    pub needs_collapse: bool,
}

/// Decides for the program that a process has just executed, in that process's environment. `None` if it is not an ELF program
/// of this machine.
pub fn heap_at_exec(options: &HeapOptions, pid: i32, machine: &MachineFacts) -> Option<HeapAtExec> {
    let process = ProcessFiles::of(pid);
    let environment = Environment::parse(&ENVIRONMENT.read_rest(File::open(process.path("environ")).ok()?).ok()?);
    let (file, _) = open_executed(&process).ok()??;
    let path = std::fs::read_link(process.path("exe")).ok()?;
    let program = Program::of_open(&path, &file, &environment).ok()??;
    let (_, mut choice) = choose_for(&program, options, &[], machine, &environment)?;
    if choice.preload.is_some() && library().is_ok_and(|library| !exists_in_root(&process, Path::new(&library))) {
        choice.variables.clear();
        choice.refusals.push("the preloaded heap is not in its root folder".to_owned());
    }
    let preloads = choice.preload.is_some() && !choice.variables.is_empty();
    let needs_collapse = choice.collapse && choice.variables.is_empty();
    let variable = |(name, value): &(String, String)| CString::new(format!("{name}={value}")).ok();
    let variables = choice.variables.iter().filter_map(variable).collect();
    let is_note = |why: &String| [NOT_PLACED, NOT_RESERVED].contains(&why.as_str());
    let notes = choice.reasons.into_iter().filter(is_note).collect();
    Some(HeapAtExec { variables, refusals: choice.refusals, notes, preloads, needs_collapse })
}

/// The unit in which the preloaded heap manages memory.
fn grain(machine: &MachineFacts) -> Option<PageSize> {
    let sizes = machine.thp.iter().map(|thp| thp.size).chain(machine.pools.iter().map(|pool| pool.size));
    sizes.filter(|size| size.bytes() <= LARGEST_GRAIN).max()
}

/// The path of the preloaded heap.
///
/// # Errors
/// Why it cannot be preloaded.
pub fn library() -> Result<String, String> {
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

/// Returns the library if the program's C library has the symbols that it needs: a dynamic linker ends a program that
/// preloads any other.
fn for_glibc_of(program: &Program, library: String) -> Result<String, String> {
    let found = program.libraries.iter().find_map(|library| library.glibc_minor);
    let needed =
        ElfFacts::read(Path::new(&library), Reads::Library).ok().flatten().and_then(|facts| facts.needed_glibc_minor);
    match (needed, found) {
        (Some(needed), Some(found)) if needed > found => Err(format!(
            "the preloaded heap needs symbols of GLIBC_2.{needed}, the program's C library has those up to GLIBC_2.{found}; \
             needed: a Pagelift that was built on a release as old as the program's"
        )),
        _ => Ok(library),
    }
}

/// Returns an environment, this process's if none is given, with `variables` set.
pub fn with_variables(environment: Option<Vec<CString>>, variables: &[(String, String)]) -> Vec<CString> {
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
    use lift_plan::{HugePool, NumaFacts};

    #[test]
    fn a_library_is_not_preloaded_into_an_older_c_library_than_it_needs() {
        let own = std::env::current_exe().unwrap();
        let needed = ElfFacts::read(&own, Reads::Executable).unwrap().unwrap().needed_glibc_minor;
        let of = |minor| Program {
            executable: ElfFacts::default(),
            libraries: vec![ElfFacts { glibc_minor: minor, ..ElfFacts::default() }],
            preloaded: 0,
            is_cut: false,
        };
        let path = own.display().to_string();
        // Another C library, or a static one, has no such versions.
        assert_eq!(for_glibc_of(&of(None), path.clone()), Ok(path.clone()));
        if let Some(needed) = needed {
            assert_eq!(for_glibc_of(&of(Some(needed)), path.clone()), Ok(path.clone()));
            let why = for_glibc_of(&of(Some(needed - 1)), path).unwrap_err();
            assert!(why.contains(&format!("needs symbols of GLIBC_2.{needed}, ")), "{why}");
        }
    }

    /// Two nodes with 4 and 40 free pages of 2 MiB; the process may use these.
    fn two_nodes(allowed: &[u32], bound: Option<u32>) -> MachineFacts {
        let size = PageSize::new(2 << 20).unwrap();
        let node = |node, free| NodeFacts { node, pools: vec![(size, free)], memory: 1 << 30 };
        let numa = NumaFacts {
            nodes: vec![node(0, 4), node(1, 40)],
            allowed: allowed.iter().copied().collect(),
            bound: bound.map(|node| Nodes::from_iter([node])),
            running_on: Some(1),
            cpus: Nodes::from_iter([0, 1]),
        };
        let machine = machine_facts::machine_facts(std::process::id() as i32);
        MachineFacts { pools: vec![HugePool { size, total: 44, available: 44 }], numa: Some(numa), ..machine }
    }

    #[test]
    fn a_heap_takes_pages_only_of_nodes_that_it_may_use() {
        let size = PageSize::new(2 << 20).unwrap();
        let shares = |machine: &MachineFacts, numa, pages: Option<u64>| {
            let options = HeapOptions { numa, reserve: pages.map(|pages| pages << 21), ..HeapOptions::default() };
            let shares = pool_share(size, &options, machine)?;
            Ok(shares.iter().filter(|node| node.pages > 0).map(|node| (node.node, node.pages)).collect::<Vec<_>>())
        };
        let both = two_nodes(&[0, 1], None);
        assert_eq!(shares(&both, Numa::Own, Some(11)), Ok(vec![(0, 1), (1, 10)]));
        assert_eq!(shares(&two_nodes(&[0], None), Numa::Own, None), Ok(vec![(0, 2)]));
        assert_eq!(shares(&two_nodes(&[0, 1], Some(0)), Numa::Own, None), Ok(vec![(0, 2)]));
        assert_eq!(shares(&two_nodes(&[0, 1], Some(0)), Numa::Own, Some(9)), Ok(vec![(0, 9)]));
        assert_eq!(shares(&two_nodes(&[0, 1], Some(0)), Numa::Node(1), Some(9)), Ok(vec![(1, 9)]));
        assert_eq!(shares(&both, Numa::Local, None), Ok(vec![(1, 20)]));
        assert_eq!(shares(&both, Numa::Interleave, Some(10)), Ok(vec![(0, 4), (1, 6)]));
        let forbidden = Reason::NodeForbidden { node: 1, allowed: Nodes::from_iter([0]) };
        assert_eq!(shares(&two_nodes(&[0], None), Numa::Node(1), None), Err(forbidden.clone()));
        assert_eq!(shares(&MachineFacts { numa: None, ..both }, Numa::Node(1), None), Err(forbidden));
        assert!(
            said(&Reason::NodeForbidden { node: 1, allowed: Nodes::from_iter([0]) }).contains("; fix: --numa node=0")
        );
    }

    #[test]
    fn pages_on_other_nodes_are_named() {
        let size = PageSize::new(2 << 20).unwrap();
        let mut machine = two_nodes(&[0, 1], Some(0));
        machine.numa.as_mut().unwrap().nodes[0].pools.clear();
        machine.pools[0].available = 40;
        let options = |reserve| HeapOptions { reserve, ..HeapOptions::default() };
        let expected = "found no free page of 2 MiB in the pool on node 0; 40 on other nodes may not be used; fix: pagelift pool \
                        reserve 2M:";
        let half = "NUMBER@0 (the heap takes half of the free pages, or what --heap-reserve names)";
        assert_eq!(no_pages(size, &options(None), &machine), format!("{expected}{half}"));
        assert_eq!(no_pages(size, &options(Some(5 << 20)), &machine), format!("{expected}3@0"));
    }

    #[test]
    fn a_pool_that_is_smaller_than_the_reserve_is_reported_with_the_command() {
        let size = PageSize::new(2 << 20).unwrap();
        let needed = |pages: u64| pages << 21;
        let mut machine = two_nodes(&[0, 1], None);
        // Pages of the test machine do not matter: its cgroup decides only if its pool has what is needed.
        let many = 1 << 40;
        assert_eq!(too_few_pages(size, needed(44), Numa::Own, &machine), None);
        let why = too_few_pages(size, many, Numa::Own, &machine).unwrap();
        let expected = "found 88.0 MiB free in the pool of 2 MiB pages, needed 1.0 TiB; fix: pagelift pool reserve 2M:524288; \
                        the rest is on transparent huge pages";
        assert_eq!(why, expected);
        let why = too_few_pages(size, many, Numa::Node(1), &machine).unwrap();
        let (found, fix) = ("found 80.0 MiB free in the pool of 2 MiB pages on node 1, ", " 2M:524288@1; ");
        assert!(why.starts_with(found) && why.contains(fix), "{why}");
        machine.numa = None;
        machine.pools[0].available = 0;
        let why = too_few_pages(size, many, Numa::Own, &machine).unwrap();
        assert!(why.starts_with("found 0 B free in the pool of 2 MiB pages, needed 1.0 TiB; fix: "), "{why}");
        machine.pools.clear();
        assert_eq!(too_few_pages(size, many, Numa::Own, &machine), None, "another reason is given");
    }

    #[test]
    fn a_variable_is_set_once() {
        let environment = with_variables(None, &[("PATH".to_owned(), "/nowhere".to_owned())]);
        let paths: Vec<_> = environment.iter().filter(|v| v.to_bytes().starts_with(b"PATH=")).collect();
        assert_eq!(paths, [c"PATH=/nowhere"]);
    }
}
